"""Machines that move with the devices of their claims: which devices they get, who counts them, and how the claims get
them, wherever the controller or a node is killed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from devalloc.api.decode import decode
from devalloc.api.meta import RELEASE
from devalloc.controller.cordon import CordonTarget, set_cordon
from devalloc.controller.fencing import state_fence
from devalloc.controller.reconcile.availability import device_names_held_on
from devalloc.store import Store
from devalloc.store.metadata_rules import with_annotations
from devalloc.store.sqlite import SQLiteStore
from devalloc.usage.accounting.holdings import holdings_of
from devalloc_solver import solve_manifests, testing
from tests.support.fleet_manifests import annotations, fill, gpu_claim, gpu_class, gpu_pool, held
from tests.support.host_pools import host, machine, status
from tests.support.machine_allocator import machine_allocator
from tests.support.migration_nodes import ScriptedNodes, mark, migrate, migration, migration_status, movable

Object = dict[str, Any]
VM = "VirtualMachine"
MODEL = {"vendorID": "0x10de", "deviceID": "0x2330"}


def rounds(store: Store, count: int = 3, solve: Any = solve_manifests) -> None:
    allocator = machine_allocator(store, solve=solve)
    for _ in range(count):
        allocator.round()


def booked(store: Store, name: str = "web") -> dict[str, list[str]]:
    """The devices that wait on the target, by claim, before the handover."""
    return _devices(status(store, name).get("migrationState", {}).get("claims", ()))


def moved(store: Store, name: str = "web") -> dict[str, list[str]]:
    """The devices that wait for the claims after it."""
    return _devices(status(store, name).get("movedClaims", ()))


def _devices(claims: Iterable[Object]) -> dict[str, list[str]]:
    return {
        one["name"]: [f"{entry['devicePoolName']}/{entry['deviceName']}" for entry in one["allocations"]]
        for one in claims
    }


def running(store: Store, *claims: Object, conditions: list[Object] | None = None, **spec: Any) -> ScriptedNodes:
    """The machine web with these claims, which runs on node a; node b is there, too."""
    set_cordon(store, CordonTarget(node="b"), "not yet")
    fill(store, *claims, machine("web", "1", "1Gi", *(one["metadata"]["name"] for one in claims), **spec))
    rounds(store)
    set_cordon(store, CordonTarget(node="b"), None)
    nodes = ScriptedNodes(store)
    for claim in claims:
        mark(store, claim["metadata"]["name"], "a")
    plugged = [
        {"claim": one["metadata"]["name"], "pool": pool, "device": device}
        for one in claims
        for pool, device in (text.split("/") for text in held(store, one["metadata"]["name"]))
    ]
    nodes.take("a", devices=plugged, conditions=movable() if conditions is None else conditions)
    return nodes


def read_faults(store: Store) -> list[str]:
    return [str(problem) for doc in store.list().objects for problem in decode(doc).problems]


@pytest.fixture
def two(store: SQLiteStore) -> SQLiteStore:
    """A store with two nodes, each with 4 CPUs and two GPUs of the same model."""
    fill(store, gpu_class())
    for node in ("a", "b"):
        fill(store, host(node, cpus=4), gpu_pool(f"p{node}", 2, node, **MODEL))
    return store


class TestFlow:
    def test_from_the_booking_to_the_claim(self, two: SQLiteStore) -> None:
        nodes = running(two, gpu_claim("card"))
        assert held(two, "card") == ["pa/d0"]
        migrate(two)
        uid = two.get("DeviceClaim", "default", "card")["metadata"]["uid"]
        (entry,) = status(two, "web")["migrationState"]["claims"]
        assert (entry["name"], entry["uid"], booked(two)) == ("card", uid, {"card": ["pb/d0"]})
        assert migration_status(two)["phase"] == "Scheduled"
        assert held(two, "card") == ["pa/d0"]
        nodes.hand_over()
        nodes.follow()
        rounds(two)
        assert migration_status(two)["phase"] == "Succeeded"
        assert (held(two, "card"), moved(two)) == (["pa/d0"], {"card": ["pb/d0"]}), "its old node has it still"
        mark(two, "card", None)
        rounds(two)
        assert (held(two, "card"), moved(two)) == (["pb/d0"], {"card": ["pb/d0"]}), "its new node has not marked it"
        assert annotations(two, "card")["allocated-node"] == "b"
        assert annotations(two, "card")["allocated-devices"] == "pb/d0"
        mark(two, "card", "b")
        rounds(two)
        assert (held(two, "card"), moved(two)) == (["pb/d0"], {})
        assert read_faults(two) == []
        before = two.list().resource_version
        rounds(two)
        assert two.list().resource_version == before, "rounds without news write nothing"

    def test_it_moves_back_by_a_second_migration_but_not_before_the_first_is_settled(self, two: SQLiteStore) -> None:
        nodes = running(two, gpu_claim("card"))
        migrate(two)
        nodes.hand_over()
        nodes.follow()
        migrate(two, "back")
        assert migration_status(two, "back")["reason"] == "ClaimMoving"
        assert booked(two) == {}
        mark(two, "card", None)
        rounds(two)
        mark(two, "card", "b")
        rounds(two)
        assert booked(two) == {"card": ["pa/d0"]}
        ScriptedNodes(two, "web", "back").hand_over()
        ScriptedNodes(two, "web", "back").follow()
        mark(two, "card", None)
        rounds(two)
        mark(two, "card", "a")
        rounds(two)
        assert (held(two, "card"), moved(two)) == (["pa/d0"], {})

    def test_a_fleet_that_is_kept_warm_says_the_same(self, two: SQLiteStore) -> None:
        nodes = running(two, gpu_claim("card"))
        fill(two, migration())
        rounds(two, solve=None)
        assert booked(two) == {"card": ["pb/d0"]}
        fill(two, gpu_claim("other", 2))
        rounds(two, solve=None)
        assert held(two, "other") == []
        nodes.hand_over()
        nodes.follow()
        mark(two, "card", None)
        rounds(two, solve=None)
        assert held(two, "card") == ["pb/d0"]
        assert held(two, "other") == ["pa/d0", "pa/d1"], "the old device is free"

    def test_a_migration_that_is_given_up_frees_what_was_booked(self, two: SQLiteStore) -> None:
        nodes = running(two, gpu_claim("card"))
        migrate(two)
        nodes.fail()
        rounds(two)
        assert booked(two) == {}
        fill(two, gpu_claim("other", 2))
        rounds(two)
        assert (held(two, "card"), held(two, "other")) == (["pa/d0"], ["pb/d0", "pb/d1"])


class TestWhichDevices:
    def test_they_are_of_the_same_model(self, store: SQLiteStore) -> None:
        fill(store, gpu_class(), *(host(node, cpus=4) for node in "abc"), gpu_pool("pa", 1, "a", **MODEL))
        fill(store, gpu_pool("pb", 1, "b", **MODEL | {"deviceID": "0x2331"}), gpu_pool("pc", 1, "c", **MODEL))
        set_cordon(store, CordonTarget(node="c"), "not yet")
        running(store, gpu_claim("card"))
        migrate(store)
        waits = migration_status(store)
        assert (waits["phase"], booked(store)) == ("Pending", {})
        assert (
            waits["message"]
            == "its claims need devices of the same kind there; run `devalloc uncordon node/c` (cordoned: not yet)"
        )
        set_cordon(store, CordonTarget(node="c"), None)
        rounds(store)
        assert booked(store) == {"card": ["pc/d0"]}

    def test_each_request_keeps_its_number_and_its_alternative(self, two: SQLiteStore) -> None:
        fill(two, gpu_class("fast", driver="other.devalloc.io"))
        either = testing.claim(
            "card",
            {"oneOf": [{"deviceClass": "fast"}, {"deviceClass": "gpu", "limits": {"count": "2"}}]},
        )
        running(two, either)
        before = annotations(two, "card")["allocation-details"]
        assert '"0.1"' in before
        fast = testing.pool("fast-b", "b", "other.devalloc.io", devices=[testing.device("f0")])
        fill(two, fast, migration())
        rounds(two)
        assert [text.split("/")[0] for text in booked(two)["card"]] == ["pb"] * len(held(two, "card"))

    def test_shares_and_several_requests_come_in_the_order_of_the_claim(self, store: SQLiteStore) -> None:
        fill(store, gpu_class(), testing.device_class("slice", driver="slices"))
        for node in "ab":
            shared = testing.device("card", resources={"memory": "8Gi"})
            fill(store, host(node, cpus=4), gpu_pool(f"p{node}", 3, node, **MODEL))
            fill(store, testing.pool(f"s{node}", node, "slices", devices=[shared]))
        both = (
            {"deviceClass": "gpu", "requests": {"count": "2"}},
            {"deviceClass": "slice", "requests": {"memory": "3Gi"}},
        )
        running(store, testing.claim("card", *both, namespace="default"))
        fill(store, testing.claim("other", both[1], namespace="default"), migration())
        rounds(store)
        (state,) = status(store, "web")["migrationState"]["claims"]
        before = store.get("DeviceClaim", "default", "card")["status"]["allocations"]
        assert [entry["devicePoolName"] for entry in before] == ["pa", "pa", "sa"]
        assert [entry["devicePoolName"] for entry in state["allocations"]] == ["pb", "pb", "sb"]
        assert state["allocations"][2]["allocations"] == before[2]["allocations"]

    def test_there_must_be_room_for_all_claims_and_the_machine_on_one_node(self, two: SQLiteStore) -> None:
        fill(two, gpu_claim("other", node="b"))
        rounds(two)
        running(two, gpu_claim("one"), gpu_claim("two"))
        migrate(two)
        waits = migration_status(two)
        assert (waits["phase"], booked(two)) == ("Pending", {})
        assert "virtualmachine.devalloc.io" not in waits["message"]
        two.delete("DeviceClaim", "default", "other")
        rounds(two)
        assert sorted(one for devices in booked(two).values() for one in devices) == ["pb/d0", "pb/d1"]

    def test_they_are_on_one_numa_node_with_the_machine_where_that_is_asked_for(self, store: SQLiteStore) -> None:
        fill(store, gpu_class())
        for node, numa in (("a", 0), ("b", 1)):
            device = testing.device("d0", attributes={"numa": numa})
            fill(store, host(node, cpus=4), testing.pool(f"p{node}", node, "gpu.devalloc.io", devices=[device]))
        fill(store, machine("small", "1", "1Gi", nodeName="b", start={"kernel": "/k", "numaNode": 1}))
        rounds(store)
        running(store, gpu_claim("card"), numaPolicy="single-numa-node", nics=[{"bandwidth": "1M"}])
        assert status(store, "web")["numaNode"] == 0
        migrate(store)
        state = status(store, "web")["migrationState"]
        assert (booked(store), state["numaNode"]) == ({"card": ["pb/d0"]}, 1)
        assert [entry["deviceName"] for entry in state["allocations"]] == ["numa1", "io"]

    def test_a_quota_does_not_keep_a_machine_where_it_is(self, two: SQLiteStore) -> None:
        hard = {"gpu.deviceclass.devmgmtproto.k8s.io/devices": "1"}
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "default"}}
        fill(two, {**quota, "spec": {"hard": hard}})
        nodes = running(two, gpu_claim("card"))
        migrate(two)
        assert booked(two) == {"card": ["pb/d0"]}
        nodes.hand_over()
        rounds(two)
        fill(two, gpu_claim("more"))
        rounds(two)
        assert annotations(two, "more")["reason"] == "QuotaExceeded"
        stored = two.get("ResourceQuota", "default", "q")
        assert stored["status"]["used"] == hard, "the claim counts once"


class TestWhatKeepsAMachineWhereItIs:
    @pytest.mark.parametrize(
        ("notes", "words"),
        [
            ({"node": "a"}, "must have devices of node a; remove its annotation devalloc.io/node"),
            ({"group": "g"}, "is in group g with claim default/friend, which is not one of the machine"),
        ],
    )
    def test_marks_of_its_claims(self, two: SQLiteStore, notes: dict[str, str], words: str) -> None:
        friend = [gpu_claim("friend", **notes)] if "group" in notes else []
        fill(two, *friend)
        running(two, gpu_claim("card", **notes))
        migrate(two)
        failed = migration_status(two)
        assert (failed["phase"], failed["reason"]) == ("Failed", "MachineNotMovable")
        assert failed["message"] == f"claim default/card {words}"
        assert booked(two) == {}

    def test_another_user_of_its_claim(self, two: SQLiteStore) -> None:
        running(two, gpu_claim("card"))
        fill(two, machine("other", "1", "1Gi", "card", running=False), migration())
        rounds(two)
        assert "is also that of machine default/other" in migration_status(two)["message"]

    def test_a_pod_that_uses_its_claim(self, two: SQLiteStore) -> None:
        running(two, gpu_claim("card"))
        claim = two.get("DeviceClaim", "default", "card")
        two.replace_status({**claim, "status": {**claim["status"], "podNames": ["default/web", "worker"]}})
        migrate(two)
        assert "is also that of worker" in migration_status(two)["message"]

    def test_its_node_which_has_not_said_that_it_can(self, two: SQLiteStore) -> None:
        nodes = running(two, gpu_claim("card"), conditions=[])
        migrate(two)
        waits = migration_status(two)
        assert (waits["phase"], waits["reason"]) == ("Pending", "MigratabilityUnknown")
        nodes.take("a", conditions=movable("False", "0000:01:00.0: VFIO migration is not supported in kernel"))
        rounds(two)
        failed = migration_status(two)
        assert (failed["phase"], failed["reason"]) == ("Failed", "MachineNotMovable")
        assert failed["message"] == "0000:01:00.0: VFIO migration is not supported in kernel"


class TestUntilItHasMoved:
    """A migration is withdrawn when its claims have no use for what is reserved."""

    @pytest.mark.parametrize(
        "change",
        [
            lambda store: _annotate(store, RELEASE, "forced"),
            lambda store: _set_claims(store, []),
            lambda store: _set_claims(store, ["card", "late"]),
            lambda store: store.delete("DeviceClaim", "default", "card"),
        ],
        ids=["released", "detached", "another is attached", "deleted"],
    )
    def test_it_is_withdrawn_with_its_claims(self, two: SQLiteStore, change: Callable[[Store], object]) -> None:
        fill(two, gpu_claim("late", node="a"))
        rounds(two)
        running(two, gpu_claim("card"))
        migrate(two)
        assert booked(two) == {"card": ["pb/d0"]}
        change(two)
        rounds(two)
        assert (booked(two), migration_status(two)["reason"]) == ({}, "MigrationWithdrawn")


def _annotate(store: Store, name: str, value: str) -> None:
    store.replace(with_annotations(store.get("DeviceClaim", "default", "card"), {name: value}))


def _set_claims(store: Store, names: list[str]) -> None:
    vm = store.get(VM, "default", "web")
    store.replace({**vm, "spec": {**vm["spec"], "claims": names}})


@pytest.fixture
def handed_over(two: SQLiteStore) -> SQLiteStore:
    """The machine has moved, and its old node has the claim's devices still."""
    nodes = running(two, gpu_claim("card"))
    migrate(two)
    nodes.hand_over()
    nodes.follow()
    return two


