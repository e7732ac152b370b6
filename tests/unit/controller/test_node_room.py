"""The room of nodes for pods, judged by Kubernetes' own count of what pods request."""

from __future__ import annotations

import tracemalloc
from random import Random
from typing import Any

import pytest

from devalloc.api.quantity import Quantity
from devalloc.controller.reconcile.resource_claims.cluster_state import RESOURCES
from devalloc.controller.reconcile.resource_claims.node_room import (
    PODS,
    NodeRoom,
    NodesByRoom,
    pod_requests,
)
from devalloc.controller.reconcile.resource_claims.shared_room import most_at_once
from devalloc.store.kubernetes import reflector
from devalloc.store.kubernetes.reflector import clean_object
from tests.support.reference_data import DATA, read

Object = dict[str, Any]
CASES = read(DATA / "resourceclaims/pod-requests.json.xz")["cases"]


def nano(text: str) -> int:
    return Quantity.parse(text).nano


def test_pods_take_what_kube_scheduler_counts() -> None:
    assert len(CASES) == 300
    for case in CASES:
        expected = {name: nano(amount) for name, amount in case["requests"].items()}
        assert pod_requests(case["pod"]) == expected | {PODS: nano("1")}, case["pod"]["metadata"]["name"]


def node(name: str = "n", **allocatable: str) -> Object:
    there = {"cpu": "4", "memory": "8Gi", "pods": "10"} | {k.replace("_", "/"): v for k, v in allocatable.items()}
    return {"metadata": {"name": name}, "spec": {}, "status": {"allocatable": there}}


def pod(name: str, on: str = "", **requests: str) -> Object:
    amounts = {k.replace("_", "/"): v for k, v in requests.items()}
    spec = {"nodeName": on, "containers": [{"name": "c", "resources": {"requests": amounts}}]}
    return {"metadata": {"namespace": "a", "name": name}, "spec": spec}


def lacks(room: NodeRoom, one: Object, on: str = "n") -> str:
    shortage = room.ledger().shortage(on, pod_requests(one))
    return "" if shortage is None else shortage.resource


@pytest.mark.parametrize(
    ("there", "one", "resource"),
    [
        ([], pod("p", cpu="4", memory="8Gi"), ""),
        ([pod("q", "n", cpu="1")], pod("p", cpu="3"), ""),
        ([pod("q", "n", cpu="1")], pod("p", cpu="3001m"), "cpu"),
        ([pod("q", "other", cpu="4")], pod("p", cpu="4"), ""),
        ([pod("q", "n", memory="8Gi")], pod("p", cpu="1"), ""),
        ([pod("q", "n", memory="8Gi")], pod("p", memory="1"), "memory"),
        ([pod(f"q{number}", "n") for number in range(10)], pod("p"), "pods"),
        ([], pod("p", **{"ephemeral-storage": "1Gi"}), "ephemeral-storage"),
        ([], pod("p", example_com="1"), "example/com"),
        ([], pod("p", memory="99Gi", cpu="99"), "cpu"),  # the first by name
    ],
)
def test_a_node_has_room_for_what_others_leave(there: list[Object], one: Object, resource: str) -> None:
    room = NodeRoom()
    room.update([node()], there, [])
    assert lacks(room, one) == resource


def test_a_pod_may_ask_for_more_than_any_amount_that_can_be_written() -> None:
    room, large = NodeRoom(), pod("p", memory="9E")
    large["spec"]["containers"] *= 2
    room.update([node()], [], [])
    assert str(room.ledger().shortage("n", pod_requests(large))) == "memory 8589934592 free, 9223372036854775807 wanted"


