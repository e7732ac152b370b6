"""DevicePools read quickly: most of their devices are alike, and what is alike is validated once.

A pool that has anything out of the ordinary is left to ``decode`` proper, which has the words for it. What is read here
is equal to what ``DevicePool.model_validate`` makes of it, field by field, but for one thing: equal attributes are
one object, which is safe because nobody changes them, and takes a fraction of the memory.
"""

from __future__ import annotations

import marshal
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import ValidationError

from devalloc.api.fields import built
from devalloc.api.pool import Attribute, Device, DevicePool

MOST_DEVICES = 1_000
"""Of a larger pool its bounds as a document matter, too."""
KEPT = 4_096
"""Attributes, and rests of devices, that are remembered; when there are more, all are forgotten."""

_NAME = re.compile(r"[ -~]{1,253}", re.ASCII)
_VALUES = frozenset({"stringValue", "intValue", "quantityValue", "semVerValue"})
_DEVICE = frozenset({"name", "attributes", "requests", "resources"})

_NO_VALUE = dict.fromkeys(Attribute.model_fields)
_TEXT_SET = {"name", "string_value"}

_attributes: dict[tuple[str, str, str | int, type], Attribute] = {}
_rests: dict[bytes, Device] = {}


class _Unusual(Exception):
    """Something to be read with care."""


def read_plainly(shell: Mapping[str, Any], devices: list[Any]) -> DevicePool | None:
    """The pool, when its devices are of the common form; None when ``decode`` has to look.

    ``shell`` is the manifest without them; it has passed ``unfit``, and nothing in it is read leniently.
    """
    if not 0 < len(devices) <= MOST_DEVICES:
        return None
    try:
        pool = DevicePool.model_validate(shell, by_alias=True, by_name=False)
        read = [_device(each) for each in devices]
    except (_Unusual, ValidationError):
        return None
    if len({device.name for device in read}) < len(read):
        return None
    return pool.model_copy(update={"spec": pool.spec.model_copy(update={"devices": read})})


def _device(content: Any) -> Device:
    if type(content) is not dict or not content.keys() <= _DEVICE:
        raise _Unusual
    name = content.get("name")
    if type(name) is not str or _NAME.fullmatch(name) is None:
        raise _Unusual
    rest = _rest({key: value for key, value in content.items() if key != "name" and key != "attributes"})
    fields = dict(rest.__dict__)
    fields["name"] = name
    given = rest.__pydantic_fields_set__
    if "attributes" in content:
        fields["attributes"] = _list_of_attributes(content["attributes"])
        given = _with_attributes(frozenset(given))
    return built(Device, fields, given)


@cache
def _with_attributes(given: frozenset[str]) -> set[str]:
    """One set for all devices that have the same fields."""
    return {*given, "attributes"}


def _rest(content: dict[str, Any]) -> Device:
    """A device with these requests and resources."""
    try:
        key = marshal.dumps(content, 0)
    except ValueError:
        raise _Unusual from None
    found = _rests.get(key)
    if found is None:
        _refuse_unusual(content)
        if len(_rests) >= KEPT:
            _rests.clear()
        found = _rests[key] = Device.model_validate({"name": "x", **content}, by_alias=True, by_name=False)
    return found


def _refuse_unusual(content: Any) -> None:
    """Only plain texts and whole numbers may be in it."""
    if type(content) is dict:
        for key, value in content.items():
            if type(key) is not str or not key.isascii():
                raise _Unusual
            _refuse_unusual(value)
    elif type(content) is list:
        for value in content:
            _refuse_unusual(value)
    elif not (type(content) is str and content.isascii()) and type(content) is not int:
        raise _Unusual


def _list_of_attributes(content: Any) -> list[Attribute]:
    if type(content) is not list or len(content) > 48:
        raise _Unusual
    found = [_attribute(each) for each in content]
    if len({attribute.name for attribute in found}) < len(found):
        raise _Unusual
    return found


def _attribute(content: Any) -> Attribute:
    if type(content) is not dict or len(content) != 2:
        raise _Unusual
    name = content.get("name")
    if type(name) is not str:
        raise _Unusual
    field = next(key for key in content if key != "name")
    value = content[field]
    kind = type(value)
    if field not in _VALUES or not (kind is int or (kind is str and value.isascii())):
        raise _Unusual
    found = _attributes.get((name, field, value, kind))
    if found is None:
        if len(_attributes) >= KEPT:
            _attributes.clear()
        found = _new_attribute(name, field, value)
        _attributes[name, field, value, kind] = found
    return found


def _new_attribute(name: str, field: str, value: str | int) -> Attribute:
    if _NAME.fullmatch(name) is None:
        raise _Unusual
    if field == "stringValue" and type(value) is str and len(value) <= 4096:
        # Of these there may be one per device, such as uuids: they are made in one go.
        found = Attribute.__new__(Attribute)
        fields = {**_NO_VALUE, "name": name, "string_value": value}
        object.__setattr__(found, "__dict__", fields)
        object.__setattr__(found, "__pydantic_fields_set__", _TEXT_SET)
        object.__setattr__(found, "__pydantic_extra__", None)
        object.__setattr__(found, "__pydantic_private__", None)
        return found
    return Attribute.model_validate({"name": name, field: value}, by_alias=True, by_name=False)
