"""When a node falls silent, kubectl shows of its machines that no one knows whether they run: written once for each, in
batches, and never against a plugin that runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from devalloc.api import meta
from devalloc.api.decode import decode
from devalloc.api.serving import SILENT_SECONDS, node_lease
from devalloc.machines import unserved_machines
from devalloc.machines.schedule.decision import node_service_units
from devalloc.machines.unserved_machines import BURST, CONFIRM_SECONDS, UnservedMachines
from devalloc.store import Object
from devalloc.store.kubernetes import KubernetesStore
from devalloc.store.kubernetes.api_error import ApiError
from devalloc.store.kubernetes.node_leases import NodeLeases
from devalloc.store.kubernetes.resources import CORE_KINDS
from devalloc_machines.vms.status import finished_message, with_readiness
from tests.support.fake_kube import FakeClient, FakeKube
from tests.support.host_pools import host, machine
from tests.support.refusing_store import DENIED

SPACE = "devalloc-system"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{SPACE}/leases"
MACHINES = "/apis/devalloc.io/v1alpha1/namespaces/default/virtualmachines"
RUNS = {"type": "Ready", "status": "True", "reason": "MachineRunning", "message": "it runs"}
REPORTS = {"type": "Ready", "status": "True", "reason": "GuestReady", "message": "its guest reports that it is ready"}
NODE = {"type": "Ready", "reason": "KubeletReady", "message": ""}
LONG_AGO = timedelta(hours=1)


class World:
    """An API server, its node a with machines, and a controller that is driven by hand."""

    def __init__(self, store: KubernetesStore, kube: FakeKube, client: FakeClient) -> None:
        self.store, self.kube, self.client, self.seconds = store, kube, client, 1000.0
        self.lead()

    def lead(self) -> None:
        """As a process that has just become leader."""
        leases = NodeLeases(self.client, SPACE, 0.0)  # type: ignore[arg-type]
        self.unserved = UnservedMachines(self.store, leases.of_nodes, clock=lambda: self.seconds)

    def add(self, name: str, phase: str = "Running", ready: Object | None = None, **spec: Any) -> None:
        """A machine that node a holds."""
        body = machine(name, "1", "1Gi", **spec)
        held = {"finalizers": [meta.NODE_FINALIZER], "annotations": {meta.PREPARED_ON: "a"}, "namespace": "default"}
        self.kube.create(MACHINES, {**body, "metadata": {**body["metadata"], **held}})
        self.plugin_writes(name, phase, ready)

    def plugin_writes(self, name: str, phase: str = "Running", ready: Object | None = None) -> None:
        conditions = [{**(ready or RUNS), "lastTransitionTime": "2026-01-31T12:00:00Z"}]
        status = {"phase": phase, "nodeName": "a", "machineID": "run-1", "conditions": conditions}
        self.kube.replace(f"{MACHINES}/{name}/status", {**self.kube.get(f"{MACHINES}/{name}"), "status": status})

    def lease(self, node: str = "a", age: timedelta = timedelta(), holder: str | None = "p") -> None:
        lease = node_lease(node, SPACE, holder, datetime.now(UTC) - age)
        path = f"{LEASES}/{lease['metadata']['name']}"
        if any(one["metadata"]["name"] == lease["metadata"]["name"] for one in self.kube.list(LEASES, {})["items"]):
            self.kube.replace(path, {**self.kube.get(path), "spec": lease["spec"]})
        else:
            self.kube.create(LEASES, lease)

    def fall_silent(self) -> None:
        """The plugin was killed an hour ago, and the controller has seen no renewal for a minute."""
        self.lease(age=LONG_AGO)
        self.look()
        self.seconds += CONFIRM_SECONDS

    def look(self) -> tuple[int, bool]:
        """How many requests changed something, and whether there is more to do."""
        self.store.refresh()
        before = self.writes()
        is_more = self.unserved.look()
        self.store.refresh()
        return self.writes() - before, is_more

    def writes(self) -> int:
        return len(self.client.writes)

    def kubelet(self, status: str) -> None:
        """Ready of the Node is this."""
        node = self.kube.get("/api/v1/nodes/a")
        self.kube.replace("/api/v1/nodes/a/status", {**node, "status": {"conditions": [{**NODE, "status": status}]}})

    def status(self, name: str = "web") -> Object:
        content: Object = self.kube.get(f"{MACHINES}/{name}")["status"]
        return content

    def ready(self, name: str = "web") -> tuple[str, str]:
        (one,) = [one for one in self.status(name)["conditions"] if one["type"] == "Ready"]
        return one["status"], one["reason"]


@pytest.fixture
def world() -> Iterator[World]:
    kube = FakeKube()
    client = FakeClient(kube)
    node = next(one for one in CORE_KINDS if one.kind == "Node")
    kube.create(node.within(None), {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}})
    with closing(KubernetesStore(client)) as store:  # type: ignore[arg-type]
        made = World(store, kube, client)
        made.kubelet("True")
        yield made


def test_a_machine_of_a_silent_node_is_not_known_to_run_and_that_is_written_once(world: World) -> None:
    world.add("web")
    world.fall_silent()
    assert world.look() == (1, False)
    status = world.status()
    assert (status["phase"], status["reason"]) == ("Unknown", "NodeNotServed")
    assert status["message"].startswith("no node plugin serves node a now (it has not reported since 20")
    assert status["message"].endswith("; the machine was Running")
    assert world.ready() == ("Unknown", "NodeNotServed")
    (condition,) = status["conditions"]
    assert condition["lastTransitionTime"] > "2026-06", "its status changed now"
    assert decode(world.kube.get(f"{MACHINES}/web")).problems == []
    for _ in range(3):
        world.seconds += 60.0
        assert world.look() == (0, False)
    world.lead()
    for _ in range(3):
        world.seconds += 60.0
        assert world.look() == (0, False), "nor by the next leader"


def test_nothing_is_written_for_a_plugin_that_restarts_or_a_clock_that_is_wrong(world: World) -> None:
    world.add("web")
    world.lease(holder=None)
    assert world.look() == (0, False)
    world.seconds += CONFIRM_SECONDS - 1
    assert world.look() == (0, False), "it ended, and may be back within a minute"
    for minutes in range(10):
        world.lease(age=LONG_AGO - timedelta(minutes=minutes))
        assert world.look() == (0, False), "the clock of its host is an hour behind, and it renews its Lease"
        world.seconds += CONFIRM_SECONDS - 1


def test_what_the_plugin_writes_when_it_is_back_stays(world: World) -> None:
    world.add("web")
    world.fall_silent()
    world.look()
    world.lease()
    assert world.look() == (0, False), "that is the plugin's"
    world.plugin_writes("web")
    for _ in range(3):
        world.lease()
        assert world.look() == (0, False)
        world.seconds += 30.0
    assert (world.status()["phase"], world.ready()) == ("Running", ("True", "MachineRunning"))


def test_a_plugin_that_writes_without_a_lease_is_not_written_against(world: World) -> None:
    """It may not write Leases, say."""
    world.add("web")
    world.add("other")
    world.fall_silent()
    assert world.look() == (2, False)
    world.plugin_writes("web")
    for _ in range(5):
        world.seconds += 60.0
        assert world.look() == (0, False)
    assert world.status()["phase"] == "Running"


def test_a_node_that_was_gone_is_given_time_again_when_it_is_back(world: World) -> None:
    world.add("web")
    world.lease(age=LONG_AGO)
    world.look()
    (lease,) = world.kube.list(LEASES, {})["items"]
    gone = {f"{LEASES}/{lease['metadata']['name']}": lease, "/api/v1/nodes/a": world.kube.get("/api/v1/nodes/a")}
    for path, one in gone.items():
        world.kube.delete(path, one["metadata"]["uid"], "")
    world.look()
    for path, one in gone.items():
        world.kube.create(path.rpartition("/")[0], {**one, "metadata": {**one["metadata"], "resourceVersion": ""}})
    world.seconds += CONFIRM_SECONDS
    assert world.look() == (0, False), "it may be about to renew"
    world.seconds += CONFIRM_SECONDS
    assert world.look() == (1, False)


def test_a_node_of_many_machines_is_written_in_batches(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unserved_machines, "BURST", 4)
    for number in range(10):
        world.add(f"m-{number}")
    world.fall_silent()
    assert [world.look() for _ in range(4)] == [(4, True), (4, True), (2, False), (0, False)]
    assert BURST / unserved_machines.PAUSE_SECONDS <= 50.0


def test_no_machine_is_read_while_all_nodes_are_served(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet has a hundred thousand, and one look follows another."""
    world.add("web")
    world.lease()
    world.look()  # an earlier leader may have written
    read: list[object] = []
    real = world.store.list

    def noted(kinds: Any) -> Any:
        read.append(kinds)
        return real(kinds)

    monkeypatch.setattr(world.store, "list", noted)
    world.look()
    assert read == ["Node"]
    world.fall_silent()
    world.look()
    assert read[-2:] == ["Node", "VirtualMachine"]


