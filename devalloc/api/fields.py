"""The base class of all API objects, and their common field types."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
    ValidationError,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError

from devalloc.api import semver
from devalloc.api.quantity import MAX_LENGTH, Quantity, type_name
from devalloc.api.semver import SemVer

INT64_MAX = 2**63 - 1

_DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_DNS_LABEL}(\.{_DNS_LABEL})*", re.ASCII)
_LABEL = re.compile(_DNS_LABEL, re.ASCII)
_OBJECT = re.compile(r"[^\x00-\x20\x7f/%\ud800-\udfff]+")
_PLAIN = re.compile(r"[^\x00-\x1f\x7f]+")


UNIT: Final = "unit"
"""Key in the JSON schema of a number: its unit, for documentation."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Declares the unit of a number, such as bytes."""

    name: str

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return handler(core_schema) | {UNIT: self.name}


class ApiModel(BaseModel):
    """Base of all API types: immutable, JSON names in camelCase, unknown fields refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        arbitrary_types_allowed=True,
        strict=True,
        defer_build=True,  # build the validator with the first object of a kind, not at import
    )

    @classmethod
    def accepts(cls, content: object) -> bool:
        """Whether content that others wrote is of this type."""
        try:
            cls.model_validate(content, by_alias=True, by_name=False)
        except ValidationError:
            return False
        return True

    def to_manifest(self) -> dict[str, Any]:
        """This object as JSON content: camelCase names, canonical quantities, no unset fields."""
        content: dict[str, Any] = self.model_dump(by_alias=True, exclude_none=True, exclude_unset=True)
        fields = type(self).model_fields
        identity = {camel: getattr(self, name) for name, camel in _IDENTITY if name in fields}
        return identity | content


def json_names(model: type[ApiModel]) -> tuple[str, ...]:
    """The names of a model's fields in JSON, in the order of the model."""
    return tuple(field.alias or name for name, field in model.model_fields.items())


def is_empty(value: object) -> bool:
    """Whether a field with this value says no more than one that is absent; 0 and false say something."""
    return value in (None, "", [], {})


_IDENTITY = (("api_version", "apiVersion"), ("kind", "kind"))
"""Fields that are written even if they have default values: without them, the content could not be read back."""


def is_subdomain_name(value: object) -> bool:
    """Whether it can be the name of an object of ours."""
    return isinstance(value, str) and len(value) <= 253 and _SUBDOMAIN.fullmatch(value) is not None


def subdomain_name(value: object) -> object:
    if not is_subdomain_name(value):
        raise ValueError(
            "must be a DNS name (lower-case letters, digits, '-' and '.', at most 253 characters), "
            f"not {quote_value(value)}"
        )
    return value


def is_label(value: object) -> bool:
    """Whether it is a DNS label."""
    return isinstance(value, str) and len(value) <= 63 and _LABEL.fullmatch(value) is not None


def label_name(value: object) -> object:
    if not is_label(value):
        raise ValueError(
            f"must be a DNS label (lower-case letters, digits and '-', at most 63 characters), not {quote_value(value)}"
        )
    return value


def plain_name(value: object) -> object:
    if not isinstance(value, str) or not 0 < len(value) <= 253 or _PLAIN.fullmatch(value) is None:
        raise ValueError(f"must be a string of 1 to 253 printable characters, not {quote_value(value)}")
    return value


def name_fault(text: str) -> str:
    """What is wrong with a text as a plain name; empty if nothing is."""
    try:
        plain_name(text)
    except ValueError as error:
        return str(error)
    return ""


def quote_value(value: object) -> str:
    """A value for a message, cut to one line."""
    text = repr(getattr(value, "text", value))
    return text if len(text) <= 60 else text[:57] + "..."


def describe_value(value: object) -> str:
    """The type and beginning of a value, to identify a value that has no name."""
    what = type_name(value)
    try:
        return f"{what} ({reprlib.repr(value)})" if isinstance(value, str | int | float | list) else what
    except ValueError:  # Python refuses to print a number with that many digits
        return what


_MAC = re.compile(r"[0-9a-fA-F][02468aceACE](:[0-9a-fA-F]{2}){5}", re.ASCII)


def _mac(value: object) -> object:
    if not isinstance(value, str) or _MAC.fullmatch(value) is None or not value.strip("0:"):
        raise ValueError(
            f"must be a unicast MAC address such as '02:00:00:12:34:56' in quotes, not {quote_value(value)}"
        )
    return value


