"""CPU and bytes on the wire: how they are written, and everything that is read as the same amount."""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devalloc.api.quantity import Quantity
from devalloc.scaling.peer_json import (
    MAX_BYTES,
    MAX_CPU,
    WireAmountError,
    bytes_from_json,
    bytes_to_json,
    bytes_to_quantity,
    cpu_from_json,
    cpu_to_json,
    cpu_to_quantity,
)


def test_whole_cpus_are_numbers_and_parts_are_quantities() -> None:
    written = {0: 0, 50: "50m", 250: "250m", 1000: 1, 1250: "1250m", 512000: 512, 100001: "100001m"}
    assert {milli: cpu_to_json(milli) for milli in written} == written
    assert (cpu_to_quantity(1000), cpu_to_quantity(250)) == ("1", "250m")


def test_bytes_are_numbers_below_1024_and_then_the_largest_unit_that_divides() -> None:
    gib = 2**30
    written = {
        0: 0,
        4: 4,
        1023: 1023,
        1024: "1Ki",
        1500: "1500",
        gib * 3 // 2: "1536Mi",
        gib: "1Gi",
        gib + 1: f"{gib + 1}",
    }
    assert {count: bytes_to_json(count) for count in written} == written
    assert (bytes_to_quantity(12), bytes_to_quantity(0), bytes_to_quantity(2**60)) == ("12", "0", "1Ei")


CPU_READ = {
    250: ["250m", 0.25, "0.25", ".25", Decimal("0.25"), "250e-3", Quantity.parse("250m")],
    2000: [2, "2", " 2 ", "2.0", 2.0, Decimal("2E+0")],
    1_000_000: ["1e3", 1e3, "1k", "1E3"],
    1: ["0.0001", "1n", "1e-30", "0.0000000000001", 1e-200, "1e-9999", "0.1n"],
    1001: ["1.0001", "1.00000000000000001"],
    0: [None, 0, "0", "-0", "0e99"],
    MAX_CPU: ["4294967.295", "4294967295m"],
}


def test_every_spelling_of_an_amount_of_cpu_is_read() -> None:
    wrong = [(v, cpu_from_json(v)) for milli, values in CPU_READ.items() for v in values if cpu_from_json(v) != milli]
    assert wrong == []


def test_every_spelling_of_an_amount_of_bytes_is_read() -> None:
    spellings = {
        2**30: ["1Gi", 2**30, str(2**30), "1024Mi"],
        10**9: ["1G", 1e9],
        3 * 2**29: ["1.5Gi"],
        1: ["0.5", "1m"],
    }
    wrong = [(v, count) for count, values in spellings.items() for v in values if bytes_from_json(v) != count]
    assert wrong == []
    assert bytes_from_json(MAX_BYTES) == MAX_BYTES


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "is not a quantity"),
        ("  ", "is not a quantity"),
        ("abc", "is not a quantity"),
        ("1 Gi", "unknown suffix"),
        ("1GB", "did you mean G"),
        ("0x10", "unknown suffix"),
        ("nan", "is not a quantity"),
        (float("inf"), "is not a quantity"),
        (True, "must be an amount .*, not a boolean"),
        ([], "not a list"),
        ({}, "not a map"),
        (-1, "must not be negative"),
        ("-1", "must not be negative"),
        (-0.25, "must not be negative"),
        ("-1n", "must not be negative"),
        (Quantity.parse("-1m"), "must not be negative"),
        (2**64, "is more than fits"),
        ("16Ei", "is more than fits"),
        (1e300, "range"),
        ("1e9999", "range"),
        ("9" * 101, "is not a quantity"),
    ],
)
def test_what_is_no_amount_is_refused_with_the_reason(value: object, reason: str) -> None:
    for read in (cpu_from_json, bytes_from_json):
        with pytest.raises(WireAmountError, match=reason):
            read(value)


def test_what_a_peer_cannot_hold_is_not_written() -> None:
    for write, amount in ((cpu_to_json, MAX_CPU + 1), (bytes_to_json, MAX_BYTES + 1), (cpu_to_json, -1)):
        with pytest.raises(WireAmountError, match="cannot be written"):
            write(amount)


@given(st.integers(0, MAX_CPU), st.integers(0, MAX_BYTES))
def test_what_is_written_is_read_as_the_same(milli: int, count: int) -> None:
    assert cpu_from_json(json.loads(json.dumps(cpu_to_json(milli)))) == milli
    assert bytes_from_json(json.loads(json.dumps(bytes_to_json(count)))) == count
    assert cpu_from_json(cpu_to_quantity(milli)) == milli
    assert bytes_from_json(bytes_to_quantity(count)) == count


_SUFFIXES = {"": 1, "m": Fraction(1, 1000), "n": Fraction(1, 10**9), "k": 1000, "Ki": 1024, "Mi": 2**20, "e2": 100}


@given(st.integers(0, 10**6), st.text("0123456789", max_size=12), st.sampled_from(sorted(_SUFFIXES)))
def test_what_is_finer_than_the_unit_is_rounded_up(whole: int, fraction: str, suffix: str) -> None:
    exact = (whole + Fraction(int(fraction or "0"), 10 ** len(fraction))) * _SUFFIXES[suffix]
    text = f"{whole}.{fraction}{suffix}"
    assert bytes_from_json(text) == ceil(exact)
    if ceil(exact * 1000) <= MAX_CPU:
        assert cpu_from_json(text) == ceil(exact * 1000)
