"""Placing machines: what a round keeps for them on which node, with the devices of their claims, and what it tells."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from devalloc.api import meta
from devalloc.api.findings import AT_LENGTH, finding_of, message_of
from devalloc.controller.reconcile.decision import IN_CONDITIONS
from devalloc.controller.reconcile.loop import AllocatorSettings
from devalloc.machines.schedule.what_if import solve_with_machines
from devalloc.store import Store
from devalloc.store.sqlite import SQLiteStore
from devalloc_solver import solve_manifests
from tests.support.fleet_manifests import annotations, fill, gpu_claim, gpu_class, gpu_pool, held
from tests.support.host_pools import host, machine, node_by_machine, reserved_for, status
from tests.support.machine_allocator import machine_allocator

Object = dict[str, Any]


def rounds(store: Store, count: int = 2) -> None:
    allocator = machine_allocator(store, solve=solve_manifests)
    for _ in range(count):
        allocator.round()


def gpus(name: str, node: str, *numa: int) -> Object:
    devices = [{"name": f"d{i}", "attributes": [{"name": "numa", "intValue": n}]} for i, n in enumerate(numa)]
    pool = gpu_pool(name, node=node)
    return {**pool, "spec": {**pool["spec"], "devices": devices}}


def hold(store: Store, name: str, node: str, **fields: Any) -> None:
    """What the node's plugin writes when it takes a machine, and what it says of it."""
    stored = store.get("VirtualMachine", "default", name)
    notes = {**stored["metadata"].get("annotations", {}), meta.PREPARED_ON: node}
    metadata = {**stored["metadata"], "finalizers": [meta.NODE_FINALIZER], "annotations": notes}
    stored = store.replace({**stored, "metadata": metadata})
    store.replace_status({**stored, "status": {**stored.get("status", {}), **fields}})


def edit(store: Store, name: str, **spec: Any) -> None:
    stored = store.get("VirtualMachine", "default", name)
    store.replace({**stored, "spec": {**stored["spec"], **spec}})


