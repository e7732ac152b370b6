"""Quantities as Kubernetes reads them, at any size."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devalloc.api.quantity import NANO, QuantityError
from devalloc_solver.dialects.resource_k8s.fields import MAX_INT64, Amount

SUFFIXES = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    "k": Fraction(1000),
    "E": Fraction(10**18),
    "Ki": Fraction(1024),
    "Gi": Fraction(2**30),
    "e3": Fraction(1000),
    "E-3": Fraction(1, 1000),
}


@given(st.integers(0, 10**12), st.integers(0, 999), st.sampled_from(sorted(SUFFIXES)), st.booleans())
def test_an_amount_is_what_its_text_says_rounded_up_to_a_nano(whole: int, part: int, suffix: str, minus: bool) -> None:
    exact = (whole + Fraction(part, 1000)) * SUFFIXES[suffix] * NANO
    rounded = -(-exact.numerator // exact.denominator)
    if suffix.endswith("i"):
        rounded = min(rounded, MAX_INT64 * NANO)

    amount = Amount.parse(f"{'-' if minus else ''}{whole}.{part:03}{suffix}")

    assert amount.nano == (-rounded if minus else rounded)


@given(st.integers(0, 10**30), st.sampled_from(["1", "1Gi", "1e1"]))
def test_the_text_of_an_amount_reads_back_as_the_same(nano: int, like: str) -> None:
    amount = Amount(nano, Amount.parse(like).format)
    if like != "1Gi" or nano <= MAX_INT64 * NANO:
        assert Amount.parse(str(amount)).nano == nano


def test_decimal_amounts_know_no_bound_and_binary_ones_end_at_64_bits() -> None:
    assert Amount.parse("10E").nano == 10**19 * NANO
    assert Amount.parse("10Ei").nano == MAX_INT64 * NANO


@pytest.mark.parametrize(
    ("text", "written"),
    [("1024Mi", "1Gi"), ("1.5", "1500m"), ("2e0", "2e0"), ("1000", "1k"), ("0", "0"), ("7Gi", "7Gi")],
)
def test_amounts_are_written_as_kubernetes_writes_them(text: str, written: str) -> None:
    assert str(Amount.parse(text)) == written


@pytest.mark.parametrize("value", ["", "x", "1GB", "1K", "--1", True, None, [], "1" * 200])
def test_an_invalid_quantity_is_refused(value: object) -> None:
    with pytest.raises(QuantityError):
        Amount.parse(value)
