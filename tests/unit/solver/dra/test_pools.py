"""Pools as a node sees them: generations, slices that are missing, what makes a pool invalid."""

from __future__ import annotations

from typing import Any

import pytest

from devalloc_solver import dra
from devalloc_solver.dialects.resource_k8s.feature_gates import DEFAULT_GATES, PARTITIONABLE_DEVICES
from devalloc_solver.dialects.resource_k8s.pools import PoolStatus, ResourcePool, SliceBook
from devalloc_solver.dialects.resource_k8s.slices import ClusterNode
from devalloc_solver.dra import AllocationError
from tests.support.dra_builders import ANY, claim, counter_slice, device, devices, node, request, slice_

NODE = ClusterNode("n1", {"zone": "a"})


def pools(*slices: Any, gates: frozenset[str] = DEFAULT_GATES) -> dict[str, ResourcePool]:
    return {pool.title: pool for pool in SliceBook(slices, gates).pools(NODE)}


def state(*slices: Any, gates: frozenset[str] = DEFAULT_GATES) -> PoolStatus | None:
    pool = pools(*slices, gates=gates).get("gpu.io/p")
    return None if pool is None else pool.state


def test_a_pool_is_complete_with_as_many_slices_as_it_says() -> None:
    one, two = slice_("a", devices("d1"), count=2), slice_("b", devices("d2"), count=2)

    assert state(one, two) is PoolStatus.COMPLETE
    assert state(one) is PoolStatus.INCOMPLETE
    assert state(one, two, slice_("c", count=2)) is PoolStatus.INCOMPLETE


def test_slices_that_contradict_each_other_about_the_count_are_no_complete_pool() -> None:
    assert state(slice_("a", devices("d1"), count=2), slice_("b", devices("d2"), count=3)) is PoolStatus.INCOMPLETE


def test_slices_come_in_order_of_their_names_whatever_order_they_are_given_in() -> None:
    slices = [slice_(name, devices(f"d-{name}"), count=3) for name in "cab"]

    pool = pools(*slices)["gpu.io/p"]

    assert [one.name for one in pool.slices] == ["a", "b", "c"]


def test_a_newer_generation_replaces_an_older_one() -> None:
    old = slice_("old", devices("d1"), generation=1)
    new = slice_("new", devices("d2"), generation=2)

    pool = pools(old, new)["gpu.io/p"]

    assert [one.name for one in pool.slices] == ["new"]


def test_an_old_pool_is_dropped_when_its_newer_generation_has_left_the_node() -> None:
    here = slice_("a", devices("d1"), count=2, generation=1)
    there = slice_("b", devices("d1"), count=1, generation=2, nodeName="n2")

    assert state(here, there) is None


def test_slices_of_other_nodes_count_towards_completeness() -> None:
    here = slice_("a", devices("d1"), count=2)
    there = slice_("b", devices("d2"), count=2, nodeName="n2")

    pool = pools(here, there)["gpu.io/p"]

    assert pool.state is PoolStatus.COMPLETE
    assert [one.name for one in pool.slices] == ["a"]


def test_two_devices_of_one_name_make_a_pool_invalid() -> None:
    pool = pools(slice_("a", devices("d1"), count=2), slice_("b", devices("d1"), count=2))["gpu.io/p"]

    assert (pool.state, pool.why) == (PoolStatus.INVALID, "two devices are named d1")


def test_two_counter_sets_of_one_name_make_a_pool_invalid() -> None:
    sets = [counter_slice(name, {"s": {"m": "1"}}, count=2) for name in "ab"]

    assert pools(*sets)["gpu.io/p"].why == "two counter sets are named s"


@pytest.mark.parametrize("counters", [{"other": {"m": "1"}}, {"s": {"other": "1"}}])
@pytest.mark.parametrize("where", ["n1", "n2"])
def test_a_device_that_consumes_what_does_not_exist_makes_the_pool_invalid_wherever_it_is(
    counters: Any, where: str
) -> None:
    slices = [
        counter_slice("a", {"s": {"m": "1"}}, count=3),
        slice_("b", devices("d1"), count=3),
        slice_("c", [device("d2", counters=counters)], count=3, nodeName=where),
    ]

    assert state(*slices) is PoolStatus.INVALID
    assert state(slices[1], slices[2], gates=DEFAULT_GATES - {PARTITIONABLE_DEVICES}) is not PoolStatus.INVALID


def test_equal_names_in_pools_of_two_drivers_have_nothing_to_do_with_each_other() -> None:
    slices = [
        counter_slice("a", {"s": {"m": "1"}}, count=2),
        slice_("b", [device("d", counters={"s": {"m": "1"}})], count=2),
        counter_slice("c", {"s": {"m": "2"}}, count=2, driver="nic.io"),
        slice_("d", [device("d", counters={"s": {"m": "1"}})], count=2, driver="nic.io"),
    ]

    by_name = pools(*slices)

    assert by_name["gpu.io/p"].counters == {("s", "m"): 10**9}
    assert by_name["nic.io/p"].counters == {("s", "m"): 2 * 10**9}


def test_pools_with_binding_conditions_come_last() -> None:
    slices = [
        slice_("a", [device("d", bindingConditions=["ready"])], pool="a"),
        slice_("b", devices("d"), pool="z"),
        slice_("c", devices("d"), pool="b", driver="nic.io"),
    ]

    assert [*pools(*slices)] == ["gpu.io/z", "nic.io/b", "gpu.io/a"]


