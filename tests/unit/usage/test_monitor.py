"""What a leading controller tells of the fleet: numbers for Prometheus, and two owners of a device as an alarm."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import Mock

import pytest

from devalloc.api import cordon
from devalloc.controller.event_recorder import EventRecorder
from devalloc.controller.metrics import ControllerMetrics
from devalloc.controller.reconcile.events import ObjectEvent
from devalloc.store import Listing
from devalloc.usage.overview import build_overview, fleet_monitor
from devalloc.usage.overview.cache import CachedOverview
from devalloc.usage.overview.fleet_monitor import FleetMonitor
from devalloc.usage.overview.metrics import MAX_NAMESPACES, FleetCollector
from tests.support.fake_kube import FakeClient, FakeKube
from tests.support.fleet_manifests import gpu_claim, gpu_class, gpu_pool
from tests.support.resource_manifests import device, resource_claim, slice_of
from tests.support.waiting import until
from tests.unit.controller.test_cluster import running

Object = dict[str, Any]
POOLS = "/apis/devmgmtproto.k8s.io/v1alpha1"
SLICES = "/apis/resource.k8s.io/v1"
CLAIMS = {
    "DeviceClaim": f"{POOLS}/namespaces/default/deviceclaims",
    "ResourceClaim": f"{SLICES}/namespaces/default/resourceclaims",
}
PAUSE = fleet_monitor.MIN_PAUSE
NOW = datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_monitor, "INTERVAL_SECONDS", 0.05)
    monkeypatch.setattr(fleet_monitor, "MIN_PAUSE", 0.04)


def holder(kind: str, name: str) -> Object:
    if kind == "ResourceClaim":
        return resource_claim(name, "p/d0", node="n")
    held = {"allocations": [{"devicePoolName": "p", "deviceName": "d0"}]}
    return gpu_claim(name, **{"allocated-node": "n"}) | {"status": held}


def make(kube: FakeKube, path: str, obj: Object) -> Object:
    """Another writer writes it, with its status."""
    created = kube.create(path, {**obj, "metadata": {k: v for k, v in obj["metadata"].items() if k != "uid"}})
    if "status" not in obj:
        return created
    return kube.replace(f"{path}/{obj['metadata']['name']}/status", {**created, "status": obj["status"]})


def values(text: str) -> dict[str, float]:
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[:1] != "#"}


def events(kube: FakeKube, reason: str) -> list[tuple[str, str]]:
    with kube.changed:
        matches = [obj for path, obj in kube.objects.items() if "/events/" in path and obj["reason"] == reason]
    return sorted((each["regarding"]["kind"], each["regarding"]["name"]) for each in matches)


@pytest.mark.parametrize(("kind", "dialect"), [("DeviceClaim", "DevicePool"), ("ResourceClaim", "ResourceSlice")])
def test_two_owners_are_an_event_on_both_and_a_metric(kind: str, dialect: str) -> None:
    kube = FakeKube()
    kube.create(f"{POOLS}/devicepools", gpu_pool())
    kube.create(f"{SLICES}/resourceslices", slice_of("p", "n", [device("d0")]))
    first = make(kube, CLAIMS[kind], holder(kind, "a"))
    with running(FakeClient(kube)) as cluster:
        name = f'devalloc_devices_with_several_owners{{dialect="{dialect}"}}'

        def owners() -> float | None:
            response = asyncio.run(cluster._metrics(None))  # type: ignore[arg-type]
            return values(response.body.decode()).get(name)

        until(lambda: owners() == 0.0)
        second = make(kube, CLAIMS[kind], holder(kind, "b"))
        until(lambda: owners() == 1.0)
        until(lambda: events(kube, "SeveralOwners") == [(kind, "a"), (kind, "b")])
        with kube.changed:
            warnings = [obj for path, obj in kube.objects.items() if "/events/" in path and "series" not in obj]
        notes = {each["regarding"]["uid"]: each["note"] for each in warnings if each["reason"] == "SeveralOwners"}
        assert notes.keys() == {first["metadata"]["uid"], second["metadata"]["uid"]}, "each once"
        assert all("device p/d0 has several owners" in note for note in notes.values())
        assert all(f"{kind}s default/a and default/b" in note for note in notes.values())
        with kube.changed:
            now = [kube.objects[f"{CLAIMS[kind]}/{name}"]["status"] for name in ("a", "b")]
        assert now == [first["status"], second["status"]], "no claim loses anything"
        kube.replace(f"{CLAIMS[kind]}/b/status", {**second, "status": {}, "metadata": {"name": "b"}})
        until(lambda: owners() == 0.0)


class Recorded(list[ObjectEvent]):
    """Events that were recorded."""

    def record(self, happened: Any) -> None:
        self.extend(happened)

    def take(self) -> list[tuple[str, str]]:
        taken = [(each.reason, each.regarding["name"]) for each in self]
        self.clear()
        return taken


class Objects:
    """A store of some objects."""

    def __init__(self) -> None:
        self.objects: list[Object] = []

    def list(self, kind: str) -> Any:
        return Listing([each for each in self.objects if each["kind"] == kind], "1")


def test_an_alarm_is_one_event_until_it_changes() -> None:
    store, events = Objects(), Recorded()

    def look() -> CachedOverview:
        return CachedOverview("1", build_overview(store.objects), NOW)

    watching = FleetMonitor(look, (store,), events.record)  # type: ignore[arg-type]
    store.objects = [gpu_pool(), holder("DeviceClaim", "a"), holder("DeviceClaim", "b")]
    watching.look()
    assert events.take() == [("SeveralOwners", "a"), ("SeveralOwners", "b")]
    watching.look()
    assert events.take() == []
    store.objects.append(holder("DeviceClaim", "c"))
    watching.look()
    assert events.take() == [("SeveralOwners", name) for name in "abc"]
    pair = store.objects
    store.objects = pair[:2]
    watching.look()
    assert events.take() == []
    store.objects = pair[:3]
    watching.look()
    assert events.take() == [("SeveralOwners", "a"), ("SeveralOwners", "b")], "it began anew"


def test_an_alarm_that_could_not_be_recorded_is_recorded_at_the_next_look() -> None:
    store, events = Objects(), Recorded()
    store.objects = [gpu_pool(), holder("DeviceClaim", "a"), holder("DeviceClaim", "b")]
    seen = CachedOverview("1", build_overview(store.objects), NOW)
    records = iter((0, events.record))

    def record(happened: Any) -> None:
        next(records)(happened)  # type: ignore[operator]

    watching = FleetMonitor(lambda: seen, (store,), record)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        watching.look()
    assert watching.seen is seen
    watching.look()
    assert events.take() == [("SeveralOwners", "a"), ("SeveralOwners", "b")]


def test_an_alarm_that_cannot_be_recorded_is_logged_once_until_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    store = Objects()

    def look() -> CachedOverview:
        return CachedOverview("1", build_overview(store.objects), NOW)

    def logged(times: int) -> int:
        caplog.clear()
        for _ in range(times):
            with contextlib.suppress(RuntimeError):
                watching.look()
        return len(caplog.messages)

    watching = FleetMonitor(look, (store,), Mock(side_effect=RuntimeError))  # type: ignore[arg-type]
    pair = [gpu_pool(), holder("DeviceClaim", "a"), holder("DeviceClaim", "b")]
    store.objects = pair
    assert logged(3) == 1
    store.objects = pair[:2]
    assert logged(1) == 0
    store.objects = pair
    assert logged(3) == 1, "it began anew"


@pytest.mark.parametrize("kind", CLAIMS)
def test_an_alarm_names_no_claims_of_other_namespaces_on_a_claim(kind: str) -> None:
    store, events = Objects(), Recorded()
    own_claim, other = holder(kind, "mine"), holder(kind, "secret-" + "x" * 200)
    other["metadata"]["namespace"] = "team-b"
    pool = gpu_pool() if kind == "DeviceClaim" else slice_of("p", device("d0"))
    store.objects = [pool, own_claim, other]
    FleetMonitor(lambda: CachedOverview("1", build_overview(store.objects), NOW), (store,), events.record).look()  # type: ignore[arg-type]
    notes = {each.regarding.get("namespace", "default"): each.note for each in events}
    assert "a claim of another namespace" in notes["default"]
    assert "secret" not in notes["default"]
    assert f"{kind} team-b/secret-" in notes["team-b"]
    assert "/mine" not in notes["team-b"]


@pytest.mark.parametrize(
    ("busy", "waited"),
    [
        ((), fleet_monitor.MIN_PAUSE),
        ((True,) * 12, 4 * fleet_monitor.MIN_PAUSE),
        ((True,) * 1000, fleet_monitor.MAX_DELAY),
    ],
    ids=["idle", "after a round", "rounds without end"],
)
def test_it_looks_between_rounds_but_not_for_ever(
    busy: tuple[bool, ...], waited: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_monitor, "MIN_PAUSE", PAUSE)
    states, seconds, before = iter(busy), list[float](), list[float]()

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            seconds.append(timeout or 0.0)
            return self.is_set()

    stop = Stop()

    def look() -> CachedOverview:
        before.append(sum(seconds))
        stop.set()
        return CachedOverview("1", build_overview([]), NOW)

    FleetMonitor(look, (), Mock(), is_busy=lambda: next(states, False)).run(stop)
    assert before == [waited]


def test_it_does_not_look_when_it_is_stopped_in_a_pause() -> None:
    """By then another process may lead."""
    stop, look = threading.Event(), Mock()

    def is_busy() -> bool:
        stop.set()
        return False

    FleetMonitor(look, (), Mock(), is_busy=is_busy).run(stop)
    assert look.call_count == 0


def test_what_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """And delays no answer."""
    with running(FakeClient(FakeKube())) as cluster:
        until(lambda: cluster.monitor.seen is not None)
        looks: list[None] = []

        def broken() -> CachedOverview:
            looks.append(None)
            raise RuntimeError("broken")

        monkeypatch.setattr(cluster.monitor, "_look", broken)
        until(lambda: len(looks) > 3)
        assert cluster.controller.state == "leading"


# -- numbers -----------------------------------------------------------------------------------------------------------


def shown(
    *documents: Object, leads: Callable[[], bool] = lambda: True, ready: Callable[[], bool] = lambda: True
) -> dict[str, float]:
    recorder = EventRecorder(FakeClient(FakeKube()), "one")
    seen = CachedOverview("1", build_overview(documents), NOW)
    fleet = FleetCollector(ready, leads, lambda: seen)
    return values(ControllerMetrics(leads, recorder, dict, parts=[fleet]).text().decode())


def labelled(metrics: dict[str, float], name: str) -> dict[str, float]:
    return {key.removeprefix(name): value for key, value in metrics.items() if key.startswith(f"{name}{{") and value}


def test_devices_of_both_dialects_are_counted_by_state() -> None:
    broken = {"key": "devalloc.io/unavailable", "value": "bus-error", "effect": "NoSchedule"}
    taint = {"key": "example.com/repair", "effect": "NoSchedule"}
    rule = {"deviceSelector": {"pool": "s", "device": "d2"}, "taint": taint}
    cordoned = gpu_pool("q", 2)
    cordoned["metadata"]["annotations"] = cordon.cordon_annotations(cordoned, None, "repair")
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "m"}, "spec": {"unschedulable": True}}
    metrics = shown(
        node,
        gpu_pool("o", 4, "m"),
        gpu_pool("p", 3),
        holder("DeviceClaim", "a"),
        cordoned,
        slice_of("s", "n", [device("d0"), device("d1", broken), device("d2")]),
        slice_of("t", "m", [device("d0"), device("d1", broken)]),
        {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule", "metadata": {"name": "r"}, "spec": rule},
    )
    assert labelled(metrics, "devalloc_devices_by_state") == {
        '{dialect="DevicePool",state="free"}': 2,
        '{dialect="DevicePool",state="held"}': 1,
        '{dialect="DevicePool",state="cordoned"}': 6,
        '{dialect="ResourceSlice",state="free"}': 1,
        '{dialect="ResourceSlice",state="unavailable"}': 2,
        '{dialect="ResourceSlice",state="cordoned"}': 2,
    }


def test_pending_claims_are_counted_by_reason_and_namespace() -> None:
    metrics = shown(
        gpu_claim("a", namespace="x", reason="DevicesInUse", message="m"),
        gpu_claim("b", namespace="x", reason="DevicesInUse", message="m"),
        gpu_claim("c", namespace="y"),
        gpu_claim("d", namespace="y", reason="written by a user", message="m"),
        gpu_claim("f", namespace="y", reason="QuotaExceeded", message="m"),
        resource_claim("e", namespace="y"),
    )
    assert labelled(metrics, "devalloc_pending_claims") == {
        '{kind="DeviceClaim",namespace="x",reason="DevicesInUse"}': 2,
        '{kind="DeviceClaim",namespace="y",reason="Unanswered"}': 1,
        '{kind="DeviceClaim",namespace="y",reason="Other"}': 1,
        '{kind="DeviceClaim",namespace="y",reason="QuotaExceeded"}': 1,
        '{kind="ResourceClaim",namespace="y",reason="Unanswered"}': 1,
    }


def test_however_many_namespaces_there_are_few_labels() -> None:
    claims = [gpu_claim(f"c{i}", namespace=f"n{i}", reason=f"r{i}", message="m") for i in range(MAX_NAMESPACES + 20)]
    by_label = labelled(shown(*claims, gpu_claim("more", namespace="n69")), "devalloc_pending_claims")
    namespaces = {re.findall('namespace="(.*?)"', key)[0] for key in by_label}
    assert len(namespaces) == MAX_NAMESPACES + 1
    assert {"n69", "(others)"} <= namespaces
    assert sum(by_label.values()) == MAX_NAMESPACES + 21


def test_a_standby_controller_counts_no_devices() -> None:
    metrics = shown(gpu_pool(), gpu_claim("a"), leads=lambda: False)
    assert not any(name.startswith(("devalloc_devices", "devalloc_pending")) for name in metrics)
    assert metrics["devalloc_ready"] == 1
    assert shown(ready=lambda: False)["devalloc_ready"] == 0


def test_how_long_claims_waited_for_their_devices() -> None:
    """From their creation, as the API server wrote it."""
    exporter = ControllerMetrics(lambda: True, EventRecorder(FakeClient(FakeKube()), "one"), dict)
    claim = gpu_claim("a")
    claim["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    exporter.allocated(claim, NOW)
    exporter.allocated(claim, NOW - timedelta(minutes=1))  # by another clock
    exporter.allocated(gpu_claim("b"), NOW)
    name = "devalloc_claim_allocation_seconds"
    metrics = values(exporter.text().decode())
    assert metrics[f'{name}_sum{{kind="DeviceClaim"}}'] == 30
    assert metrics[f'{name}_count{{kind="DeviceClaim"}}'] == 2
    assert metrics[f'{name}_bucket{{kind="DeviceClaim",le="10.0"}}'] == 1
    assert metrics[f'{name}_count{{kind="ResourceClaim"}}'] == 0


def test_a_claim_that_is_given_devices_is_counted() -> None:
    kube = FakeKube()
    kube.create(f"{POOLS}/devicepools", gpu_pool())
    kube.create(f"{POOLS}/deviceclasses", gpu_class())
    with running(FakeClient(kube)) as cluster:
        kube.create(CLAIMS["DeviceClaim"], gpu_claim("a"))
        name = 'devalloc_claim_allocation_seconds_count{kind="DeviceClaim"}'
        until(lambda: values(cluster.metrics.text().decode())[name] == 1)
