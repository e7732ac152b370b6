"""Reading JSON text: one value or several in a row; numbers keep their text, and duplicate keys are reported."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from devalloc.api.json_content import MAX_DEPTH, MAX_FIELDS, DecimalFloat
from devalloc.api.validation.schema import Loc

_MAX_DIGITS = 400


class JsonError(ValueError):
    """Text that is not JSON; ``line`` counts from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


@dataclass(frozen=True, slots=True)
class JsonValue:
    """A value, the places of its duplicate keys, and the line in which it starts, from 1."""

    content: Any
    twice: list[Loc]
    line: int


def read_json(text: str) -> Iterator[JsonValue]:
    """The values of a text, up to the first error. Raises JsonError."""
    position = _skip_space(text, 0)
    line, counted = 1, 0
    while position < len(text):
        twice: dict[int, list[str]] = {}
        alive: list[dict[str, Any]] = []

        def hook(
            pairs: list[tuple[str, Any]], twice: dict[int, list[str]] = twice, alive: list[Any] = alive
        ) -> dict[str, Any]:
            if len(pairs) > MAX_FIELDS:
                raise ValueError(f"contains a map with more than {MAX_FIELDS} fields")
            content = dict(pairs)
            if len(content) < len(pairs):
                times = Counter(key for key, _ in pairs)
                twice[id(content)] = [key for key in content if times[key] > 1]
                alive.append(content)  # an id is valid only while its object exists
            return content

        decoder = json.JSONDecoder(
            object_pairs_hook=hook, parse_float=DecimalFloat, parse_int=_integer, parse_constant=_no_constant
        )
        line, counted = line + text.count("\n", counted, position), position
        try:
            content, end = decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            raise JsonError(f"is not valid JSON: {error.msg[:1].lower()}{error.msg[1:]}", error.lineno) from None
        except RecursionError:
            raise JsonError(f"is nested too deeply (more than {MAX_DEPTH} levels)", line) from None
        except ValueError as error:
            raise JsonError(str(error), line) from None
        yield JsonValue(content, list(_duplicate_key_locations(content, twice)) if twice else [], line)
        position = _skip_space(text, end)


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError("contains a number that is too long")
    return int(text)


def _no_constant(text: str) -> Any:
    raise ValueError(f"contains {text}, which is not a JSON number")


def _duplicate_key_locations(content: Any, twice: dict[int, list[str]]) -> Iterator[Loc]:
    stack: list[tuple[Loc, Any]] = [((), content)]
    while stack:
        loc, value = stack.pop()
        if isinstance(value, dict):
            yield from ((*loc, key) for key in twice.get(id(value), ()))
            stack += [((*loc, key), entry) for key, entry in value.items()]
        elif isinstance(value, list):
            stack += [((*loc, i), entry) for i, entry in enumerate(value)]
