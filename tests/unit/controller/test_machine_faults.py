"""What is wrong with a machine is said of that machine, and no claim of a user is taken for one that asks for it."""

from __future__ import annotations

from typing import Any

import pytest

from devalloc.api import meta
from devalloc.machines.schedule.what_if import solve_with_machines
from devalloc.store.sqlite import SQLiteStore
from tests.support.fleet_manifests import fill, gpu_claim, gpu_class, gpu_pool
from tests.support.host_pools import host, machine, status
from tests.support.machine_allocator import machine_allocator

Object = dict[str, Any]
HOST = host("a", cpus=4)
GPUS = gpu_pool("p", node="a")
GPUS["spec"]["devices"] = [{"name": "d0", "attributes": [{"name": "numa", "intValue": 0}]}]
PATH = f"metadata.annotations[{meta.PRIORITY}]"


def noted(obj: Object, **notes: str) -> Object:
    return {**obj, "metadata": {**obj["metadata"], "annotations": notes}}


def urgent(priority: str = "high", *claims: str) -> Object:
    return noted(machine("web", "1", "1Gi", *claims), **{meta.PRIORITY: priority})


def placed(obj: Object, **status: str) -> Object:
    amounts = [{"name": "cpu", "allocation": "1"}, {"name": "memory", "allocation": "1Gi"}]
    entry = {"devicePoolName": "a-host", "deviceName": "numa0", "allocations": amounts}
    return {**obj, "status": {"nodeName": "a", "allocations": [entry], **status}}


def answers(documents: list[Object]) -> dict[tuple[str, str], Object]:
    answer = solve_with_machines(documents)
    return {(kind, one["name"]): one for kind in ("claims", "machines") for one in answer[kind]}


class TestThePriorityOfAMachine:
    @pytest.mark.parametrize("priority", ["high", "", "1.5", " 1", "9" * 30])
    def test_is_its_own_reason_and_problem(self, priority: str) -> None:
        answer = solve_with_machines([gpu_class(), HOST, GPUS, urgent(priority, "gpu"), gpu_claim("gpu")])
        assert [(one["name"], one["reason"]) for one in answer["claims"]] == [("gpu", "GroupUnsatisfiable")]
        assert [(one["name"], one["reason"]) for one in answer["machines"]] == [("web", "MachineInvalid")]
        assert [(one["kind"], one["name"], one["path"]) for one in answer["problems"]] == [
            ("VirtualMachine", "web", PATH)
        ]

    def test_is_written_on_the_machine(self, store: SQLiteStore) -> None:
        fill(store, HOST, urgent())
        (problem,) = machine_allocator(store).round().problems
        assert problem == f"VirtualMachine default/web {PATH}: must be an integer, not 'high'"
        assert status(store, "web")["reason"] == "MachineInvalid"

    def test_neither_ends_nor_shrinks_a_machine_that_has_its_place(self) -> None:
        grown = noted(machine("web", "2", "1Gi"), **{meta.PRIORITY: "high", meta.PREPARED_ON: "a"})
        grown["metadata"]["finalizers"] = [meta.NODE_FINALIZER]
        answer = answers([HOST, placed(grown, phase="Running")])["machines", "web"]
        assert (answer["allocated"], answer["reason"]) == (True, None)
        amounts = [one for entry in answer["allocations"] for one in entry["allocations"]]
        assert sum(int(one["allocation"]) for one in amounts if one["name"] == "cpu") == 2


class TestOtherFieldsOfAMachine:
    def test_the_node_that_it_left_is_one_that_there_can_be(self) -> None:
        left = noted(machine("web"), **{meta.LAST_NODE: "a\nb"})
        assert answers([HOST, left])["machines", "web"]["reason"] == "MachineInvalid"

    @pytest.mark.parametrize(("field", "value"), [("creationTimestamp", "yesterday"), ("name", "web/io"), ("name", "")])
    def test_what_is_wrong_with_one_that_has_its_place_is_its_problem_once(self, field: str, value: str) -> None:
        wrong = placed(machine("old"))
        wrong["metadata"][field] = value
        other = machine("web", "1", "1Gi", "gpu", numaPolicy="single-numa-node", nics=[{"bandwidth": "1k"}])
        answer = solve_with_machines([gpu_class(), HOST, GPUS, wrong, other, gpu_claim("gpu")])
        assert [(one["kind"], one["path"]) for one in answer["problems"]] == [("VirtualMachine", f"metadata.{field}")]
        assert {one["name"]: one["allocated"] for one in answer["machines"]} == {
            wrong["metadata"]["name"]: True,
            "web": True,
        }


