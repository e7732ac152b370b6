"""Selectors against upstream's own CEL, built from the pinned Go module: the kept answers, and random expressions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import upstream_cel
from tests.support.go_build import Unavailable
from tests.support.random_selectors import selector

EXPRESSIONS = 3000


def explained(expression: str) -> bool:
    """Whether a difference may be one of docs/dra-cel.md: versions in lists, min and max of lists that mix types."""
    version = any(name in expression for name in ("ersion", "firmware"))
    attribute = "lists.example.com" in expression and (".min()" in expression or ".max()" in expression)
    return "versions" in expression or (version and " in " in expression) or attribute


@pytest.fixture(scope="module")
def program() -> Path:
    try:
        return upstream_cel.binary()
    except Unavailable as reason:
        pytest.skip(f"no program: {reason}")


def test_the_kept_answers_are_those_of_the_pinned_release(program: Path, tmp_path: Path) -> None:
    stored = upstream_cel.kept_answers()
    differences = {expression: answers["upstream"] for expression, answers in stored["differences"].items()}
    expected = stored["selectors"] | differences
    answers = upstream_cel.theirs(program, expected, stored["devices"], tmp_path)
    assert dict(zip(expected, answers, strict=True)) == expected


def test_random_selectors_get_upstreams_answers(program: Path, tmp_path: Path) -> None:
    devices = upstream_cel.kept_answers()["devices"]
    expressions = [selector(seed) for seed in range(100_000, 100_000 + EXPRESSIONS)]
    theirs = upstream_cel.theirs(program, expressions, devices, tmp_path)
    own = upstream_cel.cel_devices(devices)
    ours = [upstream_cel.ours(expression, own) for expression in expressions]
    different = [row for row in zip(expressions, theirs, ours, strict=True) if row[1] != row[2]]
    assert [row for row in different if not explained(row[0])] == []
    assert len(different) < EXPRESSIONS // 300
    letters = "".join(theirs)
    assert min(letters.count(letter) for letter in "TFEC") > EXPRESSIONS // 10
