"""The fields of each kind: type, unit, default and meaning, for `devalloc explain KIND.FIELD` and docs/reference."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

from devalloc.api.field_docs import described_schema, unit_of
from devalloc.api.fields import PATTERN_MESSAGE
from devalloc.api.kinds import ApiKind

_LIMITS = {
    "maxLength": "at most {} characters",
    "minItems": "not empty",
    "maxItems": "at most {} entries",
    "maxProperties": "at most {} entries",
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
}
"""Bounds of JSON schemas in words. All lists with a minimum need one entry."""


@dataclass(frozen=True, slots=True)
class FieldReference:
    """One field of a kind. ``path`` is such as ``spec.claims[].limits``; "" is the object itself."""

    path: str
    type: str
    unit: str
    """"" if it has none."""
    required: bool
    """Whether the object that contains it must have it."""
    default: str
    """As in a manifest; "" if it has none."""
    limits: tuple[str, ...]
    """Which values are valid, such as "at most 32 entries"."""
    description: str

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2].removesuffix("[]")


@cache
def kind_fields(kind: ApiKind) -> tuple[FieldReference, ...]:
    """The object itself and all its fields, each before the fields that it contains."""
    schema = described_schema(kind.model, with_units=False)
    root = FieldReference("", "object", "", True, "", (), _one_line(schema))
    return root, *_fields_below(schema, schema.get("$defs", {}), "")


def child_fields(kind: ApiKind, path: str) -> tuple[FieldReference, ...]:
    """The fields directly below a path; its entries' fields, if it is a list."""
    starts = (f"{path}.", f"{path}[].") if path else ("",)
    return tuple(
        field
        for field in kind_fields(kind)
        for start in starts
        if field.path and field.path.startswith(start) and "." not in field.path.removeprefix(start)
    )


def field_at(kind: ApiKind, path: str) -> FieldReference | None:
    """The field with this path, in which "[]" can be omitted; None if there is none."""
    return next((field for field in kind_fields(kind) if field.path.replace("[]", "") == path.replace("[]", "")), None)


def _fields_below(node: dict[str, Any], definitions: dict[str, Any], path: str) -> list[FieldReference]:
    fields: list[FieldReference] = []
    for name, raw in node.get("properties", {}).items():
        field = _resolve(raw, definitions)
        here = f"{path}.{name}" if path else name
        required = name in node.get("required", ()) or (not path and name in ("apiVersion", "kind"))
        fields.append(
            FieldReference(
                here,
                _type_name(field, definitions),
                unit_of(raw),
                required,
                "" if required else _default(raw),
                tuple(_limits(field)),
                _one_line(raw) or _one_line(field),
            )
        )
        while "items" in field:
            field, here = _resolve(field["items"], definitions), f"{here}[]"
        fields += _fields_below(field, definitions, here)
    return fields


def _resolve(node: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """The node behind references and "or null"."""
    if "$ref" in node:
        return _resolve(definitions[node["$ref"].rpartition("/")[2]], definitions)
    options = [option for option in node.get("anyOf", ()) if option != {"type": "null"}]
    return _resolve(options[0], definitions) if len(options) == 1 else node


def _type_name(node: dict[str, Any], definitions: dict[str, Any], *, plural: bool = False) -> str:
    if "const" in node:
        return str(node["const"])
    if "enum" in node:
        return " or ".join(map(str, node["enum"]))
    ending = "s" if plural else ""
    if "x-kubernetes-int-or-string" in node:
        return f"amount{ending}"
    if "items" in node:
        return f"list{ending} of {_type_name(_resolve(node['items'], definitions), definitions, plural=True)}"
    if node.get("type") == "object" and "properties" not in node and (entries := _map_entries(node)) is not None:
        return f"map{ending} of {_type_name(_resolve(entries, definitions), definitions, plural=True)}"
    return f"{node['type']}{ending}"


def _map_entries(node: dict[str, Any]) -> dict[str, Any] | None:
    """The schema of a map's values; None for an object with any content."""
    entries = next(iter(node.get("patternProperties", {}).values()), node.get("additionalProperties"))
    return entries if isinstance(entries, dict) else None


def _default(node: dict[str, Any]) -> str:
    value = node.get("default")
    if value is None or value == "":
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _limits(node: dict[str, Any]) -> list[str]:
    """What is valid, besides the type. The message of a pattern replaces the bounds that are part of it."""
    if PATTERN_MESSAGE in node:
        message = str(node[PATTERN_MESSAGE]).removeprefix("must be ").removeprefix("must have ")
        length = [] if "amount" in message else [f"at most {node['maxLength']} characters"] * ("maxLength" in node)
        return [message, *length]
    if "x-kubernetes-int-or-string" in node:
        return []
    if {"minimum", "maximum"} <= node.keys():
        low, high = node["minimum"], node["maximum"]
        return [f"from {low} to {high}"] if (low, high) != (-(2**63), 2**63 - 1) else []
    return [_LIMITS[key].format(node[key]) for key in _LIMITS if key in node]


def _one_line(node: dict[str, Any]) -> str:
    return " ".join(str(node.get("description", "")).split()).replace("``", "`")
