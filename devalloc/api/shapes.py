"""The shape of a model: which fields it has and what stands in them, read from the models' own annotations."""

from __future__ import annotations

import types
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from devalloc.api.fields import ApiModel

Loc = tuple[str | int, ...]
"""Where a value is: field names, map keys and list indexes from the top."""


class Form(Enum):
    MODEL = "model"
    LIST = "list"
    MAP = "map"
    RAW = "raw"
    SCALAR = "scalar"


@dataclass(frozen=True, slots=True)
class Shape:
    """One value: ``model`` of a MODEL, ``item`` of a LIST or MAP, Python type ``scalar`` or constant of a SCALAR."""

    form: Form
    model: type[ApiModel] | None = None
    item: Shape | None = None
    scalar: Any = None


RAW = Shape(Form.RAW)


@dataclass(frozen=True, slots=True)
class FieldShape:
    """A field of a model."""

    shape: Shape
    required: bool


def model_shape(model: type[ApiModel]) -> Shape:
    return Shape(Form.MODEL, model=model)


@cache
def fields_of(model: type[ApiModel]) -> dict[str, FieldShape]:
    """The fields by JSON name."""
    return {
        field.alias or name: FieldShape(_shape(field.annotation), field.is_required())
        for name, field in model.model_fields.items()
    }


def is_open(model: type[ApiModel]) -> bool:
    """True when fields beyond the declared ones are kept."""
    return model.model_config.get("extra") == "allow"


def _shape(annotation: Any) -> Shape:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _shape(arguments[0])
    if origin in (Union, types.UnionType):
        return _shape(next(argument for argument in arguments if argument is not type(None)))
    if origin is Literal:
        return Shape(Form.SCALAR, scalar=arguments[0])
    if origin is list:
        return Shape(Form.LIST, item=_shape(arguments[0]))
    if origin is dict:
        return RAW if arguments[1] is Any else Shape(Form.MAP, item=_shape(arguments[1]))
    if isinstance(annotation, type) and issubclass(annotation, ApiModel):
        return model_shape(annotation)
    return RAW if annotation is Any else Shape(Form.SCALAR, scalar=annotation)


def child(shape: Shape, step: str | int) -> Shape:
    """The shape one step further in; RAW where nothing is known."""
    if shape.model is not None:
        field = fields_of(shape.model).get(str(step))
        return field.shape if field else RAW
    return shape.item or RAW


def path_of(shape: Shape, loc: Sequence[str | int]) -> str:
    """The text of a location, such as ``spec.devices[3].requests[memory]``."""
    text = ""
    for step in loc:
        text = join(text, step, is_entry=isinstance(step, int) or shape.form is Form.MAP)
        shape = child(shape, step)
    return text


def reading_order(loc: Loc) -> tuple[tuple[int, str], ...]:
    """A sort key: names in alphabetic order, indexes by number."""
    return tuple((step, "") if isinstance(step, int) else (-1, str(step)) for step in loc)


def join(path: str, step: object, *, is_entry: bool) -> str:
    """The path one step further in: an entry of a list or map stands in brackets."""
    word = str(step)
    if len(word) > 80:
        word = word[:77] + "..."
    if not word.isprintable() or not word:
        word = repr(word)
    if is_entry:
        return f"{path}[{word}]"
    return f"{path}.{word}" if path else word
