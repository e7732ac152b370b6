"""``make golden``: what is left out of a comparison is in the record all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import golden


@pytest.fixture
def intended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "intended.toml"
    monkeypatch.setattr(golden, "INTENDED", file)
    monkeypatch.setattr(golden, "_added", golden._added.__wrapped__)  # the file changes
    return file


def entry(content: dict[str, int]) -> str:
    return golden._entry("cases", "one", lambda: content)[1]


def test_a_field_that_came_later_makes_no_difference(intended: Path) -> None:
    intended.write_text("")
    before = entry({"node": 1})
    assert entry({"node": 1, "later": 2}) != before
    intended.write_text('added = ["later"]')
    assert entry({"node": 1, "later": 2}) == before


def test_a_record_has_all_fields_whatever_the_last_comparison_left_out(
    intended: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next comparison, which leaves nothing out, finds a difference in each."""
    intended.write_text('added = ["later"]')
    with monkeypatch.context() as recording:
        recording.setenv("GOLDEN_RECORD", "1")
        recorded = entry({"node": 1, "later": 2})
    intended.write_text("")
    assert entry({"node": 1, "later": 2}) == recorded