def test_a_machine_that_does_not_run_is_left_as_it_is(world: World) -> None:
    for phase in ("Pending", "Stopped", "Failed"):
        world.add(phase.lower(), phase)
    world.fall_silent()
    assert world.look() == (0, False)


def test_a_refused_write_does_not_keep_other_machines_from_theirs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add("web")
    world.add("other")
    real = world.store.replace_status

    def refused(obj: Object) -> Object:
        if obj["metadata"]["name"] == "web":
            raise DENIED
        return real(obj)

    monkeypatch.setattr(world.store, "replace_status", refused)
    world.fall_silent()
    assert [world.look() for _ in range(3)] == [(1, False), (0, False), (0, False)]
    assert (world.status("web")["phase"], world.status("other")["phase"]) == ("Running", "Unknown")


def test_without_a_lease_the_kubelet_counts(world: World) -> None:
    """As with plugins of version 0.1.0."""
    world.add("web")
    world.look()
    world.seconds += 1000.0
    assert world.look() == (0, False), "its Node is Ready"
    world.kubelet("Unknown")
    assert world.look() == (0, False)
    world.seconds += CONFIRM_SECONDS
    assert world.look() == (1, False)
    assert "if its host is off: devalloc fence node/a" in world.status()["message"]
    world.lease()
    world.plugin_writes("web")
    assert world.look() == (0, False)


