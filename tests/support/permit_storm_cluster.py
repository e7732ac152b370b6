"""The storm of permits on a cluster: two controllers with the rights that they ship with, one of which is killed or
stands still; and every state that the machines ever had at the API server is looked at."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from devalloc.scaling.permits.endpoint import NAME, PublishedEndpoint, parse_endpoint
from devalloc.scaling.resources import NO_RESOURCES, Resources
from devalloc.store import Object, Store
from devalloc.store.kubernetes import ApiError, Client, KubernetesStore
from tests.support import kube_crds, kube_rights
from tests.support.controller_processes import LEASE, NAMESPACE, Process, leader_process
from tests.support.host_pools import host
from tests.support.kube_api import Cluster
from tests.support.permit_bench import GIB, NODE
from tests.support.permit_storm import PermitStorm, in_bytes, milli
from tests.support.waiting import until

OPTIONS = ("--permits", "127.0.0.1:0")
MACHINES = "/apis/devalloc.io/v1alpha1/namespaces/default/virtualmachines"
POOLS = "/apis/devmgmtproto.k8s.io/v1alpha1/devicepools"
CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
USER = "devalloc-controller"


@contextmanager
def prepared_cluster(cluster: Cluster, *nodes: str) -> Iterator[None]:
    """With CRDs, rights and these nodes; afterwards without nodes, machines and what controllers left."""
    kube_crds.install(cluster)
    kube_rights.install(cluster, "both", permits=True)
    for name in nodes:
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
        answer = cluster.create("/api/v1/nodes", body)
        assert answer.ok or answer.status == 409, answer.message
    try:
        yield
    finally:
        for name in nodes:
            cluster.delete(f"/api/v1/nodes/{name}")
        for path in (MACHINES, POOLS):
            for obj in cluster.get(path).content["items"]:
                cluster.delete(f"{path}/{obj['metadata']['name']}")
        for path in (LEASE, f"{CONFIG_MAPS}/{NAME}", f"{CONFIG_MAPS}/{NAME}-usage"):
            cluster.delete(path)


def controller(cluster: Cluster, folder: Path, name: str, lease: str = "6s") -> Process:
    """One that gives permits, with the rights that it ships with."""
    own = replace(cluster, tokens={**cluster.tokens, USER: kube_rights.token(cluster, "devalloc-controller")})
    process = Process(own, folder, name, lease, *OPTIONS)
    process.user = USER
    return process


def place(cluster: Cluster) -> PublishedEndpoint | None:
    """Where permits are given, by what is written of it."""
    answer = cluster.get(f"{CONFIG_MAPS}/{NAME}")
    return parse_endpoint(answer.content) if answer.ok else None


def listens(server: PublishedEndpoint | None) -> bool:
    """Whether a server is there."""
    if server is None:
        return False
    with suppress(OSError), socket.create_connection(("127.0.0.1", urlsplit(server.url).port or 0), timeout=10):
        return True
    return False


class HistoryJudge(threading.Thread):
    """Looks at each state of the machines in the API server's history, in its order."""

    def __init__(self, cluster: Cluster, limit: Resources) -> None:
        super().__init__(daemon=True)
        self.wrong: list[str] = []
        self.states = 0
        self._limit = limit
        self._over = threading.Event()
        self._client = Client.connect(cluster.kubeconfig("admin"))
        self._has: dict[str, Resources] = {}
        (page,) = self._client.list(MACHINES)
        self._version = page["metadata"]["resourceVersion"]
        for obj in page["items"]:
            self._see(obj)

    def run(self) -> None:
        while not self._over.is_set():
            with suppress(ApiError):
                for event in self._client.watch(MACHINES, {}, self._version, self._over):
                    self._version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] == "DELETED":
                        self._has.pop(event["object"]["metadata"]["name"], None)
                    elif event["type"] != "BOOKMARK":
                        self._see(event["object"])

    def end(self, version: str) -> None:
        """When it has seen up to there."""
        until(lambda: int(self._version) >= int(version), "the judge has seen all")
        self._over.set()
        self.join(60)

    def _see(self, obj: Object) -> None:
        self.states += 1
        self._has[obj["metadata"]["name"]] = counts_for(obj)
        sums = Resources(sum(each.cpu for each in self._has.values()), sum(each.memory for each in self._has.values()))
        if sums.exceeds(self._limit):
            self.wrong.append(f"at {obj['metadata']['resourceVersion']} the machines have {sums} of {self._limit}")