class TestWhere:
    def test_a_machine_is_placed_where_there_is_room_and_what_it_starts_with_is_kept(self, store: SQLiteStore) -> None:
        fill(store, host("a", cpus=1), host("b", cpus=4), machine("web", "1500m", "2Gi"))
        rounds(store)
        assert node_by_machine(store) == {"web": "b"}
        assert reserved_for(store, "web") == {"numa0": {"cpu": "1500m", "memory": "2Gi"}}
        states = {condition["type"]: condition["status"] for condition in status(store, "web")["conditions"]}
        assert states == {"Placed": "True", "Ready": "False"}
        assert "reason" not in status(store, "web")

    def test_a_machine_that_does_not_mind_may_lie_on_several_numa_nodes(self, store: SQLiteStore) -> None:
        fill(store, host("a", cpus=4), machine("big", "3", "1Gi"))
        rounds(store)
        amounts_of = reserved_for(store, "big")
        assert sum(int(amounts.get("cpu", "0")) for amounts in amounts_of.values()) == 3

    def test_a_machine_that_is_being_deleted_is_waited_for(self, store: SQLiteStore) -> None:
        fill(store, host("a", cpus=2), machine("old", "2", "1Gi"))
        rounds(store)
        hold(store, "old", "a", phase="Running")
        fill(store, machine("new", "2", "1Gi"))
        rounds(store)
        assert status(store, "new")["message"].endswith("; stop machine default/old, or wait for it")
        store.delete("VirtualMachine", "default", "old")
        rounds(store)
        assert status(store, "new")["message"].endswith("; wait for machine default/old")

    @pytest.mark.parametrize("hides_names", [False, True])
    def test_machines_of_other_namespaces_are_not_named_on_a_cluster(
        self, store: SQLiteStore, hides_names: bool
    ) -> None:
        other = machine("secret", "2", "1Gi", "card")
        other["metadata"]["namespace"] = "team-b"
        fill(store, host("a", cpus=2), gpus("cards", "a", 0), gpu_class(), other, gpu_claim("card", 1, "team-b"))
        allocator = machine_allocator(store, settings=AllocatorSettings(hides_names=hides_names))
        for _ in range(2):
            allocator.round()
        fill(store, machine("web", "2", "1Gi", "own"), gpu_claim("own"))
        for _ in range(2):
            allocator.round()
        messages = status(store, "web")["message"] + annotations(store, "own")["message"]
        assert ("team-b" in messages) is not hides_names
        assert ("of other namespaces" in messages) is hides_names

    def test_a_machine_for_a_single_numa_node_waits_until_one_has_room(self, store: SQLiteStore) -> None:
        fill(store, host("a", cpus=4), machine("big", "3", "1Gi", numaPolicy="single-numa-node"))
        rounds(store)
        assert node_by_machine(store) == {}
        assert status(store, "big")["reason"] == "NodesTooSmall"
        assert "NUMA node 0 of node a has 2 CPU, 3 wanted" in status(store, "big")["message"]

    def test_a_machine_and_the_devices_of_its_claims_are_on_one_node(self, store: SQLiteStore) -> None:
        fill(store, gpu_class(), host("a", cpus=8), host("b", cpus=2), gpu_pool("p", node="b"))
        fill(store, gpu_claim("gpu"), machine("web", "1", "1Gi", "gpu"))
        rounds(store)
        assert (node_by_machine(store), held(store, "gpu")) == ({"web": "b"}, ["p/d0"])

    def test_so_are_those_of_machines_whose_long_names_begin_alike(self, store: SQLiteStore) -> None:
        names = [f"{'m' * 250}-{number}" for number in (1, 2)]
        fill(store, gpu_class(), *(host(node, cpus=2) for node in "ab"), *(gpus(f"p{n}", n, 0) for n in "ab"))
        for number, name in enumerate(names):
            fill(store, gpu_claim(f"g{number}"), machine(name, "2", "1Gi", f"g{number}"))
        rounds(store)
        assert sorted(node_by_machine(store)) == names
        assert sorted(node_by_machine(store).values()) == ["a", "b"]

    def test_neither_is_given_where_both_do_not_fit(self, store: SQLiteStore) -> None:
        fill(store, gpu_class(), host("a", cpus=8), host("b", cpus=2), gpu_pool("p", node="b"))
        fill(store, gpu_claim("gpu"), machine("web", "4", "1Gi", "gpu"))
        rounds(store)
        assert (node_by_machine(store), held(store, "gpu")) == ({}, [])
        assert status(store, "web")["reason"] == "GroupUnsatisfiable"

    def test_cpus_memory_and_devices_come_from_one_numa_node_where_that_is_asked_for(self, store: SQLiteStore) -> None:
        fill(store, gpu_class(), host("a", cpus=4), gpus("p", "a", 0, 1))
        fill(store, machine("first", "2", "1Gi", numaPolicy="single-numa-node", nodeName="a"))
        rounds(store)
        store.create(gpu_claim("gpu"))
        store.create(machine("second", "2", "1Gi", "gpu", numaPolicy="single-numa-node", nics=[{"bandwidth": "1M"}]))
        rounds(store)
        assert status(store, "first")["numaNode"] == 0
        assert status(store, "second")["numaNode"] == 1
        assert held(store, "gpu") == ["p/d1"]
        assert reserved_for(store, "second") == {"numa1": {"cpu": "2", "memory": "1Gi"}, "io": {"network": "1M"}}

    def test_a_message_names_the_policy_that_is_in_the_way(self, store: SQLiteStore) -> None:
        fill(store, gpu_class(), host("a", cpus=4), gpus("p", "a", 1), gpu_claim("gpu"))
        start = {"kernel": "/boot/vmlinuz", "numaNode": 0}
        fill(store, machine("web", "1", "1Gi", "gpu", numaPolicy="single-numa-node", start=start))
        rounds(store)
        message = status(store, "web")["message"]
        assert message.endswith("; remove `numa` from spec.numaPolicy")

    def test_a_claim_that_comes_later_agrees_with_the_numa_node_that_its_machine_has(self, store: SQLiteStore) -> None:
        fill(store, gpu_class(), host("a", cpus=4), gpus("p", "a", 0, 1), machine("other", "2", "1Gi"))
        fill(store, machine("web", "2", "1Gi", numaPolicy="single-numa-node"))
        rounds(store)
        hold(store, "web", "a", phase="Running")
        assert status(store, "web")["numaNode"] == 1
        store.create(gpu_claim("gpu"))
        edit(store, "web", claims=["gpu"])
        rounds(store)
        assert held(store, "gpu") == ["p/d1"]

    def test_the_node_of_its_spec_counts(self, store: SQLiteStore) -> None:
        fill(store, host("a"), host("b"), machine("web", nodeName="b"))
        rounds(store)
        assert node_by_machine(store) == {"web": "b"}

    def test_a_node_without_a_host_pool_admits_machines_with_its_name(self, store: SQLiteStore) -> None:
        fill(store, gpu_class(), gpu_pool("p", node="old"), host("new"), gpu_claim("gpu"))
        fill(store, machine("web", "1", "1Gi", "gpu", nodeName="old"))
        rounds(store)
        assert node_by_machine(store) == {}
        assert status(store, "web") == {}
        assert held(store, "gpu") == ["p/d0"]

    def test_without_any_node_that_says_so_a_machine_must_name_one(self, store: SQLiteStore) -> None:
        fill(store, machine("web"))
        rounds(store)
        assert status(store, "web")["reason"] == "NoHostCapacity"
        assert "--host-capacity" in status(store, "web")["message"]

    def test_bandwidth_is_kept_as_far_as_it_is_asked_for(self, store: SQLiteStore) -> None:
        fill(store, host("a", cpus=8, network=1000), *(machine(n, nics=[{"bandwidth": "600"}]) for n in ("x", "y")))
        fill(store, machine("z", nics=[{}]))
        rounds(store)
        assert node_by_machine(store) == {"x": "a", "z": "a"}
        assert "node a has 400/s of 1k/s bandwidth free, 600/s wanted" in status(store, "y")["message"]

    def test_a_thousand_cpus_are_written_as_a_number(self, store: SQLiteStore) -> None:
        for name in "xy":
            obj = machine(name)
            obj["spec"]["cpu"] = {"min": "600", "max": "600"}
            fill(store, obj)
        fill(store, host("a", cpus=1000))
        rounds(store)
        assert "node a has 400 of 1000 CPU free, 600 wanted" in status(store, "y")["message"]


