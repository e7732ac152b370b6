"""What a guest writes on its report port: read as it says, bounded, and garbage changes nothing."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devalloc_machines.qemu.guest_report import (
    MAX_LINE,
    MAX_MESSAGE,
    MAX_METRICS,
    BadLine,
    GuestReport,
    LineBuffer,
    updated_report,
)
from tests.support.examples import examples


def after(*lines: Any) -> GuestReport:
    report = GuestReport()
    for line in lines:
        report = updated_report(report, json.dumps(line).encode())
    return report


def test_a_status_and_metrics_are_kept_until_others_come() -> None:
    assert after({"status": "ready", "message": "listening"}) == GuestReport("ready", "listening")
    both = after({"status": "ready"}, {"metrics": {"queue_length": 3, "load": 0.5}})
    assert (both.status, dict(both.metrics)) == ("ready", {"queue_length": 3.0, "load": 0.5})
    assert dict(after({"metrics": {"a": 1}}, {"metrics": {"b": 2}}).metrics) == {"b": 2.0}, "all at once"
    assert after({"status": "ready", "message": "up"}, {"status": "not-ready"}) == GuestReport("not-ready", "")


def test_a_guest_that_has_finished_stays_so() -> None:
    report = after({"status": "finished", "message": "done"}, {"status": "ready"}, {"metrics": {"a": 1}})
    assert (report.status, report.message, dict(report.metrics)) == ("finished", "done", {"a": 1.0})


def test_members_that_are_not_known_are_passed_over() -> None:
    assert after({"status": "ready", "version": {"of": ["something", 2]}}).status == "ready"


def test_a_message_is_one_short_printable_line() -> None:
    message = after({"status": "ready", "message": "\x1b[2J up\n" + "x" * 1000}).message
    assert len(message) <= MAX_MESSAGE
    assert message.isprintable()
    assert message.startswith("[2J up x")


@pytest.mark.parametrize(
    "line",
    [
        b"login: ",
        b"{}",
        b"[]",
        b"null",
        b'"ready"',
        b'{"message": "alone"}',
        b'{"status": "up"}',
        b'{"status": ["ready"]}',
        b'{"status": {}}',
        b'{"status": null}',
        b'{"status": "ready", "message": 1}',
        b'{"metrics": [1]}',
        b'{"metrics": {"a": "1"}}',
        b'{"metrics": {"a": true}}',
        b'{"metrics": {"a": null}}',
        b'{"metrics": {"a": NaN}}',
        b'{"metrics": {"a": -Infinity}}',
        b'{"metrics": {"a": 1e999}}',
        b'{"metrics": {"a": 1' + b"0" * 400 + b"}}",
        b'{"metrics": {"a b": 1}}',
        b'{"metrics": {"": 1}}',
        b'{"metrics": {"a\\n": 1}}',
        b'{"metrics": {"\\u00e4": 1}}',
        b'{"metrics": {"' + b"a" * 64 + b'": 1}}',
        b'{"status": "ready"} {"status": "ready"}',
        b"\xff\xfe",
        b'{"status": "\xff"}',
        b"[" * MAX_LINE,
        b'{"a":' * (MAX_LINE // 5),
        b" " * MAX_LINE + b'{"status": "ready"}',
        json.dumps({"metrics": {f"m{i}": i for i in range(MAX_METRICS + 1)}}).encode(),
    ],
)
def test_a_line_that_breaks_a_rule_changes_nothing(line: bytes) -> None:
    with pytest.raises(BadLine):
        updated_report(GuestReport("ready"), line)


def test_as_many_metrics_as_there_may_be() -> None:
    names = {f"m{i:02}" + "x" * 60: i for i in range(MAX_METRICS)}
    assert len(after({"metrics": names}).metrics) == MAX_METRICS


@given(st.binary(max_size=300))
@settings(max_examples=examples(90, 0.75), deadline=None)
def test_nothing_that_a_guest_writes_raises_anything_else(line: bytes) -> None:
    try:
        report = updated_report(GuestReport(), line)
    except BadLine:
        return
    assert all(map(math.isfinite, report.metrics.values()))


TEXT = st.text(alphabet="ab\r", max_size=8).map(str.encode)


@given(st.lists(TEXT, max_size=12), st.lists(st.integers(0, 30), max_size=6))
@settings(deadline=None)
def test_lines_are_the_same_however_they_arrive(parts: list[bytes], cuts: list[int]) -> None:
    whole = b"\n".join(parts)
    expected = [stripped for line in whole.split(b"\n")[:-1] if (stripped := line.strip())]
    buffer, lines, at = LineBuffer(), list[bytes](), 0
    for cut in [*sorted(cuts), len(whole)]:
        lines += buffer.lines(whole[at : max(at, cut)])
        at = max(at, cut)
    assert lines == expected


def test_a_flood_without_an_end_takes_no_memory_and_the_next_line_counts() -> None:
    buffer = LineBuffer()
    for _ in range(1000):
        assert list(buffer.lines(b"x" * 10_000)) == []
        assert len(buffer._begun) <= MAX_LINE + 1
    assert list(buffer.lines(b"x\nnext\r\nbegun")) == [b"next"]
    assert buffer.dropped == 1
    assert list(buffer.lines(b" and ended\n")) == [b"begun and ended"]


def test_the_longest_line_arrives() -> None:
    longest = b"y" * MAX_LINE
    assert list(LineBuffer().lines(longest + b"\r\n")) == [longest]
