"""Kubernetes' functions for strings and lists."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from devalloc_solver.cel.budget import Budget
from devalloc_solver.cel.devmgmt.functions import overload
from devalloc_solver.cel.devmgmt.standard_functions import integer, unsigned
from devalloc_solver.cel.devmgmt.values import Uint, equal, order_keys, type_name
from devalloc_solver.cel.errors import EvaluationError

_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_UPPER = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}
_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


def _char_at(text: str, at: int) -> str:
    if not 0 <= at <= len(text):
        raise EvaluationError(f"the index {at} is outside a string of {len(text)} characters")
    return text[at : at + 1]


def _find(text: str, part: str, start: int = 0) -> int:
    if start < 0:
        raise EvaluationError(f"the index {start} is negative")
    return text.find(part, start) if part else start


def _find_last(text: str, part: str) -> int:
    """``text.rfind(part)`` in linear time: Python searches forwards in linear time, but not backwards."""
    if len(part) < 8 or len(part) > len(text):
        return text.rfind(part)
    at = text[::-1].find(part[::-1])
    return at if at < 0 else len(text) - at - len(part)


def _replace(text: str, old: str, new: str, *rest: Any) -> str:
    count, budget = rest if len(rest) == 2 else (-1, *rest)
    budget.spend(len(text) + len(old))
    occurrences = text.count(old)
    budget.spend((occurrences if count < 0 else min(occurrences, count)) * len(new))
    return text.replace(old, new, max(count, -1))


def _split(text: str, separator: str, count: int = -1) -> list[str]:
    if count == 0:
        return []
    limit = count - 1 if count > 0 else -1
    if separator:
        return text.split(separator, limit)
    letters = list(text)
    return letters if limit < 0 or len(letters) <= count else [*letters[:limit], "".join(letters[limit:])]


def _join(items: list[Any], *rest: Any) -> str:
    separator, budget = rest if len(rest) == 2 else ("", *rest)
    budget.spend(len(items) * (1 + len(separator)))
    for item in items:
        if type(item) is not str:
            raise EvaluationError(f"join() puts strings together, not a {type_name(item)}")
        budget.spend(len(item))
    joined: str = separator.join(items)
    return joined


def _substring(text: str, start: int, end: int | None = None) -> str:
    stop = len(text) if end is None else end
    if not 0 <= start <= stop <= len(text):
        raise EvaluationError(f"no substring from {start} to {stop} in a string of {len(text)} characters")
    return text[start:stop]


def _index_of(items: list[Any], wanted: object, budget: Budget) -> int:
    budget.spend(len(items))
    return next((at for at, item in enumerate(items) if equal(item, wanted, budget)), -1)


def _last_index_of(items: list[Any], wanted: object, budget: Budget) -> int:
    budget.spend(len(items))
    backwards = range(len(items) - 1, -1, -1)
    return next((at for at in backwards if equal(items[at], wanted, budget)), -1)


def _is_sorted(items: list[Any], budget: Budget) -> bool:
    budget.spend(len(items))
    for left, right in pairwise(items):
        one, other = order_keys(left, right, budget)
        if one > other:
            return False
    return True


def _extreme(items: list[Any], budget: Budget, smallest: bool) -> Any:
    budget.spend(len(items))
    if not items:
        raise EvaluationError("an empty list has no smallest or largest element")
    extreme = items[0]
    for item in items[1:]:
        one, other = order_keys(item, extreme, budget)
        if (one < other) if smallest else (one > other):
            extreme = item
    return extreme


def _sum(items: list[Any]) -> Any:
    kinds = {type(item) for item in items} or {int}
    if len(kinds) > 1 or not kinds <= {int, float, Uint}:
        names = sorted({type_name(item) for item in items})
        raise EvaluationError(f"sum() adds numbers of one type, not {' and '.join(names)}")
    if kinds == {float}:
        return float(sum(items))
    total = sum(int(item) for item in items)
    return unsigned(total) if kinds == {Uint} else integer(total)


FUNCTIONS = (
    overload("string.charAt(int) -> string", _char_at),
    overload("string.indexOf(string) -> int", _find, "-1 when it is not there"),
    overload("string.indexOf(string, int) -> int", _find, "from an index on"),
    overload("string.lastIndexOf(string) -> int", _find_last, "-1 when it is not there"),
    overload("string.lowerAscii() -> string", lambda text: text.translate(_LOWER)),
    overload("string.upperAscii() -> string", lambda text: text.translate(_UPPER)),
    overload("string.replace(string, string) -> string", _replace, budgeted=True),
    overload("string.replace(string, string, int) -> string", _replace, "at most so many times", budgeted=True),
    overload("string.split(string) -> list", _split),
    overload("string.split(string, int) -> list", _split, "into at most so many parts"),
    overload("string.substring(int) -> string", _substring),
    overload("string.substring(int, int) -> string", _substring, "from start up to but without end"),
    overload("string.trim() -> string", lambda text: text.strip(_SPACE)),
    overload("list.join() -> string", _join, budgeted=True),
    overload("list.join(string) -> string", _join, budgeted=True),
    overload("list.indexOf(dyn) -> int", _index_of, "-1 when it is not there", budgeted=True),
    overload("list.lastIndexOf(dyn) -> int", _last_index_of, "-1 when it is not there", budgeted=True),
    overload("list.isSorted() -> bool", _is_sorted, budgeted=True),
    overload("list.max() -> dyn", lambda items, budget: _extreme(items, budget, smallest=False), budgeted=True),
    overload("list.min() -> dyn", lambda items, budget: _extreme(items, budget, smallest=True), budgeted=True),
    overload("list.sum() -> dyn", _sum, "of int, uint or double; 0 when empty"),
)
