"""One process of the controller on an API server in memory: how long it believes what, and what it says of itself."""

from __future__ import annotations

import asyncio
import math
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import pytest

from devalloc.api.meta import LEADER
from devalloc.controller import http_endpoints
from devalloc.controller.http_endpoints import LoopHealth, ProcessHealth
from devalloc.controller.leader.lease import Lease
from devalloc.controller.reconcile.device_claims import DeviceClaimRound
from devalloc.controller.reconcile.loop import AllocatorSettings
from devalloc.machines.permits.leader_server import PermitListenAddress
from devalloc.programs.controller_settings import ControllerSettings
from devalloc.store import Unavailable
from devalloc.store.kubernetes import ApiError
from tests.support.controllers import Controller
from tests.support.fake_kube import FakeClient, FakeKube
from tests.support.fleet_manifests import gpu_claim
from tests.support.neon_installation import MACHINES
from tests.support.ports import free_ports
from tests.support.waiting import until


class Clock:
    now = 0.0


class Dead(FakeClient):
    """Some of its connections are dead: a request takes all the time that it has, and gets no answer."""

    def __init__(self, kube: FakeKube, clock: Clock) -> None:
        super().__init__(kube)
        self.clock, self.connections = clock, ["good"]
        self.sent: list[float] = []
        """When the lease was written."""

    def replace(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.sent.append(self.clock.now)
        if self.connections.pop() == "dead":
            self.clock.now += self.patience
            raise ApiError(0, "NoAnswer", "timed out")
        return super().replace(path, body)


@pytest.mark.parametrize("seconds", [15.0, 3.0])
def test_one_dead_connection_does_not_cost_the_lease(seconds: float) -> None:
    clock, deadline = Clock(), seconds * 2 / 3
    client = Dead(FakeKube(), clock)
    cluster = Controller(client, ControllerSettings(name="one", lease=seconds))
    cluster.lease._clock = lambda: clock.now
    assert cluster.lease.take()
    clock.now += seconds / 3  # when it is renewed
    client.connections[:] = ["good", "dead"]
    cluster.lease.renew()
    hung, again = client.sent
    assert (hung, again) == (pytest.approx(seconds / 3), clock.now)
    assert again < deadline, "it was sent again in time"
    cluster.close()


# -- health ------------------------------------------------------------------------------------------------------------


def seen(state: str = "leading", taking_over: float | None = None, **loop: Any) -> ProcessHealth:
    return ProcessHealth(
        state,
        1000.0,
        taking_over,
        (LoopHealth("DeviceClaims", None), LoopHealth("ResourceClaims", **{"began": None} | loop)),
    )


@pytest.mark.parametrize(
    ("what", "late", "stuck"),
    [
        (seen(), None, None),
        (seen(taking_over=990), None, None),
        (seen(taking_over=930), "taking over from the last leader for 70 s", None),
        (seen(taking_over=10), "taking over", "taking over from the last leader does not finish"),
        (seen(began=200.0), None, None),
        (seen(began=10.0), "a round of ResourceClaims does not end", "a round of ResourceClaims does not end"),
        (seen(failing=930.0), "ResourceClaims: everything has failed for 70 s", None),
        (seen(failing=10.0), "ResourceClaims: everything has failed for", None),
        (seen(silent_seconds=70.0), "ResourceClaims: no updates from the cluster for 70 s", None),
        (seen(silent_seconds=901.0), "no updates from the cluster", "no updates from the cluster"),
        (seen("waiting", silent_seconds=901.0), "no updates from the cluster", None),
        (seen("stopping"), "stopping", None),
        (ProcessHealth("leading", 930.0, None, ()), "is stuck", "the main loop is stuck"),
        (ProcessHealth("waiting", 1000.0, None, (), -math.inf), "the lease has not been read yet", None),
        (ProcessHealth("waiting", 1000.0, None, (), 950.0), None, None),
        (ProcessHealth("waiting", 1000.0, None, (), 10.0), "the lease could not be read for 990 s", None),
    ],
)
def test_a_late_controller_is_not_ready_and_a_stuck_one_is_not_healthy(
    what: ProcessHealth, late: str | None, stuck: str | None
) -> None:
    for problem, expected in ((what.unready(1000.0), late), (what.unhealthy(1000.0), stuck)):
        assert (problem is None) == (expected is None)
        assert (expected or "") in (problem or "")


@contextmanager
def running(
    client: FakeClient, on_round: Callable[[DeviceClaimRound], None] = lambda done: None, **settings: Any
) -> Iterator[Controller]:
    config = ControllerSettings(name="one", lease=600, **{"listen": None} | settings)
    cluster = Controller(client, config, on_round=on_round)  # type: ignore[arg-type]
    thread = threading.Thread(target=cluster.run)
    thread.start()
    try:
        yield cluster
    finally:
        cluster.stop()
        thread.join(60)
        assert not thread.is_alive()


def ready(cluster: Controller) -> tuple[int, str]:
    answer = asyncio.run(cluster._ready(None))  # type: ignore[arg-type]
    return answer.status, answer.body.decode()


def healthy(cluster: Controller) -> int:
    return asyncio.run(cluster._health(None)).status  # type: ignore[arg-type]


def test_a_controller_that_never_reached_the_api_server_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that an update does not replace those that work by those that never will."""

    def take(lease: Lease) -> bool:
        raise Unavailable("certificate verify failed")

    monkeypatch.setattr(Lease, "take", take)
    with running(FakeClient(FakeKube())) as cluster:
        until(lambda: "cannot acquire the lease" in cluster.controller.summary)
        assert (ready(cluster)[0], healthy(cluster)) == (503, 200)
        assert "certificate verify failed" in ready(cluster)[1]
        assert "Claims may not be answered: the lease has not been read yet" in cluster.trouble()


def test_a_take_over_that_does_not_end_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    kube = FakeKube()
    record = {"name": "r", "namespace": "devalloc-system", "labels": {"devalloc.io/transaction": "record"}}
    kube.create("/api/v1/namespaces/devalloc-system/configmaps", {"kind": "ConfigMap", "metadata": record})
    with running(FakeClient(kube)) as cluster:
        until(lambda: "cannot take over yet" in cluster.controller.summary)
        assert (ready(cluster)[0], healthy(cluster)) == (200, 200), "not late yet"
        monkeypatch.setattr(http_endpoints, "MAX_DELAY_SECONDS", 0.0)
        assert (ready(cluster)[0], healthy(cluster)) == (503, 200)
        assert "ConfigMap devalloc-system/r is not a record" in ready(cluster)[1]
        monkeypatch.setattr(http_endpoints, "MAX_ROUND_SECONDS", 0.0)
        assert healthy(cluster) == 503


@pytest.mark.parametrize("fails", ["rights", "webhook"])
def test_claims_do_not_wait_for_neons_machines(fails: str) -> None:
    """Their webhook is NeonVM's, and only ``install --neon`` gives rights on them."""
    kube = FakeKube()
    metadata = {"name": "vm1", "namespace": "default"}
    kube.create(MACHINES, {"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine", "metadata": metadata})
    client, is_over, whole = FakeClient(kube), threading.Event(), FakeClient.list

    def listed(path: str, params: Any = None) -> Iterator[dict[str, Any]]:
        if fails == "rights" and "vm.neon.tech" in path and not is_over.is_set():
            raise ApiError(403, "Forbidden", 'virtualmachines is forbidden: User "x" cannot list')
        yield from whole(client, path, params)

    def before(number: int, what: str) -> None:
        if fails == "webhook" and what.startswith("update") and "vm.neon.tech" in what and not is_over.is_set():
            raise ApiError(500, "InternalError", "failed calling webhook: connection refused")

    client.list, client.before = listed, before  # type: ignore[method-assign]
    permits = PermitListenAddress("127.0.0.1", 0, "127.0.0.1")
    with running(client, neon=True, permit_server=permits) as cluster:
        until(lambda: cluster.controller.state == "leading")
        if fails == "rights":  # without them devalloc's own machines get no permits either
            until(lambda: cluster._permits is not None and cluster._permits.failing is not None)
        claim = gpu_claim("c")
        kube.create("/apis/devmgmtproto.k8s.io/v1alpha1/namespaces/default/deviceclaims", claim)
        until(lambda: "update" in str(client.writes) and "/deviceclaims/c" in str(client.writes), "it is answered")
        is_over.set()
        until(lambda: cluster._permits is not None and cluster._permits.failing is None)
        until(lambda: LEADER in kube.get(f"{MACHINES}/vm1")["metadata"].get("annotations", {}))


def test_silent_watches_are_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    kube = FakeKube()
    client = FakeClient(kube)
    with running(client) as cluster:
        until(lambda: cluster.controller.state == "leading")

        def no_watch(*args: Any) -> Any:
            raise ApiError(403, "Forbidden", "no watch for you")

        client.watch = no_watch  # type: ignore[method-assign]
        kube.cut()
        until(lambda: cluster.store.silent_seconds > 0)
        assert (ready(cluster)[0], healthy(cluster)) == (200, 200), "it may go by"
        monkeypatch.setattr(http_endpoints, "MAX_DELAY_SECONDS", 0.0)
        assert ready(cluster)[0] == 503
        assert "DeviceClaims: no updates from the cluster" in ready(cluster)[1]


def test_claims_that_cannot_be_answered_are_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient(FakeKube())
    settings = AllocatorSettings(retry=0.01, resync=0.01)
    with running(client, allocate=settings) as cluster:
        until(lambda: cluster.controller.state == "leading")
        monkeypatch.setattr(cluster.allocator, "round", lambda: 1 / 0)
        until(lambda: cluster.allocator.loop.failing is not None)
        assert (ready(cluster)[0], healthy(cluster)) == (200, 200), "not for long"
        monkeypatch.setattr(http_endpoints, "MAX_DELAY_SECONDS", 0.0)
        until(lambda: ready(cluster)[0] == 503)
        assert "DeviceClaims: everything has failed for" in ready(cluster)[1]
        assert "DeviceClaims: everything has failed for" in cluster.trouble()
        monkeypatch.undo()
        until(lambda: ready(cluster)[0] == 200)
        assert cluster.trouble() == ""


def test_resource_claims_that_cannot_be_answered_are_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient(FakeKube())
    whole = client.list

    def some(path: str, params: Any = None) -> Iterator[dict[str, Any]]:
        if "resource.k8s.io" in path:
            raise ApiError(403, "Forbidden", "no list for you")
        yield from whole(path, params)

    client.list = some  # type: ignore[method-assign]
    with running(client, resource_claims=True) as cluster:
        until(lambda: cluster.controller.state == "leading")
        until(lambda: cluster._seen().loops[-1].failing is not None)
        assert (ready(cluster)[0], healthy(cluster)) == (200, 200), "not for long"
        monkeypatch.setattr(http_endpoints, "MAX_DELAY_SECONDS", 0.0)
        until(lambda: ready(cluster)[0] == 503)
        assert "ResourceClaims: everything has failed for" in ready(cluster)[1]


def test_claims_are_answered_also_where_nodes_may_not_be_read(caplog: pytest.LogCaptureFixture) -> None:
    """As with the rights of 0.1.0, in the middle of an upgrade."""
    client = FakeClient(FakeKube())
    whole, get = client.list, client.get

    def some(path: str, params: Any = None) -> Iterator[dict[str, Any]]:
        assert path != "/api/v1/nodes"
        yield from whole(path, params)

    def one(path: str, params: Any = None) -> dict[str, Any]:
        if path == "/api/v1/nodes":
            raise ApiError(403, "Forbidden", "no nodes for you")
        return get(path, params)

    client.list, client.get = some, one  # type: ignore[method-assign]
    rounds = SimpleQueue[DeviceClaimRound]()
    with running(client, on_round=rounds.put):
        assert rounds.get(timeout=60).claims == 0
    assert "no nodes for you" in caplog.text


@pytest.mark.parametrize("status", [403, 404])
def test_claims_are_answered_also_where_the_kinds_of_this_version_are_missing(status: int) -> None:
    """In the middle of an upgrade: rights or CRDs of the release before. No permit asks for a migration then."""
    client = FakeClient(FakeKube())

    def refusing(call: Callable[..., Any]) -> Callable[..., Any]:
        def checked(path: str, *more: Any, **options: Any) -> Any:
            if "virtualmachinemigrations" in path or "virtualmachinereplicasets" in path:
                raise ApiError(status, "Forbidden" if status == 403 else "NotFound", "no such thing for you")
            return call(path, *more, **options)

        return checked

    for name in ("list", "get", "watch", "create"):
        setattr(client, name, refusing(getattr(client, name)))
    rounds = SimpleQueue[DeviceClaimRound]()
    permits = PermitListenAddress("127.0.0.1", 0, "127.0.0.1")
    with running(client, on_round=rounds.put, permit_server=permits) as cluster:
        assert rounds.get(timeout=60).claims == 0
        until(lambda: cluster._permits is not None and cluster._permits.server is not None)
        assert cluster._permits is not None
        assert not cluster._permits.server.book.migrates


def test_health_has_a_port_of_its_own_for_probes() -> None:
    (port,) = free_ports(1)
    with running(FakeClient(FakeKube()), health_listen=("127.0.0.1", port)):

        def status(path: str) -> int:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as error:
                return error.code
            except OSError:
                return 0

        until(lambda: status("/healthz") == 200, "probes are answered")
        until(lambda: status("/readyz") == 200, "it is ready")
        assert [status(path) for path in ("/metrics", "/permits", "/usage", "/devalloc/")] == [404] * 4
