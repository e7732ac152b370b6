"""Who must leave so that a unit fits: only owners that may leave for it, and those that cost least."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, combinations
from random import Random
from typing import Any

import pytest

from devalloc_solver.explain import leaving as leaving_module
from devalloc_solver.explain.feasibility import FeasibilityChecker, FeasibilityQuestion
from devalloc_solver.explain.leaving import Leaving, LeavingSearch, cheapest_sets
from devalloc_solver.problem.allocations import GIVEN_NOW, AllocatedDevice, Holding, Leave, LeaveMode
from devalloc_solver.problem.demand import AllocationMode, Demand, PlacementUnit
from devalloc_solver.problem.snapshot import Device, Pool, Resource, Snapshot, join_pools
from tests.support.normal_instances import a_claim, a_slot, candidates

Cost = tuple[int, ...]


def fleet(*sizes: int) -> Snapshot:
    """Nodes n0, n1, ... with so many devices."""
    pools: list[Pool] = []
    first = 0
    for number, size in enumerate(sizes):
        members = tuple(Device(first + i, number, f"d{i}", {}, {}, (), None) for i in range(size))
        pools.append(Pool(number, f"n{number}", f"p{number}", "gpu", {}, members))
        first += size
    return join_pools(pools)


def wants(snapshot: Snapshot, count: int, takes: Iterable[str] | None = None) -> PlacementUnit:
    request = a_slot(candidates(range(len(snapshot.devices))), min_count=count, max_count=count)
    demand = Demand(a_claim("p"), ((request,),), ())
    return PlacementUnit((demand,), None, None, takes=None if takes is None else frozenset(("", one) for one in takes))


def held(name: str, devices: Iterable[int], *cost: int) -> Holding:
    """Released at this cost; by default at that of claims in an explanation."""
    holding = Holding(("", name), 0, tuple(AllocatedDevice(index, None) for index in devices))
    return replace(holding, leave=Leave(LeaveMode.RELEASE, cost)) if cost else holding


def leaving(snapshot: Snapshot, unit: PlacementUnit, holdings: Sequence[Holding]) -> Leaving:
    finder = FeasibilityChecker(snapshot, lambda _: frozenset())
    finder.begin()
    return LeavingSearch(snapshot, tuple(holdings)).find(FeasibilityQuestion(snapshot, unit), finder)


def names(answer: Leaving) -> list[str]:
    return [name for _, name in answer.owners]


def test_an_owner_that_may_not_leave_is_never_named() -> None:
    snapshot = fleet(1, 1)
    stays, goes = replace(held("a", [0]), leave=None), held("b", [1])
    assert names(leaving(snapshot, wants(snapshot, 1), [stays, goes])) == ["b"]
    assert leaving(snapshot, wants(snapshot, 1), [stays, replace(goes, leave=None)]) == Leaving((), is_least=True)


def test_a_unit_says_who_may_leave_for_it() -> None:
    snapshot = fleet(1, 1)
    both = [held("a", [0]), held("b", [1])]
    assert names(leaving(snapshot, wants(snapshot, 1), both)) == ["a"]
    assert names(leaving(snapshot, wants(snapshot, 1, takes="b"), both)) == ["b"]
    assert names(leaving(snapshot, wants(snapshot, 1, takes=""), both)) == []


def test_of_as_many_owners_those_leave_that_got_their_devices_in_this_batch() -> None:
    snapshot = fleet(2, 2)
    old = [held("a", [0]), held("b", [1]), held("c", [2])]
    new = replace(held("z", [3]), leave=GIVEN_NOW)
    assert names(leaving(snapshot, wants(snapshot, 1), [*old, new])) == ["z"]
    assert names(leaving(snapshot, wants(snapshot, 2), [*old, new])) == ["c", "z"]


def test_one_owner_of_high_cost_stays_if_several_of_low_cost_do() -> None:
    """Victims of preemption: the vector of claims by priority, highest first."""
    snapshot = fleet(4, 4)
    dear = held("dear", range(4), 1, 0)
    cheap = [held(f"c{index}", [index], 0, 1) for index in range(4, 8)]
    answer = leaving(snapshot, wants(snapshot, 4), [dear, *cheap])
    assert (names(answer), answer.is_least) == (["c4", "c5", "c6", "c7"], True)


def test_of_equal_owners_the_one_leaves_that_loses_least() -> None:
    """Victims of preemption: the youngest, by the seconds that are lost as the last place of the cost."""
    snapshot = fleet(2)
    old, young = held("a", [0], 1, 900), held("b", [1], 1, 20)
    assert names(leaving(snapshot, wants(snapshot, 1), [old, young])) == ["b"]


def test_what_leaves_as_one_costs_as_one() -> None:
    """Victims of preemption: a group holds as one owner, whose claims all count."""
    snapshot = fleet(1, 1, 1)
    group, single = held("group", [0, 1], 2), held("single", [2], 1)
    assert names(leaving(snapshot, wants(snapshot, 1), [group, single])) == ["single"]


def test_many_owners_of_one_device_cost_no_square(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant may hold thousands of small shares of a device that another one wants as a whole."""
    snapshot, looks, fits = fleet(1), 0, LeavingSearch._fits

    def counted(search: LeavingSearch, question: FeasibilityQuestion, finder: FeasibilityChecker, *more: Any) -> bool:
        nonlocal looks
        looks += len(search.held)
        return fits(search, question, finder, *more)

    monkeypatch.setattr(LeavingSearch, "_fits", counted)
    monkeypatch.setattr(leaving_module, "MAX_LOOKS", 8_000)
    monkeypatch.setattr(leaving_module, "MIN_LOOKS", 1_000)
    for number in (100, 400, 1_600):
        owners = [held(f"o{n:04}", [0]) for n in range(number)]
        looks = 0
        answer = leaving(snapshot, wants(snapshot, 1), owners)
        assert (len(answer.owners), answer.is_least) == (number, False)
        assert looks <= 2 * (4_000 + number) + (leaving_module.MAX_TRIES + 2) * number