class TestGoals:
    def test_a_machine_counts_as_one_claim_more(self, store: SQLiteStore) -> None:
        fill(store, gpu_class(), host("a", cpus=8), gpu_pool("p", 1, node="a"), gpu_claim("alone"))
        fill(store, gpu_claim("gpu"), machine("web", "1", "1Gi", "gpu"))
        rounds(store, 1)
        assert (held(store, "alone"), held(store, "gpu"), node_by_machine(store)) == ([], ["p/d0"], {"web": "a"})

    def test_a_machine_takes_no_devices_of_other_claims(self, store: SQLiteStore) -> None:
        fill(store, gpu_class(), host("a", cpus=8), gpu_pool("p", 1, node="a"), gpu_claim("alone"))
        rounds(store, 1)
        fill(store, gpu_claim("gpu"), machine("web", "1", "1Gi", "gpu"))
        rounds(store, 1)
        assert (held(store, "alone"), held(store, "gpu"), node_by_machine(store)) == (["p/d0"], [], {})


class TestHowMuch:
    def test_a_burst_admits_exactly_what_fits_and_tells_the_rest_why(self, store: SQLiteStore) -> None:
        fill(store, host("a", cpus=50, memory=400), *(machine(f"m{n}") for n in range(200)))
        rounds(store, 1)
        assert len(node_by_machine(store)) == 50
        rounds(store, 1)
        rest = [status(store, f"m{n}") for n in range(200) if f"m{n}" not in node_by_machine(store)]
        assert all("node a has 0 of 50 CPU free, 1 wanted; stop machine default/" in one["message"] for one in rest)
        assert {status(store, f"m{n}").get("reason") for n in range(200)} == {None, "NoRoom"}
        assert len(node_by_machine(store)) == 50

    def test_a_machine_too_large_for_any_node_has_a_reason(self, store: SQLiteStore) -> None:
        fill(store, host("a", cpus=4, memory=4), host("b", cpus=2, memory=64), machine("web", "5", "8Gi"))
        rounds(store)
        assert status(store, "web")["reason"] == "NodesTooSmall"
        a = "node a has 4 CPU, 5 wanted and 4Gi memory, 8Gi wanted"
        assert status(store, "web")["message"] == f"no node is large enough: {a} (and 1 more node); lower spec.cpu"
        (one,) = solve_with_machines(store.list().objects)["machines"]
        (cause,) = one["causes"]
        assert cause["code"] == "room"
        assert cause["nodes"][1] == {"node": "b", "lacks": [{"resource": "CPU", "has": "2", "wanted": "5"}]}
        both = f"{a}; node b has 2 CPU, 5 wanted"
        assert message_of(finding_of(one), AT_LENGTH) == f"no node is large enough: {both}; lower spec.cpu"

    def test_huge_pages_come_from_the_node_of_the_devices_or_the_machine_waits_and_says_why(
        self, store: SQLiteStore
    ) -> None:
        huge = {"memory": {"min": "2Gi", "max": "4Gi", "hugePages": "2Mi"}, "numaPolicy": "single-numa-node"}

        def asks(name: str, claim: str) -> Object:
            one = machine(name, "1", "2Gi", claim)
            return {**one, "spec": {**one["spec"], **huge}}

        fill(store, host("a", cpus=8, memory=64, huge=(1, 2)), gpu_class(), gpus("p", "a", 0, 1))
        fill(store, gpu_claim("g0"), asks("x", "g0"))
        rounds(store)
        assert reserved_for(store, "x") == {"numa1": {"cpu": "1", "hugepages-2Mi": "2Gi"}}
        assert (status(store, "x")["numaNode"], held(store, "g0")) == (1, ["p/d1"])
        fill(store, gpu_claim("g1"), asks("y", "g1"))
        rounds(store)
        assert (status(store, "y")["reason"], held(store, "g1")) == ("NoRoom", [])
        assert "1Gi of 3Gi huge pages of 2Mi free, 2Gi wanted" in status(store, "y")["message"]

    def test_a_machine_in_huge_pages_grows_by_huge_pages_and_keeps_what_it_has_without(
        self, store: SQLiteStore
    ) -> None:
        huge = {"min": "1Gi", "max": "4Gi", "hugePages": "2Mi"}
        grows = machine("x")
        grows["spec"]["memory"] = huge
        fill(store, host("a", cpus=4, memory=64, numa=1, huge=(2,)), grows)
        rounds(store)
        hold(store, "x", "a", phase="Running", applied={"cpus": "1", "memory": "1Gi"})
        edit(store, "x", memory={**huge, "use": "2Gi"})
        rounds(store)
        assert reserved_for(store, "x")["numa0"]["hugepages-2Mi"] == "2Gi"
        edit(store, "x", memory={**huge, "use": "3Gi"})
        rounds(store)
        assert reserved_for(store, "x")["numa0"]["hugepages-2Mi"] == "2Gi"
        (fits,) = [one for one in status(store, "x")["conditions"] if one["type"] == "Fits"]
        assert "0 of 2Gi huge pages of 2Mi free, 1Gi more wanted" in fits["message"]

    def test_pages_of_the_other_size_stay_a_machines_own_until_it_is_stopped(self, store: SQLiteStore) -> None:
        fill(store, host("a", cpus=4, memory=2, numa=1, huge=(2,)), machine("x", "1", "2Gi"))
        rounds(store)
        hold(store, "x", "a", phase="Running", applied={"cpus": "1", "memory": "2Gi"})
        edit(store, "x", memory={"min": "2Gi", "max": "2Gi", "hugePages": "2Mi"})
        fill(store, machine("late", "1", "1Gi"))
        rounds(store)
        assert reserved_for(store, "x")["numa0"] == {"cpu": "1", "memory": "2Gi", "hugepages-2Mi": "2Gi"}
        assert status(store, "late")["reason"] == "NoRoom"

    def test_the_whole_ceiling_is_kept_where_that_is_asked_for(self, store: SQLiteStore) -> None:
        fill(store, host("a", cpus=16, memory=16), machine("web", "1", "1Gi", reserveMax=True))
        rounds(store)
        assert reserved_for(store, "web") == {"numa0": {"cpu": "8", "memory": "8Gi"}}

    @pytest.mark.parametrize("more", [{"cpus": "3"}, {"cpus": "1", "kept": {"cpus": "3", "memory": "1Gi"}}])
    def test_amounts_permitted_above_the_minimum_go_to_no_other_machine(
        self, store: SQLiteStore, more: dict[str, Any]
    ) -> None:
        fill(store, host("a", cpus=4, numa=1), machine("web", "1", "1Gi"))
        rounds(store)
        hold(store, "web", "a", phase="Running", permitted={"memory": "1Gi", **more})
        fill(store, machine("small", "1", "1Gi"), machine("late", "1", "1Gi"))
        rounds(store)
        assert node_by_machine(store) == {"web": "a", "small": "a"}

    def test_less_capacity_ends_no_machine_and_admits_none(self, store: SQLiteStore) -> None:
        fill(store, host("a", cpus=4), machine("x", "2"), machine("y", "2"))
        rounds(store)
        store.replace({**host("a", cpus=2), "metadata": store.get("DevicePool", None, "a-host")["metadata"]})
        store.create(machine("z", "1"))
        rounds(store)
        assert node_by_machine(store) == {"x": "a", "y": "a"}

    def test_a_machine_that_runs_already_counts_whether_there_is_room_or_not(self, store: SQLiteStore) -> None:
        fill(store, machine("old", "3", "1Gi", nodeName="a"))
        hold(store, "old", "a", phase="Running")
        fill(store, host("a", cpus=2, numa=1), machine("new", "1"))
        rounds(store)
        assert node_by_machine(store) == {"old": "a"}
        assert reserved_for(store, "old")["numa0"]["cpu"] == "3"

    def test_a_machine_that_is_to_be_adopted_runs_already(self, store: SQLiteStore) -> None:
        adopted = machine("old", "3", "1Gi", nodeName="a", adopt={"qmpSocket": "/run/old.qmp"})
        del adopted["spec"]["start"]
        fill(store, host("a", cpus=2, numa=1), adopted, machine("new", "1"))
        rounds(store)
        assert node_by_machine(store) == {"old": "a"}
        edit(store, "old", running=False)
        rounds(store)
        assert node_by_machine(store) == {"new": "a"}