@pytest.mark.parametrize("is_pool_gone", [False, True])
def test_a_claim_keeps_its_devices_until_the_source_has_given_them_up(two: SQLiteStore, is_pool_gone: bool) -> None:
    """Whatever happens between the handover and the target's mark on the machine."""
    nodes = running(two, gpu_claim("card"))
    nodes.take("a", applied={"cpus": "1", "memory": "1Gi"})
    migrate(two)
    nodes.hand_over()
    if is_pool_gone:
        two.delete("DevicePool", None, "b-host")
    else:
        vm = two.get(VM, "default", "web")
        two.replace({**vm, "spec": {**vm["spec"], "cpu": {"min": "2", "max": "8"}}})
    fill(two, gpu_claim("others", 2))
    rounds(two)
    assert status(two, "web")["nodeName"] == "b"
    assert (held(two, "card"), moved(two)) == (["pa/d0"], {"card": ["pb/d0"]})
    assert held(two, "others") == [], "each node has one that is free"
    nodes.follow()
    mark(two, "card", None)
    rounds(two)
    assert (held(two, "card"), held(two, "others")) == (["pb/d0"], ["pa/d0", "pa/d1"])


class TestUntilTheClaimHasItsDevices:
    def test_a_release_waits_for_the_node_of_the_machine(self, handed_over: SQLiteStore) -> None:
        _annotate(handed_over, RELEASE, "asked")
        mark(handed_over, "card", None)
        rounds(handed_over)
        assert held(handed_over, "card") == ["pb/d0"], "its machine has them"
        assert annotations(handed_over, "card")["release"] == "asked", "the node of the machine is still to see it"
        mark(handed_over, "card", "b")
        rounds(handed_over)
        assert moved(handed_over) == {}
        mark(handed_over, "card", None)
        rounds(handed_over)
        assert "release" not in annotations(handed_over, "card")

    def test_a_claim_whose_devices_were_taken_back_gets_those_of_its_machine(self, handed_over: SQLiteStore) -> None:
        mark(handed_over, "card", None)
        claim = handed_over.get("DeviceClaim", "default", "card")
        handed_over.replace_status({name: part for name, part in claim.items() if name != "status"})
        rounds(handed_over)
        assert held(handed_over, "card") == ["pb/d0"]
        assert read_faults(handed_over) == []

    def test_a_claim_that_is_gone_leaves_them_to_others_when_they_are_out_of_the_machine(
        self, handed_over: SQLiteStore
    ) -> None:
        mark(handed_over, "card", None)
        handed_over.delete("DeviceClaim", "default", "card")
        fill(handed_over, gpu_claim("other", 2, node="b"))
        rounds(handed_over)
        assert (moved(handed_over), held(handed_over, "other")) == ({"card": ["pb/d0"]}, [])
        fill(handed_over, gpu_claim("card"))
        rounds(handed_over)
        assert moved(handed_over) == {"card": ["pb/d0"]}, "that is another one"
        ScriptedNodes(handed_over).take("b", devices=[])
        rounds(handed_over)
        assert (moved(handed_over), held(handed_over, "other")) == ({}, ["pb/d0", "pb/d1"])

    def test_a_machine_that_is_gone_leaves_the_claim_what_it_has(self, handed_over: SQLiteStore) -> None:
        vm = handed_over.get(VM, "default", "web")
        handed_over.replace({**vm, "metadata": {**vm["metadata"], "finalizers": []}})
        handed_over.delete(VM, "default", "web")
        mark(handed_over, "card", None)
        fill(handed_over, gpu_claim("other", 2, node="b"))
        rounds(handed_over)
        assert (held(handed_over, "card"), held(handed_over, "other")) == (["pa/d0"], ["pb/d0", "pb/d1"])

    def test_a_lost_source_gives_it_up_by_its_fence(self, handed_over: SQLiteStore) -> None:
        state_fence(handed_over, "a", "by ada")
        rounds(handed_over)
        assert held(handed_over, "card") == ["pb/d0"]
        assert RELEASE not in handed_over.get("DeviceClaim", "default", "card")["metadata"]["annotations"]
        assert (status(handed_over, "web")["phase"], status(handed_over, "web")["nodeName"]) == ("Running", "b")

    def test_a_lost_target_loses_the_machine_and_the_claim_keeps_its_devices(self, handed_over: SQLiteStore) -> None:
        state_fence(handed_over, "b", "by ada")
        rounds(handed_over)
        assert (moved(handed_over), held(handed_over, "card")) == ({}, ["pa/d0"])
        assert status(handed_over, "web")["nodeName"] == "a", "where its claim is"


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_machine_that_its_source_lost_after_the_handover_starts_where_its_devices_wait(
    two: SQLiteStore, is_taken: bool
) -> None:
    nodes = running(two, gpu_claim("card"))
    migrate(two)
    nodes.hand_over()
    if is_taken:
        nodes.follow()
    state_fence(two, "a", "by ada")
    rounds(two)
    assert (held(two, "card"), status(two, "web")["nodeName"]) == (["pb/d0"], "b")


