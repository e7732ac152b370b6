"""CPU and memory are compared and changed each by itself."""

from __future__ import annotations

import pytest

from devalloc.scaling.resources import More, Resources

SMALL, TALL, WIDE = Resources(250, 2**30), Resources(250, 4 * 2**30), Resources(1000, 2**30)


def test_sums_and_multiples() -> None:
    assert SMALL + WIDE == Resources(1250, 2**31)
    assert SMALL * 3 == Resources(750, 3 * 2**30)


def test_each_resource_is_bounded_by_itself() -> None:
    assert TALL.least(WIDE) == SMALL
    assert TALL.most(WIDE) == Resources(1000, 4 * 2**30)
    assert TALL.above(WIDE) == Resources(0, 3 * 2**30)
    assert TALL.apart(WIDE) == Resources(750, 3 * 2**30)


def test_more_of_either_exceeds() -> None:
    assert TALL.exceeds(WIDE)
    assert WIDE.exceeds(TALL)
    assert not SMALL.exceeds(TALL)
    assert TALL.more_than(WIDE) == More(memory=True)
    assert not SMALL.more_than(TALL)
    assert ~More(cpu=True) & More(cpu=True, memory=True) == More(memory=True)


@pytest.mark.parametrize(
    ("resources", "count"), [(SMALL * 7, 7), (Resources(0, 0), 0), (TALL, None), (Resources(300, 2**30), None)]
)
def test_a_number_of_units_or_none(resources: Resources, count: int | None) -> None:
    assert resources.times(SMALL) == count


def test_there_is_no_less_than_nothing() -> None:
    with pytest.raises(ValueError, match="negative"):
        Resources(-1, 0)
