"""CPU and memory are compared and changed each by itself."""

from __future__ import annotations

import pytest

from devalloc.scaling.resources import ResourceFlags, Resources

small, tall, wide = Resources(250, 2**30), Resources(250, 4 * 2**30), Resources(1000, 2**30)


def test_sums_and_multiples() -> None:
    assert small + wide == Resources(1250, 2**31)
    assert small * 3 == Resources(750, 3 * 2**30)


def test_each_resource_is_bounded_by_itself() -> None:
    assert tall.least(wide) == small
    assert tall.most(wide) == Resources(1000, 4 * 2**30)
    assert tall.excess_over(wide) == Resources(0, 3 * 2**30)
    assert tall.apart(wide) == Resources(750, 3 * 2**30)


def test_more_of_either_exceeds() -> None:
    assert tall.exceeds(wide)
    assert wide.exceeds(tall)
    assert not small.exceeds(tall)
    assert ~ResourceFlags(cpu=True) & ResourceFlags(cpu=True, memory=True) == ResourceFlags(memory=True)


@pytest.mark.parametrize(
    ("resources", "count"), [(small * 7, 7), (Resources(0, 0), 0), (tall, None), (Resources(300, 2**30), None)]
)
def test_a_number_of_units_or_none(resources: Resources, count: int | None) -> None:
    assert resources.times(small) == count


def test_there_is_no_less_than_nothing() -> None:
    with pytest.raises(ValueError, match="negative"):
        Resources(-1, 0)
