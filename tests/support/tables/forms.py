"""A form of table: how it is recognised, and how its cases are judged."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Failure:
    """Where a case went wrong."""

    expected: Any
    got: Any
    step: str = ""


@dataclass(frozen=True)
class Verdict:
    """What became of one case; without failures it holds."""

    name: str
    failures: list[Failure] = field(default_factory=list)


@dataclass(frozen=True)
class Form:
    """A kind of table. It is recognised by content alone: what files are called says nothing."""

    name: str
    fits: Callable[[dict[str, Any]], bool]
    judge: Callable[[dict[str, Any]], Iterable[Verdict]]
    sections: Callable[[str], bool] | None = None
    """Where a table may have sections of several forms: which of its names are of this one. None: all is."""


def verdict(name: str, expected: Any, judge: Callable[[], Any], *, step: str = "") -> Verdict:
    """One case of one question. A judge that breaks has not answered."""
    try:
        got = judge()
    except Exception:
        got = traceback.format_exc(limit=-3).strip()
        return Verdict(name, [Failure(expected, got, step)])
    return Verdict(name, [] if alike(expected, got) else [Failure(expected, got, step)])


def alike(expected: Any, got: Any) -> bool:
    """Equal, with floats to 1e-9 relative."""
    if isinstance(expected, dict) and isinstance(got, dict):
        return expected.keys() == got.keys() and all(alike(value, got[key]) for key, value in expected.items())
    if isinstance(expected, (list, tuple)) and isinstance(got, (list, tuple)):
        return len(expected) == len(got) and all(alike(*pair) for pair in zip(expected, got, strict=True))
    if isinstance(expected, bool) or isinstance(got, bool):
        return expected is got
    if isinstance(expected, float) or isinstance(got, float):
        numbers = isinstance(expected, (int, float)) and isinstance(got, (int, float))
        return numbers and math.isclose(expected, got, rel_tol=1e-9, abs_tol=0)
    return bool(expected == got)


def has_cases(content: dict[str, Any], *paths: str) -> bool:
    """Whether the first case (or every one) has something at each of these paths, such as ``input.computeUnit``."""
    cases = content.get("cases")
    return isinstance(cases, list) and bool(cases) and all(_has(cases[0], path) for path in paths)


def _has(case: Any, path: str) -> bool:
    for name in path.split("."):
        if not isinstance(case, dict) or name not in case:
            return False
        case = case[name]
    return True


def each(cases: list[dict[str, Any]], judge: Callable[[dict[str, Any]], Verdict]) -> Iterator[Verdict]:
    """Judge every case; one that cannot even be read is a failure of that case."""
    for number, case in enumerate(cases):
        name = str(case.get("name", f"case {number + 1}")) if isinstance(case, dict) else f"case {number + 1}"
        try:
            yield judge(case)
        except Exception:
            yield Verdict(name, [Failure("a case that can be read", traceback.format_exc(limit=-3).strip())])
