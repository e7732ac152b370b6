"""Permits of a cluster's controller: two of them with the rights that they ship with, one of which is killed and one
stands still; nodes that ask with their own tokens; and every state that the machines ever had."""

from __future__ import annotations

import asyncio
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from devalloc.programs.node_parts import cluster_permits
from devalloc.scaling.messages.permits import PodName
from devalloc.scaling.resources import Resources
from devalloc.store.kubernetes import Client, KubernetesStore
from devalloc_machines.agent.http_client import new_session
from devalloc_machines.agent.permit_client import HttpPermits
from devalloc_node.errors import Denied
from tests.support import kube_rights
from tests.support.controller_processes import NAMESPACE
from tests.support.host_pools import host
from tests.support.kube_api import Cluster
from tests.support.permit_bench import GIB, amounts, machine, permit_of, running
from tests.support.permit_storm_cluster import POOLS, ClusterStorm, controller, listens, place, prepared_cluster
from tests.support.waiting import until

UNIT = Resources(250, GIB // 4)
OTHER = "permits-other"


@pytest.fixture
def nodes(cluster: Cluster) -> Iterator[Cluster]:
    with prepared_cluster(cluster, "node-a", OTHER):
        yield cluster


def test_whatever_happens_to_controllers_a_node_gives_no_more_than_it_has(nodes: Cluster, tmp_path: Path) -> None:
    storm = ClusterStorm(nodes, tmp_path, seed=11, machines=6, units=28)
    try:
        tally = storm.run(110, between_kills=45)
    finally:
        storm.close()
    assert tally.wrong == []
    assert tally.kills == tally.replaced == 1
    assert tally.granted > 0
    assert tally.full > 0  # the whole node was given away, however few requests a busy machine makes
    assert storm.states > 50


def ask(kubeconfig: Path, name: str, wanted: Resources, last: Resources | None = None) -> Resources:
    """As the agent of a node does it that has this kubeconfig."""

    async def request_permit() -> Resources:
        async with new_session() as session:
            server = cluster_permits(Client.connect(kubeconfig), NAMESPACE)
            return await HttpPermits(session, server, PodName("default", name), UNIT).ask(last, wanted, None)

    return asyncio.run(request_permit())


def post(url: str, certificate: str, token: str | None) -> int:
    """The status of a request that says nothing."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(url, b"{}", headers)
    try:
        context = ssl.create_default_context(cadata=certificate)
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_only_a_node_gets_permits_and_only_for_its_own_machines(nodes: Cluster, tmp_path: Path) -> None:
    assert nodes.create(POOLS, host("node-a", cpus=8, memory=16)).ok
    with closing(KubernetesStore(Client.connect(nodes.kubeconfig("admin")))) as store:
        running(store, machine("web"))
        process = controller(nodes, tmp_path, "one", "30s")
        process.start()
        try:
            where = until(lambda: (permit := place(nodes)) and listens(permit) and permit, "permits are given")
            own, others = (kube_rights.kubeconfig(nodes, name) for name in ("node-a", OTHER))
            assert ask(own, "web", amounts(2000, 4)) == amounts(2000, 4)
            permit: Any = permit_of(store, "web")
            assert (permit["cpus"], permit["memory"]) == ("2", "4Gi")
            assert ask(own, "web", amounts(64_000, 64), amounts(2000, 4)) == amounts(8000, 16), "all there is"
            with pytest.raises(Denied, match="403: this machine is not on the node that the token names"):
                ask(others, "web", amounts(250, 1))
            assert permit_of(store, "web") == permit | {"cpus": "8", "memory": "16Gi"}
            tokens = {
                None: 401,
                "made-up": 401,
                nodes.token: 403,  # the administrator's: it names no node
                nodes.tokens["system:node:node-a"]: 403,  # the kubelet's
                kube_rights.token(nodes, "devalloc-controller"): 403,
                Client.connect(own).token(): 400,  # it was let in, and said nothing
            }
            for token, status in tokens.items():
                assert post(where.url, where.certificate, token) == status
        finally:
            process.close()
    assert "forbidden" not in process.output().lower(), process.output()
