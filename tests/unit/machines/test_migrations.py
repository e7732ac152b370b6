"""Migrations of machines that run: which node they get, what is reserved meanwhile, and how each of them ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from devalloc.api.decode import decode
from devalloc.api.meta import NODE_FINALIZER, PREPARED_ON
from devalloc.api.views import MachineView
from devalloc.controller.cordon import CordonTarget, set_cordon
from devalloc.controller.fencing import state_fence
from devalloc.controller.settings import MigrationLimits
from devalloc.machines.drain import evict
from devalloc.machines.migration_cleanup import MAX_ENDED, MigrationCleanup
from devalloc.machines.schedule.migrations import MAX_PER_NODE
from devalloc.store import Change, CommitOutcomes, Conflict, Fence, NotFound, Store, StoreError, UnknownOutcome
from devalloc.store.sqlite import SQLiteStore
from tests.support.fleet_manifests import annotations, fill, gpu_claim, gpu_class, gpu_pool, held
from tests.support.host_pools import host, machine, node_by_machine, reserved_for, status
from tests.support.machine_allocator import machine_allocator
from tests.support.migration_nodes import (
    KIND,
    ScriptedNodes,
    handed_over,
    migrate,
    migration,
    migration_status,
    movable,
    rounds,
)
from tests.support.refusing_store import DENIED, RefusingStore

Object = dict[str, Any]
VM = "VirtualMachine"


def running(store: Store, *, node: str = "a", cpu: str = "1", **spec: Any) -> ScriptedNodes:
    """The machine web, which runs on this node."""
    fill(store, machine("web", cpu, "1Gi", **spec))
    set_cordon(store, CordonTarget(node="b"), "not yet") if node == "a" else None
    rounds(store)
    assert node_by_machine(store)["web"] == node
    if node == "a":
        set_cordon(store, CordonTarget(node="b"), None)
    nodes = ScriptedNodes(store)
    nodes.take(node)
    return nodes


def booking(store: Store, name: str = "web") -> Object:
    content: Object = status(store, name).get("migrationState", {})
    return content


def available_devices(store: Store) -> dict[str, int]:
    """What the status of each pool says is available."""
    return {pool["metadata"]["name"]: pool["status"]["availableDevices"] for pool in store.list("DevicePool").objects}


@pytest.fixture
def two(store: SQLiteStore) -> SQLiteStore:
    """A store with two nodes of 4 CPUs."""
    fill(store, host("a", cpus=4), host("b", cpus=4))
    return store


class TestFlow:
    def test_from_the_object_to_the_end(self, two: SQLiteStore) -> None:
        nodes = running(two)
        before = reserved_for(two, "web")
        migrate(two)
        uid = two.get(KIND, "default", "move")["metadata"]["uid"]
        state = booking(two)
        assert {name: state[name] for name in state if name != "allocations"} == {
            "migrationName": "move",
            "migrationUID": uid,
            "sourceNode": "a",
            "targetNode": "b",
        }
        assert [entry["devicePoolName"] for entry in state["allocations"]] == ["b-host"]
        assert reserved_for(two, "web") == before
        assert status(two, "web")["nodeName"] == "a"
        scheduled = migration_status(two)
        assert (scheduled["phase"], scheduled["sourceNode"], scheduled["targetNode"]) == ("Scheduled", "a", "b")
        assert "startTime" in scheduled
        nodes.offer()
        nodes.receive()
        nodes.send()
        rounds(two)
        assert migration_status(two)["phase"] == "Running"
        nodes.hand_over()
        nodes.follow()
        rounds(two)
        assert migration_status(two)["phase"] == "Succeeded"
        assert node_by_machine(two) == {"web": "b"}
        assert reserved_for(two, "web") == {"numa0": {"cpu": "1", "memory": "1Gi"}}
        assert booking(two) == {}
        for kind, name in ((KIND, "move"), (VM, "web")):
            assert [str(p) for p in decode(two.get(kind, "default", name)).problems] == []

    def test_the_controller_says_that_it_has_moved_where_both_nodes_were_killed_after_the_handover(
        self, two: SQLiteStore
    ) -> None:
        nodes = running(two)
        migrate(two)
        nodes.hand_over()
        rounds(two)
        assert migration_status(two)["phase"] == "Succeeded"
        assert "completionTime" in migration_status(two)
        assert reserved_for(two, "web") == {"numa0": {"cpu": "1", "memory": "1Gi"}}
        assert status(two, "web")["nodeName"] == "b"

    def test_the_source_counts_the_machine_until_the_target_has_taken_it(self, two: SQLiteStore) -> None:
        """Its paused guest has its memory there until then."""
        nodes = running(two, cpu="2")
        migrate(two)
        nodes.hand_over()
        fill(two, machine("next", "3", "1Gi", nodeName="a"))
        rounds(two)
        assert status(two, "next")["reason"] == "NoRoom"
        nodes.follow()
        rounds(two)
        assert node_by_machine(two) == {"web": "b", "next": "a"}

    def test_rounds_without_news_write_nothing(self, two: SQLiteStore) -> None:
        running(two)
        fill(two, migration(), migration("second"), migration("third", "nothing"))
        rounds(two)
        before = two.list().resource_version
        rounds(two)
        assert two.list().resource_version == before


class TestTarget:
    def test_it_is_never_the_node_of_the_machine(self, store: SQLiteStore) -> None:
        fill(store, host("a", cpus=64), host("b", cpus=1))
        running(store, cpu="2")
        migrate(store)
        waits = migration_status(store)
        assert (waits["phase"], waits["reason"]) == ("Pending", "NodesTooSmall")
        assert "node b has 1 CPU, 2 wanted" in waits["message"]
        assert "node a" not in waits["message"]
        assert booking(store) == {}

    def test_nor_for_a_fleet_that_is_kept_warm(self, store: SQLiteStore) -> None:
        fill(store, host("a", cpus=64), host("b", cpus=4), machine("web", nodeName="a"))
        allocator = machine_allocator(store)
        allocator.round()
        vm = store.get(VM, "default", "web")
        store.replace({**vm, "spec": {name: value for name, value in vm["spec"].items() if name != "nodeName"}})
        for number, (source, target) in enumerate((("a", "b"), ("b", "a"), ("a", "b"))):
            nodes = ScriptedNodes(store, "web", f"move-{number}")
            nodes.take(source)
            fill(store, migration(f"move-{number}"))
            for _ in range(3):
                allocator.round()
            assert (booking(store)["sourceNode"], booking(store)["targetNode"]) == (source, target)
            nodes.hand_over()
            nodes.follow()
            for _ in range(2):
                allocator.round()

    def test_it_waits_for_room_and_says_who_has_it(self, two: SQLiteStore) -> None:
        running(two, cpu="2")
        fill(two, machine("other", "3", "1Gi", nodeName="b"))
        rounds(two)
        migrate(two)
        waits = migration_status(two)
        assert (waits["phase"], waits["reason"]) == ("Pending", "NoRoom")
        assert "; stop machine default/other" in waits["message"]
        two.delete(VM, "default", "other")
        rounds(two)
        assert booking(two)["targetNode"] == "b"
        assert "reason" not in migration_status(two)

    def test_it_is_the_one_that_was_named(self, store: SQLiteStore) -> None:
        fill(store, *(host(node, cpus=4) for node in "abcd"))
        running(store)
        migrate(store, target="c")
        assert booking(store)["targetNode"] == "c"

    def test_the_node_of_the_machine_cannot_be_named(self, two: SQLiteStore) -> None:
        running(two)
        migrate(two, target="a")
        failed = migration_status(two)
        assert (failed["phase"], failed["reason"]) == ("Failed", "MachineNotMovable")
        assert "is on node a already" in failed["message"]

    def test_it_is_not_a_node_that_is_cordoned(self, two: SQLiteStore) -> None:
        running(two)
        set_cordon(two, CordonTarget(node="b"), "test")
        migrate(two)
        assert booking(two) == {}
        waits = migration_status(two)
        assert waits["phase"] == "Pending"
        assert waits["message"] == "node b would do, but is cordoned: test; run `devalloc uncordon node/b`"
        set_cordon(two, CordonTarget(node="b"), None)
        rounds(two)
        assert booking(two)["targetNode"] == "b"

    def test_while_it_waits_the_available_devices_of_all_pools_are_counted(self, two: SQLiteStore) -> None:
        running(two)
        set_cordon(two, CordonTarget(node="b"), "test")
        fill(two, migration(), gpu_class(), gpu_pool("cards", devices=3, node="a"), gpu_claim("other"))
        rounds(two)
        assert available_devices(two) == {"a-host": 3, "b-host": 0, "cards": 2}
        fill(two, machine("full", "3", "7Gi", nodeName="a"), gpu_claim("another"))
        rounds(two)
        assert migration_status(two)["phase"] == "Pending"
        assert available_devices(two) == {"a-host": 1, "b-host": 0, "cards": 1}

    def test_a_pool_that_cannot_be_read_breaks_no_round_while_it_waits(self, two: SQLiteStore) -> None:
        running(two)
        set_cordon(two, CordonTarget(node="b"), "test")
        broken = host("a")
        broken = {**broken, "metadata": {"name": "broken"}, "spec": {**broken["spec"], "attributes": 5}}
        fill(two, broken, migration())
        rounds(two)
        assert migration_status(two)["phase"] == "Pending"
        assert "status" not in two.get("DevicePool", None, "broken")

    def test_it_reaches_the_disks(self, store: SQLiteStore) -> None:
        for node, folder in (("a", "/srv"), ("b", "/other"), ("c", "/srv")):
            fill(store, host(node, cpus=4, shared_storage=[folder]))
        fill(store, machine("web", start={"disks": [{"path": "/srv/web.raw", "format": "raw"}]}, nodeName="a"))
        rounds(store)
        vm = store.get(VM, "default", "web")
        store.replace({**vm, "spec": {name: value for name, value in vm["spec"].items() if name != "nodeName"}})
        ScriptedNodes(store).take("a")
        migrate(store)
        assert booking(store)["targetNode"] == "c"

    def test_it_is_a_node_that_receives_machines_that_run(self, store: SQLiteStore) -> None:
        fill(store, host("a", cpus=4), host("b", cpus=4, live_migration=False), host("c", cpus=1))
        running(store, cpu="2")
        migrate(store)
        waits = migration_status(store)
        assert (waits["phase"], waits["reason"]) == ("Pending", "NodesTooSmall")
        assert "; only nodes with --migration-address receive machines that run" in waits["message"]
        assert "node c has 1 CPU, 2 wanted" in waits["message"]
        assert "node b" not in waits["message"]
        fill(store, host("d", cpus=4))
        rounds(store)
        assert booking(store)["targetNode"] == "d"

    @pytest.mark.parametrize(
        ("target", "words"),
        [
            (None, "no other node receives machines that run; start the plugin of another node with --migration-"),
            ("b", "node b receives no machines that run; start its plugin with --migration-address"),
        ],
    )
    def test_without_such_a_node_it_waits_until_there_is_one(
        self, store: SQLiteStore, target: str | None, words: str
    ) -> None:
        off, on = ({"b": host("b", cpus=4, live_migration=is_on)} for is_on in (False, True))
        fill(store, host("a", cpus=4), off["b"])
        running(store)
        migrate(store, target=target)
        waits = migration_status(store)
        assert (waits["phase"], waits["reason"]) == ("Pending", "MigrationOff")
        assert words in waits["message"]
        before = store.list().resource_version
        rounds(store)
        assert store.list().resource_version == before
        stored = store.get("DevicePool", None, "b-host")
        store.replace({**stored, "spec": on["b"]["spec"]})
        rounds(store)
        assert booking(store)["targetNode"] == "b"
        assert migration_status(store)["phase"] == "Scheduled"

    def test_a_migration_with_a_target_goes_on_whatever_the_target_says_later(self, two: SQLiteStore) -> None:
        nodes = running(two)
        migrate(two)
        stored = two.get("DevicePool", None, "b-host")
        two.replace({**stored, "spec": host("b", cpus=4, live_migration=False)["spec"]})
        rounds(two)
        assert (migration_status(two)["phase"], booking(two)["targetNode"]) == ("Scheduled", "b")
        nodes.hand_over()
        rounds(two)
        assert migration_status(two)["phase"] == "Succeeded"

    @pytest.mark.parametrize("start", [{"tpm": True}, {"firmware": {"type": "uefi"}}])
    def test_a_machine_takes_its_uefi_variables_and_its_tpm_along(self, two: SQLiteStore, start: Object) -> None:
        nodes = running(two, start={"kernel": "/k", **start})
        migrate(two)
        assert booking(two)["targetNode"] == "b"
        nodes.hand_over()
        nodes.follow()
        rounds(two)
        assert migration_status(two)["phase"] == "Succeeded"

    def test_it_reserves_what_the_machine_was_permitted_and_not_only_what_it_began_with(self, two: SQLiteStore) -> None:
        nodes = running(two)
        nodes.take("a", permitted={"cpus": "3", "memory": "2Gi", "givenBy": "s"})
        fill(two, machine("other", "2", "1Gi", nodeName="b"), migration())
        rounds(two)
        assert booking(two) == {}
        fill(two, host("c", cpus=4, numa=1))
        rounds(two)
        amounts: dict[str, str] = {}
        for entry in booking(two)["allocations"]:
            amounts |= {one["name"]: one["allocation"] for one in entry["allocations"]}
        assert amounts == {"cpu": "3", "memory": "2Gi"}

    def test_memory_comes_from_one_numa_node_as_the_guest_sees_none(self, store: SQLiteStore) -> None:
        fill(store, host("a", cpus=4, numa=1), host("b", cpus=4, numa=2))
        running(store, cpu="3")
        migrate(store)
        assert booking(store) == {}
        fill(store, host("c", cpus=4, numa=1))
        rounds(store)
        assert booking(store)["targetNode"] == "c"

    def test_a_guest_with_numa_nodes_gets_the_same_ones(self, store: SQLiteStore) -> None:
        fill(store, host("a", cpus=4, numa=2), host("b", cpus=8, numa=1))
        nodes = running(store, cpu="3")
        before = reserved_for(store, "web")
        assert len(before) == 2
        cells = [
            {"hostNode": int(name[-1]), "cpus": amounts["cpu"], "memory": amounts.get("memory", "0")}
            for name, amounts in before.items()
        ]
        nodes.take("a", numaNodes=cells)
        migrate(store)
        assert booking(store) == {}
        fill(store, host("c", cpus=8, numa=2))
        rounds(store)
        assert booking(store)["targetNode"] == "c"
        there = {entry["deviceName"]: entry["allocations"] for entry in booking(store)["allocations"]}
        assert there == {
            name: [{"name": what, "allocation": amount} for what, amount in amounts.items()]
            for name, amounts in before.items()
        }

    def test_claims_of_network_devices_stay_allocated(self, two: SQLiteStore) -> None:
        fill(two, gpu_class(), gpu_pool("net", node=None), gpu_claim("card"))
        fill(two, machine("web", "1", "1Gi", "card"))
        rounds(two)
        source = node_by_machine(two)["web"]
        nodes = ScriptedNodes(two)
        nodes.take(source)
        assert held(two, "card") == ["net/d0"]
        migrate(two)
        (target,) = {"a", "b"} - {source}
        assert booking(two)["targetNode"] == target
        assert (held(two, "card"), annotations(two, "card")["allocated-node"]) == (["net/d0"], source)
        nodes.hand_over()
        nodes.follow()
        rounds(two)
        assert (held(two, "card"), annotations(two, "card")["allocated-node"]) == (["net/d0"], target)


class TestBooking:
    def test_it_counts_as_used(self, two: SQLiteStore) -> None:
        running(two, cpu="2")
        migrate(two)
        fill(two, machine("big", "3", "1Gi"))
        rounds(two)
        assert "big" not in node_by_machine(two)
        assert status(two, "big")["reason"] == "NoRoom"
        assert "2 of 4 CPU free" in status(two, "big")["message"]

    def test_two_machines_never_get_the_same_room(self, two: SQLiteStore) -> None:
        running(two, cpu="3")
        fill(two, migration(), machine("other", "2", "1Gi"))
        rounds(two)
        placed, target = node_by_machine(two).get("other"), booking(two).get("targetNode")
        assert (placed, target) in ((None, "b"), ("b", None))

    def test_it_is_removed_when_the_migration_failed(self, two: SQLiteStore) -> None:
        nodes = running(two)
        migrate(two)
        nodes.fail()
        rounds(two)
        assert booking(two) == {}
        assert migration_status(two)["reason"] == "MigrationFailed"
        assert status(two, "web")["nodeName"] == "a"

    def test_it_is_removed_when_the_migration_is_deleted(self, two: SQLiteStore) -> None:
        running(two)
        migrate(two)
        two.delete(KIND, "default", "move")
        rounds(two)
        assert booking(two) == {}
        assert status(two, "web")["nodeName"] == "a"

    @pytest.mark.parametrize("when", ["stopped", "deleted", "ended"])
    def test_it_is_removed_when_the_machine_is_not_to_run_any_more(self, two: SQLiteStore, when: str) -> None:
        nodes = running(two)
        migrate(two)
        vm = two.get(VM, "default", "web")
        if when == "stopped":
            two.replace({**vm, "spec": {**vm["spec"], "running": False}})
        elif when == "deleted":
            two.delete(VM, "default", "web")
        else:
            nodes.take("a", phase="Stopped")
        rounds(two)
        assert booking(two) == {}
        failed = migration_status(two)
        assert (failed["phase"], failed["reason"]) == ("Failed", "MigrationWithdrawn")
        assert "the machine is" in failed["message"]

    def test_it_is_removed_when_the_machine_is_asked_to_leave(self, two: SQLiteStore) -> None:
        running(two)
        migrate(two)
        evict(two, MachineView(two.get(VM, "default", "web")), "a")
        rounds(two)
        assert booking(two) == {}
        assert "leaves node a" in migration_status(two)["message"]

    def test_a_migration_that_was_handed_over_is_not_withdrawn(self, two: SQLiteStore) -> None:
        running(two)
        migrate(two)

        class Late(_Between):
            def between(self) -> None:
                two.replace_status(handed_over(two.get(VM, "default", "web")))

        two.delete(KIND, "default", "move")
        rounds(Late(two), 1)
        rounds(two)
        assert status(two, "web")["nodeName"] == "b"
        assert booking(two) == {}

    def test_a_withdrawn_one_cannot_be_handed_over(self, two: SQLiteStore) -> None:
        nodes = running(two)
        migrate(two)
        stale = two.get(VM, "default", "web")
        two.delete(KIND, "default", "move")
        rounds(two)
        with pytest.raises(Conflict):
            two.replace_status(handed_over(stale))
        with pytest.raises((LookupError, NotFound)):
            nodes.hand_over()

    def test_a_new_claim_of_the_machine_waits_until_it_has_moved(self, two: SQLiteStore) -> None:
        nodes = running(two)
        fill(two, gpu_class(), gpu_pool("pa", node="a"), gpu_pool("pb", node="b"), migration())
        rounds(two)
        vm = two.get(VM, "default", "web")
        two.replace({**vm, "spec": {**vm["spec"], "claims": ["card"]}})
        fill(two, gpu_claim("card"))
        rounds(two)
        assert held(two, "card") == []
        assert "is moving to node b" in annotations(two, "card")["message"]
        nodes.hand_over()
        nodes.follow()
        rounds(two)
        assert held(two, "card") == ["pb/d0"]

    def test_an_old_reservation_of_another_migration_of_that_name_is_removed(self, two: SQLiteStore) -> None:
        running(two)
        migrate(two)
        first = booking(two)["migrationUID"]
        two.delete(KIND, "default", "move")
        fill(two, migration())
        rounds(two, 4)
        assert booking(two)["migrationUID"] not in ("", first)


class TestRefusals:
    @pytest.mark.parametrize(
        ("spec", "words"),
        [
            ({"start": {"disks": [{"path": "/var/web.raw", "format": "raw"}]}}, "only its node has its disk"),
            (
                {
                    "start": {
                        "kernel": "/k",
                        "disks": [{"path": "/d", "format": "raw", "readOnly": True, "device": "nvme"}],
                    }
                },
                "use virtio",
            ),
            ({"nics": [{"backend": "warm"}]}, "warm setup"),
        ],
    )
    def test_local_resources_keep_a_machine_on_its_node(self, two: SQLiteStore, spec: Object, words: str) -> None:
        running(two, **spec)
        migrate(two)
        failed = migration_status(two)
        assert (failed["phase"], failed["reason"]) == ("Failed", "MachineNotMovable")
        assert words in failed["message"]
        reported = {one["type"]: (one["status"], one["reason"], one["message"]) for one in failed["conditions"]}
        why = (failed["reason"], failed["message"])
        assert reported == {"Ready": ("False", *why), "Stalled": ("True", *why)}
        assert booking(two) == {}

    def test_so_does_what_its_node_says_and_its_spec(self, two: SQLiteStore) -> None:
        running(two)
        ScriptedNodes(two).take("a", conditions=movable("False", "VFIO migration is not supported in kernel"))
        migrate(two)
        failed = migration_status(two)
        assert (failed["phase"], failed["reason"]) == ("Failed", "MachineNotMovable")
        assert failed["message"] == "VFIO migration is not supported in kernel"
        fill(two, machine("pinned", nodeName="a"))
        rounds(two)
        ScriptedNodes(two, "pinned").take("a")
        migrate(two, "pin", "pinned")
        assert "spec.nodeName names node a" in migration_status(two, "pin")["message"]

    def test_a_machine_that_does_not_run_yet_is_waited_for(self, two: SQLiteStore) -> None:
        migrate(two)
        assert migration_status(two)["reason"] == "MachineNotFound"
        start = {"disks": [{"path": "/srv/web.raw", "format": "raw", "readOnly": True}]}
        fill(two, machine("web", start=start))
        rounds(two)
        assert migration_status(two)["reason"] == "MachineNotRunning"
        ScriptedNodes(two).take(node_by_machine(two)["web"])
        rounds(two)
        assert migration_status(two)["phase"] == "Scheduled"

    def test_a_request_to_leave_another_node_keeps_none_from_moving(self, two: SQLiteStore) -> None:
        running(two)
        evict(two, MachineView(two.get(VM, "default", "web")), "c")
        migrate(two)
        assert booking(two)["targetNode"] == "b"

    def test_a_waiting_migration_does_not_move_another_machine_of_that_name(self, two: SQLiteStore) -> None:
        """A replica set gives the lowest number that is free."""
        running(two)
        set_cordon(two, CordonTarget(node="b"), "full")
        migrate(two)
        assert migration_status(two)["phase"] == "Pending"
        web = two.get(VM, "default", "web")
        two.delete(VM, "default", "web")
        two.replace({**web, "metadata": {**two.get(VM, "default", "web")["metadata"], "finalizers": []}})
        rounds(two)
        failed = migration_status(two)
        assert (failed["phase"], failed["message"]) == ("Failed", "the machine was deleted")
        set_cordon(two, CordonTarget(node="b"), None)
        running(two)
        rounds(two)
        assert booking(two) == {}

    def test_a_stopped_machine_is_not_migrated(self, two: SQLiteStore) -> None:
        fill(two, machine("web", running=False), migration())
        rounds(two)
        failed = migration_status(two)
        assert (failed["phase"], failed["reason"]) == ("Failed", "MachineNotRunning")

    def test_one_at_a_time_for_each_machine(self, store: SQLiteStore) -> None:
        fill(store, *(host(node, cpus=4) for node in "abc"))
        nodes = running(store)
        fill(store, migration("a-first"), migration("b-second"))
        rounds(store)
        first = booking(store)["migrationName"]
        second = {"a-first": "b-second", "b-second": "a-first"}[first]
        waits = migration_status(store, second)
        assert (waits["phase"], waits["reason"]) == ("Pending", "AlreadyMigrating")
        assert first in waits["message"]
        nodes = ScriptedNodes(store, "web", first)
        nodes.hand_over()
        nodes.follow()
        rounds(store)
        assert booking(store)["migrationName"] == second
        assert booking(store)["sourceNode"] != "a"

    @pytest.mark.parametrize("target", [None, "a"])
    def test_a_move_back_waits_until_the_target_has_taken_the_machine(
        self, two: SQLiteStore, target: str | None
    ) -> None:
        nodes = running(two)
        migrate(two)
        nodes.hand_over()
        migrate(two, "second", target=target)
        assert booking(two) == {}
        assert migration_status(two, "second")["message"] == (
            "node b is taking the machine over from node a; wait until it has it"
        )
        nodes.follow()
        rounds(two)
        assert booking(two)["targetNode"] == "a"

    def test_a_bounded_number_from_and_to_each_node(self, store: SQLiteStore) -> None:
        fill(store, host("a", cpus=8), *(host(node, cpus=8) for node in "bcd"))
        for node in "bcd":
            set_cordon(store, CordonTarget(node=node), "not yet")
        names = [f"m{number}" for number in range(MAX_PER_NODE + 2)]
        fill(store, *(machine(name) for name in names))
        rounds(store)
        for node in "bcd":
            set_cordon(store, CordonTarget(node=node), None)
        for name in names:
            ScriptedNodes(store, name).take("a")
        fill(store, *(migration(f"of-{name}", name) for name in names))
        rounds(store)
        booked = [name for name in names if booking(store, name)]
        assert len(booked) == MAX_PER_NODE
        waits = [migration_status(store, f"of-{name}")["reason"] for name in names if name not in booked]
        assert waits == ["TooManyMigrations"] * 2
        done = ScriptedNodes(store, booked[0], f"of-{booked[0]}")
        done.hand_over()
        done.follow()
        rounds(store)
        assert len([name for name in names if booking(store, name)]) == MAX_PER_NODE

    def test_those_that_find_no_target_keep_no_others_waiting(self, store: SQLiteStore) -> None:
        """Else the author of a few machines could keep an admin from draining their node."""
        fill(store, host("a", cpus=8))
        names = [f"m{number}" for number in range(MAX_PER_NODE + 3)]
        fill(store, *(machine(name) for name in names))
        rounds(store)
        for name in names:
            ScriptedNodes(store, name).take("a")
        stuck, movable = names[: MAX_PER_NODE + 1], names[MAX_PER_NODE + 1 :]
        fill(store, *(migration(f"of-{name}", name, "nowhere") for name in stuck))
        fill(store, host("b", cpus=8), *(migration(f"of-{name}", name) for name in movable))
        rounds(store)
        assert [booking(store, name).get("targetNode") for name in movable] == ["b"] * len(movable)
        for name in stuck:
            waits = migration_status(store, f"of-{name}")
            assert (waits["phase"], booking(store, name)) == ("Pending", {})

    def test_older_migrations_of_one_namespace_come_before_those_of_another_only_once(self, store: SQLiteStore) -> None:
        """Else the author of some machines could keep an admin from draining their node, with a queue of migrations."""
        fill(store, host("a", cpus=16), host("b", cpus=16))
        set_cordon(store, CordonTarget(node="b"), "not yet")
        names = [f"m{number}" for number in range(MAX_PER_NODE + 3)]
        late = machine("late")
        late["metadata"]["namespace"] = "other"
        fill(store, *(machine(name) for name in names), late)
        rounds(store)
        set_cordon(store, CordonTarget(node="b"), None)
        for name in names:
            ScriptedNodes(store, name).take("a")
        held_by = {"finalizers": [NODE_FINALIZER], "annotations": {PREPARED_ON: "a"}}
        taken = store.get("VirtualMachine", "other", "late")
        taken = store.replace({**taken, "metadata": {**taken["metadata"], **held_by}})
        store.replace_status({**taken, "status": {**taken["status"], "phase": "Running"}})
        fill(store, *(migration(f"of-{name}", name) for name in names))
        rounds(store)
        migrate(store, "of-late", "late", namespace="other")
        booked = [name for name in names if booking(store, name)]
        assert len(booked) == MAX_PER_NODE
        done = ScriptedNodes(store, booked[0], f"of-{booked[0]}")
        done.hand_over()
        done.follow()
        rounds(store)
        moves = store.get("VirtualMachine", "other", "late")["status"].get("migrationState", {})
        assert moves.get("migrationName") == "of-late"
        assert [name for name in names if booking(store, name)] == booked[1:]

    def test_targets_are_bounded_as_well(self, store: SQLiteStore) -> None:
        nodes = [f"s{number}" for number in range(MAX_PER_NODE + 1)]
        fill(store, *(host(node, cpus=1) for node in nodes))
        fill(store, *(machine(f"on-{node}") for node in nodes))
        rounds(store)
        for name, node in node_by_machine(store).items():
            ScriptedNodes(store, name).take(node)
        fill(store, host("target", cpus=8), *(migration(f"of-{node}", f"on-{node}") for node in nodes))
        rounds(store)
        booked = [node for node in nodes if booking(store, f"on-{node}")]
        assert len(booked) == MAX_PER_NODE
        (left,) = {*nodes} - {*booked}
        assert migration_status(store, f"of-{left}")["reason"] == "TooManyMigrations"

    def test_a_machine_that_is_not_placed_yet_may_become_movable(self, store: SQLiteStore) -> None:
        fill(store, machine("web", start={"disks": [{"path": "/srv/web.raw", "format": "raw"}]}), migration())
        rounds(store)
        assert (migration_status(store)["phase"], migration_status(store)["reason"]) == ("Pending", "MachineNotRunning")


def change_spec(store: Store, **fields: Any) -> None:
    """A user edits the machine web."""
    vm = store.get(VM, "default", "web")
    store.replace({**vm, "spec": {**vm["spec"], **fields}})


def remove_target_pool(store: Store) -> None:
    store.delete("DevicePool", None, "b-host")


class TestUntilTheTargetHasTakenIt:
    """Its source holds the guest, paused. It would resume it, and the target would discard what it received, if the
    controller made it the source's again."""

    @pytest.mark.parametrize(
        "change",
        [
            lambda store: change_spec(store, cpu={"min": "3", "max": "8"}),
            lambda store: change_spec(store, memory={"min": "512Mi", "max": "8Gi"}),
            lambda store: change_spec(store, running=False),
            lambda store: store.delete(VM, "default", "web"),
            lambda store: evict(store, MachineView(store.get(VM, "default", "web")), "a"),
            remove_target_pool,
            lambda store: (remove_target_pool(store), change_spec(store, nodeName="a")),
        ],
        ids=["grows", "shrinks", "stops", "is deleted", "is evicted", "lacks a pool", "is pinned without a pool"],
    )
    def test_it_stays_as_it_was_handed_over(self, two: SQLiteStore, change: Callable[[Store], object]) -> None:
        nodes = running(two)
        nodes.take("a", applied={"cpus": "1", "memory": "1Gi"})
        migrate(two)
        nodes.hand_over()
        before = status(two, "web")
        change(two)
        rounds(two)
        after = status(two, "web")
        assert (after["nodeName"], after["allocations"]) == ("b", before["allocations"])
        assert two.get(VM, "default", "web")["metadata"]["annotations"][PREPARED_ON] == "a"
        assert migration_status(two)["phase"] == "Succeeded"

    def test_a_machine_with_a_permit_above_its_spec_moves_with_those_amounts(self, two: SQLiteStore) -> None:
        nodes = running(two)
        more = {"cpus": "2", "memory": "2Gi"}
        nodes.take("a", applied=more, observed=more, permitted={**more, "givenBy": "s"})
        migrate(two)
        nodes.hand_over()
        rounds(two)
        assert status(two, "web")["nodeName"] == "b"
        assert reserved_for(two, "web") == {"numa0": {"cpu": "2", "memory": "2Gi"}}

    def test_it_gets_what_its_spec_asks_for_when_the_target_has_it(self, two: SQLiteStore) -> None:
        nodes = running(two)
        nodes.take("a", applied={"cpus": "1", "memory": "1Gi"})
        migrate(two)
        change_spec(two, cpu={"min": "2", "max": "8"})
        nodes.hand_over()
        rounds(two)
        assert reserved_for(two, "web") == {"numa0": {"cpu": "1", "memory": "1Gi"}}
        nodes.follow()
        rounds(two)
        assert status(two, "web")["nodeName"] == "b"
        assert sum(int(amounts["cpu"]) for amounts in reserved_for(two, "web").values()) == 2


