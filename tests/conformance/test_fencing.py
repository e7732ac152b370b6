"""Lost nodes that are fenced: their machines start elsewhere, never before, and never twice; both stores."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from devalloc.api import meta
from devalloc.api.fencing import fenced_from
from devalloc.controller.cordon import CordonTarget, set_cordon
from devalloc.controller.fencing import state_fence, withdraw_fence
from devalloc.controller.reconcile.fenced import held_objects, is_fenced, take_away
from devalloc.machines.drain import drained_machines, evict
from devalloc.store import Forbidden, Invalid, Object, StoreError, Unavailable
from devalloc.store.kubernetes import KubernetesStore
from devalloc.store.kubernetes.resources import CORE_KINDS, OWN_KINDS
from devalloc.store.nodes import fence_statement
from devalloc_machines.vms import fencing, objects
from devalloc_node.claims.store_grants import StoreGrants, claim_ref
from devalloc_node.errors import Failed, NodeError
from devalloc_solver import solve_manifests, testing
from tests.conformance.test_eviction import (
    STORES,
    Cluster,
    ClusterStores,
    EmbeddedStores,
    Killed,
    Plugin,
    toy_pool,
)
from tests.conformance.test_eviction import cluster as running_cluster
from tests.support.examples import IS_FUZZ
from tests.support.machine_allocator import machine_allocator
from tests.support.refusing_store import DENIED, RefusingStore
from tests.support.toy_machines import vm
from tests.support.waiting import until

Kind = type[EmbeddedStores] | type[ClusterStores]
WHY = "by ada: its mainboard is broken"


class CutStore:
    """A store that a node may be cut off from."""

    def __init__(self, store: Any, is_cut: Callable[[], bool]) -> None:
        self._store, self._is_cut = store, is_cut

    @property
    def __class__(self) -> Any:
        """Nodes count in a store of a cluster, also in one that is cut off."""
        return type(self._store)

    def __getattr__(self, name: str) -> Any:
        if self._is_cut():
            raise Unavailable("no route to the store")
        return getattr(self._store, name)


class FencedPlugin(Plugin):
    """A plugin that settles first, as the real one, and that can be cut off, killed, and its host powered off."""

    is_cut = False
    is_down = False
    has_settled = False

    def start(self, store: Any) -> None:
        self.inner = store
        self.is_down = self.has_settled = self._is_settled = False
        cut = CutStore(store, lambda: self.is_cut)
        super().start(cut)
        statement = partial(fence_statement, cut, self.node)
        self._settle = partial(fencing.settle, cut, self.operations, statement)  # as node_parts gives it

    def round(self) -> None:
        if self.is_down:
            return
        with suppress(StoreError, NodeError):
            if not self._is_settled:  # as the daemon has its loops wait
                self._settle()
                self._is_settled = True
            super().round()
            self.has_settled = not self.is_cut

    def kill(self) -> None:
        """kill -9 of the plugin; its QEMU lives."""
        self.is_down, self.has_settled = True, False

    def power_off(self) -> None:
        self.kill()
        for key in list(self.machines.views):
            self.machines.end(key)


class FencedCluster(Cluster):
    """Node-a can be lost. Where the word of the admin is true, at no moment do two nodes run the machine."""

    is_word_true = True

    def __init__(self, folder: Path, kind: Kind) -> None:
        super().__init__(folder, kind)
        self.nodes = {node: FencedPlugin(folder / "fenced", self.connect(), node, self.step) for node in self.nodes}

    @property
    def a(self) -> FencedPlugin:
        return self.nodes["node-a"]  # type: ignore[return-value]

    def check(self) -> None:
        if self.is_word_true or self.a.has_settled:
            super().check()

    def allocate(self) -> None:
        kinds = [one.kind for one in (*OWN_KINDS, *CORE_KINDS)] if isinstance(self.store, KubernetesStore) else None
        machine_allocator(self.dying, kinds=kinds, solve=solve_manifests).round()

    def fence(self) -> None:
        assert state_fence(self.store, "node-a", WHY)

    def fence_alive(self) -> None:
        """Only its plugin is gone, and the machine goes on."""
        self.is_word_true = False
        self.a.kill()
        self.fence()

    def settled(self, where: str) -> None:
        self.go_on_until(lambda: self.where() == where, f"it runs on {where}")


@contextmanager
def cluster(kind: Kind = EmbeddedStores, *, has_node: bool = False, **spec: Any) -> Iterator[FencedCluster]:
    """A machine with a claim that runs on node-a; node-b could run it."""
    nodes: list[Object] = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}, "spec": {}}]
    with running_cluster(kind, FencedCluster, *nodes[:has_node], **spec) as made:
        made.rounds()
        yield made


def notes(obj: Object) -> dict[str, str]:
    return dict(obj["metadata"].get("annotations", {}))


@pytest.mark.parametrize("kind", STORES)
def test_a_lost_node_keeps_its_machine_until_it_is_fenced(kind: Kind) -> None:
    with cluster(kind) as made:
        made.a.power_off()
        made.rounds(6)
        assert (made.where(), made.devices()) == ("", ["cards-node-a"]), "it may still run, for all that anyone knows"
        made.fence()
        made.settled("node-b")
        assert made.devices() == ["cards-node-b"]
        machine = made.machine()
        assert notes(machine)[meta.PREPARED_ON] == "node-b"
        assert fenced_from(machine) == {"node-a"}
        claim = made.store.get("DeviceClaim", "default", "card")
        assert (notes(claim)[meta.PREPARED_ON], meta.RELEASE in notes(claim)) == ("node-b", False)


@pytest.mark.parametrize("kind", STORES)
def test_a_node_that_comes_back_ends_its_old_machine_and_leaves_the_new_one_alone(kind: Kind) -> None:
    with cluster(kind) as made:
        made.fence_alive()
        made.go_on_until(lambda: len(_running(made)) == 2, "it runs elsewhere, too")
        before = made.nodes["node-b"].machines.views["default/web"]
        made.a.start(made.connect())
        made.a.round()
        assert _running(made) == ["node-b"], "before anything else"
        assert made.a.machines.patience == {"default/web": 0.0}, "its guest is not asked: it would write to the disks"
        made.settled("node-b")
        made.go_on_until(lambda: not made.a.machines.views, "nothing of it stays")
        assert made.nodes["node-b"].machines.views["default/web"].id == before.id
        assert made.nodes["node-b"].machines.patience == {}
        made.go_on_until(lambda: not fenced_from(made.machine()), "it confirms that")
        assert withdraw_fence(made.store, "node-a")
        made.rounds()
        assert (made.where(), made.devices()) == ("node-b", ["cards-node-b"])


@pytest.mark.parametrize("kind", STORES)
def test_a_node_with_a_new_name_ends_what_was_taken_away_under_its_previous_name(kind: Kind) -> None:
    with cluster(kind) as made:
        made.is_word_true = False
        uid, operations = made.machine()["metadata"]["uid"], made.a.operations
        card = claim_ref(made.store.get("DeviceClaim", "default", "card"))

        def belong_to_node_a() -> list[bool]:
            belongs = StoreGrants(made.store, "renamed").belongs_to_node(card, "node-a")
            return [belongs, fencing.has_machine(made.store, operations, "default/web", uid, "node-a")]

        made.a.kill()
        operations.node_name = "renamed"
        assert belong_to_node_a() == [True, True]
        fencing.settle_previous_name(made.store, operations, "node-a")
        assert _running(made) == ["node-a"], "nothing was taken away"
        made.fence()
        made.go_on_until(lambda: len(_running(made)) == 2, "it runs elsewhere, too")
        assert belong_to_node_a() == [False, False]
        fencing.settle_previous_name(made.store, operations, "node-a")
        assert _running(made) == ["node-b"]
        assert made.a.machines.patience == {"default/web": 0.0}, "its guest is not asked: it would write to the disks"
        assert not operations.claims.held()


def test_a_machine_whose_object_is_deleted_belongs_to_no_node() -> None:
    with cluster() as made:
        operations = made.a.operations
        assert not fencing.has_machine(made.store, operations, "default/web", "its-previous-uid", "node-a")
        operations.claims.journal.set(objects.IDENTITY, "another store")
        assert fencing.has_machine(made.store, operations, "default/web", "its-previous-uid", "node-a")


def _running(made: FencedCluster) -> list[str]:
    return [name for name, plugin in made.nodes.items() if any(one.runs for one in plugin.machines.views.values())]


@pytest.mark.parametrize("kind", STORES)
def test_a_plugin_that_was_cut_off_ends_the_machine_when_it_reaches_the_store_again(kind: Kind) -> None:
    with cluster(kind) as made:
        made.is_word_true = False
        made.a.is_cut = True
        made.a.has_settled = False
        made.fence()
        made.go_on_until(lambda: len(_running(made)) == 2, "it runs elsewhere, too")
        made.a.is_cut = False

        def ended() -> bool:
            made.a.round()
            return _running(made) == ["node-b"]

        until(ended, "it ends it", 60)
        assert made.a.machines.patience == {"default/web": 0.0}


@pytest.mark.parametrize("kind", STORES)
def test_a_machine_that_is_placed_on_its_fenced_node_again_starts_anew(kind: Kind) -> None:
    """The old QEMU knows nothing of what was written to the disks meanwhile."""
    with cluster(kind) as made:
        made.is_word_true = False
        made.a.kill()
        old = made.a.machines.views["default/web"].id
        made.fence()
        made.go_on_until(lambda: len(_running(made)) == 2, "it runs elsewhere, too")
        withdraw_fence(made.store, "node-a")
        set_cordon(made.store, CordonTarget(node="node-b"), "new disks")
        (drained,) = drained_machines(made.store, "node-b", force=True)
        evict(made.store, drained.machine, "node-b")
        made.go_on_until(lambda: _running(made) == ["node-a"], "it left node-b")
        assert made.a.machines.views["default/web"].id == old, "no plugin is there that could end it"
        made.go_on_until(lambda: made.machine()["status"].get("nodeName") == "node-a", "it is placed there")
        made.a.start(made.connect())
        made.a.round()
        machines = made.a.machines
        assert machines.patience == {"default/web": 0.0}
        made.go_on_until(lambda: made.where() == "node-a" and machines.views["default/web"].id != old, "a new run")
        made.go_on_until(lambda: not fenced_from(made.machine()), "it is confirmed")


@pytest.mark.parametrize("kind", STORES)
def test_a_machine_whose_disks_only_the_lost_node_has_waits_for_that_node(kind: Kind) -> None:
    disks = [{"path": "/srv/web.raw", "format": "raw"}]
    with cluster(kind, start={"kernel": "/images/vmlinuz", "disks": disks}) as made:
        made.a.power_off()
        made.fence()
        made.go_on_until(lambda: not made.devices(), "its claim is released")
        made.rounds()
        status = made.machine()["status"]
        assert (made.where(), status["phase"], "machineID" in status) == ("", "Pending", False)
        assert "only node node-a has its disk /srv/web.raw" in status["message"]
        made.a.start(made.connect())
        made.rounds()
        assert made.where() == "", "it is still fenced"
        withdraw_fence(made.store, "node-a")
        made.settled("node-a")


@pytest.mark.parametrize("kind", STORES)
def test_claims_without_machines_are_released(kind: Kind) -> None:
    with cluster(kind) as made:
        store = made.store
        extra = {**toy_pool("node-a"), "metadata": {"name": "more-node-a"}}
        store.create(extra)
        node = testing.claim("prepared", testing.request("toy"), namespace="default")
        node["metadata"]["annotations"] = {meta.NODE: "node-a"}
        store.create(node)
        store.create({**node, "metadata": {**node["metadata"], "name": "unprepared"}})

        def allocated() -> bool:
            made.rounds(1)
            return bool(store.get("DeviceClaim", "default", "prepared").get("status"))

        until(allocated, "it has a device")
        claim = store.get("DeviceClaim", "default", "prepared")
        held = {**claim["metadata"], "finalizers": [meta.NODE_FINALIZER]}
        held["annotations"] = {**held["annotations"], meta.PREPARED_ON: "node-a"}
        store.replace({**claim, "metadata": held})
        made.a.power_off()
        made.rounds()
        assert store.get("DeviceClaim", "default", "prepared")["metadata"]["finalizers"] == [meta.NODE_FINALIZER]
        made.fence()

        def released() -> bool:
            made.rounds(1)
            now = store.get("DeviceClaim", "default", "prepared")
            return not now.get("status") and not now["metadata"].get("finalizers")

        until(released, "it is released", 60)
        made.rounds()
        now = store.get("DeviceClaim", "default", "prepared")
        assert "fenced" in notes(now)[meta.MESSAGE] or notes(now)[meta.REASON]
        assert not now.get("status"), "its node has nothing to give"


def test_on_a_cluster_the_taint_of_the_node_fences_it() -> None:
    with cluster(ClusterStores, has_node=True) as made:
        made.a.power_off()
        made.fence()
        assert made.store.get("Node", None, "node-a")["spec"]["taints"][0]["key"] == meta.OUT_OF_SERVICE
        assert not any(meta.FENCED_NODE in notes(pool) for pool in made.store.list("DevicePool").objects)
        assert fence_statement(made.store, "node-a") == f"taint {meta.OUT_OF_SERVICE}"
        made.settled("node-b")
        assert withdraw_fence(made.store, "node-a")
        assert not made.store.get("Node", None, "node-a")["spec"].get("taints")
        assert not is_fenced(made.store, "node-a")


@pytest.mark.parametrize("kind", STORES)
def test_a_deleted_machine_of_a_fenced_node_goes(kind: Kind) -> None:
    with cluster(kind) as made:
        made.a.power_off()
        made.store.delete("VirtualMachine", "default", "web")
        made.rounds()
        assert made.machine()["metadata"]["deletionTimestamp"]
        made.fence()
        made.go_on_until(lambda: not made.store.list("VirtualMachine").objects, "it is gone")
        made.is_word_true = True
        made.a.start(made.connect())
        made.rounds()
        assert _running(made) == []


def test_take_away_leaves_an_object_alone_that_changed_meanwhile() -> None:
    """A decision that comes late is based on an object that its node has changed since."""
    with cluster() as made:
        stale = made.store.list(("VirtualMachine", "DeviceClaim")).objects
        machine = made.machine()
        made.store.replace_status({**machine, "status": {**machine["status"], "message": "it is back"}})
        assert take_away(made.store, stale, "node-a", WHY) == []
        assert (made.where(), made.devices()) == ("node-a", ["cards-node-a"])
        assert notes(made.machine())[meta.PREPARED_ON] == "node-a"


def test_a_machine_that_was_taken_away_loses_its_conditions_ready_and_migratable() -> None:
    with cluster(guestReports=True) as made:
        made.a.power_off()
        machine = made.machine()
        conditions = [{"type": name, "status": "True"} for name in ("Placed", "Ready", "LiveMigratable")]
        made.store.replace_status({**machine, "status": {**machine["status"], "conditions": conditions}})
        assert take_away(made.store, made.store.list(("VirtualMachine", "DeviceClaim")).objects, "node-a", WHY)
        assert [one["type"] for one in made.machine()["status"]["conditions"]] == ["Placed"]


@pytest.mark.parametrize("kind", STORES)
def test_a_machine_that_cannot_be_taken_away_keeps_its_claims_and_the_others_go(kind: Kind) -> None:
    with cluster(kind) as made:
        made.store.create(vm("worker"))
        made.go_on_until(lambda: _holder(made, "worker") == "node-a", "it runs")
        made.a.power_off()
        made.fence()
        made.dying = RefusingStore(made.dying, web=DENIED)
        made.go_on_until(lambda: _holder(made, "worker") is None, "it is taken away")
        made.rounds()
        assert (_holder(made, "web"), made.where(), made.devices()) == ("node-a", "", ["cards-node-a"])
        assert fenced_from(made.machine()) == set(), "it may start nowhere else"
        status = made.machine()["status"]
        assert (status["phase"], status.get("reason", "")) == ("Running", ""), "it is not fenced while its node has it"
        made.dying.refused.clear()
        made.settled("node-b")


def _holder(made: FencedCluster, name: str) -> str | None:
    return notes(made.store.get("VirtualMachine", "default", name)).get(meta.PREPARED_ON)


def test_the_command_reports_what_it_could_not_take_away() -> None:
    with cluster() as made:
        made.store.create(vm("worker"))
        made.go_on_until(lambda: _holder(made, "worker") == "node-a", "it runs")
        made.a.power_off()
        refusing: Any = RefusingStore(made.store, web=DENIED)
        with pytest.raises(Invalid, match="the label team is missing"):
            take_away(refusing, held_objects(made.store, "node-a"), "node-a", WHY)
        assert (_holder(made, "web"), _holder(made, "worker")) == ("node-a", None)
        assert made.machine()["status"]["phase"] == "Running"


@pytest.mark.parametrize("kind", STORES)
def test_a_node_that_cannot_confirm_one_end_does_everything_else(kind: Kind) -> None:
    with cluster(kind) as made:
        made.fence_alive()
        made.go_on_until(lambda: len(_running(made)) == 2, "it runs elsewhere, too")
        withdraw_fence(made.store, "node-a")
        refusing = RefusingStore(made.connect(), web=DENIED)
        made.a.start(refusing)
        made.a.round()
        assert (_running(made), made.a.has_settled) == (["node-b"], True)
        status = made.machine()["status"]
        made.store.create(vm("worker"))
        made.go_on_until(lambda: _holder(made, "worker") == "node-a", "the node takes what is new")
        assert fenced_from(made.machine()) == {"node-a"}, "the note stays until it can be taken away"
        assert made.machine()["status"] == status, "it is that of the node where the machine runs"
        refusing.refused.clear()
        made.go_on_until(lambda: not fenced_from(made.machine()), "it confirms that later")


def test_a_node_that_cannot_end_one_machine_ends_the_others_and_publishes_nothing() -> None:
    with cluster() as made:
        made.store.create(vm("worker"))
        made.go_on_until(lambda: _holder(made, "worker") == "node-a", "it runs")
        made.fence_alive()
        made.allocate()
        assert fenced_from(made.machine()) == {"node-a"}
        machines = made.a.machines
        machines.refuse["stop default/web"] = Failed("QemuFailed", "QEMU does not end")
        made.a.start(made.connect())
        made.a.round()
        assert {key for key, machine in machines.views.items() if machine.runs} == {"default/web"}
        assert not made.a.has_settled
        machines.refuse.clear()
        made.a.round()
        assert made.a.has_settled
        assert not any(machine.runs for machine in machines.views.values())


@pytest.mark.parametrize("previous", [False, True], ids=["settle", "settle_previous_name"])
@pytest.mark.parametrize("cause", ["QEMU", "store"])
def test_what_does_not_end_or_cannot_be_read_keeps_no_other_machine_running(previous: bool, cause: str) -> None:
    with cluster() as made:
        made.store.create(vm("worker"))
        made.go_on_until(lambda: _holder(made, "worker") == "node-a", "it runs")
        made.fence_alive()
        made.allocate()
        machines, operations = made.a.machines, made.a.operations
        first, *others = [key for key, uid in operations.machines.owners().items() if uid]
        assert others
        store = _UnreadableStore(made.store, first.partition("/")[2] if cause == "store" else "")
        if cause == "QEMU":
            machines.refuse[f"stop {first}"] = Failed("QemuFailed", "QEMU does not end")
        if previous:
            operations.node_name = "renamed"

        def settle() -> None:
            if previous:
                fencing.settle_previous_name(store, operations, "node-a")
            else:
                fencing.settle(store, operations, lambda: WHY)

        with pytest.raises(Failed, match="QEMU does not end" if cause == "QEMU" else "web is not for this node"):
            settle()
        assert {key for key, machine in machines.views.items() if machine.runs} == {first}
        machines.refuse.clear()
        store.unreadable = ""
        settle()
        assert not any(machine.runs for machine in machines.views.values())


class _UnreadableStore:
    """A store that refuses to show the objects of one name."""

    def __init__(self, store: Any, unreadable: str) -> None:
        self._store, self.unreadable = store, unreadable

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, kind: str, namespace: str | None, name: str) -> Object:
        if name == self.unreadable:
            raise Forbidden(f"{name} is not for this node")
        return self._store.get(kind, namespace, name)  # type: ignore[no-any-return]


class _SilentStore:
    """A store that does not answer."""

    def __init__(self) -> None:
        self.requested: list[str] = []

    def get(self, kind: str, namespace: str | None, name: str) -> Object:
        self.requested.append(name)
        raise Unavailable("no answer within 10 s")


@pytest.mark.parametrize("previous", [False, True], ids=["settle", "settle_previous_name"])
def test_a_store_that_does_not_answer_is_asked_for_one_object_only(previous: bool) -> None:
    """Each time takes half a minute, in which SIGTERM does not end the start of the plugin."""
    with cluster() as made:
        made.store.create(vm("worker"))
        made.go_on_until(lambda: _holder(made, "worker") == "node-a", "it runs")
        store: Any = _SilentStore()
        operations = made.a.operations
        assert len(operations.machines.owners()) == 2
        settle = partial(fencing.settle_previous_name, previous="node-a")
        if not previous:
            settle = partial(fencing.settle, statement=lambda: WHY)
        with pytest.raises(Failed, match="no answer within 10 s"):
            settle(store, operations)
        assert len(store.requested) == 1
        assert all(machine.runs for machine in made.a.machines.views.values())


def test_an_unreadable_journal_is_reported_at_a_fence(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def held() -> Any:
        raise Failed("JournalUnavailable", "the journal is damaged")

    with cluster() as made:
        made.fence_alive()
        made.allocate()
        assert fenced_from(made.machine()) == {"node-a"}
        made.a.machines.refuse["stop default/web"] = Failed("QemuFailed", "QEMU does not end")
        monkeypatch.setattr(made.a.operations.claims, "held", held)
        with pytest.raises(Failed, match="QEMU does not end"):
            fencing.settle(made.store, made.a.operations, lambda: WHY)
        assert "the journal is damaged" in caplog.messages
        monkeypatch.undo()


def test_a_node_that_cannot_end_two_machines_raises_one_error_and_logs_the_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with cluster() as made:
        made.store.create(vm("worker"))
        made.go_on_until(lambda: _holder(made, "worker") == "node-a", "it runs")
        made.fence_alive()
        made.allocate()
        for name in ("web", "worker"):
            error = Failed("QemuFailed", f"QEMU of machine default/{name} does not end")
            made.a.machines.refuse[f"stop default/{name}"] = error
        with pytest.raises(Failed) as raised:
            fencing.settle(made.store, made.a.operations, lambda: WHY)
        assert {str(raised.value), *caplog.messages} >= {
            "QEMU of machine default/web does not end",
            "QEMU of machine default/worker does not end",
        }


def test_nothing_is_written_after_the_lease_is_lost() -> None:
    with cluster() as made:
        made.a.power_off()
        made.fence()
        machine_allocator(made.dying, solve=solve_manifests, may_write=lambda: False).round()
        assert notes(made.machine())[meta.PREPARED_ON] == "node-a"
        assert made.store.get("DeviceClaim", "default", "card")["metadata"]["finalizers"] == [meta.NODE_FINALIZER]
        made.settled("node-b")


ACTIONS = ("allocate", "allocate", "a", "b", "lose", "back", "fence", "unfence", "kill a", "kill b", "cut", "join")


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("seed", range(8 if IS_FUZZ else 3))
def test_two_nodes_never_run_it_in_any_order_of_losses_fences_and_comebacks(seed: int, kind: Kind) -> None:
    """The admin's word is true: only a node that is off is fenced. At every write and every change of a machine, one
    node at most runs it; and in the end it runs."""
    choose = random.Random(seed)
    with cluster(kind) as made:
        for _ in range(60):
            action = choose.choice(ACTIONS)
            if action == "allocate":
                made.allocate()
            elif action in ("a", "b"):
                made.nodes[f"node-{action}"].round()
            elif action == "lose":
                made.a.power_off()
            elif action == "back" and made.a.is_down:
                made.a.start(made.connect())
            elif action == "fence" and made.a.is_down:
                made.fence()
            elif action == "unfence":
                withdraw_fence(made.store, "node-a")
            elif action.startswith("kill"):
                node = made.nodes[f"node-{action[-1]}"]
                if not node.is_down:  # type: ignore[attr-defined]
                    node.start(made.connect())
            elif action in ("cut", "join"):
                made.a.is_cut = action == "cut"
            made.check()
            if made.where() == "node-b":
                assert notes(made.machine()).get(meta.PREPARED_ON) == "node-b", "who runs it holds it"
        made.a.is_cut = False
        if made.a.is_down:
            made.a.start(made.connect())
        withdraw_fence(made.store, "node-a")
        made.go_on_until(lambda: made.where() != "", "it runs in the end")


@pytest.mark.parametrize("kind", STORES)
def test_a_controller_killed_at_any_step_of_a_fence_loses_nothing(kind: Kind) -> None:
    at, is_done = 0, False
    while not is_done:
        stride = (1, 3) if IS_FUZZ else (4, 7)
        at += stride[kind is ClusterStores]  # each step of a cluster's takes longer
        with cluster(kind) as made:
            made.a.power_off()
            made.fence()
            made.steps, made.left = 0, at
            try:
                made.settled("node-b")
                is_done = True
            except Killed:
                pass
            made.left = 0
            made.dying = made.connect()
            made.nodes["node-b"].start(made.connect())
            made.settled("node-b")
            assert made.devices() == ["cards-node-b"]
    assert at > 10, "there is something to kill"
