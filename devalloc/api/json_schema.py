"""A JSON Schema (draft 2020-12) of the manifests, for editors and other tools, generated from the models.

It refuses unknown fields and wrong types, and shows the description of each field. What relates fields to each other is
left to `devalloc validate`.
"""

from __future__ import annotations

import json
from typing import Any

from devalloc.api.field_docs import described_schema
from devalloc.api.fields import PATTERN_MESSAGE, UNIT
from devalloc.api.kinds import API_KINDS, ApiKind

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
