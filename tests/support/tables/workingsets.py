"""Working sets: where growth speeds up, and what they will soon have grown to.

A case is a series (its only list), the number that is expected, and either how to estimate (offset, window, factor) or
how far to project. Tables name these numbers and nest them in several ways, so each is found by a word of its path;
what a case does not say its table does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from devalloc.scaling.goals import INCREASE_FACTOR, LOOK_AHEAD, estimate_working_set, projected_growth
from tests.support.tables.path_words import PathWords
from tests.support.tables.table_form import CaseVerdict, TableForm, each, verdict
from tests.support.tables.values import number


def _working_sets(content: dict[str, Any]) -> Iterator[CaseVerdict]:
    for name, value in content.items():
        if _is_section(value):
            yield from _judged(value, PathWords({}), name)
        elif isinstance(value, dict):
            shared = PathWords({key: inner for key, inner in value.items() if not isinstance(inner, list)})
            for key, inner in value.items():
                if _is_section(inner):
                    yield from _judged(inner, shared, f"{name}.{key}")


def _judged(cases: list[Any], shared: PathWords, section: str) -> Iterator[CaseVerdict]:
    def one(case: dict[str, Any]) -> CaseVerdict:
        words = PathWords({key: value for key, value in case.items() if not isinstance(value, (str, list))}, shared)
        series, expected = _series(case), float(words.number("expect"))
        if words.has("window"):
            offset, window = int(words.number("offset")), int(words.number("window"))
            factor = words.number("factor", otherwise=INCREASE_FACTOR)
            return verdict(case["name"], expected, lambda: float(estimate_working_set(series, offset, window, factor)))
        if not words.has("len") and "project" not in section:
            raise ValueError("a window, or the length of a projection, must be given")
        ahead = words.number("len", otherwise=LOOK_AHEAD)
        return verdict(case["name"], expected, lambda: float(projected_growth(series, ahead)))

    yield from each(cases, one, section)


def _is_section(cases: Any) -> bool:
    return isinstance(cases, list) and any(isinstance(case, dict) and _has_series(case) for case in cases)


def _has_series(case: dict[str, Any]) -> bool:
    expected = [value for name, value in case.items() if "expect" in str(name).lower()]
    return len(_lists(case)) == 1 and len(expected) == 1 and isinstance(expected[0], (int, float))


def _series(case: dict[str, Any]) -> list[float]:
    lists = _lists(case)
    if len(lists) != 1:
        raise ValueError(f"there must be one series, not {len(lists)}")
    return [float(number(value)) for value in lists[0]]


def _lists(case: dict[str, Any]) -> list[list[Any]]:
    return [value for value in case.values() if isinstance(value, list)]


def _fits(content: dict[str, Any]) -> bool:
    inner = [value for part in content.values() if isinstance(part, dict) for value in part.values()]
    return any(map(_is_section, [*content.values(), *inner]))


FORMS = [TableForm("working sets", _fits, _working_sets)]