class TestWhoCounts:
    def test_both_nodes_publishers_and_the_pools(self, two: SQLiteStore) -> None:
        nodes = running(two, gpu_claim("card"))
        migrate(two)
        for step in (lambda: None, nodes.hand_over, lambda: mark(two, "card", None)):
            step()
            documents = two.list(("DeviceClaim", "DeviceClass", VM)).objects
            assert device_names_held_on("a", documents) == device_names_held_on("b", documents) == {"d0"}
            left = {name: two.get("DevicePool", None, name)["status"]["availableDevices"] for name in ("pa", "pb")}
            assert left == {"pa": 1, "pb": 1}
        rounds(two)
        documents = two.list(("DeviceClaim", "DeviceClass", VM)).objects
        assert (device_names_held_on("a", documents), device_names_held_on("b", documents)) == (set(), {"d0"})

    def test_usage_once_for_each_device(self, two: SQLiteStore) -> None:
        nodes = running(two, gpu_claim("card"))

        def used() -> list[tuple[str, str, str]]:
            holdings = holdings_of(two.list(("DeviceClaim", VM)).objects).values()
            keys = sorted(one.key for one in holdings if one.key.kind == "DeviceClaim")
            return [(key.machine, key.device_class, key.device) for key in keys]

        assert used() == [("web", "gpu", "pa/d0")]
        migrate(two)
        both = [("web", "gpu", "pa/d0"), ("web", "gpu", "pb/d0")]
        assert used() == both
        nodes.hand_over()
        nodes.follow()
        assert used() == both
        ids = {one.id for one in holdings_of(two.list(("DeviceClaim", VM)).objects).values()}
        mark(two, "card", None)
        rounds(two, 1)
        assert (used(), moved(two)) == ([("web", "gpu", "pb/d0")], {"card": ["pb/d0"]})
        after = {one.id for one in holdings_of(two.list(("DeviceClaim", VM)).objects).values()}
        assert after < ids, "what it has on the target counts on"
