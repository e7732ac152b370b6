"""Quantities are exact, and written as Kubernetes writes them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devalloc.api.json_content import DecimalFloat
from devalloc.api.quantity import (
    MAX_BASE_UNITS,
    NANO,
    Format,
    Quantity,
    QuantityError,
    ceil_blocks,
    count_text,
    floor_blocks,
    readable_texts,
    sum_text,
)

SCALES = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    **{suffix: Fraction(1000) ** (i + 1) for i, suffix in enumerate("kMGTPE")},
    **{f"{suffix}i": Fraction(1024) ** (i + 1) for i, suffix in enumerate("KMGTPE")},
}


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0", "0"),
        ("-0", "0"),
        ("0Ki", "0"),
        ("1", "1"),
        ("+1", "1"),
        ("-1", "-1"),
        ("1000", "1k"),
        ("1500", "1500"),
        ("1000m", "1"),
        ("0.5", "500m"),
        (".001", "1m"),
        ("5.", "5"),
        ("1n", "1n"),
        ("1000n", "1u"),
        ("100.035k", "100035"),
        ("1024", "1024"),
        ("1Ki", "1Ki"),
        ("1000Ki", "1000Ki"),
        ("1048576Ki", "1Gi"),
        ("1.5Gi", "1536Mi"),
        ("1.5Ki", "1536"),
        ("0.5Ki", "512"),
        ("0.5Mi", "512Ki"),
        ("0.0001Ki", "102400u"),
        ("1.0001Ki", "1024102400u"),
        ("1E", "1E"),
        ("1e3", "1e3"),
        ("1E3", "1e3"),
        ("1e4", "10e3"),
        ("12.5e3", "12500"),
        ("1e-3", "1e-3"),
        ("9223372036854775807", "9223372036854775807"),
        ("7Ei", "7Ei"),
        ("-1.5Gi", "-1536Mi"),
    ],
)
def test_canonical_form_is_that_of_kubernetes(text: str, canonical: str) -> None:
    assert str(Quantity.parse(text)) == canonical


@pytest.mark.parametrize(
    "text",
    [
        "",
        " 1",
        "1 ",
        "1K",
        "1ki",
        "1KB",
        "1GB",
        "1 Gi",
        "Gi",
        ".",
        "+",
        "--1",
        "1..2",
        "0x10",
        "1e",
        "1e1.5",
        "1_000",
        "nan",
        "inf",
        "1Gii",
        "1,5",
        "\u0661",
        "1\n",
        "1e99999",
    ],
)
def test_an_invalid_quantity_is_an_error_with_the_text(text: str) -> None:
    with pytest.raises(QuantityError):
        Quantity.parse(text)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("1K", "k or Ki"),
        ("10GB", r"G \(10\^9\) or Gi \(2\^30\)"),
        ("1gi", "Gi"),
        ("1GiB", "mean Gi"),
        ("1GI", "mean Gi"),
    ],
)
def test_common_slips_get_advice(text: str, hint: str) -> None:
    with pytest.raises(QuantityError, match=hint):
        Quantity.parse(text)


@pytest.mark.parametrize("text", ["0.1n", "1.0000000001", "1e-10", "1.5n", "0.0000000001Ki"])
def test_finer_than_one_nano_is_an_error_and_never_rounded(text: str) -> None:
    with pytest.raises(QuantityError, match="finer than one nano"):
        Quantity.parse(text)


@pytest.mark.parametrize("text", ["9223372036854775808", "-9223372036854775808", "8Ei", "10E", "1e19", "1e400"])
def test_beyond_64_bit_base_units_is_an_error_and_never_capped(text: str) -> None:
    with pytest.raises(QuantityError, match="beyond the range"):
        Quantity.parse(text)


@pytest.mark.parametrize(
    ("number", "nano"),
    [(2, 2 * NANO), (0.1, NANO // 10), (DecimalFloat("0.30"), 3 * NANO // 10), (DecimalFloat("1.10e1"), 11 * NANO)],
)
def test_json_numbers_are_read_by_their_decimal_text(number: float, nano: int) -> None:
    assert Quantity.parse(number).nano == nano


@pytest.mark.parametrize("value", [None, True, False, [], {}, [1], float("nan"), float("inf")])
def test_other_json_content_is_an_error(value: object) -> None:
    with pytest.raises(QuantityError):
        Quantity.parse(value)


@st.composite
def quantity_texts(draw: st.DrawFn) -> tuple[str, Fraction]:
    whole = draw(st.integers(0, 10**12))
    fraction = draw(st.text("0123456789", max_size=12))
    sign = draw(st.sampled_from(["", "+", "-"]))
    suffix = draw(st.sampled_from([*SCALES, "e3", "E-2", "e+5", "e0"]))
    number = f"{whole}.{fraction}" if fraction or draw(st.booleans()) else str(whole)
    scale = SCALES[suffix] if suffix in SCALES else Fraction(10) ** int(suffix[1:])
    value = Fraction(int(f"{whole}{fraction}"), 10 ** len(fraction)) * scale
    return f"{sign}{number}{suffix}", -value if sign == "-" else value


@settings(max_examples=100, deadline=None)
@given(quantity_texts())
def test_a_text_means_exactly_its_fraction_or_is_an_error(case: tuple[str, Fraction]) -> None:
    text, value = case
    representable = (value * NANO).denominator == 1 and abs(value) <= MAX_BASE_UNITS
    try:
        quantity = Quantity.parse(text)
    except QuantityError:
        assert not representable
    else:
        assert representable
        assert Fraction(quantity.nano, NANO) == value


@settings(max_examples=100, deadline=None)
@given(quantity_texts())
def test_formatting_and_parsing_lose_nothing(case: tuple[str, Fraction]) -> None:
    try:
        quantity = Quantity.parse(case[0])
    except QuantityError:
        return
    again = Quantity.parse(str(quantity))
    assert again == quantity
    assert hash(again) == hash(quantity)
    assert str(again) == str(quantity)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**15), st.integers(1, 10**12))
def test_blocks_round_outwards_by_less_than_one(amount: int, block: int) -> None:
    whole, least = floor_blocks(Quantity(amount), Quantity(block)), ceil_blocks(Quantity(amount), Quantity(block))
    assert whole * block <= amount < (whole + 1) * block
    assert (least - 1) * block < amount <= least * block


@settings(max_examples=100, deadline=None)
@given(st.integers(-(10**20), 10**20), st.integers(-(10**20), 10**20))
def test_arithmetic_and_order_are_those_of_integers(a: int, b: int) -> None:
    x, y = Quantity(a), Quantity(b)
    assert (x + y).nano == a + b
    assert (x - y).nano == a - b
    assert (x < y, x <= y, x == y, x > y) == (a < b, a <= b, a == b, a > b)
    assert x.times(3).nano == 3 * a


def test_the_same_amount_in_another_format_is_equal() -> None:
    assert Quantity.parse("1Gi") == Quantity.parse("1024Mi") == Quantity.parse("1073741824")
    assert Quantity.parse("1") != 1


@pytest.mark.parametrize(
    ("exact", "shown"),
    [
        (["24370748Ki", "900Gi"], ["23.2Gi", "900Gi"]),
        (["97656250Ki"], ["93.1Gi"]),
        (["123456789"], ["123.4M"]),
        (["1500m", "0", "1536Mi"], ["1500m", "0", "1536Mi"]),
        (["1073741825", "1Gi"], ["1G", "1Gi"]),
        (["24370748Ki", "24370747Ki"], ["24370748Ki", "24370747Ki"]),
        (["24370748Ki", "24370748Ki"], ["23.2Gi", "23.2Gi"]),
        (["12345m"], ["12345m"]),
    ],
)
def test_amounts_for_people_are_rounded_down_and_never_look_the_same(exact: list[str], shown: list[str]) -> None:
    assert readable_texts(*map(Quantity.parse, exact)) == shown


@pytest.mark.parametrize(
    ("text", "words", "right"),
    [
        ("20MB/s", "names a unit ('MB/s')", "20M"),
        ("20MiB/s", "names a unit ('MiB/s')", "20Mi"),
        ("5kB/s", "names a unit ('kB/s')", "5k"),
        ("5KBytes/sec", "names a unit ('KBytes/sec')", "5k"),
        ("10MBps", "names a unit ('MBps')", "10M"),
        ("10/s", "names a unit ('/s')", "10"),
        ("100Mbps", "counts bits ('Mbps')", "12500k"),
        ("1 Gbit/s", "counts bits ('Gbit/s')", "125M"),
        ("1.5Gb/s", "counts bits ('Gb/s')", "187500k"),
        ("100bps", "counts bits ('bps')", "13"),
    ],
)
def test_rates_with_a_unit_are_refused_with_what_to_write(text: str, words: str, right: str) -> None:
    with pytest.raises(QuantityError) as error:
        Quantity.parse(text)
    assert str(error.value).endswith(f"{words}; write rates as bytes per second, without a unit: {right}")
    Quantity.parse(right)


def test_a_rate_beyond_the_range_is_refused_without_a_number() -> None:
    with pytest.raises(QuantityError, match="without a unit: an eighth of the number"):
        Quantity.parse(f"{'9' * 60}Tbps")


@pytest.mark.parametrize(
    ("text", "shown"), [("1k", "1000"), ("1000", "1000"), ("2", "2"), ("1500m", "1500m"), ("2000m", "2"), ("?", "?")]
)
def test_cpus_are_counted_without_suffixes(text: str, shown: str) -> None:
    assert count_text(text) == shown


def test_a_sum_beyond_what_a_quantity_can_be_is_written_all_the_same() -> None:
    assert sum_text(2 * NANO) == "2"
    assert sum_text(2**63 * NANO) == "9223372036854775808"
    assert sum_text(2**64 * NANO, Format.BINARY_SI) == "16Ei"