def counts_for(obj: Object) -> Resources:
    """What a machine has by its object: its least, its permit in this run and what it may go by beside that, what its
    node told of it."""
    spec, status = obj["spec"], obj.get("status", {})
    parts = [{"cpus": spec["cpu"]["min"], "memory": spec["memory"]["min"]}, status.get("observed")]
    permitted = status.get("permitted") or {}
    if permitted.get("givenBy") and permitted.get("machineID") in (None, status.get("machineID")):
        parts += [permitted, permitted.get("kept")]
    counted = NO_RESOURCES
    for part in parts:
        if part:
            counted = counted.most(Resources(milli(part["cpus"]), in_bytes(part["memory"])))
    return counted


class ClusterStorm(PermitStorm):
    """The same machines, and a node of a cluster."""

    def __init__(self, cluster: Cluster, folder: Path, seed: int, *, machines: int = 20, units: int = 92) -> None:
        """``units``: a multiple of 4, so that there are whole CPUs."""
        self._cluster = cluster
        self._client = Client.connect(cluster.kubeconfig("admin"))
        assert cluster.create(POOLS, host(NODE, cpus=units // 4, memory=units // 4, numa=1)).ok
        super().__init__(folder, seed, machines=machines, units=units)
        assert self.limit == Resources(units * 250, units * GIB // 4)
        self._processes = [controller(cluster, folder, f"controller-{number}", "4s") for number in range(2)]
        kubeconfig = kube_rights.kubeconfig(cluster, NODE)
        token = Client.connect(kubeconfig).token()
        assert token is not None
        self._headers = b"Authorization: Bearer " + token.encode() + b"\r\n"
        self._place: PublishedEndpoint | None = None
        self._is_ending = False
        """One of them is waited for, so that none is started again."""
        self.states = 0
        """Of machines, that were looked at."""

    def close(self) -> None:
        for process in self._processes:
            process.close()

    def _is_replaced(self) -> bool:
        return self.tally.kills > self.tally.replaced

    def _opened(self) -> AbstractContextManager[Store]:
        return closing(KubernetesStore(self._client))

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if not self._is_ending:
            for process in self._processes:
                process.start()  # where it has lost its lease, on a busy machine
        self._place = await asyncio.to_thread(place, self._cluster)
        assert self._place is not None
        trusted = ssl.create_default_context(cadata=self._place.certificate)
        return await asyncio.open_connection("127.0.0.1", urlsplit(self._place.url).port, ssl=trusted)

    def _start(self, *more: str) -> None:
        """Both run, and one of them serves."""

        def serving() -> bool:
            for process in self._processes:
                process.start()  # where it has ended meanwhile
            self._place = place(self._cluster)
            return listens(self._place)

        until(serving, "one of them gives permits")
        self._process = cast(Any, self._processes)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            leader = until(lambda: leader_process(self._cluster, self._processes), "one leads")
            self._is_ending = True
            leader.signal(how)
            leader.wait()
            self._is_ending = False
            self._process = None

    async def _replace(self, store: Store) -> None:
        """The leader stands still until the other one has answered, and goes on."""
        self.tally.replaced += 1
        old = await asyncio.to_thread(until, lambda: leader_process(self._cluster, self._processes), "one leads")
        self._is_ending = True
        old.signal(signal.SIGSTOP)
        mixed = self._random.sample(self._agents, len(self._agents))
        stuck = [asyncio.create_task(self._ask(agent)) for agent in mixed[: len(mixed) // 3]]
        await asyncio.sleep(0.1)  # they are on their way
        for agent in mixed[: len(mixed) // 3]:
            self._links.pop(agent.name, None)
        before = self._place

        def another() -> bool:
            self._place = place(self._cluster)
            return self._place != before and listens(self._place)

        await asyncio.to_thread(until, another, "the other one gives permits")
        self._hang_up()
        for _ in range(3):
            await asyncio.gather(*(self._ask(agent) for agent in mixed[len(mixed) // 3 :]))
        old.signal(signal.SIGCONT)
        await asyncio.gather(*stuck)
        self._check_agents(store)
        assert await asyncio.to_thread(old.wait) == 1, "it ends: it has lost its lease"
        self._is_ending = False

    async def _come(self, body: bytes) -> None:
        """Who gives up closes the connection, of which TLS has the server know."""

    def _check_store(self, over: threading.Event) -> None:
        judge = HistoryJudge(self._cluster, self.limit)
        judge.start()
        over.wait()
        judge.end(self._client.get(MACHINES, {"limit": "1"})["metadata"]["resourceVersion"])
        self.tally.wrong += judge.wrong
        self.states = judge.states


__all__ = ["ClusterStorm", "HistoryJudge", "controller", "listens", "place", "prepared_cluster"]
