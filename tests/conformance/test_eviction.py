"""Machines that are evicted from one node and start on another: two nodes and the allocator, killed at every step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from devalloc.api import meta
from devalloc.controller.cordon import CordonTarget, set_cordon
from devalloc.machines.drain import Fate, drained_machines, evict
from devalloc.store import Conflict, Object
from devalloc.store.kubernetes import object_writer
from devalloc_machines.service.operations import MachineOperations
from devalloc_machines.vms import LoopExecution, LoopSettings, VirtualMachineLoop
from devalloc_node.claims.store_grants import StoreGrants
from devalloc_node.operations.change_feed import ChangeNotifier
from devalloc_solver import solve_manifests, testing
from tests.support.dying_stores import STORES, ClusterStores, EmbeddedStores, Killed
from tests.support.examples import IS_FUZZ
from tests.support.fake_tree import memory_folder
from tests.support.host_pools import host
from tests.support.machine_allocator import machine_allocator
from tests.support.node_service import platform_of, toy_bench
from tests.support.toy_machines import ToyMachines, vm
from tests.support.vm_rounds import full_round
from tests.support.waiting import until

"""Whether `make fuzz` runs this."""

NODES = ("node-a", "node-b")


class Plugin:
    """A node's loop, over machines in memory that outlive it."""

    def __init__(self, folder: Path, store: Any, node: str, step: Callable[[], None]) -> None:
        self.folder, self.node = folder, node
        self.machines = ToyMachines()
        self.machines.touched = step
        self.bench = toy_bench(folder / node, self.machines)
        self.now = 0.0
        self.start(store)

    def start(self, store: Any) -> None:
        self.bench.grants = StoreGrants(store, self.node)  # type: ignore[assignment]
        self.bench.restart()
        self.operations: MachineOperations = platform_of(self.bench, self.machines)
        self.operations.node_name = self.node
        self.loop = VirtualMachineLoop(
            store,
            self.operations,
            ChangeNotifier(),
            settings=LoopSettings(resync=5, grace=300),
            execution=LoopExecution(lambda: self.now, lambda work: work()),
        )

    def round(self) -> None:
        self.now += 400.0
        self.bench.reconciler.reconcile()
        full_round(self.loop)


class Cluster:
    """Two nodes and an allocator on one store."""

    def __init__(self, folder: Path, kind: type[EmbeddedStores] | type[ClusterStores]) -> None:
        self.left = self.steps = 0
        """``left``: steps until the process that makes one dies; 0: none does."""
        self.nodes: dict[str, Plugin] = {}
        self.stores = kind(folder, self.step)
        self.store: Any = self.stores.users
        self.opened: list[Any] = []
        self.dying = self.connect()
        self.nodes = {node: Plugin(folder, self.connect(), node, self.step) for node in NODES}

    def connect(self) -> Any:
        self.opened.append(self.stores.connect())
        return self.opened[-1]

    def close(self) -> None:
        for store in (*self.opened, self.store):
            store.close()

    def step(self) -> None:
        self.steps += 1
        self.check()
        if self.left and self.steps == self.left:
            raise Killed

    def check(self) -> None:
        """At every moment: one node at most runs it, and that is the one that holds it."""
        assert len(self._running()) <= 1, "two nodes run it"

    def allocate(self) -> None:
        machine_allocator(self.dying, solve=solve_manifests).round()

    def drain(self, *, force: bool = True) -> None:
        set_cordon(self.dying, CordonTarget(node="node-a"), "test")
        until(lambda: self._has_evicted(force), "the store shows the machines as they are", 60)

    def _has_evicted(self, force: bool) -> bool:
        """False if a watch of the cluster was late: an admin then drains again."""
        try:
            for one in drained_machines(self.dying, "node-a", force=force, live=False):  # else it would migrate
                if one.fate in (Fate.MOVE, Fate.STOP):
                    evict(self.dying, one.machine, "node-a")
        except Conflict:
            return False
        return True

    def rounds(self, count: int = 4) -> None:
        for _ in range(count):
            self.allocate()
            for plugin in self.nodes.values():
                plugin.round()
        self.check()

    def go_on_until(self, condition: Callable[[], object], what: str) -> None:
        """Round after round: a cluster's watches may come later than a round."""

        def is_met() -> bool:
            self.rounds(1)
            return bool(condition())

        until(is_met, what, 60)

    def restart(self) -> None:
        """As after kill -9 of everything."""
        self.left = 0
        self.dying = self.connect()
        for plugin in self.nodes.values():
            plugin.start(self.connect())

    def machine(self) -> Object:
        return self.store.get("VirtualMachine", "default", "web")

    def where(self) -> str:
        """The only node on which it runs; empty if none."""
        running = self._running()
        return running[0] if running else ""

    def _running(self) -> list[str]:
        machines = {node: plugin.machines.get("default/web") for node, plugin in self.nodes.items()}
        return [node for node, machine in machines.items() if machine is not None and machine.runs]

    def devices(self) -> list[str]:
        entries = self.store.get("DeviceClaim", "default", "card").get("status", {}).get("allocations", [])
        return [entry["devicePoolName"] for entry in entries]


AnyCluster = TypeVar("AnyCluster", bound=Cluster)


def toy_pool(node: str) -> Object:
    return testing.pool(f"cards-{node}", node, "toy", devices=[testing.device("slot-0")])


