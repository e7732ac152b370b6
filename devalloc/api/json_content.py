"""JSON content: what a document may contain, before anything interprets it."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from devalloc.api.quantity import type_name
from devalloc.api.validation.schema import Loc

MAX_DEPTH = 64
MAX_NODES = 2_000_000
MAX_FIELDS = 10_000
"""Maximum fields of one map: no object has more, and each unknown field is a problem of its own."""
MAX_INTEGER_BITS = 512

MAPPINGS = (dict, Mapping)
"""For ``isinstance``: nearly all maps are a dict, and asking the abstract class first takes five times as long."""

INVALID_UNICODE = "contains an invalid character (half of a surrogate pair)"


class DecimalFloat(float):
    """A JSON number with a fraction or exponent; ``text`` is its exact spelling."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> DecimalFloat:
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __reduce__(self) -> tuple[type[DecimalFloat], tuple[str]]:
        return type(self), (self.text,)


class ContentError(ValueError):
    """Content that exceeds the bounds at a location; nothing else about it is checked."""

    def __init__(self, loc: Loc, message: str) -> None:
        super().__init__(message)
        self.loc = loc
        self.message = message


def content_faults(content: object) -> list[tuple[Loc, str]]:
    """(location, message) of everything that is not JSON content or exceeds the bounds; empty for valid content.

    Works level by level, without recursion. Raises ContentError for content that is too deep or too large.
    """
    level: list[object] = [content]
    nodes = 0
    for _ in range(MAX_DEPTH):
        below: list[object] = []
        for container in level:
            if type(container) is dict:
                values = list(container.values())
                keys_fit = all(type(key) is str and is_valid_unicode(key) for key in container)
            else:
                values = container if type(container) is list else [container]
                keys_fit = True
            nodes += len(values)
            if nodes > MAX_NODES:
                raise ContentError((), f"is too large (more than {MAX_NODES} values)")
            if not keys_fit:
                return _locate_faults(content)
            for value in values:
                kind = type(value)
                if kind is dict or kind is list:
                    below.append(value)
                elif not (kind is str and value.isascii()) and _scalar_fault(value) is not None:
                    return _locate_faults(content)
        if not below:
            return []
        level = below
    return _locate_faults(content)


def _locate_faults(content: object) -> list[tuple[Loc, str]]:
    """The faults with their locations: the slow way, for content that has some."""
    faults: list[tuple[Loc, str]] = []
    level: list[tuple[Loc, object]] = [((), content)]
    nodes = 0
    for depth in range(MAX_DEPTH + 1):
        below: list[tuple[Loc, object]] = []
        for loc, value in level:
            nodes += 1
            if nodes > MAX_NODES:
                raise ContentError((), f"is too large (more than {MAX_NODES} values)")
            if isinstance(value, (dict, list)) and depth == MAX_DEPTH:
                raise ContentError(loc, f"is nested too deeply (more than {MAX_DEPTH} levels)")
            if isinstance(value, dict):
                for key, entry in value.items():
                    if not isinstance(key, str):
                        faults.append(((*loc, key), f"has a key that must be a string in quotes, not {type_name(key)}"))
                    elif (message := _scalar_fault(key)) is not None:
                        faults.append(((*loc, key), f"has a key that {message}"))
                    below.append(((*loc, key), entry))
            elif isinstance(value, list):
                below += [((*loc, i), entry) for i, entry in enumerate(value)]
            elif (message := _scalar_fault(value)) is not None:
                faults.append((loc, message))
        level = below
    return faults


def _scalar_fault(value: object) -> str | None:
    """The fault of a scalar, or None."""
    if isinstance(value, str):
        return None if is_valid_unicode(value) else INVALID_UNICODE
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, int):
        return None if value.bit_length() <= MAX_INTEGER_BITS else "is too large"
    if isinstance(value, float):
        return None if isfinite(value) else "must be a finite number"
    return f"must be JSON content, not {type_name(value)}"


def is_valid_unicode(text: str) -> bool:
    """False for a text with half a surrogate pair, which JSON can spell but nothing can encode."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def escape_invalid_unicode(text: str) -> str:
    """The text, with invalid Unicode escaped."""
    return text if is_valid_unicode(text) else text.encode(errors="backslashreplace").decode()
