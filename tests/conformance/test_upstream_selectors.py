"""Selectors against upstream's own CEL: the kept answers against the program that is built from the pinned Go module
(``make built-upstream``), and random expressions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import upstream_cel


def explained(expression: str) -> bool:
    """Whether docs/development/dra-cel.md may explain a difference: versions in lists, min and max of mixed lists."""
    version = any(name in expression for name in ("ersion", "firmware"))
    attribute = "lists.example.com" in expression and (".min()" in expression or ".max()" in expression)
    return "versions" in expression or (version and " in " in expression) or attribute


@pytest.fixture(scope="module")
def program() -> Path:
    path = upstream_cel.built_binary()
    if path is None:
        pytest.skip("upstream's CEL is not built here: make built-upstream")
    return path


def test_the_kept_answers_are_those_of_the_pinned_release(program: Path, tmp_path: Path) -> None:
    stored = upstream_cel.kept_answers()
    differences = {expression: answers["upstream"] for expression, answers in stored["differences"].items()}
    expected = stored["selectors"] | differences
    answers = upstream_cel.theirs(program, expected, stored["devices"], tmp_path)
    assert dict(zip(expected, answers, strict=True)) == expected
    drawn = upstream_cel.theirs(program, upstream_cel.random_expressions(), stored["devices"], tmp_path)
    assert " ".join(drawn) == stored["random"]["answers"]


def test_random_selectors_get_upstreams_answers() -> None:
    stored = upstream_cel.kept_answers()
    expressions = upstream_cel.random_expressions()
    assert upstream_cel.digest(expressions) == stored["random"]["digest"], "python -m tests.support.upstream_cel record"
    theirs = stored["random"]["answers"].split()
    own = upstream_cel.cel_devices(stored["devices"])
    ours = [upstream_cel.ours(expression, own) for expression in expressions]
    different = [row for row in zip(expressions, theirs, ours, strict=True) if row[1] != row[2]]
    assert [row for row in different if not explained(row[0])] == []
    assert len(different) < len(expressions) // 300
    letters = "".join(theirs)
    assert min(letters.count(letter) for letter in "TFEC") > len(expressions) // 10