def test_a_machine_that_waits_for_more_and_for_another_node_says_why_of_each() -> None:
    large = noted(machine("web", "7", "1Gi"), **{meta.PREPARED_ON: "a"})
    large["metadata"] |= {"finalizers": [meta.NODE_FINALIZER], "uid": "u"}
    move = {"apiVersion": "devalloc.io/v1alpha1", "kind": "VirtualMachineMigration", "spec": {"vmName": "web"}}
    move["metadata"] = {"name": "m", "namespace": "default", "uid": "v"}
    answer = solve_with_machines([HOST, host("b", cpus=4), placed(large, phase="Running"), move])
    assert "node a has 4 CPU, 6 more wanted" in answer["machines"][0]["message"]
    assert "node b has 4 CPU, 7 wanted" in answer["migrations"][0]["message"]


class TestAmountsBeyondAny:
    """Each amount can be written, and what they come to cannot."""

    def test_of_the_cards_of_a_machine_fit_no_node(self, store: SQLiteStore) -> None:
        cards = [{"backend": "tap", "interface": f"t{number}", "bandwidth": "9E"} for number in range(8)]
        fill(store, HOST, machine("web", nics=cards), machine("small"))
        machine_allocator(store).round()
        assert status(store, "web")["reason"] == "NodesTooSmall"
        assert status(store, "small")["nodeName"] == "a"

    @pytest.mark.parametrize("seen", ["permitted", "observed"])
    def test_that_machines_have_are_all_that_there_is(self, seen: str) -> None:
        held = {**placed(machine("web"), phase="Running"), "metadata": noted(machine("web"))["metadata"]}
        held["status"]["allocations"] *= 2
        for entry in held["status"]["allocations"]:
            entry["allocations"] = [{"name": "memory", "allocation": "9E"}]
        held["status"][seen] = {"cpus": "9E", "memory": "9E"}
        held["metadata"] |= {"finalizers": [meta.NODE_FINALIZER], "annotations": {meta.PREPARED_ON: "a"}}
        move = {"apiVersion": "devalloc.io/v1alpha1", "kind": "VirtualMachineMigration", "spec": {"vmName": "web"}}
        answer = solve_with_machines([HOST, host("b"), held, {**move, "metadata": {"name": "m"}}, machine("other")])
        assert {one["name"]: one["node"] for one in answer["machines"]} == {"web": "a", "other": "b"}


class TestClaimsOfUsers:
    @pytest.mark.parametrize("name", ["VirtualMachine/web", "VirtualMachine\x1fweb", "VirtualMachine\x1fweb\x1fio"])
    @pytest.mark.parametrize("held", [False, True])
    def test_that_a_file_calls_like_a_machine_are_invalid_and_it_is_placed(self, name: str, *, held: bool) -> None:
        forged = gpu_claim("gpu")
        forged["metadata"]["name"] = name
        if held:
            forged["status"] = {"allocations": [{"devicePoolName": "a-host", "deviceName": "numa0"}]}
        request = machine("web", "1", "1Gi", "gpu")
        by_key = answers([gpu_class(), HOST, GPUS, request, gpu_claim("gpu"), forged])
        assert by_key["machines", "web"]["allocated"]
        shown = by_key["claims", name.replace("\x1f", r"\x1f")]
        assert "ClaimInvalid" in f"{shown['reason']} {shown.get('warnings')}"

    @pytest.mark.parametrize("group", ["of machine web", "move of machine web", "VirtualMachine\x1fweb"])
    def test_that_name_a_group_like_that_of_a_machine_do_not_keep_it_waiting(self, group: str) -> None:
        other = noted(gpu_claim("other", count=9), **{meta.GROUP: group})
        by_key = answers([gpu_class(), HOST, GPUS, machine("web", "1", "1Gi", "gpu"), gpu_claim("gpu"), other])
        assert by_key["machines", "web"]["allocated"]
        assert not by_key["claims", "other"]["allocated"]

    def test_that_are_in_no_group_that_there_can_be_keep_their_machine_waiting(self) -> None:
        claims = [noted(gpu_claim("gpu"), **{meta.GROUP: "a\nb"}), noted(gpu_claim("two"), **{meta.GROUP: "b"})]
        waits = answers([gpu_class(), HOST, GPUS, machine("web", "1", "1Gi", "gpu", "two"), *claims])["machines", "web"]
        assert waits["reason"] == "GroupUnsatisfiable"
        assert f"claim default/gpu: metadata.annotations[{meta.GROUP}]: " in waits["message"]
