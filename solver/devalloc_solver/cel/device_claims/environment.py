"""The environment of DeviceClaims: ``device`` is the flat map of attributes, and values compare as S6 says."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import partial
from typing import Any

from devalloc.api.quantity import NANO, Quantity, QuantityError
from devalloc.api.semver import SemVer
from devalloc_solver.cel.device_claims import comparison, declarations
from devalloc_solver.cel.device_claims.comparison import map_key, to_quantity, to_semver, type_name
from devalloc_solver.cel.environment import Environment, Run
from devalloc_solver.cel.errors import EvaluationError
from devalloc_solver.cel.library import conversions, lists, operators, strings, versions
from devalloc_solver.cel.library.conversions import text_to_double
from devalloc_solver.cel.library.lists import comparing_functions
from devalloc_solver.cel.library.quantities import amount_functions
from devalloc_solver.cel.library.strings import PatternBounds, pattern_functions
from devalloc_solver.cel.reads import Place
from devalloc_solver.cel.registry import (
    ANY,
    BOOL,
    DOUBLE,
    INT,
    LIST,
    MAP,
    STRING,
    UINT,
    Function,
    Kind,
    Overload,
    functions_by_name,
)
from devalloc_solver.cel.syntax_tree import Call, Literal, Name, Node, Select
from devalloc_solver.cel.values import LISTS, MAPS, Frame, UInt, short_text

DEVICE = frozenset(("device", ".device"))
"""The names of the device; a variable of a macro can hide the first one only."""
PLACES = dict.fromkeys(DEVICE, Place((), 1))
"""What ``device`` denotes; a path is the name of an attribute."""
PATTERNS = PatternBounds(memory=1 << 20, too_large=10_000, instruction=2)

# -- reading the device -----------------------------------------------------------------------------------------------


def _attribute(name: str) -> Run:
    def read(frame: Frame) -> Any:
        try:
            return frame.device[name]
        except KeyError:
            raise EvaluationError(f"the device has no attribute {short_text(name)}") from None

    return read


def _has_attribute(name: str) -> Run:
    return lambda frame: name in frame.device


def _whole_device(frame: Frame) -> dict[str, Any]:
    frame.spend(len(frame.device))
    return {name: frame.device[name] for name in sorted(frame.device)}


def is_device(node: Node, variables: Collection[str]) -> bool:
    """Whether ``node`` is the device, which one of the local ``variables`` may hide."""
    return isinstance(node, Name) and node.name in DEVICE and node.name not in variables


def _direct(node: Node, variables: Collection[str]) -> Run | None:
    match node:
        case Select(operand=operand, field=name) if is_device(operand, variables):
            return _has_attribute(name) if node.test else _attribute(name)
        case Call(function="_[_]", arguments=(operand, Literal(value=str() as name))) if is_device(operand, variables):
            return _attribute(name)
        case Call(function="@in", arguments=(Literal(value=value), operand)) if is_device(operand, variables):
            return _has_attribute(value) if isinstance(value, str) else _no_name(value)
    return None


def _no_name(value: object) -> Run:
    def refuse(_: Frame) -> bool:
        raise EvaluationError(f"the names of attributes are strings, not a {type_name(value)}")

    return refuse


def _get(container: Any, key: Any) -> Any:
    kind = type(container)
    if kind in MAPS:
        try:
            return container[map_key(key)]
        except KeyError:
            raise EvaluationError(f"the map has no key {short_text(key)}") from None
    if kind not in LISTS:
        missing = f"fields, so no {short_text(key)}" if isinstance(key, str) else "elements"
        raise EvaluationError(f"a {type_name(container)} has no {missing}")
    if type(key) not in (int, UInt):
        raise EvaluationError(f"the index of a list is an int, not {type_name(key)}")
    if not 0 <= key < len(container):
        raise EvaluationError(f"the list has no element {key}; it has {len(container)}")
    return container[key]


def _has(container: Any, field: str) -> bool:
    if type(container) not in MAPS:
        raise EvaluationError(f"a {type_name(container)} has no fields, so no {short_text(field)}")
    return field in container


# -- functions --------------------------------------------------------------------------------------------------------

_DECIMAL = re.compile(r"[+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?")


def _text_to_double(frame: Frame, text: str) -> float:
    """Without the forms that only Go reads, and without infinity."""
    if _DECIMAL.fullmatch(text) is None:
        raise EvaluationError(f"the string {short_text(text)} is not a double")
    return text_to_double(frame, text)


def _read(read: Any, frame: Frame, text: str) -> Any:
    frame.spend(len(text))
    return read(text)


def _is_readable(read: Any, frame: Frame, text: str) -> bool:
    try:
        _read(read, frame, text)
    except EvaluationError:
        return False
    return True


def _sum(sign: int, _: Frame, left: Quantity, right: Quantity | int) -> Quantity:
    try:
        other = Quantity(right * NANO) if isinstance(right, int) else right
        return left + other if sign > 0 else left - other
    except QuantityError as error:
        raise EvaluationError(f"the result {error}") from None


def _with_text(rows: tuple[Overload, ...]) -> tuple[Overload, ...]:
    """The rows that take a second quantity or version, for its text."""
    readers: dict[Kind, Any] = {Quantity: to_quantity, SemVer: to_semver}

    def reading(implementation: Any, read: Any) -> Any:
        return lambda frame, left, text: implementation(frame, left, _read(read, frame, text))

    return tuple(
        (name, (kinds[0], STRING), reading(implementation, readers[kinds[1]]))
        for name, kinds, implementation in rows
        if len(kinds) == 2 and kinds[1] in readers
    )


_QUANTITIES: tuple[Overload, ...] = (
    *amount_functions(Quantity),
    *(("add", (Quantity, kind), partial(_sum, 1)) for kind in (Quantity, INT)),
    *(("sub", (Quantity, kind), partial(_sum, -1)) for kind in (Quantity, INT)),
)
_OWN: tuple[Overload, ...] = (
    ("double", (STRING,), _text_to_double),
    ("string", (SemVer,), lambda _, version: str(version)),
    ("quantity", (STRING,), partial(_read, to_quantity)),
    ("isQuantity", (STRING,), partial(_is_readable, to_quantity)),
    ("semver", (STRING,), partial(_read, to_semver)),
    ("isSemver", (STRING,), partial(_is_readable, to_semver)),
    *_QUANTITIES,
    *_with_text((*_QUANTITIES, *versions.FUNCTIONS)),
)
_KINDS: dict[str, Kind] = {
    "bool": BOOL,
    "int": INT,
    "uint": UINT,
    "double": DOUBLE,
    "string": STRING,
    "list": LIST,
    "map": MAP,
    "quantity": Quantity,
    "semver": SemVer,
    declarations.DYN: ANY,
}


def _functions() -> dict[str, Function]:
    """What is declared, by the functions of the library and our own."""
    tables = (
        *(module.FUNCTIONS for module in (operators, conversions, strings, lists, versions)),
        pattern_functions(PATTERNS),
        comparing_functions(comparison.equal, comparison.order_keys),
        _OWN,
    )
    implementations = {(name, kinds): run for table in tables for name, kinds, run in table}
    declared = (
        (row.name, tuple(_KINDS[param] for param in row.params))
        for table in (declarations.OPERATORS, declarations.FUNCTIONS)
        for rows in table.values()
        for row in rows
    )
    rows = [(name, kinds, implementations[name, kinds]) for name, kinds in declared]
    collections: list[Overload] = [
        ("@in", (ANY, LIST), lambda frame, value, items: comparison.contains(frame, items, value)),
        ("@in", (ANY, MAP), lambda frame, key, entries: map_key(frame.look_up(key)) in entries),
    ]
    return functions_by_name(rows, collections, no_overload=no_overload)


# -- wording ----------------------------------------------------------------------------------------------------------

_WORDING = {
    "_&&_": "&& combines booleans, not a {}",
    "_||_": "|| combines booleans, not a {}",
    "!_": "! negates a boolean, not a {}",
    "_?_:_": "the condition of ?: is a boolean, not a {}",
    "@condition": "the condition of a macro is a boolean, not a {}",
    "comprehension": "a macro goes through a list or the keys of a map, not through a {}",
    "@in": "'in' looks into a list or a map, not into a {}",
}


def shown(function: str) -> str:
    """A function or operator as messages name it."""
    if function == "-_":
        return "unary -"
    return function.strip("_") if function.startswith("_") else f"{function}()"


def no_type(function: str, type: str) -> str:
    """Why an operator does not take a value of a type."""
    return _WORDING[function].format(type)


def no_overload(function: str, *arguments: Any) -> EvaluationError:
    """The error for a function that does not take these values."""
    types = [type_name(argument) for argument in arguments]
    if function in _WORDING:
        return EvaluationError(no_type(function, types[-1]))
    return EvaluationError(f"{shown(function)} is not defined for {' and '.join(types) or 'no argument'}")


FUNCTIONS = _functions()
ENVIRONMENT = Environment(
    functions=FUNCTIONS,
    variables=dict.fromkeys(DEVICE, _whole_device),
    direct=_direct,
    equal=comparison.equal,
    unequal=comparison.unequal,
    contains=comparison.contains,
    order_keys=comparison.order_keys,
    get=_get,
    has=_has,
    map_key=map_key,
    unique_keys=True,
    no_overload=no_overload,
)
