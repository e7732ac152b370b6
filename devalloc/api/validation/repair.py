"""Replace invalid parts of a document by valid ones, so that validation finds the remaining errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from devalloc.api.fields import ApiModel
from devalloc.api.pool import Attribute
from devalloc.api.quantity import Quantity
from devalloc.api.semver import SemVer
from devalloc.api.validation.schema import Loc, NodeForm, SchemaNode, child_schema, field_schemas, model_schema

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