class TestOtherAmounts:
    """What the spec of a placed machine says changes."""

    def start(self, store: Store, *more: Object, cpus: int = 4, **spec: Any) -> None:
        """``web`` runs on node a with 1 CPU and 1 GiB."""
        fill(store, host("a", cpus=cpus, memory=8, numa=2), machine("web", "1", "1Gi", **spec))
        rounds(store)
        hold(store, "web", "a", phase="Running", applied={"cpus": "1", "memory": "1Gi"})
        fill(store, *more)
        rounds(store)

    def test_a_guest_with_two_numa_nodes_grows_and_shrinks_on_both_as_its_node_shares_it_out(
        self, store: SQLiteStore
    ) -> None:
        fill(store, host("a", cpus=6, memory=12, numa=3), machine("web", "3", "3Gi"))
        rounds(store)
        first, second = (int(name.removeprefix("numa")) for name in reserved_for(store, "web"))
        nodes = [{"hostNode": n, "cpus": c, "memory": m} for n, c, m in ((first, "2", "1Gi"), (second, "1", "2Gi"))]
        hold(store, "web", "a", phase="Running", applied={"cpus": "3", "memory": "3Gi"}, numaNodes=nodes)
        edit(store, "web", cpu={"min": "3", "max": "8", "use": "3"}, memory={"min": "3Gi", "max": "9Gi", "use": "6Gi"})
        rounds(store)
        grown = reserved_for(store, "web")
        assert {name: one["memory"] for name, one in grown.items()} == {f"numa{first}": "2Gi", f"numa{second}": "4Gi"}
        hold(store, "web", "a", applied={"cpus": "3", "memory": "6Gi"})
        edit(store, "web", memory={"min": "3Gi", "max": "9Gi", "use": "9Gi"})
        rounds(store)
        assert reserved_for(store, "web") == grown, "its second node has no more, whatever the third one has"
        assert self.conditions(store)["Fits"] == "False"
        hold(store, "web", "a", applied={"cpus": "3", "memory": "3Gi"})
        edit(store, "web", memory={"min": "3Gi", "max": "9Gi", "use": "3Gi"})
        rounds(store)
        assert {name: one["memory"] for name, one in reserved_for(store, "web").items()} == {
            f"numa{first}": "1Gi",
            f"numa{second}": "2Gi",
        }

    def test_a_machine_with_dimms_has_whole_dimms_on_each_numa_node(self, store: SQLiteStore) -> None:
        """Not half of one on each, which no node can plug in."""
        fill(store, host("a", cpus=4, memory=12, numa=2), machine("web", "3", "6Gi"))
        rounds(store)
        nodes = [{"hostNode": n, "cpus": c, "memory": "3Gi"} for n, c in ((0, "2"), (1, "1"))]
        hold(store, "web", "a", phase="Running", applied={"cpus": "3", "memory": "6Gi"}, numaNodes=nodes)
        for use, parts in (("8Gi", ["5Gi", "3Gi"]), ("10Gi", ["5Gi", "5Gi"])):
            edit(store, "web", memory={"min": "6Gi", "max": "10Gi", "use": use, "method": "dimm", "slotSize": "2Gi"})
            rounds(store)
            assert [one["memory"] for _, one in sorted(reserved_for(store, "web").items())] == parts
            hold(store, "web", "a", applied={"cpus": "3", "memory": use})

    def conditions(self, store: Store) -> dict[str, str]:
        """But whether it runs, which its node says."""
        listed = status(store, "web")["conditions"]
        return {one["type"]: one["status"] for one in listed if one["type"] != "Ready"}

    @pytest.mark.parametrize(
        ("spec", "expect"),
        [
            ({"cpu": {"min": "1", "max": "8", "use": "2"}}, {"cpu": "2", "memory": "1Gi"}),
            ({"cpu": {"min": "1500m", "max": "8"}}, {"cpu": "1500m", "memory": "1Gi"}),
            ({"memory": {"min": "3Gi", "max": "8Gi"}}, {"cpu": "1", "memory": "3Gi"}),
            ({"nics": [{"bandwidth": "1M"}], "disk": "3Gi"}, {"cpu": "1", "memory": "1Gi"}),
            (
                {"cpu": {"min": "1", "max": "2"}, "memory": {"min": "1Gi", "max": "4Gi"}, "reserveMax": True},
                {"cpu": "2", "memory": "4Gi"},
            ),
        ],
    )
    def test_what_it_asks_for_beyond_that_is_kept_too(
        self, store: SQLiteStore, spec: Object, expect: dict[str, str]
    ) -> None:
        self.start(store, numaPolicy="single-numa-node")
        edit(store, "web", **spec)
        rounds(store)
        io = {"io": {"network": "1M", "disk": "3Gi"}} if "disk" in spec else {}
        assert reserved_for(store, "web") == {"numa0": expect} | io
        assert self.conditions(store) == {"Placed": "True"}

    def test_without_room_all_stays_as_it_was_with_a_reason(self, store: SQLiteStore) -> None:
        self.start(store, machine("other", "2", "1Gi"))
        edit(store, "web", cpu={"min": "1", "max": "8", "use": "3"}, memory={"min": "2Gi", "max": "8Gi"})
        rounds(store)
        assert reserved_for(store, "web") == {"numa0": {"cpu": "1", "memory": "1Gi"}}
        assert self.conditions(store) == {"Placed": "True", "Fits": "False"}
        condition = next(one for one in status(store, "web")["conditions"] if one["type"] == "Fits")
        assert condition["reason"] == "NoRoom"
        assert "CPU free, 2 more wanted" in condition["message"]
        assert "machine default/" in condition["message"]
        assert "machine default/web" not in condition["message"], "which is itself"
        assert "; stop machine default/other" in condition["message"]
        assert status(store, "web")["phase"] == "Running"
        store.create(machine("small", "1", "1Gi"))
        rounds(store)
        assert set(node_by_machine(store)) == {"web", "other", "small"}, "what it does not get is there for others"
        for name in ("other", "small"):
            store.delete("VirtualMachine", "default", name)
        rounds(store)
        assert sum(int(amounts["cpu"]) for amounts in reserved_for(store, "web").values()) == 3
        assert self.conditions(store) == {"Placed": "True"}

    def test_the_condition_goes_when_the_change_is_taken_back(self, store: SQLiteStore) -> None:
        self.start(store)
        edit(store, "web", cpu={"min": "1", "max": "8", "use": "8"})
        rounds(store)
        assert self.conditions(store) == {"Placed": "True", "Fits": "False"}
        edit(store, "web", cpu={"min": "1", "max": "8"})
        rounds(store)
        assert self.conditions(store) == {"Placed": "True"}

    def test_more_comes_from_the_numa_node_that_it_is_on_where_that_is_asked_for(self, store: SQLiteStore) -> None:
        self.start(store, numaPolicy="single-numa-node")
        edit(store, "web", cpu={"min": "1", "max": "8", "use": "3"})
        rounds(store)
        assert self.conditions(store)["Fits"] == "False", "numa0 has 2 CPUs"
        edit(store, "web", numaPolicy="none")
        rounds(store)
        assert self.conditions(store) == {"Placed": "True"}

    def test_what_it_wants_no_more_is_free_once_its_node_does_not_tell_it_to_have_it(self, store: SQLiteStore) -> None:
        fill(store, host("a", cpus=4, numa=1), machine("web", "4", "1Gi"), machine("next", "2", "1Gi"))
        rounds(store)
        hold(store, "web", "a", phase="Starting")
        edit(store, "web", cpu={"min": "2", "max": "8"})
        rounds(store)
        assert reserved_for(store, "web")["numa0"]["cpu"] == "4", "its node may begin it as it was told before"
        hold(store, "web", "a", phase="Running", applied={"cpus": "4", "memory": "1Gi"})
        rounds(store)
        assert reserved_for(store, "web")["numa0"]["cpu"] == "2"
        assert node_by_machine(store) == {"web": "a"}, "it has 4"
        hold(store, "web", "a", phase="Running", applied={"cpus": "2", "memory": "1Gi"})
        rounds(store)
        assert node_by_machine(store) == {"web": "a", "next": "a"}

    def test_what_it_is_permitted_already_needs_no_more_room(self, store: SQLiteStore) -> None:
        self.start(store, machine("other", "1", "1Gi"))
        hold(store, "web", "a", permitted={"cpus": "3", "memory": "1Gi"})
        edit(store, "web", cpu={"min": "3", "max": "8"})
        rounds(store)
        assert sum(int(amounts["cpu"]) for amounts in reserved_for(store, "web").values()) == 3
        assert self.conditions(store) == {"Placed": "True"}

    def test_an_amount_beyond_its_numa_node_is_not_free_on_the_other(self, store: SQLiteStore) -> None:
        fill(store, host("a", cpus=8, numa=2), machine("web", "2", "1Gi"))
        rounds(store)
        amounts = {"cpus": "7", "memory": "1Gi"}
        hold(store, "web", "a", phase="Running", applied=amounts, observed=amounts)
        fill(store, machine("second", "2", "1Gi"))
        rounds(store)
        assert node_by_machine(store) == {"web": "a"}, (
            "7 of 8 are taken, though 4 are of the node that it is not kept on"
        )
        fill(store, machine("third", "1", "1Gi"))
        rounds(store)
        assert node_by_machine(store) == {"web": "a", "third": "a"}

    def test_a_round_that_changes_nothing_writes_nothing(self, store: SQLiteStore) -> None:
        self.start(store)
        edit(store, "web", cpu={"min": "1", "max": "8", "use": "8"})
        rounds(store, 3)
        before = store.list().resource_version
        rounds(store, 2)
        assert store.list().resource_version == before