def test_slices_with_binding_conditions_come_last_in_their_pool() -> None:
    """As in upstream's allocator, which takes the first devices that do."""
    slices = [
        slice_("a", [device("d0", bindingConditions=["ready"], bindingFailureConditions=["broken"])], count=2),
        slice_("b", devices("d1"), count=2),
    ]
    (answer,) = dra.solve_manifests([*slices, ANY, claim(request())])["claims"]

    assert [result["device"] for result in answer["allocations"]["devices"]["results"]] == ["d1"]


def test_claims_that_are_answered_together_take_devices_with_binding_conditions_last() -> None:
    """As they would one after the other: one of the claims needs such a device, for want of others like it."""
    ready = [device("d0", {"model": 1}), device("d1", {"model": 2})]
    conditions = {"bindingConditions": ["ready"], "bindingFailureConditions": ["broken"]}
    unready = [device(f"d{n}", {"model": n + 1}, **conditions) for n in range(2)]
    slices = [slice_("a", ready, pool="a", nodeName="n"), slice_("b", unready, pool="b", nodeName="n")]
    first = request("r", 1, "device.attributes['gpu.io'].model == 1")
    claims = [claim(first, name="c0"), claim(request(), name="c1"), claim(first, name="c2")]
    answers = dra.solve_manifests([*slices, ANY, node("n"), *claims])["claims"]
    taken = [result for each in answers for result in each["allocations"]["devices"]["results"]]

    assert sum("bindingConditions" in result for result in taken) == 1


@pytest.mark.parametrize(
    ("slice_spec", "sees"),
    [
        ({"nodeName": "n1"}, True),
        ({"nodeName": "n2"}, False),
        ({"allNodes": True}, True),
        (
            {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]}},
            True,
        ),
        (
            {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "rack", "operator": "Exists"}]}]}},
            False,
        ),
    ],
)
def test_a_slice_says_which_nodes_reach_it(slice_spec: Any, sees: bool) -> None:
    assert ("gpu.io/p" in pools(slice_("a", devices("d"), **slice_spec))) is sees


def test_devices_may_say_it_one_by_one() -> None:
    content = [device("d1", nodeName="n1"), device("d2", nodeName="n2")]

    assert "gpu.io/p" in pools(slice_("a", content, perDeviceNodeSelection=True))
    assert "gpu.io/p" not in pools(slice_("a", content[1:], perDeviceNodeSelection=True))


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"nodeName": None}, "does not select the nodes that reach it in any supported way"),
        ({"nodeName": "n1", "futureField": 1}, "spec.futureField is not a known field"),
        ({"nodeName": "n1", "allNodes": True}, "more than one of nodeName, nodeSelector, allNodes"),
        ({"nodeName": "n1", "perDeviceNodeSelection": True}, "selects nodes and sets perDeviceNodeSelection"),
        ({"sharedCounters": [{"name": "s"}]}, "has devices and sharedCounters"),
    ],
)
def test_a_slice_with_something_unknown_is_left_out_and_named(spec: Any, why: str) -> None:
    book = SliceBook([slice_("odd", devices("d"), **spec), slice_("ok", devices("d"), pool="q")], DEFAULT_GATES)

    assert [pool.title for pool in book.pools(NODE)] == ["gpu.io/q"]
    assert [one.name for one in book.ignored] == ["odd"]
    assert why in book.ignored[0].why


def test_compatibility_groups_take_their_slice_out_and_so_the_pool_is_not_complete() -> None:
    grouped = device("d1", consumesCounters=[{"counterSet": "s", "compatibilityGroups": ["x"]}])
    slices = [slice_("a", [grouped], count=2), slice_("b", devices("d2"), count=2)]

    assert state(*slices) is PoolStatus.INCOMPLETE
    with pytest.raises(AllocationError, match="compatibilityGroups is an alpha feature"):
        SliceBook(slices, DEFAULT_GATES | {"DRADeviceCompatibilityGroups"}).pools(NODE)


@pytest.mark.parametrize("drawing", [1, 2])
def test_a_slice_of_another_node_counts_if_any_of_its_devices_draws_counters(drawing: int) -> None:
    """One of its devices may be allocated, and the others need not draw anything."""
    counters = [{"counterSet": "s", "counters": {"memory": {"value": "1"}}}]
    there = [device("d2", consumesCounters=counters), device("d3", consumesCounters=counters if drawing > 1 else [])]
    pool = pools(
        counter_slice("c", {"s": {"memory": "4"}}, count=3),
        slice_("a", [device("d1", consumesCounters=counters)], count=3),
        slice_("b", there, count=3, nodeName="n2"),
    )["gpu.io/p"]

    assert pool.state is PoolStatus.COMPLETE
    assert [one.name for one in pool.hidden] == ["b"]


def test_an_invalid_node_selector_is_an_error_that_names_the_slice() -> None:
    odd = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Near"}]}]}

    with pytest.raises(AllocationError, match=r"slice odd: .*'Near' is not supported"):
        pools(slice_("odd", devices("d"), nodeSelector=odd))


def test_slices_of_other_nodes_are_not_even_read() -> None:
    nonsense = {"spec": {"nodeName": "n2", "driver": "gpu.io", "pool": "no map", "devices": "no list"}}

    assert state(slice_("a", devices("d")), nonsense) is PoolStatus.COMPLETE
