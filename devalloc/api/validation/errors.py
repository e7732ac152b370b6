"""Every validation error of content that a model rejects, in messages for its author.

Validation skips a model's own checks while one of its fields is wrong. So this module repairs the errors in a copy and
validates the copy again, until it finds nothing new; it leaves out errors that a repair may have caused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from devalloc.api.claim import DeviceClaimDetail, DeviceClaimInstance, DeviceClaimSpec
from devalloc.api.fields import REFUSED, RELATED, ApiModel, json_names, quote_value
from devalloc.api.machine_start import MachineStart
from devalloc.api.pool import Attribute
from devalloc.api.problems import closest_match
from devalloc.api.quantity import type_name
from devalloc.api.validation.lenient import Finding, entry_location, repair_places
from devalloc.api.validation.schema import (
    Loc,
    SchemaNode,
    child_schema,
    field_schemas,
    format_path,
    model_schema,
    path_sort_key,
)
from devalloc.printable import printable

MAX_ROUNDS = 6
MAX_FINDINGS = 1000
"""Maximum findings."""

_COUNT_HINT = "write requests.count"
_HINTS: dict[type[ApiModel], dict[str, str]] = {
    DeviceClaimDetail: {
        "count": _COUNT_HINT,
        "devices": _COUNT_HINT,
        "maxDevices": "write limits.count",
        "class": "did you mean deviceClass?",
        "driver": "claims name a deviceClass or deviceType; the class names the driver",
        "adminAccess": "it belongs to the spec of a DeviceClass",
        "selectors": "write constraints, one CEL expression",
        "firstAvailable": "write oneOf",
        "distinctAttributes": "this API has no such constraint; request the devices one by one and distinguish them in "
        "constraints",
    },
    Attribute: {
        **dict.fromkeys(("bool", "boolValue"), "write intValue: 0 or 1"),
        **dict.fromkeys(("int", "value"), "write intValue, or stringValue for a text"),
        "string": "write stringValue",
        **dict.fromkeys(("version", "versionValue"), "write semVerValue"),
        "quantity": "write quantityValue",
    },
    MachineStart: dict.fromkeys(("image", "rootDisk", "volumes"), "write disks, such as [{path: /images/web.qcow2}]"),
    DeviceClaimSpec: {
        **dict.fromkeys(
            {*json_names(DeviceClaimInstance), "count"} - {*json_names(DeviceClaimSpec)},
            "it belongs to an entry of spec.claims",
        ),
        "devices": "it is of a ResourceClaim (resource.k8s.io); a DeviceClaim has spec.claims",
    },
}


def validation_errors(
    content: dict[str, Any], model: type[ApiModel], known_places: Iterable[Loc] = ()
) -> list[Finding]:
    """Every error of the content in reading order; empty if it is valid. Does not change the content.

    Leaves out the ``known_places`` places, which were already reported and repaired.
    """
    shape = model_schema(model)
    findings: list[tuple[Loc, Finding]] = []
    wrong = _KnownErrors()
    for loc in known_places:
        wrong.add(loc)
    for _ in range(MAX_ROUNDS):
        errors = _validate(content, model)
        fresh = [error for error in errors if not wrong.covers(error)]
        findings += [(error["loc"], _finding(error, shape)) for error in fresh[: MAX_FINDINGS - len(findings)]]
        if not errors or len(findings) >= MAX_FINDINGS:
            break
        content = repair_places(content, model, (entry_location(error["loc"]) for error in errors))
        for error in fresh:
            wrong.add(entry_location(error["loc"]))
    findings.sort(key=lambda entry: path_sort_key(entry[0]))
    return [finding for _, finding in findings]


def _validate(content: dict[str, Any], model: type[ApiModel]) -> list[ErrorDetails]:
    try:
        model.model_validate(content, by_alias=True, by_name=False)
    except ValidationError as error:
        return error.errors(include_url=False)
    return []


class _KnownErrors:
    """Places that were already reported.

    Findings inside them are not new. Nor are findings about something that contains them, except checks of ours with a
    place of their own that do not relate a wrong field to others.
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

_FORMS = {
    "string_type": "str",
    "int_type": "int",
    "int_parsing": "int",
    "int_from_float": "int",
    "bool_type": "bool",
    "bool_parsing": "bool",
    "model_type": "map",
    "model_attributes_type": "map",
    "dataclass_type": "map",
    "dict_type": "map",
    "mapping_type": "map",
    "list_type": "list",
}
"""What a value must be, by the type of the error that it is something else."""


_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument", "invalid_key")
"""Types of errors that a field is not known."""


@dataclass(frozen=True, slots=True)
class Wording:
    """The words of a dialect. Messages complete the sentence "<path> ..."."""

    wanted: Mapping[str, str]
    """the names of the forms ``str``, ``int``, ``bool``, ``map`` and ``list``"""
    describe: Callable[[str, Any], str]
    """names a value that does not have the wanted form"""
    unknown_field: Callable[[str, list[str], type | None], str]
    """for this name, where these are the fields of this model"""
    own: Callable[[ErrorDetails], str | None] = lambda _: None
    """for errors that only this dialect words so; None for all others"""