class TestGivenBack:
    def test_the_room_of_a_machine_that_is_deleted_is_free(self, store: SQLiteStore) -> None:
        fill(store, host("a", cpus=1, numa=1), machine("x"), machine("y"))
        rounds(store)
        assert node_by_machine(store) == {"x": "a"}
        store.delete("VirtualMachine", "default", "x")
        rounds(store)
        assert node_by_machine(store) == {"y": "a"}

    def test_a_machine_that_is_being_deleted_counts_until_its_node_lets_go(self, store: SQLiteStore) -> None:
        fill(store, host("a", cpus=1, numa=1), machine("x"), machine("y"))
        rounds(store)
        hold(store, "x", "a", phase="Running")
        store.delete("VirtualMachine", "default", "x")
        rounds(store)
        assert node_by_machine(store) == {"x": "a"}

    def test_a_machine_that_never_began_is_released_when_it_is_stopped(self, store: SQLiteStore) -> None:
        fill(store, host("a", cpus=1, numa=1), machine("x"), machine("y"))
        rounds(store)
        edit(store, "x", running=False)
        rounds(store)
        assert node_by_machine(store) == {"y": "a"}
        assert "allocations" not in status(store, "x")

    def test_only_its_node_gives_back_a_machine_that_it_has(self, store: SQLiteStore) -> None:
        fill(store, host("a", cpus=1, numa=1), machine("x"), machine("y"))
        rounds(store)
        hold(store, "x", "a", phase="Running")
        edit(store, "x", running=False)
        rounds(store)
        assert node_by_machine(store) == {"x": "a"}

    def test_a_stopped_machine_comes_back_to_its_node_only(self, store: SQLiteStore) -> None:
        fill(store, host("a", cpus=1, numa=1), host("b", cpus=1, numa=1), machine("x"))
        rounds(store)
        node = node_by_machine(store)["x"]
        unplaced = {k: v for k, v in status(store, "x").items() if k != "allocations"}
        hold(store, "x", node, phase="Stopped", reason="StoppedOnRequest")
        now = store.get("VirtualMachine", "default", "x")
        store.replace_status({**now, "status": {**unplaced, "phase": "Stopped", "reason": "StoppedOnRequest"}})
        fill(store, machine("y", nodeName=node))
        rounds(store)
        assert set(node_by_machine(store).values()) == {node}