@contextmanager
def cluster(
    kind: type[EmbeddedStores] | type[ClusterStores] = EmbeddedStores,
    of: type[AnyCluster] = Cluster,  # type: ignore[assignment]
    *others: Object,
    **spec: Any,
) -> Iterator[AnyCluster]:
    """A machine with a claim that runs on node-a, before node-b is there. ``others``: objects that are there too."""
    with memory_folder() as name, closing(of(Path(name), kind)) as made:
        store = made.store
        claim = testing.claim("card", testing.request("toy"), namespace="default")
        for obj in (*others, testing.device_class("toy", driver="toy"), claim, host("node-a"), toy_pool("node-a")):
            store.create(obj)
        manifest = vm("web", "card", **spec)
        del manifest["spec"]["nodeName"]
        store.create(manifest)
        made.go_on_until(lambda: made.where() == "node-a", "it runs on node-a")
        made.rounds()
        for obj in (host("node-b"), toy_pool("node-b")):
            store.create(obj)
        yield made


def test_a_machine_that_runs_is_powered_down_and_starts_elsewhere_with_the_devices_there() -> None:
    with cluster(powerdownSeconds=77) as made:
        made.drain()
        made.rounds()
        assert (made.where(), made.devices()) == ("node-b", ["cards-node-b"])
        assert made.nodes["node-a"].machines.patience == {"default/web": 77.0}, "its guest has its time"
        assert made.nodes["node-a"].machines.views == {}, "nothing of it stays"
        status = made.machine()["status"]
        assert (status["phase"], status["nodeName"], status.get("reason")) == ("Running", "node-b", None)
        claim = made.store.get("DeviceClaim", "default", "card")
        assert claim["metadata"]["annotations"][meta.PREPARED_ON] == "node-b"


def test_without_force_it_runs_on() -> None:
    with cluster() as made:
        made.drain(force=False)
        made.rounds()
        assert (made.where(), made.devices()) == ("node-a", ["cards-node-a"])


def test_a_machine_that_only_its_node_can_run_waits_for_it_and_keeps_its_devices() -> None:
    start = {"kernel": "/images/vmlinuz", "tpm": True}
    with cluster(start=start) as made:
        made.drain()
        made.rounds()
        assert (made.where(), made.devices()) == ("", [])
        machine = made.nodes["node-a"].machines.views["default/web"]
        assert machine.reason == "StoppedOnRequest", "its TPM is of this machine"
        made.restart()
        made.rounds()
        assert "default/web" in made.nodes["node-a"].machines.views
        set_cordon(made.store, CordonTarget(node="node-a"), None)
        made.rounds()
        assert (made.where(), made.devices()) == ("node-a", ["cards-node-a"])
        assert meta.EVICT not in made.machine()["metadata"]["annotations"]


def test_a_machine_that_ended_for_good_is_not_started_elsewhere() -> None:
    with cluster(restartPolicy="Never") as made:
        machines = made.nodes["node-a"].machines
        machines.end("default/web")
        ended = replace(machines.views["default/web"], reason="MachineEnded", message="it ended: panic")
        machines.views["default/web"] = ended
        made.rounds()
        made.drain(force=False)
        made.rounds()
        status = made.machine()["status"]
        assert (made.where(), status["phase"], status["reason"]) == ("", "Stopped", "MachineEnded")
        assert "nodeName" not in status, "it may be started elsewhere"


def test_a_machine_that_cannot_be_stopped_stays_held_and_says_why() -> None:
    with cluster() as made:
        machines = made.nodes["node-a"].machines
        machines.fail.add("stop")
        made.drain()
        made.rounds()
        assert (made.where(), made.machine()["status"]["reason"]) == ("node-a", "QemuFailed")
        machines.fail.clear()
        made.rounds()
        assert made.where() == "node-b"


def _killed_at(at: int, kind: type[EmbeddedStores] | type[ClusterStores]) -> bool:
    """Whether something died at that step; then all start again."""
    with cluster(kind) as made:

        def arrived() -> bool:
            made.rounds(1)
            return (made.where(), made.devices()) == ("node-b", ["cards-node-b"])

        made.steps, made.left = 0, at
        try:
            made.drain()
            until(arrived, "it moves", 60)
            return False
        except Killed:
            pass
        made.check()
        made.restart()
        if meta.NODE_FINALIZER not in (made.machine()["metadata"].get("finalizers") or ()):
            assert made.where() == "", "what no node holds runs nowhere"
        made.drain()
        until(arrived, f"it moves after a kill at step {at}", 60)  # a cluster's watches may come later than a round
        return True


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("part", range(2))
def test_a_kill_at_any_step_never_leaves_it_on_two_nodes_nor_loses_it(
    part: int, kind: type[EmbeddedStores] | type[ClusterStores], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each write of any of the processes, and each change of a machine, before and after it. Of the
    embedded store's every third here, of a cluster's every sixth; `make fuzz` tries all."""
    monkeypatch.setattr(object_writer, "PAUSE_SECONDS", 0.001)
    stride = 2 if IS_FUZZ else 6 if kind is EmbeddedStores else 12  # each step of a cluster's takes longer
    steps = next(number for number in itertools.count(part + 1, stride) if not _killed_at(number, kind))
    assert steps > 20, "there is something to kill"
