"""Devices of the network without a Node object: what every node reaches is allocated, and what selects nodes is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from devalloc_solver import Fleet
from devalloc_solver.dra import solve_manifests
from tests.support.dra_builders import ANY, Manifest, claim, device, devices, node, request, slice_

Answer = Mapping[str, Any]

ZONE = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["b"]}]}]}
"""Every node without labels would suit it."""
NAMED = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n7"]}]}]}


def documents(*slices: Manifest, nodes: Mapping[str, Mapping[str, str]] | None = None) -> list[Manifest]:
    return [ANY, *slices, *(node(name, **labels) for name, labels in (nodes or {}).items())]


def once(given: list[Manifest], wanted: Manifest) -> Answer:
    return solve_manifests([*given, wanted])["claims"][0]


def alone(given: list[Manifest], wanted: Manifest) -> Answer:
    return Fleet.from_manifests(given).allocate(wanted)


def jointly(given: list[Manifest], wanted: Manifest) -> Answer:
    answer: Answer = Fleet.from_manifests(given).allocate_all([wanted])["claims"][0]
    return answer


WAYS = pytest.mark.parametrize("ask", [once, alone, jointly])
Ask = Callable[[list[Manifest], Manifest], Answer]


def taken(answer: Answer) -> list[str]:
    assert answer["allocated"], answer["message"]
    return sorted(one["device"] for one in answer["allocations"]["devices"]["results"])


@WAYS
def test_what_all_nodes_reach_is_allocated_without_a_node(ask: Ask) -> None:
    answer = ask(documents(slice_("s", devices("d1"), allNodes=True)), claim(request()))

    assert taken(answer) == ["d1"]
    assert answer["node"] is None
    assert "nodeSelector" not in answer["allocations"]


@WAYS
def test_so_is_a_device_that_says_so_itself(ask: Ask) -> None:
    slices = slice_("s", [device("d1", allNodes=True), device("d2", nodeSelector=ZONE)], perDeviceNodeSelection=True)

    assert taken(ask(documents(slices), claim(request(count=None)))) == ["d1"]


@WAYS
def test_an_allocation_that_must_name_its_node_needs_one(ask: Ask) -> None:
    """``bindsToNode``: the selector of the result names the node."""
    bound = slice_("s", [device("d1", bindsToNode=True)], allNodes=True)

    assert not ask(documents(bound), claim(request()))["allocated"]
    assert ask(documents(bound, nodes={"n1": {}}), claim(request()))["node"] == "n1"


@WAYS
def test_a_node_that_a_selector_names_needs_no_node_object(ask: Ask) -> None:
    answer = ask(documents(slice_("s", devices("d1"), nodeSelector=NAMED)), claim(request()))

    assert (taken(answer), answer["node"]) == (["d1"], "n7")


@WAYS
def test_a_named_node_that_is_not_among_the_nodes_does_not_exist(ask: Ask) -> None:
    given = documents(slice_("s", devices("d1"), nodeSelector=NAMED), nodes={"n1": {}})

    assert not ask(given, claim(request()))["allocated"]


@WAYS
def test_devices_that_select_nodes_by_labels_need_the_nodes(ask: Ask) -> None:
    answer = ask(documents(slice_("s", devices("d1"), nodeSelector=ZONE)), claim(request()))

    assert answer["reason"] == "NoMatchingDevices"
    assert answer["message"] == ("1 device of 1 slice selects Nodes, and none is in the input; add the Node objects")
    assert answer["unreachedDevices"] == 1


@WAYS
def test_the_reason_names_them_beside_devices_of_other_nodes(ask: Ask) -> None:
    rack = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "rack", "operator": "Exists"}]}]}
    given = documents(
        slice_("s", devices("d1", "d2", model="net"), nodeSelector=rack, pool="q"),
        slice_("t", devices("d3", model="x")),
    )
    answer = ask(given, claim(request("r", 1, 'device.attributes["gpu.io"].model == "net"')))

    assert answer["reason"] == "NoMatchingDevices"
    assert answer["message"].startswith(
        "2 devices of 1 slice select Nodes, and none is in the input; add the Node objects; "
    )


@WAYS
def test_with_nodes_none_of_which_suits_the_selectors_are_the_cause(ask: Ask) -> None:
    given = documents(slice_("s", devices("d1"), nodeSelector=ZONE), nodes={"n1": {"zone": "b"}})

    assert (
        "1 device of 1 slice selects none of the Nodes; ask who runs the driver to correct it"
        in (ask(given, claim(request()))["message"])
    )


def test_the_missing_nodes_are_a_warning() -> None:
    selecting = slice_("s", devices("d1", "d2"), nodeSelector=ZONE)

    (problem,) = solve_manifests(documents(selecting))["problems"]
    assert (problem["severity"], problem["message"]) == (
        "warning",
        "2 devices of 1 slice select Nodes, and none is in the input; add the Node objects",
    )
    assert solve_manifests(documents(selecting, nodes={"n1": {"zone": "b"}}))["problems"] == []


@WAYS
def test_an_incomplete_pool_of_all_nodes_is_a_reason(ask: Ask) -> None:
    answer = ask(documents(slice_("s", devices("d1"), allNodes=True, count=2)), claim(request(count=None)))

    assert not answer["allocated"]
    assert "incomplete" in answer["message"]
    assert "node  " not in answer["message"]