class TestClaims:
    def test_a_claim_that_does_not_exist_keeps_its_machine_and_the_other_claims_waiting(
        self, store: SQLiteStore
    ) -> None:
        fill(store, gpu_class(), host("a"), gpu_pool("p", node="a"), gpu_claim("gpu"))
        fill(store, machine("web", "1", "1Gi", "gpu", "nic"))
        rounds(store)
        assert (node_by_machine(store), held(store, "gpu")) == ({}, [])
        assert (status(store, "web")["reason"], status(store, "web")["message"]) == (
            "ClaimNotFound",
            "claim default/nic does not exist; create it",
        )
        assert annotations(store, "gpu") == {
            "reason": "GroupUnsatisfiable",
            "message": "it is placed with machine default/web, which waits: "
            "claim default/nic does not exist; create it",
        }
        version = store.get("DeviceClaim", "default", "gpu")["metadata"]["resourceVersion"]
        rounds(store, 1)
        assert store.get("DeviceClaim", "default", "gpu")["metadata"]["resourceVersion"] == version
        store.create(gpu_claim("nic"))
        rounds(store)
        assert (node_by_machine(store), held(store, "nic")) == ({"web": "a"}, ["p/d1"])

    def test_claims_with_a_group_of_their_own_bring_it_along(self, store: SQLiteStore) -> None:
        fill(store, gpu_class(), host("a"), host("b"), gpu_pool("p", node="a", devices=1), gpu_pool("q", node="b"))
        fill(store, gpu_claim("x", group="g"), gpu_claim("y", group="g"), machine("web", "1", "1Gi", "x"))
        rounds(store)
        assert node_by_machine(store) == {"web": "b"}
        assert sorted(held(store, "x") + held(store, "y")) == ["q/d0", "q/d1"]

    def test_a_claim_of_two_machines_is_placed_with_the_first_and_fixes_the_second(self, store: SQLiteStore) -> None:
        fill(store, gpu_class(), host("a"), host("b"), gpu_pool("p", node="b"), gpu_claim("gpu"))
        fill(store, machine("one", "1", "1Gi", "gpu"), machine("two", "1", "1Gi", "gpu"))
        rounds(store, 1)
        assert node_by_machine(store) == {"one": "b"}
        assert "machine default/one first" in status(store, "two")["message"]
        rounds(store, 1)
        assert node_by_machine(store) == {"one": "b", "two": "b"}