class TestTime:
    @staticmethod
    def look(store: Store, hours: float = 0, **limits: float) -> None:
        MigrationCleanup(
            store, MigrationLimits(**limits), now=lambda: datetime.now(UTC) + timedelta(hours=hours)
        ).look()

    def test_a_migration_that_takes_too_long_is_withdrawn(self, two: SQLiteStore) -> None:
        nodes = running(two)
        migrate(two)
        nodes.offer()
        self.look(two, 0.5)
        assert booking(two)
        self.look(two, 1.1)
        assert booking(two) == {}
        rounds(two)
        failed = migration_status(two)
        assert (failed["phase"], failed["reason"]) == ("Failed", "MigrationTimedOut")
        assert "did not move within 3600 s, and stays on node a" in failed["message"]
        assert "completionTime" in failed

    def test_a_machine_that_was_handed_over_meanwhile_has_moved(self, two: SQLiteStore) -> None:
        nodes = running(two)
        migrate(two)

        class Late(_Between):
            def between(self) -> None:
                nodes.hand_over()

        self.look(Late(two, at=2), 2)
        rounds(two)
        assert status(two, "web")["nodeName"] == "b"
        ended = migration_status(two)
        assert (ended["phase"], ended.get("reason", "")) == ("Succeeded", "")

    def test_a_migration_that_only_waits_for_a_target_is_not_withdrawn(self, two: SQLiteStore) -> None:
        migrate(two)
        self.look(two, 100)
        rounds(two)
        assert migration_status(two)["phase"] == "Pending"

    def test_migrations_that_ended_are_deleted_after_a_while(self, two: SQLiteStore) -> None:
        fill(two, machine("web", running=False), migration())
        rounds(two)
        self.look(two, 0.5)
        assert migration_status(two)["phase"] == "Failed"
        self.look(two, 1.1)
        with pytest.raises(NotFound):
            two.get(KIND, "default", "move")

    def test_a_migration_that_cannot_be_deleted_does_not_block_the_others(self, two: SQLiteStore) -> None:
        fill(two, machine("web", running=False), migration("m1"), migration("m2"))
        rounds(two)
        store: Any = RefusingStore(two, m1=DENIED)
        self.look(store, 1.1)
        assert [one["metadata"]["name"] for one in two.list(KIND).objects] == ["m1"]

    @pytest.mark.parametrize("error", [DENIED, UnknownOutcome("failed calling webhook: no answer")])
    def test_a_migration_that_cannot_be_withdrawn_does_not_block_the_others(
        self, two: SQLiteStore, error: StoreError
    ) -> None:
        running(two)
        fill(two, migration("m1"), machine("worker"))
        rounds(two)
        other = ScriptedNodes(two, "worker", "m2")
        other.take(node_by_machine(two)["worker"])
        migrate(two, "m2", "worker")
        assert booking(two)
        assert booking(two, "worker")
        store: Any = RefusingStore(two, m1=error)
        self.look(store, 1.1)
        assert booking(two), "it is tried again"
        assert booking(two, "worker") == {}

    def test_a_refused_write_is_logged_once_and_tried_again_later(
        self, two: SQLiteStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        running(two)
        fill(two, migration("late"), machine("stopped", running=False), migration("ended", "stopped"))
        rounds(two)
        refusing, seconds = RefusingStore(two, late=DENIED, ended=DENIED), 0.0
        store: Any = refusing
        cleanup = MigrationCleanup(store, now=lambda: datetime.now(UTC) + timedelta(hours=1.1), clock=lambda: seconds)
        for number in range(5):
            cleanup.look()
            two.replace_status(
                {**(one := two.get(KIND, "default", "late")), "status": {**one["status"], "progress": {"sent": number}}}
            )  # its source does so each second
        logged = [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
        assert [text.rpartition("; ")[0] for text in logged] == [
            f"the decision on {KIND} default/{name} was refused" for name in ("late", "ended")
        ]
        assert ["takes too long" in text for text in logged] == [True, False]
        refusing.refused.clear()
        cleanup.look()
        assert booking(two), "it is not time yet"
        seconds = 61
        cleanup.look()
        assert [one["metadata"]["name"] for one in two.list(KIND).objects] == ["late"]
        assert booking(two) == {}

    def test_a_machine_that_cannot_be_written_is_logged_once_though_its_migration_changes(
        self, two: SQLiteStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The first write of a withdrawal says why on the migration; the store refuses the second one."""
        running(two)
        migrate(two, "late")
        store: Any = RefusingStore(two, web=DENIED)
        cleanup = MigrationCleanup(store, now=lambda: datetime.now(UTC) + timedelta(hours=1.1))
        for _ in range(3):
            cleanup.look()
        assert migration_status(two, "late")["reason"] == "MigrationTimedOut"
        assert [record.levelname for record in caplog.records if record.levelname != "INFO"] == ["ERROR"]

    def test_the_oldest_migrations_that_ended_are_deleted_earlier_when_there_are_many(self, two: SQLiteStore) -> None:
        for number in range(MAX_ENDED + 3):
            stored = two.create(migration(f"m{number}"))
            seconds = f"2026-11-27T12:{number // 60:02d}:{number % 60:02d}Z"
            two.replace_status({**stored, "status": {"phase": "Failed", "completionTime": seconds}})
        self.look(two, ttl=10.0**9)
        names = {one["metadata"]["name"] for one in two.list(KIND).objects}
        assert names == {f"m{number}" for number in range(3, MAX_ENDED + 3)}


class _Between:
    """A store in which something happens just before a commit."""

    def __init__(self, store: Store, at: int = 1) -> None:
        self._store = store
        self._at = at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def between(self) -> None:
        raise NotImplementedError

    def _count(self) -> None:
        self._at -= 1
        if self._at == 0:
            self.between()

    def commit(self, changes: Sequence[Change], fence: Fence | None = None) -> Any:
        self._count()
        return self._store.commit(changes, fence)

    def commit_each(self, units: Sequence[Sequence[Change]], fence: Fence | None = None) -> CommitOutcomes:
        self._count()
        return self._store.commit_each(units, fence)


class TestFencedNodes:
    def test_nothing_moves_to_one_that_is_fenced(self, two: SQLiteStore) -> None:
        running(two)
        migrate(two)
        state_fence(two, "b", "by ada")
        rounds(two)
        assert booking(two) == {}
        assert (node_by_machine(two), status(two, "web")["phase"]) == ({"web": "a"}, "Running")
        assert migration_status(two)["phase"] == "Failed"

    @pytest.mark.parametrize("ends", [False, True])
    def test_what_it_was_given_and_never_took_goes_on_at_its_source(self, two: SQLiteStore, ends: bool) -> None:
        """The source keeps the guest, paused, until the target has taken it; a target that is off never does."""
        nodes = running(two)
        migrate(two)
        nodes.hand_over()
        if ends:  # the controller has seen the handover
            rounds(two)
        state_fence(two, "b", "by ada")
        rounds(two)
        web = two.get(VM, "default", "web")
        assert web["metadata"]["annotations"][PREPARED_ON] == "a"
        assert web["metadata"]["finalizers"] == [NODE_FINALIZER]
        assert (web["status"]["nodeName"], web["status"]["phase"]) == ("a", "Running")
        assert [entry["devicePoolName"] for entry in web["status"]["allocations"]] == ["a-host"]
        with pytest.raises(LookupError):
            nodes.hand_over()

    def test_so_does_one_whose_spec_names_the_fenced_target(self, two: SQLiteStore) -> None:
        """Its source then stops it: it must not wait for the target with the guest."""
        nodes = running(two)
        migrate(two)
        change_spec(two, nodeName="b")
        rounds(two)
        nodes.hand_over()
        state_fence(two, "b", "by ada")
        rounds(two)
        assert status(two, "web")["nodeName"] == "a"

    def test_what_it_has_taken_is_placed_anew_once(self, two: SQLiteStore) -> None:
        nodes = running(two)
        migrate(two)
        nodes.hand_over()
        nodes.follow()
        state_fence(two, "b", "by ada")
        rounds(two)
        web = two.get(VM, "default", "web")
        assert (web["status"]["nodeName"], web["metadata"].get("finalizers", [])) == ("a", [])
        assert migration_status(two)["phase"] == "Succeeded"

    @pytest.mark.parametrize("is_handed_over", [False, True])
    def test_a_fenced_source_has_nothing_left_of_it(self, two: SQLiteStore, is_handed_over: bool) -> None:
        nodes = running(two)
        migrate(two)
        if is_handed_over:
            nodes.hand_over()
        state_fence(two, "a", "by ada")
        rounds(two)
        web = two.get(VM, "default", "web")
        assert (booking(two), web["status"]["nodeName"], web["metadata"].get("finalizers", [])) == ({}, "b", [])
        assert reserved_for(two, "web") == {"numa0": {"cpu": "1", "memory": "1Gi"}}
