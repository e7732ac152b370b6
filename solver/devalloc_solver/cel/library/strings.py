"""Strings and regular expressions. Positions count characters (code points)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

from devalloc_solver.cel.errors import EvaluationError
from devalloc_solver.cel.registry import INT, LIST, STRING, Overload, Preparable
from devalloc_solver.cel.values import CHARACTERS_PER_UNIT, Frame, short_text, type_name

_SPACES = "".join(
    map(chr, (*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000))
)
_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_UPPER = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}
ESCAPES = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    "\\": "\\\\",
    '"': '\\"',
}
"""Characters that have a short form within quotes."""

_QUOTED = str.maketrans(ESCAPES)

_PATTERN_COST = 25
"""What a pattern costs besides its instructions, kept or not: the cost must not depend on what a cache holds."""

_MATCH_COST = 10


@dataclass(frozen=True, slots=True)
class PatternBounds:
    """What a pattern may need, and what it costs."""

    memory: int
    """bytes of a compiled pattern; one that needs more is an error of the evaluation"""
    too_large: int
    """what it costs to find that out"""
    instruction: int
    """what each instruction costs"""


@lru_cache(maxsize=256)
def compile_pattern(text: str, bounds: PatternBounds) -> Any:
    """A compiled regular expression (RE2: linear time). Raises EvaluationError."""
    re2: Any = import_module("re2")  # only expressions that match patterns pay for the import
    options = re2.Options()
    options.log_errors = False
    options.max_mem = bounds.memory
    try:
        return re2.compile(text, options)
    except re2.error as error:
        why = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else error.args[0]
        raise EvaluationError(f"invalid regular expression {short_text(text)}: {why}") from None
    except UnicodeError:
        raise EvaluationError(f"the regular expression {short_text(text)} is not valid Unicode") from None


@lru_cache(maxsize=256)
def compile_with_costs(text: str, bounds: PatternBounds) -> tuple[Any, int, int]:
    """The compiled expression, what its instructions cost, and what each pass over a text does.

    Raises EvaluationError.
    """
    compiled = compile_pattern(text, bounds)
    size = compiled.programsize
    return compiled, bounds.instruction * size, 1 + max(len(text), size) // 4


MAX_SAFE_PATTERN = 200
"""Characters of a pattern of which it is certain that it costs little on the text of an attribute."""


def is_pattern(text: str) -> bool:
    """Whether a text is a pattern, and a short one without repetitions that make its program large."""
    if len(text) > MAX_SAFE_PATTERN or "{" in text:
        return False
    try:
        compile_pattern(text, PatternBounds(memory=1 << 20, too_large=0, instruction=1))
    except EvaluationError:
        return False
    return True


FREE_INSTRUCTIONS = 128
"""Instructions of the program of a literal pattern that no evaluation pays for: they are compiled once for all devices.
"""


def _compile_charged(frame: Frame, expression: str, bounds: PatternBounds) -> tuple[Any, int, int]:
    """``compile_with_costs``, and what that costs."""
    frame.spend(_PATTERN_COST + len(expression) // CHARACTERS_PER_UNIT)
    try:
        return compile_with_costs(expression, bounds)
    except EvaluationError as error:
        if "too large" in str(error):
            frame.spend(bounds.too_large)
        raise


def _passes(text: str, cost_of_pass: int) -> int:
    """What it costs to look for a pattern in a text."""
    return (1 + (1 + len(text)) // CHARACTERS_PER_UNIT) * cost_of_pass


def _compile_for(frame: Frame, text: str, expression: str, bounds: PatternBounds) -> Any:
    """The compiled expression, to be looked for once in a text. Both are charged."""
    compiled, cost, cost_of_pass = _compile_charged(frame, expression, bounds)
    frame.spend(cost + _passes(text, cost_of_pass))
    return compiled


def _is_in(text: str, search: Callable[[bytes], Any]) -> bool:
    """Searches bytes: where in the text the pattern matches, which takes longer to find out, does not matter."""
    try:
        return search(text.encode()) is not None
    except UnicodeError:
        raise EvaluationError(f"the string {short_text(text)} is not valid Unicode") from None


@dataclass(frozen=True, slots=True)
class _Matches(Preparable):
    """``matches``. A pattern that is made anew for each device is compiled and charged each time."""

    bounds: PatternBounds

    def __call__(self, frame: Frame, text: str, expression: str) -> bool:
        return _is_in(text, _compile_for(frame, text, expression, self.bounds).search)

    def prepare(self, literal: str) -> Callable[[Frame, str], bool]:
        search: Callable[[bytes], Any] | None = None
        cost_of_all = cost_of_pass = 0

        def matches(frame: Frame, text: str) -> bool:
            nonlocal search, cost_of_all, cost_of_pass
            if search is None:
                compiled, cost, cost_of_pass = _compile_charged(frame, literal, self.bounds)
                cost = max(0, cost - self.bounds.instruction * FREE_INSTRUCTIONS)
                cost_of_all, search = _PATTERN_COST + len(literal) // CHARACTERS_PER_UNIT + cost, compiled.search
                frame.spend(cost + _passes(text, cost_of_pass))
            else:
                frame.spend(cost_of_all + _passes(text, cost_of_pass))
            return _is_in(text, search)

        return matches


def pattern_functions(bounds: PatternBounds) -> tuple[Overload, ...]:
    """The functions that search for patterns. Both compiling and searching cost what the program of a pattern is; of a
    literal of ``matches``, which is compiled once, compiling does only beyond FREE_INSTRUCTIONS."""

    def search(frame: Frame, text: str, expression: str) -> Any:
        try:
            return _compile_for(frame, text, expression, bounds).search(text)
        except UnicodeError:
            raise EvaluationError(f"the string {short_text(text)} is not valid Unicode") from None

    def find(frame: Frame, text: str, expression: str) -> str:
        match = search(frame, text, expression)
        return match.group(0) if match else ""

    def find_all(frame: Frame, text: str, expression: str, limit: int = -1) -> list[str]:
        compiled = _compile_for(frame, text, expression, bounds)
        matches: list[str] = []
        last = -1
        for match in compiled.finditer(text):
            if len(matches) == limit:
                break
            start, end = match.span()
            if start == end == last:  # no empty match right after another
                continue
            last = end
            frame.spend(_MATCH_COST)
            matches.append(match.group(0))
        return matches

    return (
        ("matches", (STRING, STRING), _Matches(bounds)),
        ("find", (STRING, STRING), find),
        ("findAll", (STRING, STRING), find_all),
        ("findAll", (STRING, STRING, INT), find_all),
    )


def _contains(frame: Frame, text: str, part: str) -> bool:
    frame.pass_over(len(text))
    return part in text


def _char_at(_: Frame, text: str, index: int) -> str:
    if not 0 <= index <= len(text):
        raise EvaluationError(f"index out of range: {index}")
    return text[index : index + 1]


def _index_of(frame: Frame, text: str, part: str, offset: int = 0) -> int:
    frame.pass_over(len(text))
    if offset < 0:
        raise EvaluationError(f"index out of range: {offset}")
    if not part:
        return min(offset, len(text))
    return text.find(part, offset)


def find_last(text: str, part: str) -> int:
    """``text.rfind(part)`` in linear time: Python searches forwards in linear time, but not backwards."""
    if len(part) < 8 or len(part) > len(text):
        return text.rfind(part)
    at = text[::-1].find(part[::-1])
    return at if at < 0 else len(text) - at - len(part)


def _last_index_of(frame: Frame, text: str, part: str) -> int:
    frame.pass_over(2 * len(text))
    return find_last(text, part)


def _last_index_of_from(frame: Frame, text: str, part: str, offset: int) -> int:
    frame.pass_over(len(text))
    if offset < 0:
        raise EvaluationError(f"index out of range: {offset}")
    if not part:
        return min(offset, len(text))
    return -1 if offset >= len(text) else find_last(text[: offset + len(part)], part)


def _replace(frame: Frame, text: str, old: str, new: str, limit: int = -1) -> str:
    count = text.count(old) if limit < 0 else min(text.count(old), limit)
    frame.pass_over(2 * len(text) + count * len(new))
    return text.replace(old, new, count)


def _split(frame: Frame, text: str, separator: str, limit: int = -1) -> list[str]:
    frame.pass_over(2 * len(text))
    if limit == 0:
        return []
    if not separator:
        if limit < 0 or limit >= len(text):
            return list(text)
        return [*text[: limit - 1], text[limit - 1 :]]
    return text.split(separator, limit - 1 if limit > 0 else -1)


def _join(frame: Frame, items: list[Any], separator: str = "") -> str:
    frame.spend(len(items))
    for item in items:
        if type(item) is not str:
            raise EvaluationError(f"join() puts strings together, not a {type_name(item)}")
    frame.pass_over(sum(map(len, items)) + len(separator) * len(items))
    return separator.join(items)


def _substring(frame: Frame, text: str, start: int, end: int | None = None) -> str:
    frame.pass_over(len(text))
    if end is None:
        end = len(text)
        if start > end:
            raise EvaluationError(f"index out of range: {start}")
    if start > end:
        raise EvaluationError(f"invalid substring range: {start} to {end}")
    if start < 0 or end > len(text):
        raise EvaluationError(f"index out of range: {start if start < 0 else end}")
    return text[start:end]


def _change_case(table: dict[int, int], of_ascii: Callable[[str], str]) -> Any:
    def change(frame: Frame, text: str) -> str:
        frame.pass_over(len(text))
        return of_ascii(text) if text.isascii() else text.translate(table)

    return change


def _quote(frame: Frame, text: str) -> str:
    frame.pass_over(len(text))
    return f'"{text.translate(_QUOTED)}"'


def _trim(frame: Frame, text: str) -> str:
    frame.pass_over(len(text))
    return text.strip(_SPACES)


def _starts_with(frame: Frame, text: str, part: str) -> bool:
    frame.pass_over(len(part))
    return text.startswith(part)


def _ends_with(frame: Frame, text: str, part: str) -> bool:
    frame.pass_over(len(part))
    return text.endswith(part)


FUNCTIONS: tuple[Overload, ...] = (
    ("contains", (STRING, STRING), _contains),
    ("startsWith", (STRING, STRING), _starts_with),
    ("endsWith", (STRING, STRING), _ends_with),
    ("charAt", (STRING, INT), _char_at),
    ("indexOf", (STRING, STRING), _index_of),
    ("indexOf", (STRING, STRING, INT), _index_of),
    ("lastIndexOf", (STRING, STRING), _last_index_of),
    ("lastIndexOf", (STRING, STRING, INT), _last_index_of_from),
    ("join", (LIST,), _join),
    ("join", (LIST, STRING), _join),
    ("lowerAscii", (STRING,), _change_case(_LOWER, str.lower)),
    ("upperAscii", (STRING,), _change_case(_UPPER, str.upper)),
    ("replace", (STRING, STRING, STRING), _replace),
    ("replace", (STRING, STRING, STRING, INT), _replace),
    ("split", (STRING, STRING), _split),
    ("split", (STRING, STRING, INT), _split),
    ("strings.quote", (STRING,), _quote),
    ("substring", (STRING, INT), _substring),
    ("substring", (STRING, INT, INT), _substring),
    ("trim", (STRING,), _trim),
)
