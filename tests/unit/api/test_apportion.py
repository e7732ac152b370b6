"""Whole units by weights, so that none is lost and no share shrinks as the whole grows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from devalloc.api.apportion import apportion

WEIGHTS = st.lists(st.integers(0, 1 << 40), min_size=1, max_size=5).filter(any)


@given(units=st.integers(0, 1 << 30), weights=WEIGHTS)
def test_all_units_are_given_and_each_gets_its_share_rounded_down_at_least(units: int, weights: list[int]) -> None:
    shares = apportion(units, weights)
    assert sum(shares) == units
    for share, weight in zip(shares, weights, strict=True):
        assert share >= units * weight // sum(weights)
        assert weight or not share


@given(units=st.integers(0, 2000), weights=WEIGHTS)
def test_one_unit_more_is_one_more_for_one_and_less_for_none(units: int, weights: list[int]) -> None:
    before, after = apportion(units, weights), apportion(units + 1, weights)
    assert sorted(new - old for old, new in zip(before, after, strict=True)) == [*[0] * (len(weights) - 1), 1]


def test_what_was_reserved_is_shared_out_as_it_is() -> None:
    assert apportion(3, [2000, 1000]) == [2, 1]
    assert apportion(2, [1000, 1000]) == [1, 1]
    assert apportion(5, [0, 7]) == [0, 5]
    assert apportion(5, [0, 0]) == [0, 0]
