"""Upper bounds by counting: what a search may not skip, and what it need not look at."""

from __future__ import annotations

from dataclasses import replace

import pytest

from devalloc_solver.bounds.node_counts import NodeCounts
from devalloc_solver.explain.funnel import has_room_for
from devalloc_solver.problem.allocations import AllocatedDevice, Holding, Usage
from devalloc_solver.problem.demand import AllocationMode, Demand, PlacementUnit, Request
from devalloc_solver.problem.snapshot import Device, Pool, Resource, Snapshot
from tests.support.normal_instances import a_claim, a_slot, candidates

WHOLE, SHARE, EVERY = AllocationMode.WHOLE, AllocationMode.SHARE, AllocationMode.EVERY


def snapshot(*, shareable: bool = False) -> Snapshot:
    """Two devices of 4 units on each of two nodes, which differ in ``a`` on the second one."""
    devices = tuple(
        Device(i, i // 2, f"d{i}", {"a": max(1, i)}, {"m": Resource(1, 4)}, (), None, shareable=shareable)
        for i in range(4)
    )
    pools = tuple(Pool(n, f"n{n + 1}", f"p{n}", "driver", {}, devices[2 * n : 2 * n + 2]) for n in range(2))
    by_node = {pool.node: (pool,) for pool in pools}
    return Snapshot(pools, devices, ("n1", "n2"), by_node, {pool.name: (pool,) for pool in pools})


def holding(index: int, amounts: tuple[tuple[str, int], ...] | None = None) -> Holding:
    return Holding(("default", "old"), 0, (AllocatedDevice(index, amounts),))


def nodes(of: Snapshot, request: Request, *held: Holding, match: tuple[str, ...] = ()) -> list[str | None]:
    demand = Demand(a_claim("c"), ((request,),), match)
    return NodeCounts(of).nodes(PlacementUnit((demand,), None, None), held)


ALL = candidates(range(4))
PORTIONS = dict.fromkeys(range(4), (("m", 1),))


@pytest.mark.parametrize(
    ("fields", "held", "expected"),
    [
        ({"min_count": 2}, (), ["n1", "n2"]),
        ({"min_count": 2}, (0,), ["n2"]),
        ({"min_count": 3}, (), []),
        ({"min_count": 2, "candidates": candidates([0, 2, 3])}, (), ["n2"]),
        ({"mode": AllocationMode.ADMIN_COUNT, "min_count": 2}, (0, 1), ["n1", "n2"]),  # which only looks
        ({"mode": SHARE, "requests": {"m": 8}, "max_count": None}, (), ["n1", "n2"]),
        ({"mode": SHARE, "requests": {"m": 8}, "max_count": None}, (3,), ["n1"]),
        ({"mode": SHARE, "requests": {"m": 9}, "max_count": None}, (), []),
        ({"mode": SHARE, "requests": {"m": 5}}, (), []),  # of one device
        ({"mode": SHARE, "requests": {"m": 4}}, (0,), ["n1", "n2"]),
    ],
)
def test_a_node_is_left_out_if_it_has_too_few_devices_or_too_little(
    fields: dict[str, object], held: tuple[int, ...], expected: list[str]
) -> None:
    request = a_slot(ALL, **fields)
    assert nodes(snapshot(), request, *(holding(index) for index in held)) == expected


def test_devices_in_shares_count_for_shares_with_what_is_left_of_them() -> None:
    held = holding(0, (("m", 3),))
    assert nodes(snapshot(), a_slot(ALL, min_count=2, max_count=2), held) == ["n2"]
    share = a_slot(ALL, mode=SHARE, requests={"m": 5}, max_count=None)
    assert nodes(snapshot(), share, held) == ["n1", "n2"]
    assert nodes(snapshot(), replace(share, requests={"m": 6}), held) == ["n2"]


def test_devices_in_use_count_for_portions_of_which_they_can_give_several() -> None:
    held = [holding(index, (("m", 1),)) for index in range(4)]
    of = snapshot(shareable=True)
    for count in (1, 2):
        request = a_slot(ALL, portions=PORTIONS, min_count=count, max_count=count)
        assert nodes(of, request, *held) == ["n1", "n2"]


def test_devices_that_must_match_count_together_with_their_like() -> None:
    pair = a_slot(ALL, min_count=2, max_count=2)
    assert nodes(snapshot(), pair, match=("a",)) == ["n1"]
    assert nodes(snapshot(), replace(pair, match=("a",))) == ["n1"]
    assert nodes(snapshot(), replace(pair, match=("b",))) == []


def test_what_was_counted_for_other_devices_in_use_does_not_count() -> None:
    counts, pair = NodeCounts(snapshot()), a_slot(ALL, min_count=2, max_count=2)
    unit = PlacementUnit((Demand(a_claim("c"), ((pair,),), ()),), None, None)
    before, after = (holding(0),), (holding(2),)
    assert [counts.nodes(unit, held) for held in ((), before, after, before)] == [["n1", "n2"], ["n2"], ["n1"], ["n2"]]


@pytest.mark.parametrize(
    ("fields", "taken", "expected"),
    [
        ({}, (None, 1), (False, False, True)),  # whole: what is used in any way has no room
        ({"mode": SHARE, "requests": {"m": 9}}, (3, 4), (True, False, True)),
        ({"mode": SHARE, "requests": {"n": 1}}, (3, 4), (False, False, False)),
        ({"mode": AllocationMode.ADMIN_COUNT}, (None, 4), (True, True, True)),
    ],
)
def test_a_device_has_room_for_a_request_as_long_as_anything_of_it_is_left(
    fields: dict[str, object], taken: tuple[int | None, ...], expected: tuple[bool, ...]
) -> None:
    held = [holding(i, None if amount is None else (("m", amount),)) for i, amount in enumerate(taken)]
    of = snapshot()
    usage = Usage.of(of, held)
    request = a_slot(ALL, **fields)
    assert tuple(has_room_for(request, of, index, usage) for index in range(3)) == expected