def test_extended_resources_of_the_node_count_and_those_of_a_device_class_do_not() -> None:
    room = NodeRoom()
    classes = [{"spec": {"extendedResourceName": "gpu/y"}}, {"spec": {}}]
    room.update([node(fpga_x="2")], [pod("q", "n", fpga_x="1")], classes)
    assert lacks(room, pod("p", fpga_x="1")) == ""
    assert lacks(room, pod("p", fpga_x="2")) == "fpga/x"
    assert lacks(room, pod("p", gpu_y="1")) == ""
    assert lacks(room, pod("p", **{"deviceclass.resource.kubernetes.io_gpu": "1"})) == ""
    assert lacks(room, pod("p", nic_z="1")) == "nic/z"


def test_a_node_whose_kubelet_has_reported_nothing_is_not_judged() -> None:
    room = NodeRoom()
    room.update([{"metadata": {"name": "n"}}], [], [])
    assert lacks(room, pod("p", cpu="100")) == ""


def test_room_follows_pods_that_come_change_and_go() -> None:
    room, there = NodeRoom(), node()
    first, second = pod("q", "n", cpu="3"), pod("r", "n", cpu="1")
    room.update([there], [first, second], [])
    assert lacks(room, pod("p", cpu="1")) == "cpu"
    room.update([there], [first], [])
    assert lacks(room, pod("p", cpu="1")) == ""
    room.update([there], [pod("q", "n", cpu="4")], [])
    assert lacks(room, pod("p", cpu="1")) == "cpu"
    room.update([node(cpu="5")], [pod("q", "n", cpu="4")], [])
    assert lacks(room, pod("p", cpu="1")) == ""
    room.update([node(cpu="5")], [], [])
    assert lacks(room, pod("p", cpu="5")) == ""


def test_nothing_is_remembered_of_what_pods_took_that_are_gone() -> None:
    room = NodeRoom()
    for number in range(20):
        room.update([node()], [pod("p", "n", cpu="1", **{f"example.com/{number}": "1"})], [])
    assert len(room._used["n"]) == 3
    room.update([node()], [], [])
    assert not room._used


def test_a_node_gains_when_a_pod_leaves_or_shrinks_and_when_it_changes_itself() -> None:
    room, there, stays = NodeRoom(), node(), pod("q", "n", cpu="3")
    room.update([there], [stays], [])

    def gained(nodes: list[Object], pods: list[Object]) -> bool:
        before = room.gains("n")
        room.update(nodes, pods, [])
        return room.gains("n") != before

    assert not gained([there], [stays])
    assert not gained([there], [stays, pod("r", "n", cpu="1")])
    assert gained([there], [stays])
    assert gained([there], [pod("q", "n", cpu="2")])
    heartbeat = {**there, "status": {**there["status"], "conditions": [{"type": "MemoryPressure"}]}}
    assert not gained([heartbeat], [pod("q", "n", cpu="2")])
    assert gained([node(cpu="8")], [pod("q", "n", cpu="2")])
    assert gained([{**node(cpu="8"), "spec": {"taints": [{"key": "x"}]}}], [pod("q", "n", cpu="2")])
    assert gained([], [])


def test_a_plan_counts_what_it_has_placed() -> None:
    room = NodeRoom()
    room.update([node()], [], [])
    ledger, half = room.ledger(), pod_requests(pod("p", cpu="2"))
    assert ledger.fitting("n", [half, half, half]) == [0, 1]
    assert ledger.place("n", half) is None
    assert ledger.fitting("n", [half, half]) == [0]
    assert ledger.place("n", half) is None
    assert str(ledger.place("n", half)) == "cpu 0 free, 2 wanted"


def test_pods_of_one_template_share_what_is_kept_of_them() -> None:
    """A cluster has 100,000 of them, and each pod's own parts would take a gigabyte."""
    (resource,) = (each for each in RESOURCES if each.kind == "Pod")

    def read(name: str) -> Object:
        one = pod(name, "n", cpu="2")
        one["metadata"]["managedFields"] = [{"manager": "kubelet"}]
        one["spec"]["volumes"] = [{"name": name}]
        one["status"] = {"phase": "Running", "podIP": name, "conditions": [{"type": "Ready", "message": name}]}
        return clean_object(one, resource)

    first, second = read("p1"), read("p2")
    assert first["spec"] is second["spec"]
    assert first["status"] is second["status"]
    assert first["status"] == {"phase": "Running", "conditions": [{"type": "Ready"}]}
    assert first["metadata"]["name"] != second["metadata"]["name"]
    room = NodeRoom()
    room.update([node()], [first, second], [])
    (_, _, taken), (_, _, other) = room._pods.values()
    assert taken is other