class TestWriting:
    def test_a_round_that_has_nothing_to_say_writes_nothing(self, store: SQLiteStore) -> None:
        fill(store, gpu_class(), host("a", cpus=2), gpu_pool("p", node="a"), gpu_claim("gpu"))
        fill(store, machine("x", "1", "1Gi", "gpu"), machine("y", "4"), machine("z", claims=["nothing"]))
        rounds(store, 3)
        before = store.list().resource_version
        rounds(store, 1)
        assert store.list().resource_version == before

    def test_two_allocators_never_keep_the_same_room_for_two_machines(self, store: SQLiteStore) -> None:
        fill(store, host("a", cpus=1, numa=1), machine("x"))

        def solve(documents: Any, **settings: Any) -> dict[str, Any]:
            answer = solve_manifests(documents, **settings)
            if not node_by_machine(store):
                store.create(machine("a-first", nodeName="a"))
                machine_allocator(store, solve=solve_manifests).round()  # another one, that is quicker
            return answer

        assert machine_allocator(store, solve=solve).round().granted == []
        rounds(store)
        assert len(node_by_machine(store)) == 1

    @pytest.mark.parametrize(("permitted", "here"), [("3", {}), ("1", {"next": "a"})], ids=["more", "less"])
    def test_what_a_machine_is_permitted_meanwhile_counts_for_the_room_of_its_node_only(
        self, store: SQLiteStore, permitted: str, here: dict[str, str]
    ) -> None:
        fill(store, gpu_class(), gpu_pool("p", node="b"), host("a", cpus=4, numa=1), host("b", cpus=4, numa=1))
        fill(store, machine("web", "2", nodeName="a"))
        rounds(store)
        hold(store, "web", "a", phase="Running", permitted={"cpus": "2", "memory": "1Gi"})
        rounds(store)
        fill(store, gpu_claim("gpu"), machine("next", "2", nodeName="a"), machine("far", "2", nodeName="b"))

        def solve(documents: Any, **settings: Any) -> dict[str, Any]:
            answer = solve_manifests(documents, **settings)
            hold(store, "web", "a", permitted={"cpus": permitted, "memory": "1Gi"})
            return answer

        machine_allocator(store, solve=solve).round()
        assert (node_by_machine(store), held(store, "gpu")) == ({"web": "a", "far": "b"} | here, ["p/d0"])
        rounds(store)
        assert node_by_machine(store) == {"web": "a", "far": "b"} | here

    @pytest.mark.parametrize("what", ["machine", "claim"])
    def test_a_machine_and_its_claims_are_written_together_or_not_at_all(self, store: SQLiteStore, what: str) -> None:
        fill(store, gpu_class(), host("a"), gpu_pool("p", node="a"), gpu_claim("gpu"))
        fill(store, machine("web", "1", "1Gi", "gpu"))

        def solve(documents: Any, **settings: Any) -> dict[str, Any]:
            answer = solve_manifests(documents, **settings)
            kind, name = ("VirtualMachine", "web") if what == "machine" else ("DeviceClaim", "gpu")
            stored = store.get(kind, "default", name)
            store.replace({**stored, "metadata": {**stored["metadata"], "labels": {"touched": "meanwhile"}}})
            return answer

        machine_allocator(store, solve=solve).round()
        assert (node_by_machine(store), held(store, "gpu")) == ({}, [])
        rounds(store)
        assert (node_by_machine(store), held(store, "gpu")) == ({"web": "a"}, ["p/d0"])

    def test_a_claim_for_any_device_takes_no_cpus(self, store: SQLiteStore) -> None:
        claim = gpu_claim("any")
        claim["spec"] = {"claims": [{}]}
        fill(store, host("a"), claim)
        rounds(store)
        assert held(store, "any") == []

    def test_allocators_that_race_keep_no_more_than_there_is(self, store: SQLiteStore) -> None:
        fill(store, host("a", cpus=8, numa=1), host("b", cpus=4, numa=1), *(machine(f"m{n}", "3") for n in range(6)))
        ready = threading.Barrier(3)

        def work() -> None:
            ready.wait()
            rounds(store, 4)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rounds(store)
        assert Counter(node_by_machine(store).values()) == {"a": 2, "b": 1}


