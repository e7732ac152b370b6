"""The README is short, and its chart shows what was measured."""

from __future__ import annotations

import re

from tests.support.repository import REPO

README = (REPO / "README.md").read_text()


def test_it_is_read_in_a_few_minutes() -> None:
    assert len(README.split()) <= 900


def test_its_chart_shows_what_was_measured() -> None:
    rows = re.findall(
        r"^\| one device too few, 23 \| (devalloc, from manifests|upstream \S+) \| (\S+) \| (\S+) \|",
        (REPO / "benchmarks/results/upstream.md").read_text(),
        re.MULTILINE,
    )
    (outcome, milliseconds), (peer, limit) = (row[1:] for row in sorted(rows))
    assert (outcome, peer) == ("not-allocated", "timeout")
    for text in (README, (REPO / "docs/refusal.svg").read_text()):
        assert f"{milliseconds} ms" in text
        assert f"{float(limit) / 1000:.0f} s" in text
