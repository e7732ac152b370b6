"""The types of fields of ``resource.k8s.io/v1``, from which pydantic reads manifests, and the errors of that."""

from __future__ import annotations

import marshal
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, TypeVar

import pydantic
from pydantic import BeforeValidator, ConfigDict, FailFast, Field, PlainValidator

from devalloc.api.json_content import escape_invalid_unicode
from devalloc.api.quantity import QuantityError, type_name
from devalloc_solver.dialects.resource_k8s.quantities import Amount

NUMBER_LIMIT = 2**64
"""The first whole number that no field can be."""
MAX_SHARED = 4096


class FieldError(ValueError):
    """Content that is not what the field takes; ``path`` says which field."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path} {message}" if path else message)
        self.path = path
        self.message = message


class SelectorError(FieldError):
    """A node selector that Kubernetes refuses: it is unknown which nodes it means."""


class Strict:
    """Base of parts of manifests in which an unknown field is an error: to ignore it may change the answer."""

    __slots__ = ()
    __pydantic_config__ = ConfigDict(extra="forbid", arbitrary_types_allowed=True)


class Tolerant:
    """Base of parts of manifests that may have any other fields."""

    __slots__ = ()
    __pydantic_config__ = ConfigDict(extra="ignore", arbitrary_types_allowed=True)


def short_text(value: object) -> str:
    """A value of any kind as short text, whatever its size and depth."""
    if isinstance(value, str):
        return escape_invalid_unicode(value)
    if isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < NUMBER_LIMIT):
        return str(value)
    return type_name(value)


def read_amount(value: object) -> Amount:
    """A quantity. Raises QuantityError."""
    if isinstance(value, int) and abs(value) >= 10**30:
        raise QuantityError("is too large for a quantity")
    return _parse_quantity(value) if type(value) is str else Amount.parse(value)


@lru_cache(maxsize=4096)
def _parse_quantity(text: str) -> Amount:
    """Devices have much the same amounts."""
    return Amount.parse(text)


def _require_list(value: object) -> object:
    if not isinstance(value, list):
        raise ValueError(f"must be a list, not {type_name(value)}")
    return value


def _read_label(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be a string, not {type_name(value)}: write it in quotes")
    return short_text(value)


def _is_given(value: object) -> bool:
    return value is not None


def _ignore(_: object) -> None:
    return None


T = TypeVar("T")
Text = Annotated[str, pydantic.Strict(), Field(min_length=0)]
"""Any text that can be encoded: pydantic looks at a text only if its length is limited."""
Needed = Annotated[str, pydantic.Strict(), Field(min_length=1)]
Flag = Annotated[bool, pydantic.Strict()]
Number = Annotated[int, pydantic.Strict(), Field(gt=-NUMBER_LIMIT, lt=NUMBER_LIMIT)]
AmountField = Annotated[Amount, PlainValidator(read_amount)]
Items = Annotated[tuple[T, ...], FailFast(), BeforeValidator(_require_list)]
Texts = Items[Text]
Amounts = dict[Text, AmountField]
Labels = dict[Text, Annotated[str, PlainValidator(_read_label)]]
Given = Annotated[bool, PlainValidator(_is_given)]
"""Whether the field is there, whatever it has."""
Ignored = Annotated[None, PlainValidator(_ignore)]
"""A field that has no part in an allocation."""

_shared: dict[bytes, Any] = {}


def share(content: Any, read: Callable[[Any], Any]) -> Any:
    """What ``read`` makes of a field; equal content is read once. For fields that many devices have alike.

    The fields that use this differ in their type of content, so that what one has is nothing that another reads.
    """
    try:
        key = marshal.dumps(content, 0)
    except ValueError:
        return read(content)
    value = _shared.get(key)
    if value is None:
        value = read(content)
        if len(_shared) >= MAX_SHARED:
            _shared.clear()
        _shared[key] = value
    return value
