"""Making wrong places of a document valid, so that what else is wrong with it comes to light."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from devalloc.api.fields import ApiModel
from devalloc.api.pool import Attribute
from devalloc.api.quantity import Quantity
from devalloc.api.semver import SemVer
from devalloc.api.shapes import Form, Loc, Shape, child, fields_of, model_shape

_KEY = "[key]"
"""What pydantic appends to the location of a map entry when it is the key that is wrong."""

_LEAST: dict[Any, Any] = {int: 1, bool: False, Quantity: "1", SemVer: "0.0.0"}


def place_of(loc: Loc) -> Loc:
    """The entry that an error is about."""
    return loc[:-1] if loc[-1:] == (_KEY,) else loc


def repaired(content: dict[str, Any], model: type[ApiModel], places: Iterable[Loc]) -> dict[str, Any]:
    """A copy in which each place is dropped where it may be absent, and holds the least that is valid elsewhere."""
    copy: dict[str, Any] = _copy(content)
    for place in places:
        _repair(copy, model_shape(model), place)
    return copy


def _repair(content: Any, shape: Shape, place: Loc) -> None:
    if not place:
        return
    *way, last = place
    for step in way:
        try:
            content = content[step]
        except (KeyError, IndexError, TypeError):
            return  # an earlier repair has dropped what contains it
        shape = child(shape, step)
    field = fields_of(shape.model).get(str(last)) if shape.model else None
    if isinstance(content, list) and isinstance(last, int) and last < len(content):
        content[last] = _least(shape.item, last)
    elif isinstance(content, dict) and field is not None and field.required:
        content[last] = _least(field.shape, 0)
    elif isinstance(content, dict):
        content.pop(last, None)


def _least(shape: Shape | None, number: int) -> Any:
    """The least valid content of a shape; names differ by number."""
    if shape is None or shape.form is Form.MAP or shape.form is Form.RAW:
        return {}
    if shape.model is not None:
        required = {name: _least(f.shape, number) for name, f in fields_of(shape.model).items() if f.required}
        return required | {"stringValue": ""} if shape.model is Attribute else required
    if shape.form is Form.LIST:
        return [_least(shape.item, number)]
    if shape.scalar is str:
        return f"repaired-{number}"
    return _LEAST.get(shape.scalar, shape.scalar)


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_copy(entry) for entry in value]
    return value
