"""Reading content that is not in the API's spelling but has a clear meaning; each such liberty is a finding.

The Go types of the device management API have malformed JSON tags, so that its own tools write ``Driver`` and
``DeviceType`` in class specs and explicit nulls for empty fields.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from devalloc.api.device_class import DeviceClassSpec
from devalloc.api.fields import ApiModel
from devalloc.api.object_meta import ObjectMeta
from devalloc.api.pool import Attribute
from devalloc.api.quantity import Quantity
from devalloc.api.semver import SemVer
from devalloc.api.validation.schema import (
    Loc,
    NodeForm,
    SchemaNode,
    child_schema,
    field_schemas,
    join_path,
    model_schema,
)

KEY = "[key]"
"""What pydantic appends to the location of a map entry if its key is wrong."""

_MINIMAL_SCALARS: dict[Any, Any] = {int: 1, bool: False, Quantity: "1", SemVer: "0.0.0"}


def entry_location(loc: Loc) -> Loc:
    """The entry to which an error belongs."""
    return loc[:-1] if loc[-1:] == (KEY,) else loc


def repair_places(content: dict[str, Any], model: type[ApiModel], places: Iterable[Loc]) -> dict[str, Any]:
    """A copy in which each wrong place is dropped if it is optional, and otherwise gets the smallest valid content."""
    copy: dict[str, Any] = _copy(content)
    for place in places:
        _repair(copy, model_schema(model), place)
    return copy


def _repair(content: Any, shape: SchemaNode, place: Loc) -> None:
    if not place:
        return
    *way, last = place
    for step in way:
        try:
            content = content[step]
        except (KeyError, IndexError, TypeError):
            return  # an earlier repair has dropped its parent
        shape = child_schema(shape, step)
    field = field_schemas(shape.model).get(str(last)) if shape.model else None
    if isinstance(content, list) and isinstance(last, int) and last < len(content):
        content[last] = _minimal_value(shape.item, last)
    elif isinstance(content, dict) and field is not None and field.required:
        content[last] = _minimal_value(field.shape, 0)
    elif isinstance(content, dict):
        content.pop(last, None)


def _minimal_value(shape: SchemaNode | None, number: int) -> Any:
    """The smallest valid content of a shape; ``number`` makes names unique."""
    if shape is None or shape.form is NodeForm.MAP or shape.form is NodeForm.RAW:
        return {}
    if shape.model is not None:
        required = {
            name: _minimal_value(f.shape, number) for name, f in field_schemas(shape.model).items() if f.required
        }
        return required | {"stringValue": ""} if shape.model is Attribute else required
    if shape.form is NodeForm.LIST:
        return [_minimal_value(shape.item, number)]
    if shape.scalar is str:
        return f"repaired-{number}"
    return _MINIMAL_SCALARS.get(shape.scalar, shape.scalar)


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_copy(entry) for entry in value]
    return value


_CASELESS: dict[type[ApiModel], frozenset[str]] = {DeviceClassSpec: frozenset({"driver", "deviceType"})}
_EXPECTED_NULLS: dict[type[ApiModel], frozenset[str]] = {ObjectMeta: frozenset({"creationTimestamp"})}
"""Nulls that every Kubernetes tool writes; they are dropped silently."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A message about one place of a document; it completes the sentence "<path> ..."."""

    path: str
    message: str


def read_leniently(content: dict[str, Any], model: type[ApiModel]) -> tuple[dict[str, Any], list[Finding]]:
    """The content in the API's own spelling (a copy of all containers), and a finding for each liberty.

    Unreadable parts stay unchanged; validation reports them.
    """
    findings: list[Finding] = []
    return _read(content, model_schema(model), "", findings), findings


def _read(value: Any, shape: SchemaNode, path: str, findings: list[Finding]) -> Any:
    if isinstance(value, dict):
        if shape.model is not None:
            return _read_model(value, shape.model, path, findings)
        if shape.form is NodeForm.MAP and shape.item is not None:
            return _read_map(value, shape.item, path, findings)
        return {key: _read(entry, shape, path, findings) for key, entry in value.items()}
    if isinstance(value, list):
        item = shape.item or shape
        return [_read(entry, item, join_path(path, i, is_entry=True), findings) for i, entry in enumerate(value)]
    return value


def _read_model(content: dict[str, Any], model: type[ApiModel], path: str, findings: list[Finding]) -> dict[str, Any]:
    fields = field_schemas(model)
    result: dict[str, Any] = {}
    for written, value in content.items():
        key = _field_name(written, model, content)
        here = join_path(path, written, is_entry=False)
        if key != written:
            findings.append(Finding(here, f"is read as {key!r}"))
        field = fields.get(key)
        if value is None and field is not None and field.shape.form is not NodeForm.RAW and not field.required:
            if key not in _EXPECTED_NULLS.get(model, ()):
                findings.append(Finding(here, "is null, read as not set"))
            continue
        result[key] = value if field is None else _read(value, field.shape, here, findings)
    return result


def _field_name(written: str, model: type[ApiModel], content: dict[str, Any]) -> str:
    for name in _CASELESS.get(model, ()):
        if written != name and name not in content and written.lower() == name.lower():
            return name
    return written


def _read_map(content: dict[str, Any], item: SchemaNode, path: str, findings: list[Finding]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in content.items():
        here = join_path(path, key, is_entry=True)
        if value is None:
            findings.append(Finding(here, "is null, read as not set"))
            continue
        if item.scalar is str and isinstance(value, (bool, int, float)):
            text = _scalar_text(value)
            findings.append(Finding(here, f"is {_article(value)} without quotes, read as the string {text!r}"))
            value = text
        result[key] = _read(value, item, here, findings)
    return result


def _scalar_text(value: bool | int | float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(getattr(value, "text", value))


def _article(value: bool | int | float) -> str:
    return "a boolean" if isinstance(value, bool) else "a number"
