"""A form of table: how it is recognised, and how its cases are judged."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class _Nothing:
    """What stands where there is no value."""

    def __repr__(self) -> str:
        return "nothing"


NOTHING = _Nothing()


@dataclass(frozen=True)
class Failure:
    """Where a case went wrong."""

    expected: Any
    got: Any
    step: str = ""
    """Which step of the case, and the path of the value in it."""


@dataclass(frozen=True)
class CaseVerdict:
    """What became of one case; without failures it holds."""

    name: str
    failures: list[Failure] = field(default_factory=list)
    unjudged: str = ""
    """Why nothing was judged: told, and never counted as a case that holds."""


@dataclass(frozen=True)
class TableForm:
    """A kind of table. It is recognised by content alone: what files are called says nothing."""

    name: str
    fits: Callable[[dict[str, Any]], bool]
    judge: Callable[[dict[str, Any]], Iterable[CaseVerdict]]
    sections: Callable[[str], bool] | None = None
    """Where a table may have sections of several forms: which of its names are of this one. None: all is."""


def section(name: str, key: str, judge: Callable[[dict[str, Any]], Iterable[CaseVerdict]]) -> TableForm:
    """A form that is one section of a table, and may stand beside others."""
    return TableForm(name, lambda content: key in content, judge, sections=lambda other: other == key)


def unjudged(content: dict[str, Any], names: Iterable[str], why: str) -> Iterator[CaseVerdict]:
    """Those of a table's values that devalloc has nothing to hold against, by their names."""
    yield from (CaseVerdict(name, unjudged=why) for name in names if name in content)


def verdict(name: str, expected: Any, judge: Callable[[], Any], *, step: str = "") -> CaseVerdict:
    """One case of one question. A judge that breaks has not answered."""
    try:
        got = judge()
    except Exception as error:
        return CaseVerdict(name, [Failure(expected, explained(error), step)])
    return CaseVerdict(name, differences(expected, got, step))


def differences(expected: Any, got: Any, where: str = "") -> list[Failure]:
    """Each value that is not as expected, with its path. Floats are equal to 1e-9 relative."""
    if isinstance(expected, dict) and isinstance(got, dict):
        failures = []
        for name in [*expected, *(name for name in got if name not in expected)]:
            path = f"{where}.{name}" if where else str(name)
            failures += differences(expected.get(name, NOTHING), got.get(name, NOTHING), path)
        return failures
    if isinstance(expected, (list, tuple)) and isinstance(got, (list, tuple)) and len(expected) == len(got):
        pairs = enumerate(zip(expected, got, strict=True))
        return [one for number, pair in pairs for one in differences(*pair, f"{where}[{number}]")]
    return [] if _same(expected, got) else [Failure(expected, got, where)]


def _same(expected: Any, got: Any) -> bool:
    if isinstance(expected, bool) or isinstance(got, bool):
        return expected is got
    if isinstance(expected, float) or isinstance(got, float):
        numbers = isinstance(expected, (int, float)) and isinstance(got, (int, float))
        return numbers and math.isclose(expected, got, rel_tol=1e-9, abs_tol=0)
    return bool(expected == got)


def has_cases(content: dict[str, Any], *paths: str) -> bool:
    """Whether any case has something at each of these paths, such as ``input.computeUnit``."""
    cases = content.get("cases")
    return isinstance(cases, list) and any(all(has(case, path) for path in paths) for case in cases)


def has(case: Any, path: str) -> bool:
    """Whether there is something at a path such as ``input.computeUnit``."""
    for name in path.split("."):
        if not isinstance(case, dict) or name not in case:
            return False
        case = case[name]
    return True


def each(
    cases: list[dict[str, Any]], judge: Callable[[dict[str, Any]], CaseVerdict], kind: str = "case"
) -> Iterator[CaseVerdict]:
    """Judge every case; one that cannot even be read is a failure of that case. Who has no name is called by number."""
    if not isinstance(cases, list):
        yield CaseVerdict(kind, [Failure("a list", cases)])
        return
    for number, case in enumerate(cases, 1):
        name = f"{kind} {number}"
        if not isinstance(case, dict):
            yield CaseVerdict(name, [Failure("an object", case)])
            continue
        name = str(case.get("name", name))
        try:
            yield judge({**case, "name": name})
        except Exception as error:
            yield CaseVerdict(name, [Failure("a case that can be read", explained(error))])


def explained(error: Exception) -> str:
    """An error of the judge, and where it was."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    missing = f"there is no {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
    return f"{missing} ({Path(place.filename).name}:{place.lineno})"
