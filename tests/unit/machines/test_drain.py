"""Machines that leave a node: which do, and that each is on its old node, on a new one, or waits, and never on two."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from devalloc.api import meta
from devalloc.api.serving import unserved_status
from devalloc.api.views import MachineView
from devalloc.controller.cordon import CordonTarget, set_cordon
from devalloc.machines.drain import Fate, drained_machines, evict
from devalloc.store import Change, CommitOutcomes, Conflict, Fence, Store
from devalloc.store.sqlite import SQLiteStore
from tests.support import migration_nodes
from tests.support.fleet_manifests import annotations, fill, gpu_claim, gpu_class, gpu_pool, held
from tests.support.host_pools import host, machine, node_by_machine, reserved_for, status
from tests.support.migration_nodes import rounds

Object = dict[str, Any]
LOCAL = {"disks": [{"path": "/var/images/web.raw", "format": "raw"}]}
SHARED = {"disks": [{"path": "/srv/vms/default/web.raw", "format": "raw"}]}


def sharing(node: str, *folders: str, **amounts: Any) -> Object:
    """The pool of a node that has these folders as others have."""
    return host(node, shared_storage=folders, **amounts)


def take(store: Store, name: str = "web", node: str = "a", **fields: Any) -> None:
    migration_nodes.take(store, name, node, **fields)


def let_go(store: Store, name: str = "web") -> None:
    migration_nodes.let_go(store, name)


def drain(store: Store, node: str = "a", *, force: bool = False) -> dict[str, Fate]:
    """Cordon the node and ask its machines to leave; what becomes of each."""
    set_cordon(store, CordonTarget(node=node), "test")
    planned = drained_machines(store, node, force=force)
    for one in planned:
        if one.fate in (Fate.MOVE, Fate.STOP):
            evict(store, one.machine, node)
    return {one.key.name: one.fate for one in planned}


def noted(store: Store, name: str = "web") -> Object:
    content: Object = store.get("VirtualMachine", "default", name)["metadata"].get("annotations", {})
    return content


class TestWhatMoves:
    def test_a_machine_that_did_not_begin_moves_with_its_claims_in_one_commit_each(self, store: SQLiteStore) -> None:
        fill(
            store, gpu_class(), host("a"), gpu_pool("pa", node="a"), gpu_claim("gpu"), machine("web", "1", "1Gi", "gpu")
        )
        rounds(store)
        assert (node_by_machine(store), held(store, "gpu")) == ({"web": "a"}, ["pa/d0"])
        fill(store, host("b"), gpu_pool("pb", node="b"))
        assert drain(store) == {"web": Fate.MOVE}
        rounds(store)
        assert (node_by_machine(store), held(store, "gpu")) == ({"web": "b"}, ["pb/d0"])
        assert meta.EVICT not in noted(store)

    def test_it_keeps_its_old_node_until_that_lets_go_of_it(self, store: SQLiteStore) -> None:
        fill(store, host("a"), machine("web"))
        rounds(store)
        take(store, phase="Starting")
        fill(store, host("b"))
        assert drain(store, force=True) == {"web": Fate.MOVE}
        rounds(store)
        assert (status(store, "web")["nodeName"], reserved_for(store, "web") != {}) == ("a", True)
        let_go(store)
        rounds(store)
        assert node_by_machine(store) == {"web": "b"}

    def test_a_running_machine_moves_by_force_only(self, store: SQLiteStore) -> None:
        fill(store, host("a"), machine("web"))
        rounds(store)
        take(store)
        assert drain(store) == {"web": Fate.STAY}
        assert meta.EVICT not in noted(store)
        assert drain(store, force=True) == {"web": Fate.MOVE}

    def test_a_running_machine_moves_live_if_it_can(self, store: SQLiteStore) -> None:
        fill(store, sharing("a", "/srv/vms"), sharing("b", "/srv/vms"), machine("web", start=SHARED, nodeName="a"))
        rounds(store)
        stored = store.get("VirtualMachine", "default", "web")
        spec = {name: value for name, value in stored["spec"].items() if name != "nodeName"}
        store.replace({**stored, "spec": spec})
        take(store)
        assert drain(store) == {"web": Fate.MIGRATE}
        assert drain(store, force=True) == {"web": Fate.MIGRATE}
        assert meta.EVICT not in noted(store)

    def test_a_machine_whose_plugin_is_back_and_has_not_written_yet_moves_live(self, store: SQLiteStore) -> None:
        """The controller has written meanwhile that it may run or not: that is no reason to power it down."""
        fill(store, sharing("a", "/srv/vms"), sharing("b", "/srv/vms"), machine("web", start=SHARED))
        rounds(store)
        node = str(store.get("VirtualMachine", "default", "web")["status"]["nodeName"])
        ready = {"type": "Ready", "status": "True", "reason": "MachineRunning", "message": "it runs"}
        take(store, node=node, conditions=[{**ready, "lastTransitionTime": "2026-01-31T12:00:00Z"}])
        stored = store.get("VirtualMachine", "default", "web")
        store.replace_status({**stored, "status": unserved_status(MachineView(stored), "no plugin serves it")})
        for force in (False, True):
            assert drain(store, node, force=force) == {"web": Fate.MIGRATE}

    def test_drain_waits_for_a_machine_that_stops_and_powers_it_down_by_force(self, store: SQLiteStore) -> None:
        fill(store, host("a"), host("b"), machine("web", nodeName="a"))
        rounds(store)
        stored = store.get("VirtualMachine", "default", "web")
        spec = {name: value for name, value in stored["spec"].items() if name != "nodeName"}
        store.replace({**stored, "spec": {**spec, "running": False}})
        take(store)
        (one,) = drained_machines(store, "a", force=False)
        assert (one.fate, one.why) == (Fate.STOPPING, "it is to be stopped")
        (one,) = drained_machines(store, "a", force=True)
        assert one.fate is Fate.MOVE
        take(store, phase="Stopped")
        (one,) = drained_machines(store, "a", force=False)
        assert one.fate is Fate.MOVE

    @pytest.mark.parametrize(
        ("others", "words"),
        [
            ([], "no other node has published its capacity for machines"),
            (
                [host("b", live_migration=False, shared_storage=["/srv/vms"])],
                "no other node receives machines that run; start the plugin of another node with --migration-",
            ),
            (
                [sharing("b", "/x"), host("c", live_migration=False, shared_storage=["/srv/vms"])],
                "no other node that receives machines has the shared storage of node a",
            ),
        ],
    )
    def test_a_running_machine_without_a_target_is_not_migrated(
        self, store: SQLiteStore, others: list[Object], words: str
    ) -> None:
        fill(store, sharing("a", "/srv/vms"), machine("web", start=SHARED))
        rounds(store)
        take(store)
        fill(store, *others)
        (one,) = drained_machines(store, "a", force=False)
        assert one.fate is Fate.STAY
        assert f"it runs, and cannot move while it does: {words}" in one.why
        (one,) = drained_machines(store, "a", force=True)
        assert one.fate is Fate.MOVE

    @pytest.mark.parametrize(
        ("spec", "words"),
        [
            ({"start": LOCAL}, "only node a has its disk"),
            ({"nics": [{"backend": "warm"}]}, "it runs, and cannot move while it does: its network is a warm setup"),
            ({"claims": ["nothing"]}, "claim default/nothing is not allocated"),
        ],
    )
    def test_what_cannot_says_why_and_is_powered_down_by_force(
        self, store: SQLiteStore, spec: Object, words: str
    ) -> None:
        fill(store, host("a"), machine("web", **{**spec, "claims": []}))
        rounds(store)
        take(store)
        stored = store.get("VirtualMachine", "default", "web")
        store.replace({**stored, "spec": {**stored["spec"], "claims": spec.get("claims", [])}})
        fill(store, host("b"))
        (one,) = drained_machines(store, "a", force=False)
        assert one.fate is Fate.STAY
        assert words in one.why
        (one,) = drained_machines(store, "a", force=True)
        assert one.fate in (Fate.MOVE, Fate.STOP)

    def test_while_its_node_has_a_claim_of_it_it_stays_where_it_is_and_says_why(self, store: SQLiteStore) -> None:
        fill(
            store, gpu_class(), host("a"), gpu_pool("pa", node="a"), gpu_claim("gpu"), machine("web", "1", "1Gi", "gpu")
        )
        rounds(store)
        claim = store.get("DeviceClaim", "default", "gpu")
        held_by = {**claim["metadata"]["annotations"], meta.PREPARED_ON: "a"}
        metadata = {**claim["metadata"], "finalizers": [meta.NODE_FINALIZER], "annotations": held_by}
        claim = store.replace({**claim, "metadata": metadata})
        fill(store, host("b"), gpu_pool("pb", node="b"))
        drain(store)
        rounds(store)
        assert (status(store, "web")["nodeName"], held(store, "gpu")) == ("a", ["pa/d0"])
        assert status(store, "web")["reason"] == "StillPrepared"
        claim = store.get("DeviceClaim", "default", "gpu")
        store.replace({**claim, "metadata": {**claim["metadata"], "finalizers": []}})
        rounds(store)
        assert (node_by_machine(store), held(store, "gpu")) == ({"web": "b"}, ["pb/d0"])

    def test_without_room_elsewhere_it_and_its_claims_wait_together(self, store: SQLiteStore) -> None:
        fill(
            store, gpu_class(), host("a"), gpu_pool("pa", node="a"), gpu_claim("gpu"), machine("web", "1", "1Gi", "gpu")
        )
        rounds(store)
        fill(store, gpu_pool("pb", node="b"))
        drain(store)
        rounds(store)
        assert (node_by_machine(store), held(store, "gpu")) == ({}, [])
        assert status(store, "web")["reason"]
        fill(store, host("b"))
        rounds(store)
        assert (node_by_machine(store), held(store, "gpu")) == ({"web": "b"}, ["pb/d0"])

    def test_the_claims_of_a_stopped_one_wait_for_its_start_and_come_together(self, store: SQLiteStore) -> None:
        fill(store, gpu_class(), host("a"), gpu_pool("pa", node="a", devices=2), gpu_claim("one"), gpu_claim("two"))
        fill(store, machine("web", "1", "1Gi", "one", "two"))
        rounds(store)
        take(store, phase="Stopped")
        stored = store.get("VirtualMachine", "default", "web")
        store.replace({**stored, "spec": {**stored["spec"], "running": False}})
        fill(store, host("b"), host("c"), gpu_pool("pb", node="b", devices=1), gpu_pool("pc", node="c"))
        assert drain(store) == {"web": Fate.MOVE}
        let_go(store)
        rounds(store)
        assert (held(store, "one"), held(store, "two")) == ([], [])
        assert "default/web, which left its node" in annotations(store, "one")["message"]
        stored = store.get("VirtualMachine", "default", "web")
        store.replace({**stored, "spec": {**stored["spec"], "running": True}})
        rounds(store)
        assert node_by_machine(store) == {"web": "c"}
        assert sorted(held(store, "one") + held(store, "two")) == ["pc/d0", "pc/d1"]


class TestDisks:
    @pytest.mark.parametrize(
        ("start", "part"),
        [
            (LOCAL, "its disk /var/images/web.raw"),
            ({"disks": [{"path": "/i/a.raw", "format": "raw", "clone": "overlay"}]}, "its own disk made from /i/a.raw"),
            ({"kernel": "/boot/vmlinuz", "tpm": True, "disks": LOCAL["disks"]}, "its disk /var/images/web.raw"),
        ],
    )
    def test_what_only_its_node_has_keeps_it_there(self, store: SQLiteStore, start: Object, part: str) -> None:
        fill(store, host("a"), machine("web", start=start, disk="1Gi"))
        rounds(store)
        take(store)
        fill(store, host("b"))
        (one,) = drained_machines(store, "a", force=False)
        assert one.fate is Fate.STAY
        assert one.why.startswith(f"only node a has {part}")
        assert "it runs, and" not in one.why
        assert drain(store, force=True) == {"web": Fate.STOP}
        let_go(store)
        rounds(store)
        assert node_by_machine(store) == {}, "its node is cordoned, and no other one will do"
        assert status(store, "web")["message"].startswith(f"only node a has {part}")
        set_cordon(store, CordonTarget(node="a"), None)
        rounds(store)
        assert node_by_machine(store) == {"web": "a"}
        assert noted(store).keys() & {meta.EVICT} == set()

    @pytest.mark.parametrize(
        ("start", "part"), [({"tpm": True}, "its TPM"), ({"firmware": {"type": "uefi"}}, "its UEFI variables")]
    )
    def test_what_a_machine_takes_along_while_it_runs_keeps_it_there_otherwise(
        self, store: SQLiteStore, start: Object, part: str
    ) -> None:
        fill(store, host("a"), machine("web", start={"kernel": "/boot/vmlinuz", **start}))
        rounds(store)
        take(store)
        fill(store, host("b"))
        for force in (False, True):
            (one,) = drained_machines(store, "a", force=force)
            assert (one.fate, one.why) == (Fate.MIGRATE, "")
        (one,) = drained_machines(store, "a", force=True, live=False)
        assert (one.fate, one.why) == (Fate.STOP, f"only node a has {part}"), "the node is lost"
        pool = store.get("DevicePool", None, "b-host")
        store.replace({**pool, "spec": host("b", live_migration=False)["spec"]})
        (one,) = drained_machines(store, "a", force=False)
        assert one.fate is Fate.STAY
        assert one.why.startswith(f"only node a has {part}; it runs, and cannot move while it does: no other node")
        assert drain(store, force=True) == {"web": Fate.STOP}
        let_go(store)
        rounds(store)
        assert node_by_machine(store) == {}, "its node is cordoned, and no other one will do"

    def test_disks_in_shared_storage_are_reached_from_nodes_that_have_it_too(self, store: SQLiteStore) -> None:
        fill(store, sharing("a", "/srv/vms", "/x"), machine("web", start=SHARED))
        rounds(store)
        take(store, phase="Starting")
        fill(store, host("b", cpus=8), sharing("c", "/srv/vms-2", cpus=8), sharing("d", "/srv/vms"))
        assert drain(store, force=True) == {"web": Fate.MOVE}
        let_go(store)
        rounds(store)
        assert node_by_machine(store) == {"web": "d"}
        assert noted(store)[meta.LAST_NODE] == "d", "its disks are to be reached from wherever it goes next"

    def test_a_machine_that_never_began_has_nothing_on_its_node(self, store: SQLiteStore) -> None:
        fill(store, host("a"), machine("web", start=LOCAL))
        rounds(store)
        fill(store, host("b"))
        assert drain(store) == {"web": Fate.MOVE}
        rounds(store)
        assert node_by_machine(store) == {"web": "b"}

    def test_read_only_disks_are_as_everywhere(self, store: SQLiteStore) -> None:
        start = {"kernel": "/k", "disks": [{"path": "/ro.raw", "format": "raw", "readOnly": True}]}
        fill(store, host("a"), machine("web", start=start))
        rounds(store)
        take(store, phase="Starting")
        fill(store, host("b"))
        assert drain(store, force=True) == {"web": Fate.MOVE}

    def test_a_user_may_name_a_node_all_the_same(self, store: SQLiteStore) -> None:
        fill(store, host("a"), machine("web", start=LOCAL))
        rounds(store)
        take(store)
        drain(store, force=True)
        let_go(store)
        rounds(store)
        fill(store, host("b"))
        stored = store.get("VirtualMachine", "default", "web")
        store.replace({**stored, "spec": {**stored["spec"], "nodeName": "b"}})
        rounds(store)
        assert node_by_machine(store) == {"web": "b"}


class TestWhatStays:
    def test_a_machine_that_names_the_node_is_stopped_by_force_until_the_node_is_back(self, store: SQLiteStore) -> None:
        fill(store, host("a"), host("b"), machine("web", nodeName="a"))
        rounds(store)
        take(store)
        assert drain(store) == {"web": Fate.STAY}
        assert drain(store, force=True) == {"web": Fate.STOP}
        let_go(store)
        rounds(store)
        assert node_by_machine(store) == {}
        (one,) = drained_machines(store, "a", force=True)
        assert (one.fate, one.runs) == (Fate.STAY, False)
        set_cordon(store, CordonTarget(node="a"), None)
        rounds(store)
        assert node_by_machine(store) == {"web": "a"}

    def test_a_machine_that_its_node_would_start_at_once_stays(self, store: SQLiteStore) -> None:
        fill(store, machine("web", nodeName="a"))
        take(store)
        (one,) = drained_machines(store, "a", force=True)
        assert (one.fate, one.runs) == (Fate.STAY, True)
        assert "name another one" in one.why

    def test_an_adopted_one_belongs_to_the_one_who_started_it(self, store: SQLiteStore) -> None:
        made = machine("web", nodeName="a", adopt={"qmpSocket": "/run/qmp.sock"})
        del made["spec"]["start"]
        fill(store, host("a"), made)
        take(store)
        (one,) = drained_machines(store, "a", force=True)
        assert (one.fate, "it was adopted" in one.why) == (Fate.STAY, True)

    def test_so_does_one_whose_claim_another_one_has_that_stays(self, store: SQLiteStore) -> None:
        fill(store, gpu_class(), host("a"), gpu_pool("pa", node="a"), gpu_claim("gpu"))
        fill(store, machine("web", "1", "1Gi", "gpu"), machine("twin", "1", "1Gi", "gpu", nodeName="a"))
        rounds(store)
        one, two = drained_machines(store, "a", force=False)
        assert {each.key.name: each.fate for each in (one, two)} == {"twin": Fate.STAY, "web": Fate.STAY}
        assert "is also that of machine default/twin" in two.why

    def test_also_while_that_one_is_to_be_stopped(self, store: SQLiteStore) -> None:
        fill(store, gpu_class(), host("a"), gpu_pool("pa", node="a"), gpu_claim("gpu"))
        fill(store, machine("web", "1", "1Gi", "gpu"), machine("twin", "1", "1Gi", "gpu"))
        rounds(store)
        twin = store.get("VirtualMachine", "default", "twin")
        store.replace({**twin, "spec": {**twin["spec"], "running": False}})
        take(store, "twin")
        planned = drained_machines(store, "a", force=False)
        assert [each.fate for each in planned] == [Fate.STOPPING, Fate.STAY]

    def test_a_machine_that_changed_since_it_was_read_is_not_asked(self, store: SQLiteStore) -> None:
        fill(store, host("a"), machine("web"))
        rounds(store)
        (one,) = drained_machines(store, "a", force=False)
        take(store)
        with pytest.raises(Conflict):
            evict(store, one.machine, "a")

    def test_a_request_that_does_not_say_where_its_disks_are_has_no_effect_once_it_began(
        self, store: SQLiteStore
    ) -> None:
        fill(store, host("a"), machine("web", start=LOCAL))
        rounds(store)
        take(store)
        stored = store.get("VirtualMachine", "default", "web")
        notes = {**stored["metadata"]["annotations"], meta.EVICT: "a"}
        stored = store.replace({**stored, "metadata": {**stored["metadata"], "annotations": notes}})
        assert not MachineView(stored).must_leave("a")


class Interrupted(Exception):
    pass


class FailingStore:
    """A store whose user dies at a write: before it, after it, or when half of its units are written."""

    def __init__(self, store: SQLiteStore, at: int, when: str) -> None:
        self._store, self._at, self._when = store, at, when

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def replace(self, obj: Object) -> Object:
        self._at -= 1
        if self._at == 0 and self._when != "after":
            raise Interrupted
        made = self._store.replace(obj)
        if self._at == 0:
            raise Interrupted
        return made

    def commit_each(self, units: Sequence[Sequence[Change]], fence: Fence | None = None) -> CommitOutcomes:
        self._at -= 1
        if self._at == 0 and self._when == "before":
            raise Interrupted
        half = units[: len(units) // 2] if self._at == 0 and self._when == "half" else units
        outcomes = self._store.commit_each(half, fence)
        if self._at == 0:
            raise Interrupted
        return outcomes


@pytest.mark.parametrize("when", ["before", "half", "after"])
@pytest.mark.parametrize("at", range(1, 9))
def test_a_kill_at_any_write_leaves_a_machine_on_one_node_or_waiting_and_it_gets_there(
    store: SQLiteStore, at: int, when: str
) -> None:
    fill(store, gpu_class(), host("a"), gpu_pool("pa", node="a", devices=2))
    fill(
        store,
        gpu_claim("gpu"),
        machine("web", "1", "1Gi", "gpu"),
        gpu_claim("other"),
        machine("twin", "1", "1Gi", "other"),
    )
    rounds(store)
    fill(store, host("b"), gpu_pool("pb", node="b", devices=2))
    failing: Any = FailingStore(store, at, when)
    with suppress(Interrupted):
        drain(failing)
        rounds(failing)
    for name, claim in (("web", "gpu"), ("twin", "other")):
        node = MachineView(store.get("VirtualMachine", "default", name)).node
        devices = held(store, claim)
        assert (node, devices and devices[0][:2]) in ((None, []), ("a", "pa"), ("b", "pb")), "together or not at all"
    drain(store)
    rounds(store)
    assert node_by_machine(store) == {"web": "b", "twin": "b"}
    assert sorted(held(store, "gpu") + held(store, "other")) == ["pb/d0", "pb/d1"]
