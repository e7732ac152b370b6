"""VirtualMachine specs as messages of ``devalloc.node.v1`` and back, field for field.

A field of the model is the field of the same name in the message, with its unit behind it: ``pci_window`` of bytes is
``pci_window_bytes``. A new field of the model needs a line in ``node.proto`` and none here; a test compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from types import MappingProxyType
from typing import Any, get_args

from google.protobuf.message import Message

from devalloc.api.fields import ApiModel, Unit
from devalloc.api.quantity import NANO, Quantity

ELSEWHERE: Mapping[str, str] = MappingProxyType(
    {
        "claims": "claims of CreateMachineRequest and AdoptMachineRequest, with their UIDs",
        "adopt": "AdoptMachineRequest",
        "paused": "VirtualMachine objects only",
        "running": "CreateMachine starts a machine, StopMachine stops it",
    }
)
"""Fields of VirtualMachineSpec that no spec message has, and what says the same."""
_UNITS: Mapping[str, tuple[str, int]] = MappingProxyType(
    {"CPUs": ("_milli", NANO // 1000), "bytes": ("_bytes", NANO), "bytes/s": ("_bytes_per_second", NANO)}
)
"""How a message's field ends that is an amount of a unit, and how many nano units its number counts."""


@dataclass(frozen=True, slots=True)
class SpecField:
    """A field of a model as a message has it."""

    name: str
    """In the model."""
    alias: str
    """In manifests."""
    wire_name: str
    """In the message."""
    is_required: bool
    is_list: bool
    model: type[ApiModel] | None
    """Of the message that it is, or of those in its list."""
    is_quantity: bool
    nano: int | None
    """How many nano units its number counts; None for other fields, and for quantities without a unit, which are
    doubles."""


@cache
def spec_fields(model: type[ApiModel]) -> tuple[SpecField, ...]:
    """The fields of a model that messages have, in their order."""
    fields = []
    for name, info in model.model_fields.items():
        if name in ELSEWHERE:
            continue
        parts = [*_parts(info.annotation), *info.metadata]
        models = [part for part in parts if isinstance(part, type) and issubclass(part, ApiModel)]
        unit = next((part.name for part in parts if isinstance(part, Unit)), None)
        is_quantity = Quantity in parts
        suffix, nano = _UNITS[unit] if is_quantity and unit is not None else ("", None)
        fields.append(
            SpecField(
                name,
                info.alias or name,
                f"{name}{suffix}",
                info.is_required(),
                list in parts,
                models[0] if models else None,
                is_quantity,
                nano,
            )
        )
    return tuple(fields)


def _parts(annotation: Any) -> Iterator[Any]:
    """The types, and what is annotated, anywhere in an annotation."""
    yield annotation if not hasattr(annotation, "__origin__") else annotation.__origin__
    for part in get_args(annotation):
        yield from _parts(part)
    yield from getattr(annotation, "__metadata__", ())


def content_of(message: Message, model: type[ApiModel]) -> dict[str, Any]:
    """What a manifest says that says the same. Nothing is checked that the model checks.

    A field without presence that has its default value counts as not set, unless it is an amount that is required.
    """
    content: dict[str, Any] = {}
    for field in spec_fields(model):
        described = message.DESCRIPTOR.fields_by_name.get(field.wire_name)
        if described is None:
            continue
        value = getattr(message, field.wire_name)
        if field.is_list:
            if len(value):
                content[field.alias] = [_content(each, field) for each in value]
        elif _is_set(message, field, has_presence=described.has_presence):
            content[field.alias] = _content(value, field)
    return content


def _is_set(message: Message, field: SpecField, *, has_presence: bool) -> bool:
    if has_presence:
        return bool(message.HasField(field.wire_name))
    # 0 is no amount that a manifest leaves out, and the model says so.
    return bool(getattr(message, field.wire_name)) or (field.is_required and field.is_quantity)


def _content(value: Any, field: SpecField) -> Any:
    if field.model is not None:
        return content_of(value, field.model)
    if field.nano is not None:
        return f"{value}m" if field.nano < NANO else str(value)
    if not field.is_quantity:
        return value
    # The shortest decimal number that this double stands for. Others are left to the model to refuse.
    return format(Decimal(repr(value)), "f") if math.isfinite(value) else repr(value)


def fill(message: Message, of: ApiModel) -> None:
    """Say in a message what a model says. Amounts that its numbers cannot express are rounded up."""
    for field in spec_fields(type(of)):
        value = getattr(of, field.name)
        if value is None or field.wire_name not in message.DESCRIPTOR.fields_by_name:
            continue
        there = getattr(message, field.wire_name)
        if field.is_list:
            for each in value:
                fill(there.add(), each)
        elif field.model is not None:
            there.SetInParent()
            fill(there, value)
        else:
            setattr(message, field.wire_name, _wire_value(value, field))


def _wire_value(value: Any, field: SpecField) -> Any:
    if field.nano is not None:
        return -(-value.nano // field.nano)
    if field.is_quantity:
        return value.nano / NANO
    return value if isinstance(value, bool | int | float) else str(value)
