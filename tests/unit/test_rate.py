"""Counting what happened lately, and allowing so much a second."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from devalloc.net.rate import SlidingWindowCount, TokenBucket


def test_a_window_of_four_seconds() -> None:
    failures = SlidingWindowCount(4_000)
    assert failures.count(0) == 0
    failures.add(0)
    failures.add(0)
    assert failures.count(0) == 2
    failures.add(2_000)
    assert [failures.count(now) for now in (2_000, 3_999, 4_000, 5_000, 5_999, 6_000, 7_000)] == [3, 3, 1, 1, 1, 0, 0]


@settings(max_examples=60)
@given(
    st.integers(1, 20),
    st.integers(1, 30),
    st.lists(st.tuples(st.integers(0, 700), st.integers(0, 12)), max_size=40),
)
def test_no_stretch_of_time_gives_more_than_its_share_and_a_burst(
    a_second: int, burst: int, asks: list[tuple[int, int]]
) -> None:
    allowance = TokenBucket(a_second, burst)
    now, taken = 0, []
    for pause, count in asks:
        now += pause
        if allowance.take(count, now):
            taken.append((now, count))
    for start, (begun, _) in enumerate(taken):
        spent = 0
        for instant, count in taken[start:]:
            spent += count
            assert spent * 1000 <= burst * 1000 + (instant - begun) * a_second


def test_what_is_within_the_allowance_is_always_given() -> None:
    allowance = TokenBucket(a_second=2, burst=3)
    assert [allowance.take(1, now) for now in (0, 0, 0, 0, 499, 500, 500, 10_000)] == [
        True, True, True, False, False, True, False, True,
    ]  # fmt: skip
    assert allowance.take(2, 10_000)
    assert not allowance.take(1, 10_000), "no more than the burst is saved up"
