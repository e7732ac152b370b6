"""Times that are given on the command line."""

from __future__ import annotations

import click
import pytest

from devalloc.cli.command import parse_duration
from devalloc.cli.main import run


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 0), ("2.5", 2.5), ("500ms", 0.5), ("30s", 30), ("5m", 300), ("1h30m", 5400)]
)
def test_a_duration_is_a_number_of_seconds_or_has_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "-1", "nan", "inf", "1e3", "5 s", "5d", "s", "1.s", "1,5"])
def test_anything_else_is_none_and_the_message_says_how_to_write_one(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"invalid duration .*; write it like 30s, 5m, 1h30m or 500ms"):
        parse_duration(text)


@pytest.mark.parametrize("unit", ["", "s", "h"])
def test_more_seconds_than_a_number_can_hold_are_none(unit: str) -> None:
    with pytest.raises(click.BadParameter, match="give fewer digits"):
        parse_duration("9" * 400 + unit)


@pytest.mark.parametrize("text", ["-1", "nan", "9" * 400])
def test_an_invalid_deadline_is_a_usage_error(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["solve", "-f", "-", "--deadline", text]) == 2
    assert "Invalid value for '--deadline'" in capsys.readouterr().err