def first_error(error: ValidationError, model: type, wording: Wording) -> tuple[Loc, str]:
    """(location, message) of the first error; of a wrong key, the location is the map's. Of what is missing and a field
    beside it that is not known, the field is most likely a misspelling."""
    first, *others = error.errors(include_url=False)
    if first["type"] == "missing":
        unknown = (each for each in others if each["type"] in _UNKNOWN)
        first = next((each for each in unknown if first["loc"][: len(each["loc"]) - 1] == each["loc"][:-1]), first)
    loc = first["loc"]
    place = entry_location(loc)
    text = _message(first, first["input"], _shape_at(model_schema(model), place[:-1]), place, wording)
    return (place if place == loc else place[:-1]), text


def _finding(error: ErrorDetails, shape: SchemaNode) -> Finding:
    loc, value = error["loc"], error["input"]
    place = entry_location(loc)
    message = printable(_message(error, value, _shape_at(shape, place[:-1]), place, _WORDING))
    return Finding(format_path(shape, place), message if place == loc else f"has a key that {message}")


def _shape_at(shape: SchemaNode, loc: Loc) -> SchemaNode:
    for step in loc:
        shape = child_schema(shape, step)
    return shape


def _message(error: ErrorDetails, value: Any, parent: SchemaNode, loc: Loc, wording: Wording) -> str:
    context = error.get("ctx", {})
    form = _FORMS.get(error["type"])
    if (own := wording.own(error)) is not None:
        return own
    if form is not None:
        fields = _shown_fields(child_schema(parent, loc[-1])) if form == "map" and loc else ""
        hint = _LIST_HINTS.get(str(loc[-1]), "") if form == "str" and isinstance(value, list) and loc else ""
        return f"must be {wording.wanted[form]}{fields}, not {wording.describe(form, value)}{hint}"
    match error["type"]:
        case "missing":
            return "is required"
        case unknown if unknown in _UNKNOWN:
            assert parent.model is not None
            return wording.unknown_field(str(loc[-1]), list(field_schemas(parent.model)), parent.model)
        case _ if error["type"] in (REFUSED, RELATED):
            return str(context["message"])
        case "value_error":
            return str(context["error"])
        case "literal_error":
            return f"must be {context['expected']}, not {_describe(value)}"
        case "too_short":
            return f"must have at least {_entries(context['min_length'])}, but has {_entries(context['actual_length'])}"
        case "too_long":
            return f"must have at most {_entries(context['max_length'])}, but has {_entries(len(value))}"
        case "string_too_short":
            return f"must have at least {context['min_length']} characters"
        case "string_too_long":
            return f"must have at most {context['max_length']} characters, but has {len(value)}"
        case "greater_than_equal":
            return f"must be at least {context['ge']}, not {quote_value(value)}"
        case "less_than_equal":
            return f"must be at most {context['le']}, not {quote_value(value)}"
        case _:
            return f"{error['msg'][:1].lower()}{error['msg'][1:]}, not {_describe(value)}"


_LIST_HINTS = {"constraints": "; join its expressions with &&"}
"""What to do about a list where one string is expected, by field."""
_FIELDS_SHOWN = 4


def _shown_fields(shape: SchemaNode) -> str:
    """The first fields of a map, in brackets; "" for one with names of the user's own."""
    names = [] if shape.model is None else [*field_schemas(shape.model)]
    more = ", …" if len(names) > _FIELDS_SHOWN else ""
    return f" ({', '.join(names[:_FIELDS_SHOWN])}{more})" if names else ""


def _unknown_field(name: str, fields: list[str], model: type | None) -> str:
    for ancestor in model.__mro__ if model is not None else ():
        if hint := _HINTS.get(ancestor, {}).get(name):
            return f"unknown field; {hint}"
    near = closest_match(name, fields)
    if near:
        return f"unknown field; did you mean `{near}`?"
    return f"unknown field; known fields: {', '.join(fields)}" if fields else "unknown field; there are no fields here"


def _entries(count: Any) -> str:
    return "1 entry" if count == 1 else f"{count or 'no'} entries"


def _describe(value: Any) -> str:
    return quote_value(value) if isinstance(value, (str, int, float)) else type_name(value)


def _describe_wrong_form(form: str, value: Any) -> str:
    if form == "str":
        return type_name(value) + (" (write it in quotes)" if isinstance(value, (int, float)) else "")
    return type_name(value) if form in ("map", "list") else _describe(value)


_WORDING = Wording(
    wanted={
        "str": "a string",
        "int": "a whole number",
        "bool": "true or false",
        "map": "a map of fields",
        "list": "a list",
    },
    describe=_describe_wrong_form,
    unknown_field=_unknown_field,
)
