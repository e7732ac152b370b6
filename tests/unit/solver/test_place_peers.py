"""What the placement does once for many: asks that nothing tells apart, ways that others make needless, steps."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devalloc_solver.place.device_uses import undominated
from devalloc_solver.place.requests import indistinguishable
from devalloc_solver.place.step_budget import StepBudget, StepsExhausted

MASKS = st.integers(0, 255)
RANKS = st.tuples(st.lists(st.integers(-3, 3), min_size=3, max_size=3).map(tuple), st.sampled_from([0, 0, 1, 2]))


@given(st.lists(MASKS), MASKS)
def test_peers_are_those_that_no_mask_tells_apart(masks: list[int], every: int) -> None:
    groups = indistinguishable(masks, every)
    assert sum(groups) == every  # each ask is in one of them, for they have no bit in common
    assert all(not one & other for one, other in combinations(groups, 2))
    bits = [1 << n for n in range(8) if every >> n & 1]
    for one, other in combinations(bits, 2):
        alike = all(bool(mask & one) == bool(mask & other) for mask in masks)
        assert alike is any(group & one and group & other for group in groups)


@pytest.mark.parametrize("used_up", [False, True])
@given(st.data())
def test_ways_that_are_left_out_are_those_that_another_makes_needless(used_up: bool, data: st.DataObject) -> None:
    ways = data.draw(st.lists(RANKS if used_up else RANKS.map(lambda rank: (rank[0], 0)), unique=True))

    def is_as_good(one: tuple[tuple[int, ...], int], other: tuple[tuple[int, ...], int]) -> bool:
        return all(a >= b for a, b in zip(one[0], other[0], strict=True)) and not one[1] & ~other[1]

    ways_left = undominated(ways, lambda way: way, StepBudget(10_000))
    expected = {way for way in ways if not any(is_as_good(other, way) and not is_as_good(way, other) for other in ways)}
    assert {*ways_left} == expected
    assert [sum(numbers) for numbers, _ in ways_left] == sorted(
        (sum(numbers) for numbers, _ in ways_left), reverse=True
    )


@given(st.integers(0, 9), st.integers(0, 12))
def test_many_steps_at_once_are_the_same_as_one_by_one(left: int, count: int) -> None:
    def spend(budget: StepBudget, *, at_once: bool) -> bool:
        try:
            if at_once:
                budget.spend_each(count)
            else:
                for _ in range(count):
                    budget.spend()
        except StepsExhausted:
            return False
        return True

    one, other = StepBudget(left), StepBudget(left)
    assert spend(one, at_once=True) is spend(other, at_once=False) is (count <= left)
    assert one.left == other.left
