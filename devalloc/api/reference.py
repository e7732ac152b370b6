"""The fields of each kind: type, unit, default and meaning.

For `devalloc explain KIND.FIELD` and docs/reference; editors get them as a JSON Schema. Descriptions of fields are the
docstrings below them in the models.
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from devalloc.api import meta
from devalloc.api.api_kind import ApiKind
from devalloc.api.fields import PATTERN_MESSAGE, UNIT, ApiModel
from devalloc.api.kinds import API_KINDS
from devalloc.api.validation.schema import field_schemas, model_schema

_OF_EVERY_OBJECT = {
    "apiVersion": "The API and its version.",
    "kind": "The kind of the object.",
    "metadata": "Name, namespace, labels and annotations of the object.",
}


def described_schema(model: type[ApiModel], *, with_units: bool = True) -> dict[str, Any]:
    """The JSON schema of a model as pydantic generates it, in which every field has a description of one line.

    ``with_units``: the descriptions end with the unit.
    """
    schema = model.model_json_schema(by_alias=True)
    for node in (schema, *schema.get("$defs", {}).values()):
        docs = docs_by_field(_models()[node["title"]])
        for name, field in node.get("properties", {}).items():
            if name in docs:
                field["description"] = docs[name]
            if with_units and (unit := unit_of(field)):
                field["description"] += f" Unit: {unit}."
    return schema


def unit_of(node: dict[str, Any]) -> str:
    """The unit of a number in a JSON schema; "" if it has none."""
    return next((option[UNIT] for option in (node, *node.get("anyOf", ())) if UNIT in option), "")


@cache
def docs_by_field(model: type[ApiModel]) -> dict[str, str]:
    """The description of each field, in one line, by JSON name; includes inherited fields.

    A field that contains another model can do without one: the description of that model is enough.
    """
    docs: dict[str, str] = dict(_OF_EVERY_OBJECT) if model in _objects() else {}
    for base in reversed(model.__mro__):
        if isinstance(base, type) and issubclass(base, ApiModel) and base is not ApiModel:
            own = _texts_below(inspect.getsource(base))
            docs |= {base.model_fields[name].alias or name: text for name, text in own.items()}
    return docs


@cache
def annotation_docs() -> dict[str, str]:
    """The description of each name that starts with devalloc.io/: annotations, labels, finalizers, attributes."""
    docs: dict[str, str] = {}
    for constant, text in _texts_below(inspect.getsource(meta)).items():
        name = getattr(meta, constant)
        if isinstance(name, str) and name.startswith("devalloc.io/") and name != meta.DEVALLOC:
            docs[name] = f"{docs[name]} {text}" if name in docs else text
    return docs


def _texts_below(source: str) -> dict[str, str]:
    """The text below each field of a class, or each constant of a module, by its name."""
    body = ast.parse(textwrap.dedent(source)).body
    if isinstance(body[0], ast.ClassDef):
        body = body[0].body
    docs: dict[str, str] = {}
    for field, text in pairwise(body):
        targets: list[ast.expr] = []
        if isinstance(field, ast.AnnAssign):
            targets = [field.target]
        elif isinstance(field, ast.Assign):
            targets = field.targets
        for target in targets:
            if isinstance(target, ast.Name) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                docs[target.id] = " ".join(str(text.value.value).split())
    return docs


def _objects() -> set[type[ApiModel]]:
    return {kind.model for kind in API_KINDS.values()}


@cache
def _models() -> dict[str, type[ApiModel]]:
    """Every model that an object contains, by name."""
    models: dict[str, type[ApiModel]] = {}
    waiting = [model_schema(kind.model) for kind in API_KINDS.values()]
    while waiting:
        shape = waiting.pop()
        if shape.item is not None:
            waiting.append(shape.item)
        if shape.model is not None and shape.model.__name__ not in models:
            models[shape.model.__name__] = shape.model
            waiting += [field.shape for field in field_schemas(shape.model).values()]
    return models


DRAFT = "https://json-schema.org/draft/2020-12/schema"
_INT_OR_STRING = "x-kubernetes-int-or-string"


FILE = "devalloc.schema.json"


def render() -> str:
    """The schema as text."""
    return json.dumps(manifest_schema(), indent=1, ensure_ascii=False) + "\n"


def manifest_schema() -> dict[str, Any]:
    """The schema of one manifest of any kind. Manifests of other APIs are valid, too: a file may contain both."""
    definitions: dict[str, Any] = {}
    for kind in API_KINDS.values():
        schema = _kind_schema(kind)
        definitions |= schema.pop("$defs", {})
        definitions[kind.kind] = schema
    versions = sorted({kind.api_version for kind in API_KINDS.values()})
    return {
        "$schema": DRAFT,
        "title": "Manifests of devalloc",
        "type": "object",
        "required": ["apiVersion", "kind"],
        "properties": {
            "apiVersion": {"type": "string", "examples": versions},
            "kind": {"type": "string", "examples": list(API_KINDS)},
        },
        "allOf": [
            *({"if": _has(version), "then": _has_kind_of(version)} for version in versions),
            *(
                {
                    "if": _has(kind.api_version, kind.kind),
                    "then": {"$ref": f"#/$defs/{kind.kind}"},
                }
                for kind in API_KINDS.values()
            ),
        ],
        "$defs": dict(sorted(definitions.items())),
    }


def _has(api_version: str, kind: str | None = None) -> dict[str, Any]:
    """The condition that a manifest is of this API and kind. The API includes its other versions, which are errors."""
    group = api_version.partition("/")[0].replace(".", r"\.")
    properties: dict[str, Any] = {"apiVersion": {"pattern": f"^{group}/"}}
    if kind is not None:
        properties["kind"] = {"const": kind}
    return {"properties": properties, "required": [*properties]}


def _has_kind_of(api_version: str) -> dict[str, Any]:
    kinds = [kind.kind for kind in API_KINDS.values() if kind.api_version == api_version]
    return {"properties": {"apiVersion": {"const": api_version}, "kind": {"enum": kinds}}}


def _kind_schema(kind: ApiKind) -> dict[str, Any]:
    schema: dict[str, Any] = _plain(described_schema(kind.model))
    schema["required"] = ["apiVersion", "kind", *schema["required"]]  # the models have defaults for the first two
    return schema


def _plain(node: Any) -> Any:
    """The node without what only CRDs need; amounts as numbers or texts."""
    if isinstance(node, list):
        return [_plain(each) for each in node]
    if not isinstance(node, dict):
        return node
    # A "title" that is a text is a keyword, which pydantic derives from a name; otherwise it is a field.
    skipped = {UNIT, PATTERN_MESSAGE, _INT_OR_STRING, *(("title",) if isinstance(node.get("title"), str) else ())}
    result = {key: _plain(value) for key, value in node.items() if key not in skipped}
    if isinstance(node.get(PATTERN_MESSAGE), str):
        result["patternErrorMessage"] = node[PATTERN_MESSAGE]  # of the YAML language server and of VS Code
    if node.get(_INT_OR_STRING) is True:
        del result["anyOf"]
        result["type"] = ["number", "string"]
        if result.pop("minimum", None) is not None:
            result["exclusiveMinimum" if node["minimum"] else "minimum"] = 0
    return result


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
