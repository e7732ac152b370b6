"""Selectors against the answers that upstream's own implementation gave (tests/support/upstream_cel.py says how).

2,500 expressions on four devices: written by hand for each function and rule of the language, damaged, or drawn at
random.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import upstream_cel

UPSTREAM = upstream_cel.kept_answers()
DEVICES = upstream_cel.cel_devices(UPSTREAM["devices"])


def test_every_selector_gets_upstreams_answer_on_every_device() -> None:
    answers: dict[str, str] = UPSTREAM["selectors"]
    wrong = {
        expression: (answer, ours)
        for expression, answer in answers.items()
        if (ours := upstream_cel.ours(expression, DEVICES)) != answer
    }
    assert len(answers) > 2400
    assert wrong == {}


@pytest.mark.parametrize(("expression", "answers"), UPSTREAM["differences"].items())
def test_a_documented_difference_is_as_documented(expression: str, answers: dict[str, Any]) -> None:
    assert upstream_cel.ours(expression, DEVICES) == answers["ours"] != answers["upstream"]


def test_every_reason_for_a_difference_is_explained() -> None:
    page = (Path(__file__).parents[2] / "docs" / "development" / "dra-cel.md").read_text(encoding="utf-8")
    unexplained = {
        answers["why"] for answers in UPSTREAM["differences"].values() if f"**{answers['why']}**" not in page
    }
    assert unexplained == set()