def test_of_the_resources_that_no_node_has_one_counts_and_none_that_a_class_provides() -> None:
    """A pod may name 20,000, which would be compared on each node."""
    room = NodeRoom()
    provided = {"spec": {"extendedResourceName": "example.com/a"}}
    room.update([node("n"), node("m", **{"example.com_x": "1"})], [], [provided])
    many = {f"example.com/y{number}": 1 for number in range(9)}
    of_classes = {"example.com/a": 1, "deviceclass.resource.kubernetes.io/c": 1}
    wanted = {"cpu": 2, "example.com/x": 1, **many, **of_classes}
    assert room.countable(wanted) == {"cpu": 2, "example.com/x": 1, "example.com/y0": 1}
    assert room.countable({"cpu": 2, **of_classes}) == {"cpu": 2}
    before = room.decisive
    room.update([node("n"), node("m", **{"example.com_x": "1"})], [], [provided])
    assert room.decisive is before


def test_no_more_find_room_than_each_resource_has_for_the_least() -> None:
    free: dict[str, dict[str, int | None]] = {"n": {"cpu": 5, "memory": 9}, "m": {"cpu": 3, "memory": 9}}
    wanted = [{"cpu": 2, "memory": 1}, {"cpu": 3}, {"cpu": 2}, {"cpu": 9}]
    assert most_at_once(wanted, free) == 3
    assert most_at_once(wanted, {**free, "unreported": {"cpu": None, "memory": None}}) == 4
    assert most_at_once(wanted, {"full": {"cpu": -1}}) == 0


def test_parts_of_pods_that_are_gone_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users can create pods with ever new ones, each with a node affinity of a megabyte."""
    monkeypatch.setattr(reflector, "MAX_SHARED_CHARACTERS", 300_000)
    (resource,) = (each for each in RESOURCES if each.kind == "Pod")

    def read(name: str) -> None:
        one = pod(name, "n")
        values = [f"{name}-{number}-{'x' * 50}" for number in range(1_000)]
        terms = [{"matchExpressions": [{"key": "k", "operator": "In", "values": values}]}]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        one["spec"]["affinity"] = {"nodeAffinity": required}
        clean_object(one, resource)

    tracemalloc.start()
    try:
        for number in range(60):
            read(f"p{number}")
        remembered, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert remembered < 2_000_000, "of 60 pods, of which each has 160,000 bytes"


def test_nodes_are_looked_up_by_room_as_each_would_be_asked() -> None:
    random = Random(7)
    sizes = {f"n{n}": (str(random.randrange(9)), f"{random.randrange(9)}Gi") for n in range(40)}
    room = NodeRoom()
    unreported = {"metadata": {"name": "new"}, "spec": {}}
    nodes = [node(name, cpu=cpu, memory=memory) for name, (cpu, memory) in sizes.items()]
    room.update([*nodes, unreported], [pod(f"p{n}", f"n{n}", cpu="1") for n in range(20)], [])
    ledger, names = room.ledger(), [*sizes, "new", "gone"]
    by_room = NodesByRoom(ledger, names)
    for _ in range(200):
        wanted = {"cpu": nano(str(random.randrange(1, 9))), "memory": nano(f"{random.randrange(1, 9)}Gi")}
        wanted |= {"example.com/x": 1} if random.random() < 0.1 else {}
        assert by_room.having(wanted) == {name for name in names if ledger.shortage(name, wanted) is None}
