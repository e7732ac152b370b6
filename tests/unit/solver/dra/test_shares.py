"""What a request takes of a capacity: request policies, rounding, and amounts beyond 64 bits (settled D4)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devalloc_solver.dialects.resource_k8s.candidates import CapacityOverflowError, amounts_to_take
from devalloc_solver.dialects.resource_k8s.decode import read_slice
from devalloc_solver.dialects.resource_k8s.fields import MAX_INT64, Amount
from tests.support.dra_builders import device, slice_

MAX = str(MAX_INT64)


def take(capacity: Any, requested: str | None, *, fractional: bool = True) -> str | None:
    """What is taken of a capacity ``m``; None where the device does not do."""
    one = read_slice(slice_("s", [device("d", capacity={"m": capacity}, shared=True)])).devices[0]
    amounts = amounts_to_take({} if requested is None else {"m": Amount.parse(requested)}, one, fractional=fractional)
    return None if isinstance(amounts, str) else str(amounts["m"])


def ranged(least: str, most: str | None = None, step: str | None = None, value: str = "10", **policy: str) -> Any:
    valid_range = {"min": least} | ({"max": most} if most else {}) | ({"step": step} if step else {})
    return {"value": value, "requestPolicy": {"default": least, **policy, "validRange": valid_range}}


def test_without_policy_a_request_is_taken_as_it_is_and_no_request_takes_all() -> None:
    assert take("10Gi", "3Gi") == "3Gi"
    assert take("10Gi", "1e30") is None
    assert take("10Gi", None) == "10Gi"
    assert take("10E", "9300P") == "9300P"


def test_more_than_there_is_does_not_do_and_neither_does_another_capacity() -> None:
    assert take("10", "11") is None
    one = read_slice(slice_("s", [device("d", capacity={"m": "1"})])).devices[0]
    assert amounts_to_take({"n": Amount.parse("1")}, one, fractional=True) == "no capacity n"


@pytest.mark.parametrize(
    ("requested", "expected"),
    [(None, "2"), ("1", "2"), ("2", "2"), ("3", "4"), ("4", "4"), ("7", "8"), ("8", "8"), ("9", None)],
)
def test_a_range_rounds_up_to_its_next_step_and_ends_at_its_most(requested: str | None, expected: str | None) -> None:
    assert take(ranged("2", "8", "2"), requested) == expected


@pytest.mark.parametrize(("requested", "expected"), [(None, "2"), ("1", "1"), ("1500m", "2"), ("3", "4"), ("5", None)])
def test_valid_values_round_up_to_the_next_of_them(requested: str | None, expected: str | None) -> None:
    capacity = {"value": "10", "requestPolicy": {"default": "2", "validValues": ["1", "2", "4"]}}

    assert take(capacity, requested) == expected


def test_a_range_reaches_to_the_largest_amount_of_64_bits() -> None:
    assert take(ranged("1", None, "2", value=MAX), str(MAX_INT64 - 1), fractional=False) == MAX


def test_the_default_passes_whatever_the_policy_says() -> None:
    assert take(ranged("2", "4", "2", default="5"), None) == "5"
    assert take({"value": "3", "requestPolicy": {"default": "5"}}, None) is None


def test_fractions_are_counted_in_thousandths_behind_their_gate_only() -> None:
    capacity = ranged("100m", "2", "100m")

    assert take(capacity, "250m") == "300m"
    assert take(ranged("1", "4", "1"), "1500m", fractional=False) == "2"
    assert take(capacity, "250m", fractional=False) == "1"


@pytest.mark.parametrize(
    ("capacity", "requested"),
    [
        (ranged("0", None, "2", value=MAX), MAX),
        (ranged("1", None, "4", value="10E"), "10E"),
        (ranged("1", None, "1", value="10E"), "9223372036854775808"),
        (ranged("1m", None, "1m", value="10E"), "9300T"),
        (ranged("0", None, "1m"), "1u"),
    ],
)
def test_what_a_step_cannot_round_within_64_bits_is_an_error(capacity: Any, requested: str) -> None:
    with pytest.raises(CapacityOverflowError, match=r"capacity m: .* cannot be rounded to steps"):
        take(capacity, requested)


def test_without_a_step_amounts_are_exact_at_any_size() -> None:
    assert take(ranged("1", None, value="100E"), "99E") == "99E"


def test_a_negative_amount_is_an_error() -> None:
    with pytest.raises(CapacityOverflowError, match="capacity m: -1 is negative"):
        take("-1", None)


@given(
    least=st.integers(0, 50),
    step=st.integers(1, 9),
    most=st.integers(0, 80),
    requested=st.integers(0, 90),
    value=st.integers(0, 90),
)
def test_a_range_gives_the_least_valid_amount(least: int, step: int, most: int, requested: int, value: int) -> None:
    valid = [n for n in range(least, 200, step) if n >= requested]
    best = valid[0] if valid else None
    passes = best is not None and best <= value and (best <= most or best == least)

    amount = take(ranged(str(least), str(most), str(step), value=str(value)), str(requested))

    assert amount == (str(Amount.parse(str(best))) if passes else None)
