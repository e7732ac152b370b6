"""Reading manifest content field by field, with the path in every complaint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from devalloc.api.json_content import (
    INVALID_UNICODE,
    ContentError,
    content_faults,
    escape_invalid_unicode,
    is_valid_unicode,
)
from devalloc.api.quantity import QuantityError, type_name
from devalloc.api.suggest import closest_match
from devalloc.api.validation.schema import RAW, format_path
from devalloc_solver.dialects.resource_k8s.quantities import Amount

T = TypeVar("T")

NUMBER_LIMIT = 2**64
"""The first whole number that no field can be."""

_KINDS: dict[type, str] = {str: "a string", bool: "a boolean", int: "a whole number", Mapping: "a map", list: "a list"}


class FieldError(ValueError):
    """Content that is not what the field takes; ``path`` says which field."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path} {message}" if path else message)
        self.path = path
        self.message = message


def short_text(value: object) -> str:
    """A value of any kind as short text, whatever its size and depth."""
    if isinstance(value, str):
        return escape_invalid_unicode(value)
    if isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < NUMBER_LIMIT):
        return str(value)
    return type_name(value)


class Fields:
    """One map of a manifest. Each method reads one field of it and raises FieldError for content of another kind.

    Null means that the field is absent. After the last field, call ``finish``: it reports unknown fields.
    """

    __slots__ = ("content", "path", "seen")

    def __init__(self, content: object, path: str) -> None:
        if content is None:
            content = {}
        if type(content) is not dict and not isinstance(content, Mapping):
            raise FieldError(path, f"must be a map, not {type_name(content)}")
        self.content: Mapping[str, Any] = content
        self.path = path
        self.seen: set[str] = set()

    def at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def has(self, name: str) -> bool:
        return self.content.get(name) is not None

    def _value(self, name: str, kind: type) -> Any:
        self.seen.add(name)
        value = self.content.get(name)
        if value is None:
            return None
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise FieldError(self.at(name), f"must be {_KINDS[kind]}, not {type_name(value)}")
        if isinstance(value, int) and abs(value) >= NUMBER_LIMIT:
            raise FieldError(self.at(name), "must be a whole number within 64 bits")
        if isinstance(value, str) and not is_valid_unicode(value):
            raise FieldError(self.at(name), INVALID_UNICODE)
        return value

    def text(self, name: str, default: str = "") -> str:
        value = self._value(name, str)
        return default if value is None else value

    def needed(self, name: str) -> str:
        value = self.text(name)
        if not value:
            raise FieldError(self.at(name), "is missing: every object of this kind has it")
        return value

    def optional(self, name: str) -> str | None:
        value: str | None = self._value(name, str)
        return value

    def flag(self, name: str) -> bool | None:
        value: bool | None = self._value(name, bool)
        return value

    def number(self, name: str, default: int) -> int:
        value = self._value(name, int)
        return default if value is None else value

    def amount(self, name: str) -> Amount | None:
        self.seen.add(name)
        value = self.content.get(name)
        return None if value is None else read_amount(value, self.at(name))

    def texts(self, name: str) -> tuple[str, ...]:
        items = self._value(name, list) or ()
        for index, item in enumerate(items):
            if not isinstance(item, str):
                raise FieldError(f"{self.at(name)}[{index}]", f"must be a string, not {type_name(item)}")
            if not is_valid_unicode(item):
                raise FieldError(f"{self.at(name)}[{index}]", INVALID_UNICODE)
        return tuple(items)

    def items(self, name: str) -> Iterator[tuple[Any, str]]:
        """The members of a list, each with its path."""
        for item, path in self.members(name):
            if item is None:
                raise FieldError(path, "must not be null")
        return self.members(name)

    def members(self, name: str) -> Iterator[tuple[Any, str]]:
        """The same where some may be null."""
        items = self._value(name, list) or ()
        return ((item, f"{self.at(name)}[{i}]") for i, item in enumerate(items))

    def pairs(self, name: str) -> Iterator[tuple[str, Any, str]]:
        """The entries of a map, each with its path."""
        mapping = self._value(name, Mapping) or {}
        for key in mapping:
            if not isinstance(key, str):
                raise FieldError(
                    self.at(name), f"has the key {short_text(key)}, which must be a string: write it in quotes"
                )
            if not is_valid_unicode(key):
                raise FieldError(self.at(name), f"has a key that {INVALID_UNICODE}: {key!r}")
        return ((key, value, f"{self.at(name)}[{key!r}]") for key, value in mapping.items())

    def labels(self, name: str) -> dict[str, str]:
        """A map of strings; an entry that is null is absent."""
        texts = {key: (value, path) for key, value, path in self.pairs(name) if value is not None}
        for value, path in texts.values():
            if not isinstance(value, str):
                raise FieldError(path, f"must be a string, not {type_name(value)}: write it in quotes")
        return {key: short_text(value) for key, (value, _) in texts.items()}

    def amounts(self, name: str) -> dict[str, Amount]:
        return {key: read_amount(value, path) for key, value, path in self.pairs(name)}

    def within(self, name: str) -> Fields:
        self.seen.add(name)
        return Fields(self.content.get(name), self.at(name))

    def given(self, name: str, read: Callable[[Fields], T]) -> T | None:
        """What ``read`` makes of a map, or None where there is none."""
        self.seen.add(name)
        return read(self.within(name)) if self.has(name) else None

    def copied(self, name: str) -> None:
        """A field that goes into answers as it is, so that it has to be JSON content that can be written."""
        self.seen.add(name)
        try:
            faults = content_faults(self.content.get(name))
        except ContentError as error:
            faults = [(error.loc, error.message)]
        for loc, message in faults:
            raise FieldError(format_path(RAW, (self.at(name), *loc)), message)

    def skip(self, *names: str) -> None:
        """Fields that are known and have no part in an allocation."""
        self.seen.update(names)

    def unknown(self) -> str | None:
        """The path of a field that was not read, or None."""
        return next((self.at(short_text(name)) for name in self.content if name not in self.seen), None)

    def finish(self) -> None:
        """Raises FieldError when something is left that no release up to 1.37 has."""
        if (path := self.unknown()) is not None:
            near = closest_match(path.rpartition(".")[2], self.seen)
            hint = "the solver cannot know what it means" if near is None else f"did you mean {near}?"
            raise FieldError(path, f"is not a known field of resource.k8s.io/v1: {hint}")


def read_amount(value: object, path: str) -> Amount:
    """A quantity. Raises FieldError."""
    if isinstance(value, int) and abs(value) >= 10**30:
        raise FieldError(path, "is too large for a quantity")
    try:
        return _parse_quantity(value) if type(value) is str else Amount.parse(value)
    except QuantityError as error:
        raise FieldError(path, str(error)) from None


@lru_cache(maxsize=4096)
def _parse_quantity(text: str) -> Amount:
    """Devices have much the same amounts."""
    return Amount.parse(text)
