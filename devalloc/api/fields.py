"""The base of every API object, and the field types they share."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel
from pydantic_core import InitErrorDetails, PydanticCustomError

from devalloc.api import semver
from devalloc.api.quantity import MAX_LENGTH, Quantity, type_name
from devalloc.api.semver import SemVer

INT64_MAX = 2**63 - 1

_DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_DNS_LABEL}(\.{_DNS_LABEL})*", re.ASCII)
_LABEL = re.compile(_DNS_LABEL, re.ASCII)
_PLAIN = re.compile(r"[^\x00-\x1f\x7f]+")


class ApiModel(BaseModel):
    """Base of all API types: immutable, JSON names in camelCase, unknown fields refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        arbitrary_types_allowed=True,
        strict=True,
        defer_build=True,  # the first object of a kind builds its validator, not the import
    )

    def to_manifest(self) -> dict[str, Any]:
        """This object as JSON-able content: camelCase names, canonical quantities, unset fields left out."""
        content: dict[str, Any] = self.model_dump(by_alias=True, exclude_none=True, exclude_unset=True)
        fields = type(self).model_fields
        identity = {camel: getattr(self, name) for name, camel in _IDENTITY if name in fields}
        return identity | content


M = TypeVar("M", bound=ApiModel)


_set = object.__setattr__
"""models are frozen"""


def built(model: type[M], fields: dict[str, Any], given: set[str]) -> M:
    """An object of fields that are valid, all of them: what ``model_construct`` does, at a fraction of its cost."""
    made = model.__new__(model)
    _set(made, "__dict__", fields)
    _set(made, "__pydantic_fields_set__", given)
    _set(made, "__pydantic_extra__", None)
    _set(made, "__pydantic_private__", None)
    return made


def with_fields(model: M, fields: Mapping[str, Any]) -> M:
    """A copy in which these fields have these values, which are valid: ``model_copy``, at a fraction of its cost."""
    return built(type(model), {**model.__dict__, **fields}, model.__pydantic_fields_set__.union(fields))


_IDENTITY = (("api_version", "apiVersion"), ("kind", "kind"))
"""Written even where they are the model's defaults: content without them could not be read back."""


def subdomain_name(value: object) -> object:
    if not isinstance(value, str) or len(value) > 253 or _SUBDOMAIN.fullmatch(value) is None:
        raise ValueError(
            f"must be a DNS name (lower-case letters, digits, '-' and '.', at most 253), not {shown(value)}"
        )
    return value


def label_name(value: object) -> object:
    if not isinstance(value, str) or len(value) > 63 or _LABEL.fullmatch(value) is None:
        raise ValueError(f"must be a DNS label (lower-case letters, digits and '-', at most 63), not {shown(value)}")
    return value


def plain_name(value: object) -> object:
    if not isinstance(value, str) or not 0 < len(value) <= 253 or _PLAIN.fullmatch(value) is None:
        raise ValueError(f"must be a text of 1 to 253 printable characters, not {shown(value)}")
    return value


