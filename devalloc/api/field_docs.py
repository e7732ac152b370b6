"""The schema of each kind with a description of every field, from the texts below the fields in the models' source.

Pydantic can collect these texts, too, but then parses the source at every start; only CRDs, the reference and the
schema for editors need them.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from itertools import pairwise
from typing import Any

from devalloc.api import meta
from devalloc.api.fields import UNIT, ApiModel
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
