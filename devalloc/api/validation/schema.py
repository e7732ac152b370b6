"""The schema of a model: its fields and their types, read from the model's own annotations."""

from __future__ import annotations

import types
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from functools import cache
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from pydantic.fields import FieldInfo

from devalloc.api.fields import ApiModel

Loc = tuple[str | int, ...]
"""The location of a value: field names, map keys and list indexes from the top."""


CONFIG: Final = "__pydantic_config__"
"""The attribute that makes a dataclass part of a schema: pydantic's settings for it."""


class NodeForm(Enum):
    MODEL = "model"
    LIST = "list"
    MAP = "map"
    RAW = "raw"
    SCALAR = "scalar"


@dataclass(frozen=True, slots=True)
class SchemaNode:
    """One value: ``model`` of a MODEL, ``item`` of a LIST or MAP, Python type ``scalar`` or constant of a SCALAR."""

    form: NodeForm
    model: type | None = None
    item: SchemaNode | None = None
    scalar: Any = None


RAW = SchemaNode(NodeForm.RAW)


@dataclass(frozen=True, slots=True)
class FieldSchema:
    """A field of a model."""

    shape: SchemaNode
    required: bool


def model_schema(model: type) -> SchemaNode:
    return SchemaNode(NodeForm.MODEL, model=model)


@cache
def field_schemas(model: type) -> dict[str, FieldSchema]:
    """The fields by JSON name; of an ApiModel, or of a dataclass that pydantic validates."""
    if not issubclass(model, ApiModel):
        return _dataclass_schemas(model)
    return {
        field.alias or name: FieldSchema(_schema_of(field.annotation), field.is_required())
        for name, field in model.model_fields.items()
    }


def _dataclass_schemas(model: type) -> dict[str, FieldSchema]:
    hints = get_type_hints(model, include_extras=True)
    schemas = {}
    for field in fields(model):
        details = getattr(hints[field.name], "__metadata__", ())
        names = [detail.alias for detail in details if isinstance(detail, FieldInfo) and detail.alias is not None]
        is_required = field.default is MISSING and field.default_factory is MISSING
        schemas[names[0] if names else field.name] = FieldSchema(_schema_of(hints[field.name]), is_required)
    return schemas


def _schema_of(annotation: Any) -> SchemaNode:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _schema_of(arguments[0])
    if origin in (Union, types.UnionType):
        return _schema_of(next(argument for argument in arguments if argument is not type(None)))
    if origin is Literal:
        return SchemaNode(NodeForm.SCALAR, scalar=arguments[0])
    if origin in (list, tuple):
        return SchemaNode(NodeForm.LIST, item=_schema_of(arguments[0]))
    if origin is dict:
        return RAW if arguments[1] is Any else SchemaNode(NodeForm.MAP, item=_schema_of(arguments[1]))
    if isinstance(annotation, type) and (issubclass(annotation, ApiModel) or hasattr(annotation, CONFIG)):
        return model_schema(annotation)
    return RAW if annotation is Any else SchemaNode(NodeForm.SCALAR, scalar=annotation)


def child_schema(shape: SchemaNode, step: str | int) -> SchemaNode:
    """The shape one level deeper; RAW if it is unknown."""
    if shape.model is not None:
        field = field_schemas(shape.model).get(str(step))
        return field.shape if field else RAW
    return shape.item or RAW


def format_path(shape: SchemaNode, loc: Sequence[str | int]) -> str:
    """The text of a location, such as ``spec.devices[3].requests[memory]``."""
    text = ""
    for step in loc:
        text = join_path(text, step, is_entry=isinstance(step, int) or shape.form is NodeForm.MAP)
        shape = child_schema(shape, step)
    return text


def path_sort_key(loc: Loc) -> tuple[tuple[int, str], ...]:
    """A sort key: names in alphabetical order, indexes by number."""
    return tuple((step, "") if isinstance(step, int) else (-1, str(step)) for step in loc)


def join_path(path: str, step: object, *, is_entry: bool) -> str:
    """The path one level deeper; entries of lists and maps are in brackets."""
    word = str(step)
    if len(word) > 80:
        word = word[:77] + "..."
    if not word.isprintable() or not word:
        word = repr(word)
    if is_entry:
        return f"{path}[{word}]"
    return f"{path}.{word}" if path else word