def printable(text: str) -> str:
    """The text with everything escaped that would not show."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shown(value: object) -> str:
    """A value for a message, cut to one line."""
    text = repr(getattr(value, "text", value))
    return text if len(text) <= 60 else text[:57] + "..."


def described(value: object) -> str:
    """What a value is, and how it begins: of what has no name, this tells which one it is."""
    what = type_name(value)
    try:
        return f"{what} ({reprlib.repr(value)})" if isinstance(value, str | int | float | list) else what
    except ValueError:  # a number of so many digits is not written out
        return what


_MAC = re.compile(r"[0-9a-fA-F][02468aceACE](:[0-9a-fA-F]{2}){5}", re.ASCII)


def _mac(value: object) -> object:
    if not isinstance(value, str) or _MAC.fullmatch(value) is None or not value.strip("0:"):
        raise ValueError(f"must be a unicast MAC address such as '02:00:00:12:34:56' in quotes, not {shown(value)}")
    return value


def _object_name(value: object) -> object:
    if not isinstance(value, str) or not 0 < len(value) <= 253 or "/" in value or "%" in value or value in (".", ".."):
        raise ValueError(f"must be a name of 1 to 253 characters without '/' and '%', not {shown(value)}")
    return value


_SUFFIX = r"([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,4})?"


WORDS = "words"
"""In the JSON schema of a text: what is told where its pattern does not match, for CRDs."""


def pattern_schema(pattern: str, words: str, **bounds: int) -> WithJsonSchema:
    """Declares in the CRD what a validator of texts checks."""
    return WithJsonSchema({"type": "string", **bounds, "pattern": f"^{pattern}$", WORDS: words})


def _int_or_string(pattern: str, words: str, **bounds: int) -> WithJsonSchema:
    return WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "maxLength": MAX_LENGTH,
            "pattern": f"^{pattern}{_SUFFIX}$",
            WORDS: f"must be an amount such as 2, 500m, 1.5G or 10Gi{words}",
            **bounds,
        }
    )


QuantityField = Annotated[
    Quantity,
    BeforeValidator(Quantity.parse),
    PlainSerializer(str, return_type=str),
    _int_or_string(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)", ""),
]
NotNegative = Annotated[
    QuantityField, _int_or_string(r"(-[0.]+|\+?([0-9]+\.?[0-9]*|\.[0-9]+))", ", and not negative", minimum=0)
]
"""Declares in the CRD what ``not_negative`` checks."""
Positive = Annotated[
    QuantityField,
    _int_or_string(r"\+?([0-9]*[1-9][0-9]*\.?[0-9]*|[0-9]*\.[0-9]*[1-9][0-9]*)", ", and more than zero", minimum=1),
]
"""Declares in the CRD what ``positive`` checks."""
SemVerField = Annotated[
    SemVer,
    BeforeValidator(SemVer.parse),
    PlainSerializer(str, return_type=str),
    pattern_schema(semver.PATTERN, "must be a version such as 1.8.2", maxLength=semver.MAX_LENGTH),
]
Int64 = Annotated[int, Field(ge=-INT64_MAX - 1, le=INT64_MAX)]
SubdomainName = Annotated[
    str,
    BeforeValidator(subdomain_name),
    pattern_schema(
        rf"{_DNS_LABEL}(\.{_DNS_LABEL})*", "must be a name of lower-case letters, digits, '-' and '.'", maxLength=253
    ),
]
LabelName = Annotated[
    str,
    BeforeValidator(label_name),
    pattern_schema(_DNS_LABEL, "must be a name of lower-case letters, digits and '-'", maxLength=63),
]
PlainName = Annotated[
    str,
    BeforeValidator(plain_name),
    pattern_schema(_PLAIN.pattern, "must have no control characters", minLength=1, maxLength=253),
]

Text = Annotated[str, Field(max_length=253)]
"""A short text that may be empty."""
Expression = Annotated[str, Field(max_length=10 * 1024)]
"""A CEL expression (S6)."""
ObjectName = Annotated[str, BeforeValidator(_object_name)]
"""The name of an object of any API; some allow more than DNS names."""
Mac = Annotated[
    str,
    BeforeValidator(_mac),
    pattern_schema(_MAC.pattern, "must be a unicast MAC address such as '02:00:00:12:34:56'", maxLength=17),
]


Fault = tuple[tuple[str | int, ...], str]
"""Where below the value being validated (JSON names, keys, indexes), and what is wrong there."""


REFUSED: Final = "refused"
"""The type of the errors that ``refuse`` raises."""
RELATED: Final = "related"
"""The same for errors of how fields relate to each other: nothing is said of that while one of them is wrong."""


def refuse(faults: Iterable[Fault], kind: str = REFUSED) -> None:
    """Raise one validation error with all the faults, each at its own place; nothing when there are none.

    ``kind``: REFUSED or RELATED.
    """
    details = [
        InitErrorDetails(type=PydanticCustomError(kind, "{message}", {"message": message}), loc=loc, input=None)
        for loc, message in faults
    ]
    if details:
        raise ValidationError.from_exception_data("content", details)


def unique_by(*names: str) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A validator for lists whose entries differ in these fields (Python names), the keys of the list."""

    def key(item: Any) -> tuple[Any, ...]:
        return tuple(getattr(item, name) for name in names)

    def check(items: Sequence[Any]) -> Sequence[Any]:
        if len({key(item) for item in items}) < len(items):
            first: dict[tuple[Any, ...], int] = {}
            for i, item in enumerate(items):
                first.setdefault(key(item), i)
            refuse(
                ((i, to_camel(names[-1])), f"is taken: entry [{first[key(item)]}] has {shown(key(item)[-1])} already")
                for i, item in enumerate(items)
                if first[key(item)] != i
            )
        return items

    return check


unique_by_name = unique_by("name")


def positive(amounts: dict[str, Quantity]) -> dict[str, Quantity]:
    """A validator for maps of amounts."""
    faulty = {name: amount for name, amount in amounts.items() if amount.nano <= 0}
    refuse(((name,), f"must be more than zero, and is {amount}") for name, amount in faulty.items())
    return amounts


def _no_less_than_nothing(amount: Quantity) -> Quantity:
    if amount.nano < 0:
        raise ValueError(f"must not be negative, and is {amount}")
    return amount


AmountField = Annotated[NotNegative, AfterValidator(_no_less_than_nothing)]
"""One amount; maps of amounts are checked as a whole, by ``not_negative``."""


def not_negative(amounts: dict[str, Quantity]) -> dict[str, Quantity]:
    """A validator for maps of amounts."""
    faulty = {name: amount for name, amount in amounts.items() if amount.nano < 0}
    refuse(((name,), f"must not be negative, and is {amount}") for name, amount in faulty.items())
    return amounts