class TestReady:
    """Until a node has a machine, the controller says that it is not ready, for the reason why it is not placed."""

    def conditions(self, store: Store, name: str) -> dict[str, tuple[str, str, int]]:
        listed = status(store, name).get("conditions", ())
        return {one["type"]: (one["status"], one["reason"], one["observedGeneration"]) for one in listed}

    def test_a_machine_without_room_is_not_ready_for_that_reason(self, store: SQLiteStore) -> None:
        fill(store, host("a", cpus=4, numa=1), machine("big", "8", "1Gi"))
        rounds(store)
        refused = "False", status(store, "big")["reason"], 1
        assert self.conditions(store, "big") == {"Placed": refused, "Ready": refused}
        version = store.list().resource_version
        rounds(store)
        assert store.list().resource_version == version

    def test_a_machine_that_is_placed_is_not_ready_until_its_node_says_so(self, store: SQLiteStore) -> None:
        fill(store, host("a", cpus=4, numa=1), machine("web", "1", "1Gi"))
        rounds(store)
        placed = {"Placed": ("True", "Placed", 1), "Ready": ("False", "NotStarted", 1)}
        assert self.conditions(store, "web") == placed
        hold(store, "web", "a")
        web = store.get("VirtualMachine", "default", "web")
        ready = {"type": "Ready", "status": "True", "reason": "MachineRunning", "observedGeneration": 1}
        others = [one for one in web["status"]["conditions"] if one["type"] != "Ready"]
        store.replace_status({**web, "status": {**web["status"], "conditions": [*others, ready]}})
        rounds(store)
        assert self.conditions(store, "web")["Ready"] == ("True", "MachineRunning", 1)

    def test_on_a_cluster_a_machine_that_is_not_to_run_says_so_once(self, store: SQLiteStore) -> None:
        """The API server's default says that it waits, so that kstatus would have others wait for it."""
        fill(store, host("a", cpus=4, numa=1), machine("off", "1", "1Gi", running=False))
        allocator = machine_allocator(store, settings=AllocatorSettings(form=IN_CONDITIONS))
        for _ in range(2):
            allocator.round()
            assert self.conditions(store, "off") == {"Placed": ("False", "StoppedOnRequest", 1)}
        version = store.list().resource_version
        allocator.round()
        assert store.list().resource_version == version