def shared_by(number: int) -> tuple[Snapshot, list[Holding]]:
    """One device of which each of so many owners has a unit."""
    device = Device(0, 0, "d", {}, {"m": Resource(1, number)}, (), None)
    snapshot = join_pools([Pool(0, "n0", "p0", "gpu", {}, (device,))])
    owners = [Holding(("", f"o{n:04}"), 0, (AllocatedDevice(0, (("m", 1),)),)) for n in range(number)]
    return snapshot, owners


def wants_units(amount: int) -> PlacementUnit:
    request = a_slot(candidates([0]), mode=AllocationMode.SHARE, max_count=None, requests={"m": amount})
    return PlacementUnit((Demand(a_claim("p"), ((request,),), ()),), None, None)


def test_of_many_that_need_not_all_leave_as_many_stay_as_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are asked about together, or the questions are over before half of them is settled."""
    monkeypatch.setattr(leaving_module, "MAX_LOOKS", 16_000)
    snapshot, owners = shared_by(200)
    assert names(leaving(snapshot, wants_units(100), owners)) == [f"o{n:04}" for n in range(100, 200)]


def test_many_searches_of_a_round_share_what_they_may_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant's claims that are refused cost others no more than a few of them."""
    monkeypatch.setattr(leaving_module, "MAX_LOOKS", 64_000)
    monkeypatch.setattr(leaving_module, "MIN_LOOKS", 1_000)
    snapshot, owners = shared_by(400)
    finder = FeasibilityChecker(snapshot, lambda _: frozenset())
    search = LeavingSearch(snapshot, tuple(owners))
    for number in range(20):
        finder.begin()
        answer = search.find(FeasibilityQuestion(snapshot, wants_units(200 + number)), finder)
        assert len(answer.owners) >= 200 + number
    assert search._looks < 64_000 + 20 * (1_000 + 4 * 400)


@pytest.mark.parametrize("seed", range(60))
def test_no_other_owners_make_room_for_less(seed: int) -> None:
    random = Random(seed)
    snapshot = fleet(*(random.randint(1, 4) for _ in range(random.randint(1, 3))))
    holdings: list[Holding] = []
    free = [device.index for device in snapshot.devices]
    random.shuffle(free)
    while free:
        pair, free = free[:2], free[2:]
        cost = [random.randint(0, 2) for _ in range(2)]
        holding = held(f"h{len(holdings)}", pair[: random.randint(1, 2)], *cost)
        holdings.append(holding if random.random() < 0.8 else replace(holding, leave=None))
    unit = wants(snapshot, random.randint(1, 4))
    finder = FeasibilityChecker(snapshot, lambda _: frozenset())

    def fits_without(gone: Iterable[Holding]) -> bool:
        rest = tuple(holding for holding in holdings if holding not in gone)
        return finder.fits(FeasibilityQuestion(snapshot, unit, rest))

    if fits_without(()):
        return
    may_leave = {holding.owner: holding.leave.cost for holding in holdings if holding.leave is not None}
    sets = chain.from_iterable(combinations(may_leave, size) for size in range(1, len(may_leave) + 1))
    by_owner = {holding.owner: holding for holding in holdings}
    costs = [
        tuple(map(sum, zip(*(may_leave[owner] for owner in some), strict=True)))
        for some in sets
        if fits_without([by_owner[owner] for owner in some])
    ]
    answer = leaving(snapshot, unit, holdings)
    assert answer.is_least
    if not costs:
        assert not answer.owners
        return
    assert fits_without([by_owner[owner] for owner in answer.owners])
    assert tuple(map(sum, zip(*(may_leave[owner] for owner in answer.owners), strict=True))) == min(costs)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("smallest", [1, 2, 4])
def test_sets_come_once_each_and_in_the_order_of_their_cost(seed: int, smallest: int) -> None:
    random = Random(seed)
    costs = sorted((random.randint(0, 2), random.randint(0, 3)) for _ in range(random.randint(1, 7)))
    sets = [*cheapest_sets(costs, smallest)]
    every = chain.from_iterable(combinations(range(len(costs)), n) for n in range(smallest, len(costs) + 1))
    by_cost: Mapping[tuple[int, ...], Cost] = {
        some: tuple(map(sum, zip(*(costs[one] for one in some), strict=True))) for some in every
    }
    assert sets == [
        (by_cost[some], some) for some in sorted(by_cost, key=lambda some: (by_cost[some], len(some), some))
    ]
