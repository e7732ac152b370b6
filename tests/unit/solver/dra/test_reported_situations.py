"""Situations that users of other allocators reported, cold and warm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from devalloc_solver import Fleet, solve_manifests
from tests.support.dra_builders import (
    ANY,
    claim,
    counter_slice,
    device,
    device_class,
    devices,
    node,
    request,
    slice_,
)

Manifest = dict[str, Any]
Solve = Callable[[Sequence[Manifest], Manifest], Any]


def cold(documents: Sequence[Manifest], wanted: Manifest) -> Any:
    (answer,) = solve_manifests([*documents, wanted])["claims"]
    return answer


def warm(documents: Sequence[Manifest], wanted: Manifest) -> Any:
    return Fleet.from_manifests(documents).allocate(wanted)


def jointly(documents: Sequence[Manifest], wanted: Manifest) -> Any:
    fleet = Fleet.from_manifests(documents)
    fleet.allocate_all([])
    (answer,) = fleet.allocate_all([wanted])["claims"]
    return answer


def given(answer: Any) -> list[str]:
    return [f"{entry['pool']}/{entry['device']}" for entry in answer["allocations"]["devices"]["results"]]


OLD = slice_("old", devices("a"))
HALF = slice_("new-0", devices("b"), generation=2, count=2)
OTHER_HALF = slice_("new-1", devices("c"), generation=2, count=2)


@pytest.mark.parametrize("solve", [cold, warm, jointly])
@pytest.mark.parametrize("count", [1, 2])
def test_half_of_a_new_generation_is_not_completed_by_an_old_slice(solve: Solve, count: int) -> None:
    """kueue#14573: two slices, of two generations, count as none of a pool of two slices."""
    wanted = claim(request(count=count))
    refused = solve([ANY, OLD, HALF], wanted)
    assert not refused["allocated"]
    assert "incomplete pool (gpu.io/p: 1 of 2 slices of generation 2 are there)" in refused["message"]
    assert given(solve([ANY, OLD, HALF, OTHER_HALF], wanted)) == ["p/b", "p/c"][:count]


def test_a_warm_fleet_gives_devices_once_the_new_generation_is_whole() -> None:
    fleet = Fleet.from_manifests([ANY, OLD, HALF])
    wanted = claim(request(count=2))
    assert not fleet.allocate(wanted)["allocated"]
    fleet.update(OTHER_HALF)
    assert given(fleet.allocate(wanted)) == ["p/b", "p/c"]


@pytest.mark.parametrize("solve", [cold, warm, jointly])
def test_all_devices_of_a_node_are_had_where_its_pool_is_whole(solve: Solve) -> None:
    """kubernetes#141829: the pool of another node that is being published makes the claim wait for no other node."""
    incomplete = slice_("s1", devices("a"), count=2, pool="p1", nodeName="n1")
    whole = slice_("s2", devices("b", "c"), pool="p2", nodeName="n2")
    answer = solve([ANY, incomplete, whole], claim(request(count=None)))
    assert (answer["node"], given(answer)) == ("n2", ["p2/b", "p2/c"])


@pytest.mark.parametrize("solve", [cold, warm, jointly])
def test_all_devices_are_not_had_of_an_incomplete_or_invalid_pool(solve: Solve) -> None:
    """The same, where the pool of the other node has a device twice."""
    incomplete = slice_("s1", devices("a"), count=2, pool="p1", nodeName="n1")
    invalid = slice_("s2", devices("b", "b"), pool="p2", nodeName="n2")
    answer = solve([ANY, incomplete, invalid], claim(request(count=None)))
    assert not answer["allocated"]
    assert "invalid pool (gpu.io/p2: two devices are named b)" in answer["message"]


def in_zone(name: str) -> Manifest:
    return {"matchExpressions": [{"key": "zone", "operator": "In", "values": [name]}]}


@pytest.mark.parametrize("solve", [cold, warm, jointly])
def test_a_device_whose_node_selector_has_two_terms_is_left_out_alone(solve: Solve) -> None:
    """kubernetes#141212 to #141214: its allocation would have one term that no node meets; others are had."""
    either = {"nodeSelectorTerms": [in_zone("a"), in_zone("b")]}
    either_way = slice_("s", [device("odd", nodeSelector=either)], perDeviceNodeSelection=True)
    nodes = [node("n1", zone="a"), node("n2", zone="b")]
    refused = solve([ANY, either_way, *nodes], claim(request()))
    assert "ask who runs the driver to correct it" in refused["message"]
    both = slice_(
        "s", [device("odd", nodeSelector=either), device("plain", nodeName="n1")], perDeviceNodeSelection=True
    )
    answer = solve([ANY, both, *nodes], claim(request()))
    assert (answer["node"], given(answer)) == ("n1", ["p/plain"])


@pytest.mark.parametrize("solve", [cold, warm, jointly])
@pytest.mark.parametrize("others", [(), (slice_("x", devices("a"), driver="other.io", pool="o"),)], ids=["none", "one"])
def test_a_pool_whose_newest_slice_has_no_devices_is_the_cause(solve: Solve, others: tuple[Manifest, ...]) -> None:
    """kubernetes#127645: the counters of the new generation are there, and its devices are not yet."""
    counters = counter_slice("new", {"s": {"memory": "4"}}, count=2, generation=2)
    of_driver = device_class("gpu", "device.driver == 'gpu.io'")
    answer = solve([of_driver, counters, OLD, *others], claim(request(class_name="gpu")))
    assert "pool p is incomplete (1 of 2 slices of generation 2 are there)" in answer["message"]


def test_a_pool_is_no_cause_once_it_is_complete() -> None:
    counters = counter_slice("new", {"s": {"memory": "4"}}, count=2, generation=2)
    fleet = Fleet.from_manifests([ANY, counters])
    assert "incomplete" in fleet.allocate(claim(request()))["message"]
    empty = slice_("new-1", generation=2, count=2)
    fleet.update(empty)
    assert "incomplete" not in fleet.allocate(claim(request()))["message"]
    fleet.update(HALF)
    fleet.delete(empty)
    assert given(fleet.allocate(claim(request()))) == ["p/b"]
