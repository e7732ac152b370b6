"""Agents that know no token and no address but a pod's get their permits from the controller that leads."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from ipaddress import ip_network
from typing import Any

import pytest

from devalloc.machines.permits.caller_auth import NODE_NAME_KEY
from devalloc.scaling.permits.endpoint import NAME, PublishedEndpoint, parse_endpoint
from devalloc.store.kubernetes import ApiError, KubernetesStore
from devalloc_neon import permit_proxy as proxy_module
from devalloc_neon.permit_proxy import PermitProxy, ReadEndpoint
from devalloc_neon.plain_port import PlainListener
from tests.support.fake_kube import FakeClient, FakeKube
from tests.support.host_pools import host
from tests.support.permit_bench import Client, amounts, machine, permit_of, running, write_status_part
from tests.support.waiting import until
from tests.unit.machines.permits.test_leader import NAMESPACE, leading

HERE = (ip_network("127.0.0.2/32"),)
CUT = (ConnectionError, http.client.HTTPException)


@pytest.fixture
def kube(monkeypatch: pytest.MonkeyPatch) -> FakeKube:
    """A machine with a runner pod, and the accounts of a node's plugin and of the proxy."""
    monkeypatch.setattr(proxy_module, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(proxy_module, "LEAST_SECONDS", 0.05)
    kube = FakeKube()
    kube.users["proxy"] = {"username": "proxy", "extra": {NODE_NAME_KEY: ["node-a"]}}
    kube.users["stranger"] = {"username": "stranger", "extra": {NODE_NAME_KEY: ["node-a"]}}
    right = {"group": "devalloc.io", "resource": "virtualmachines", "subresource": "permits", "verb": "proxy"}
    kube.allowed = lambda spec: (spec["user"], spec["resourceAttributes"]) == ("proxy", right)
    with closing(KubernetesStore(FakeClient(kube))) as store:  # type: ignore[arg-type]
        store.create(host("node-a", cpus=8, memory=16))
        running(store, machine("web", most=amounts(8000, 16)))
        write_status_part(store, "web", runnerPod="web-x7k2p")
    return kube


@contextmanager
def proxying(
    kube: FakeKube, token: str = "proxy", read: ReadEndpoint | None = None
) -> Iterator[tuple[PermitProxy, tuple[str, int]]]:
    def published() -> tuple[PublishedEndpoint, str]:
        try:
            return parse_endpoint(kube.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/{NAME}")), token
        except ApiError as error:
            raise ValueError(str(error)) from None

    places: list[tuple[str, int]] = []
    proxy = PermitProxy(
        read or published, PlainListener("127.0.0.1", 0, HERE), ("127.0.0.1", 0), on_ready=places.append
    )
    thread = threading.Thread(target=proxy.run, daemon=True)
    thread.start()
    try:
        until(lambda: places, "it listens")
        yield proxy, places[0]
    finally:
        proxy.stop()
        thread.join(60)
        assert not thread.is_alive()


def agent(place: tuple[str, int], source: str = "127.0.0.2") -> Client:
    client = Client(place)
    client._connection.source_address = (source, 0)
    return client


def readiness(proxy: PermitProxy, path: str = "/readyz") -> tuple[int, str]:
    assert proxy.health is not None
    with closing(http.client.HTTPConnection(*proxy.health, timeout=30)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_it_is_ready_while_a_controller_leads_and_forwards_to_the_next_one(kube: FakeKube) -> None:
    with proxying(kube) as (proxy, place), closing(agent(place)) as client:
        assert readiness(proxy)[0] == 503
        assert readiness(proxy, "/healthz") == (200, "ok"), "it lives, and is not to be restarted"
        assert readiness(proxy, "/metrics")[0] == 404
        body = json.dumps(client.message("web-x7k2p", 2, "2Gi")).encode()
        assert client.post(body)[0] == 503
        with leading(kube, "one"):
            until(lambda: readiness(proxy)[0] == 200, "it is ready", context=lambda: readiness(proxy))
            assert client.ask("web-x7k2p", 2, "2Gi") == {"permit": {"vCPUs": 2, "mem": "2Gi"}}
        until(lambda: readiness(proxy)[0] == 503, "there is no leader")
        status, _, text = client.post(body)
        assert (status, text) == (503, b"no controller grants permits now; ask again")
        with leading(kube, "two") as second:
            until(lambda: readiness(proxy)[0] == 200, "the next one answers", context=lambda: readiness(proxy))
            assert client.ask("web-x7k2p", 3, "3Gi", last=None) == {"permit": {"vCPUs": 3, "mem": "3Gi"}}
            permit: Any = permit_of(second.store, "web")
            assert (permit["cpus"], permit["givenBy"]) == ("3", "two")


def test_it_asks_for_machines_by_their_runner_pods_only(kube: FakeKube) -> None:
    with leading(kube, "one"), proxying(kube) as (proxy, place), closing(agent(place)) as client:
        until(lambda: readiness(proxy)[0] == 200, "it is ready")
        for name in ("web", "nobody"):
            status, _, text = client.post(json.dumps(client.message(name, 2, "2Gi")).encode())
            assert (status, text) == (404, b"pod not found"), name
        status, _, text = client.post(b"{}")
        assert status == 400, "the agent gets what the controller refuses"
        assert client.post(b"x" * 100_000)[0] == 400
        assert readiness(proxy)[0] == 200


def test_other_addresses_are_cut_off(kube: FakeKube, caplog: pytest.LogCaptureFixture) -> None:
    with leading(kube, "one"), proxying(kube) as (_, place):
        with closing(agent(place, "127.0.0.3")) as client, pytest.raises(CUT):
            client.ask("web-x7k2p", 2, "2Gi")
        assert "127.0.0.3" in caplog.text


def test_an_account_without_the_right_is_not_ready_and_says_why(kube: FakeKube) -> None:
    with leading(kube, "one"), proxying(kube, "stranger") as (proxy, place), closing(agent(place)) as client:
        until(lambda: "403" in readiness(proxy)[1], "it says why", context=lambda: readiness(proxy))
        assert "virtualmachines/permits" in readiness(proxy)[1]
        assert client.post(json.dumps(client.message("web-x7k2p", 2, "2Gi")).encode())[0] == 503


def test_while_the_api_server_is_away_many_agents_ask_it_once(kube: FakeKube, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_module, "LEAST_SECONDS", 60.0)
    reads = []

    def read() -> tuple[PublishedEndpoint, str]:
        reads.append(1)
        time.sleep(0.2)
        raise ValueError("the API server is away")

    with proxying(kube, read=read) as (proxy, place):

        def ask(_: int) -> int:
            with closing(agent(place)) as client:
                return client.post(json.dumps(client.message("web-x7k2p", 2, "2Gi")).encode())[0]

        with ThreadPoolExecutor(20) as pool:
            assert set(pool.map(ask, range(20))) == {503}
        assert readiness(proxy) == (503, "the API server is away")
    assert len(reads) == 1


def test_what_an_agent_asked_that_has_gone_is_not_decided(kube: FakeKube, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have asked anew, and an older request must not be answered after a newer one."""
    answers = threading.Event()

    def read() -> tuple[PublishedEndpoint, str]:
        answers.wait(60)
        return parse_endpoint(kube.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/{NAME}")), "proxy"

    with leading(kube, "one") as leader, proxying(kube, read=read) as (proxy, place):
        with closing(agent(place)) as client:
            client._connection.request("POST", "/", json.dumps(client.message("web-x7k2p", 2, "2Gi")))
        time.sleep(1)  # the API server takes so long
        answers.set()
        until(lambda: readiness(proxy)[0] == 200, "it is ready")
        with closing(agent(place)) as client:
            assert client.post(json.dumps(client.message("nobody", 2, "2Gi")).encode())[0] == 404
        assert permit_of(leader.store, "web") is None


def test_agents_get_503_while_the_token_of_the_proxy_is_refused(kube: FakeKube) -> None:
    with leading(kube, "one"), proxying(kube, "unknown") as (proxy, place), closing(agent(place)) as client:
        body = json.dumps(client.message("web-x7k2p", 2, "2Gi")).encode()
        statuses = set()
        while not readiness(proxy)[1].startswith("the controller refuses this proxy with 429"):
            statuses.add(client.post(body)[0])
            assert readiness(proxy)[0] == 503
        for _ in range(10):
            statuses.add(client.post(body)[0])
            assert readiness(proxy)[0] == 503
        assert statuses == {503}