def test_of_a_host_that_is_off_the_remedy_is_a_fence(world: World) -> None:
    """Its Lease is old as well."""
    world.add("web")
    world.kubelet("Unknown")
    world.fall_silent()
    assert world.look() == (1, False)
    assert "if its host is off: devalloc fence node/a" in world.status()["message"]


@pytest.mark.parametrize("kubelet", ["True", "Unknown"])
def test_leases_that_cannot_be_read_say_nothing(world: World, monkeypatch: pytest.MonkeyPatch, kubelet: str) -> None:
    """Neither of a plugin that writes without one, nor of a node whose kubelet is silent while its plugin runs."""
    world.add("web")
    world.fall_silent()
    assert world.look() == (1, False)
    world.plugin_writes("web")
    assert world.look() == (0, False)
    world.kubelet(kubelet)
    read = world.client.list

    def refused(path: str, *rest: Any, **named: Any) -> Any:
        if "leases" in path:
            raise ApiError(403, "Forbidden", "not these")
        return read(path, *rest, **named)

    with monkeypatch.context() as patch:
        patch.setattr(world.client, "list", refused)
        for _ in range(3):
            assert world.look() == (0, False)
            world.seconds += CONFIRM_SECONDS
    for _ in range(3):
        assert world.look() == (0, False), "what was seen before still counts"
        world.seconds += CONFIRM_SECONDS


def test_a_plugin_whose_clock_is_ahead_is_silent_when_it_renews_no_more(world: World) -> None:
    world.add("web")
    for hours in (24, 25, 26):
        world.lease(age=-timedelta(hours=hours))
        assert world.look() == (0, False)
        world.seconds += CONFIRM_SECONDS
    assert world.look() == (0, False)
    world.seconds += SILENT_SECONDS
    assert world.look() == (1, False)
    assert "does not renew its Lease, whose time is in the future: a clock is wrong" in world.status()["message"]


class TestAGuestThatReports:
    """It does so once; the plugin that is back does not hear it again."""

    @pytest.fixture
    def silent(self, world: World) -> World:
        world.add("web", ready=REPORTS, guestReports=True)
        world.fall_silent()
        world.look()
        assert world.ready() == ("Unknown", "NodeNotServed")
        assert decode(world.kube.get(f"{MACHINES}/web")).problems == []
        return world

    def test_is_what_it_said_before_when_the_plugin_is_back(self, silent: World) -> None:
        not_reported = {"type": "Ready", "status": "False", "reason": "GuestNotReported", "message": "nothing yet"}
        (ready,) = with_readiness(silent.status(), "run-1", not_reported, 1)
        assert ready == {**REPORTS, "lastTransitionTime": "2026-01-31T12:00:00Z"}
        (another,) = with_readiness(silent.status(), "run-2", not_reported, 1)
        assert another["reason"] == "GuestNotReported", "another run has not said anything"

    def test_is_so_too_if_the_pools_of_its_node_were_gone_meanwhile(self, silent: World) -> None:
        """The controller says of such a node that it is not served, and later that it is again."""
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "resourceVersion": "1"}}
        one = silent.kube.get(f"{MACHINES}/web")
        for pools in ([], [host("a")]):
            (unit,) = node_service_units([node, *pools, one], [], "2026-02-01T00:00:00Z")
            one = {**one, "status": unit.changes[0].status}
        assert one["status"] == silent.status()

    def test_that_it_has_finished_is_known_when_the_plugin_is_back(self, world: World) -> None:
        done = {**REPORTS, "status": "False", "reason": "GuestFinished", "message": "it has finished"}
        world.add("web", ready=done, guestReports=True)
        world.fall_silent()
        world.look()
        stored = world.kube.get(f"{MACHINES}/web")
        assert (finished_message(stored, "run-1"), finished_message(stored, "run-2")) == ("it has finished", None)

    def test_is_so_too_if_the_plugin_is_of_an_earlier_version(self, silent: World) -> None:
        """It leaves conditions as they are."""
        status = {name: value for name, value in silent.status().items() if name not in ("reason", "message")}
        there = silent.kube.get(f"{MACHINES}/web")
        silent.kube.replace(f"{MACHINES}/web/status", {**there, "status": {**status, "phase": "Running"}})
        silent.lease()
        assert silent.look() == (1, False)
        assert [one["type"] for one in silent.status()["conditions"]] == ["Ready"]
        assert silent.ready() == ("True", "GuestReady")
        assert silent.look() == (0, False)
