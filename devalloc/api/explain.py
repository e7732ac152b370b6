"""What is wrong with content that a model refuses, all of it at once, in words for its author.

Validation stops a model's own checks while a field of it is wrong. So the errors found are repaired in a copy and the
copy is validated again, until nothing new comes up; what a repair itself may have caused is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from devalloc.api.claim import DeviceClaimDetail, DeviceClaimSpec
from devalloc.api.fields import REFUSED, RELATED, ApiModel, printable, shown
from devalloc.api.lenient import Finding
from devalloc.api.nearest import nearest
from devalloc.api.quantity import type_name
from devalloc.api.repair import place_of, repaired
from devalloc.api.shapes import Loc, Shape, child, fields_of, model_shape, path_of, reading_order

ROUNDS = 6
ENOUGH = 1000
"""Findings after which nobody reads on."""

_COUNT_HINT = "write it inside requests, as requests.count"
_HINTS: dict[type[ApiModel], dict[str, str]] = {
    DeviceClaimDetail: {
        "count": _COUNT_HINT,
        "devices": _COUNT_HINT,
        "maxDevices": "write limits.count",
        "class": "did you mean deviceClass?",
        "driver": "claims name a deviceClass or a deviceType; the class names the driver",
        "adminAccess": "it belongs to the spec of a DeviceClass",
        "distinctAttributes": "this API has no such constraint; claim the devices one by one and tell them apart in "
        "constraints",
    },
    DeviceClaimSpec: dict.fromkeys(
        ("deviceClass", "deviceType", "requests", "limits", "constraints", "oneOf", "configs", "count"),
        "it belongs to an entry of spec.claims",
    ),
}


def explain(content: dict[str, Any], model: type[ApiModel], known: Iterable[Loc] = ()) -> list[Finding]:
    """Every error of the content in reading order; empty when the model takes it. Does not change the content.

    Nothing is said about the ``known`` places, which are wrong already and were repaired.
    """
    shape = model_shape(model)
    found: list[tuple[Loc, Finding]] = []
    wrong = _Wrong()
    for loc in known:
        wrong.add(loc)
    for _ in range(ROUNDS):
        errors = _validate(content, model)
        fresh = [error for error in errors if not wrong.covers(error)]
        found += [(error["loc"], _finding(error, shape)) for error in fresh[: ENOUGH - len(found)]]
        if not errors or len(found) >= ENOUGH:
            break
        content = repaired(content, model, (place_of(error["loc"]) for error in errors))
        for error in fresh:
            wrong.add(place_of(error["loc"]))
    found.sort(key=lambda entry: reading_order(entry[0]))
    return [finding for _, finding in found]


def _validate(content: dict[str, Any], model: type[ApiModel]) -> list[ErrorDetails]:
    try:
        model.model_validate(content, by_alias=True, by_name=False)
    except ValidationError as error:
        return error.errors(include_url=False)
    return []


class _Wrong:
    """Places that are wrong already.

    What is found in them says nothing new. Nor does what is found about something that contains them, unless it is a
    check of ours that stands at a place of its own, and is not about how wrong fields relate to others.
    """

    def __init__(self) -> None:
        self._wrong: set[Loc] = set()
        self._above: set[Loc] = set()

    def add(self, loc: Loc) -> None:
        self._wrong.add(loc)
        self._above.update(loc[:i] for i in range(len(loc)))

    def covers(self, error: ErrorDetails) -> bool:
        loc = error["loc"]
        if loc in self._above and error["type"] != REFUSED:
            return True
        if error["type"] == RELATED and loc[:-1] in self._above:
            return True
        return any(loc[:i] in self._wrong for i in range(len(loc) + 1))


# -- words ---------------------------------------------------------------------------------------------------------


def _finding(error: ErrorDetails, shape: Shape) -> Finding:
    loc, value = error["loc"], error["input"]
    place = place_of(loc)
    message = printable(_message(error, value, _at(shape, place[:-1]), place))
    return Finding(path_of(shape, place), message if place == loc else f"has a key that {message}")


def _at(shape: Shape, loc: Loc) -> Shape:
    for step in loc:
        shape = child(shape, step)
    return shape


def _message(error: ErrorDetails, value: Any, parent: Shape, loc: Loc) -> str:
    context = error.get("ctx", {})
    match error["type"]:
        case "missing":
            return "is required"
        case "extra_forbidden":
            return _unknown_field(str(loc[-1]), parent)
        case _ if error["type"] in (REFUSED, RELATED):
            return str(context["message"])
        case "value_error":
            return str(context["error"])
        case "string_type":
            quotes = " (write it in quotes)" if isinstance(value, (int, float)) else ""
            return f"must be a text, not {type_name(value)}{quotes}"
        case "int_type" | "int_parsing" | "int_from_float":
            return f"must be a whole number, not {_what(value)}"
        case "bool_type" | "bool_parsing":
            return f"must be true or false, not {_what(value)}"
        case "model_type" | "model_attributes_type" | "dict_type" | "mapping_type":
            return f"must be a map of fields, not {type_name(value)}"
        case "list_type":
            return f"must be a list, not {type_name(value)}"
        case "literal_error":
            return f"must be {context['expected']}, not {_what(value)}"
        case "too_short":
            return f"must have at least {_entries(context['min_length'])}, and has {_entries(context['actual_length'])}"
        case "too_long":
            return f"must have at most {_entries(context['max_length'])}, and has {_entries(len(value))}"
        case "string_too_short":
            return f"must have at least {context['min_length']} characters"
        case "string_too_long":
            return f"must have at most {context['max_length']} characters, and has {len(value)}"
        case "greater_than_equal":
            return f"must be at least {context['ge']}, not {shown(value)}"
        case "less_than_equal":
            return f"must be at most {context['le']}, not {shown(value)}"
        case _:
            return f"{error['msg'][:1].lower()}{error['msg'][1:]}, not {_what(value)}"


def _unknown_field(name: str, parent: Shape) -> str:
    assert parent.model is not None
    fields = list(fields_of(parent.model))
    for model in parent.model.__mro__:
        if isinstance(model, type) and (hint := _HINTS.get(model, {}).get(name)):
            return f"unknown field; {hint}"
    near = nearest(name, fields)
    if near:
        return f"unknown field; did you mean `{near}`?"
    return f"unknown field; known here: {', '.join(fields)}" if fields else "unknown field; none is known here"


def _entries(count: Any) -> str:
    return "1 entry" if count == 1 else f"{count or 'no'} entries"


def _what(value: Any) -> str:
    return shown(value) if isinstance(value, (str, int, float)) else type_name(value)
