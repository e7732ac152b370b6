"""Reading content that is not in the API's spelling but has a clear meaning; each such liberty is a finding.

The Go types of the device management API have malformed JSON tags, so that its own tools write ``Driver`` and
``DeviceType`` in class specs and explicit nulls for empty fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from devalloc.api.device_class import DeviceClassSpec
from devalloc.api.fields import ApiModel
from devalloc.api.meta import ObjectMeta
from devalloc.api.validation.schema import NodeForm, SchemaNode, field_schemas, join_path, model_schema

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