def object_name(value: object) -> str:
    """What can be the name of an object of any API, and a part of a key. Raises ValueError for anything else."""
    if not isinstance(value, str) or len(value) > 253 or not _OBJECT.fullmatch(value) or value in (".", ".."):
        raise ValueError(f"must be a name of 1 to 253 characters without '/', '%' or spaces, not {quote_value(value)}")
    return value


_SUFFIX = r"([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,4})?"


PATTERN_MESSAGE = "words"
"""Key in the JSON schema of a text: the message for texts that do not match its pattern, for CRDs."""


def pattern_schema(pattern: str, words: str, **bounds: int) -> WithJsonSchema:
    """Declare a text validator's check in the CRD."""
    return WithJsonSchema({"type": "string", **bounds, "pattern": f"^{pattern}$", PATTERN_MESSAGE: words})


def _int_or_string(pattern: str, words: str, **bounds: int) -> WithJsonSchema:
    return WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "maxLength": MAX_LENGTH,
            "pattern": f"^{pattern}{_SUFFIX}$",
            PATTERN_MESSAGE: f"must be an amount such as 2, 500m, 1.5G or 10Gi{words}",
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
"""Declares the check of ``not_negative`` in the CRD."""
Positive = Annotated[
    QuantityField,
    _int_or_string(r"\+?([0-9]*[1-9][0-9]*\.?[0-9]*|[0-9]*\.[0-9]*[1-9][0-9]*)", ", and more than zero", minimum=1),
]
"""Declares the check of ``positive`` in the CRD."""
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
ObjectName = Annotated[str, BeforeValidator(object_name)]
"""The name of an object of any API; some APIs allow more than DNS names."""
Mac = Annotated[
    str,
    BeforeValidator(_mac),
    pattern_schema(_MAC.pattern, "must be a unicast MAC address such as '02:00:00:12:34:56'", maxLength=17),
]


FieldFault = tuple[tuple[str | int, ...], str]
"""A location inside the validated value (JSON names, keys, indexes), and the message."""


REFUSED: Final = "refused"
"""The type of the errors that ``raise_faults`` raises."""
RELATED: Final = "related"
"""The type for errors of how fields relate to each other; they are left out while one of the fields is wrong."""


def raise_faults(faults: Iterable[FieldFault], kind: str = REFUSED) -> None:
    """Raise one validation error with all the faults, each at its own place. Does nothing without faults.

    ``kind``: REFUSED or RELATED.
    """
    details = [
        InitErrorDetails(type=PydanticCustomError(kind, "{message}", {"message": message}), loc=loc, input=None)
        for loc, message in faults
    ]
    if details:
        raise ValidationError.from_exception_data("content", details)


def unique_by(*names: str) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A validator for lists whose entries must differ in these key fields (Python names)."""
    key, last = attrgetter(*names), attrgetter(names[-1])

    def check(items: Sequence[Any]) -> Sequence[Any]:
        if len({*map(key, items)}) < len(items):
            first: dict[Any, int] = {}
            for i, item in enumerate(items):
                first.setdefault(key(item), i)
            raise_faults(
                (
                    (i, to_camel(names[-1])),
                    f"is not unique: entry [{first[key(item)]}] already has {quote_value(last(item))}",
                )
                for i, item in enumerate(items)
                if first[key(item)] != i
            )
        return items

    return check


unique_by_name = unique_by("name")


def positive(amounts: dict[str, Quantity]) -> dict[str, Quantity]:
    """A validator for maps of amounts."""
    faulty = {name: amount for name, amount in amounts.items() if amount.nano <= 0}
    raise_faults(((name,), f"must be more than zero, but is {amount}") for name, amount in faulty.items())
    return amounts


def _reject_negative(amount: Quantity) -> Quantity:
    if amount.nano < 0:
        raise ValueError(f"must not be negative, but is {amount}")
    return amount


AmountField = Annotated[NotNegative, AfterValidator(_reject_negative)]
"""One amount; ``not_negative`` checks maps of amounts as a whole."""


def not_negative(amounts: dict[str, Quantity]) -> dict[str, Quantity]:
    """A validator for maps of amounts."""
    faulty = {name: amount for name, amount in amounts.items() if amount.nano < 0}
    raise_faults(((name,), f"must not be negative, but is {amount}") for name, amount in faulty.items())
    return amounts


def _reject_zero(amount: Quantity) -> Quantity:
    if amount.nano <= 0:
        raise ValueError(f"must be more than zero, but is {amount}")
    return amount


PositiveAmount = Annotated[Positive, AfterValidator(_reject_zero)]
Cpus = Annotated[PositiveAmount, Unit("CPUs")]
Bytes = Annotated[PositiveAmount, Unit("bytes")]
BytesPerSecond = Annotated[PositiveAmount, Unit("bytes/s")]
