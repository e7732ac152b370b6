"""One claim gets the same devices from a cold solve and a warm fleet, also where it has ties to break (D2)."""

from __future__ import annotations

from typing import Any

import pytest

from devalloc_solver import Fleet, solve_manifests
from tests.support.dra_builders import ANY, claim, counter_slice, device, devices, held, node, request, slice_

Manifest = dict[str, Any]


def node_slice(node: str, pool: str, *content: Manifest) -> Manifest:
    return slice_(f"s-{node}", content, pool=pool, nodeName=node)


def devices_of(answer: Any) -> list[str]:
    return [f"{one['pool']}/{one['device']}" for one in answer["allocations"]["devices"]["results"]]


def both(documents: list[Manifest], wanted: Manifest, placement: str) -> tuple[list[str], list[str]]:
    """What a claim gets (cold, warm)."""
    answers = solve_manifests([*documents, wanted], placement=placement)["claims"]
    cold = next(one for one in answers if one["name"] == wanted["metadata"]["name"])
    warm = Fleet.from_manifests(documents, placement=placement).allocate(wanted, deadline=None)
    return devices_of(cold), devices_of(warm)


@pytest.mark.parametrize("placement", ["pack", "spread"])
def test_of_nodes_that_are_as_good_the_first_by_name_is_taken_whatever_its_pools_are_called(placement: str) -> None:
    documents = [ANY, node_slice("n1", "z", *devices("d", "e")), node_slice("n2", "a", *devices("d", "e", "f"))]
    watching = claim(request("r", 2, adminAccess=True))

    assert both(documents, watching, placement) == (["z/d", "z/e"], ["z/d", "z/e"])


def test_a_constraint_over_one_device_leaves_the_choice_to_the_policy() -> None:
    """To spread, the device of which only a part comes into use."""
    part = device("part", {"id": "x"}, capacity={"m": "6"}, shared=True)
    part["capacity"]["m"]["requestPolicy"] = {"default": "2"}
    documents = [ANY, node_slice("n1", "p", device("all", {"id": "y"}), part)]

    assert both(documents, claim(request(), match="gpu.io/id"), "spread") == (["p/part"], ["p/part"])


@pytest.mark.parametrize("how", ["each device", "its counters"])
def test_a_pool_that_does_not_name_its_node_for_all_it_has_is_of_no_node(how: str) -> None:
    """Nothing in use of it makes the node that reaches it any fuller (S17)."""
    own = devices("d0", "d1")
    if how == "each device":
        network = [slice_("net", [one | {"nodeName": "n1"} for one in own], pool="net", perDeviceNodeSelection=True)]
    else:
        network = [
            slice_("net", [device("d0", counters={"s": {"c": "1"}}), own[1]], pool="net", nodeName="n1", count=2),
            counter_slice("net-counters", {"s": {"c": "1"}}, pool="net", allNodes=True, count=2),
        ]
    local = [node_slice(name, name, *devices("a", "b", "c", kind="local")) for name in ("n1", "n2")]
    holder = held(claim(request("r"), name="of-network"), "d1", pool="net")
    documents = [ANY, node("n1"), node("n2"), *network, *local, holder]
    wanted = claim(request("r", 1, "has(device.attributes['gpu.io'].kind)"), name="wanted")

    assert both(documents, wanted, "spread") == (["n1/a"], ["n1/a"])
