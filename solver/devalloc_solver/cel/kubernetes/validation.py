"""Checks that Kubernetes makes of an expression beyond its types.

Literal lists and maps hold one type; constants that are converted, patterns and format strings are valid; the device
has four fields; the result is a boolean, or is only known at run time.
"""

from __future__ import annotations

from collections.abc import Callable

from devalloc.api.problems import closest_match
from devalloc_solver.cel.budget import Budget, BudgetExceeded
from devalloc_solver.cel.closures import build
from devalloc_solver.cel.errors import CompileError, EvaluationError, error_at
from devalloc_solver.cel.kubernetes.checked_expression import BOOL, DYN, CheckedExpression, Type
from devalloc_solver.cel.kubernetes.declarations import SHARING_GATE
from devalloc_solver.cel.kubernetes.environment import PATTERNS, environment
from devalloc_solver.cel.library.conversions import FUNCTIONS as CONVERSIONS
from devalloc_solver.cel.library.formatting import CLAUSE, SHOWN, VERBS
from devalloc_solver.cel.library.strings import compile_pattern
from devalloc_solver.cel.syntax_tree import (
    Call,
    Comprehension,
    ListOf,
    Literal,
    MapOf,
    Name,
    Node,
    Select,
    children,
    walk,
)
from devalloc_solver.cel.values import Frame

Types = dict[int, Type]
"""The static types of nodes by id."""

_CONSTANT_COST = 10_000
_CONVERSIONS = frozenset(("duration", "timestamp", *(name for name, _kinds, _implementation in CONVERSIONS)))
_NARROWER: dict[str, Callable[[Type], bool]] = {
    "duration": lambda kind: kind.name != "int",
    "flatten": lambda kind: kind == DYN or (bool(kind.parameters) and kind.parameters[0].name in ("list", "dyn")),
}
"""Functions of which the runtime accepts more first arguments than Kubernetes."""

_FOR_ANY = frozenset(
    (
        *("_==_", "_!=_", "_?_:_", "_?._", "@in", "dyn", "type", "includes", "indexOf", "lastIndexOf", "or", "orValue"),
        *("optional.of", "optional.ofNonZeroValue", "cel.@mapInsert"),
    )
)
"""Functions of values of any type, and so of the device as a whole."""

_REGULAR = frozenset(("matches", "find", "findAll"))


def validate(checked: CheckedExpression, text: str, gates: frozenset[str]) -> None:
    """Apply the rules that the type checker does not know. Raises CompileError."""
    types = checked.types()
    problem = _result_problem(checked.root, types)
    if problem:
        raise CompileError(problem)
    formatted = {
        part.id
        for node in walk(checked.root)
        if isinstance(node, Call) and node.function == "format"
        for part in walk(node)
    }
    shadowed = any(
        isinstance(node, Comprehension) and "device" in (node.variable, node.second_variable, node.accumulator)
        for node in walk(checked.root)
    )
    for node in walk(checked.root):
        problem = None if shadowed and _is_of_device(node) else _problem(types, node, gates)
        if problem:
            raise error_at(text, checked.offset(node), problem)
        mixture = None if node.id in formatted else _mixed_type(types, node)
        if mixture:
            raise error_at(text, checked.offset(mixture[1]), mixture[0])


def _type_of(types: Types, node: Node) -> Type:
    return types.get(node.id, DYN)


def _result_problem(root: Node, types: Types) -> str | None:
    kind = _type_of(types, root)
    if isinstance(root, Name) and root.name == "device":
        kind = Type("kubernetes.DRADevice")
    if isinstance(root, Select) and root.test:
        kind = BOOL
    return None if kind in (BOOL, DYN) else f"must evaluate to bool or the unknown type, not {kind}"


def _problem(types: Types, node: Node, gates: frozenset[str]) -> str | None:
    match node:
        case MapOf() if node.message:
            return f"messages such as {node.message} cannot be constructed"
        case Select(operand=Name(name="device")):
            return _field_problem(node.field, gates)
        case Call(function="_?._", arguments=(Name(name="device"), Literal(value=str() as field))):
            return _field_problem(field, gates)
        case (
            Call(function="_[_]" | "_[?_]", arguments=(Name(name="device"), _))
            | Call(function="@in", arguments=(_, Name(name="device")))
            | Comprehension(range=Name(name="device"))
        ):
            return "the device is no map: its parts are fields, such as device.driver"
        case Call() if node.function not in _FOR_ANY and any(map(_is_device, node.arguments)):
            return f"found no matching overload for '{node.function}' applied to the device"
        case Call():
            return _call_problem(types, node)
    return None


def _field_problem(field: str, gates: frozenset[str]) -> str | None:
    if field in ("driver", "attributes", "capacity"):
        return None
    if field == "allowMultipleAllocations":
        return None if SHARING_GATE in gates else f"undefined field '{field}'; it needs the feature gate {SHARING_GATE}"
    near = closest_match(field, ("driver", "attributes", "capacity", "allowMultipleAllocations"))
    return f"undefined field '{field}'" + ("" if near is None else f"; did you mean '{near}'?")


def _is_of_device(node: Node) -> bool:
    """Whether the node reads from a variable called device, which need not be the environment's."""
    base = (
        node.operand
        if isinstance(node, Select)
        else node.arguments[0]
        if isinstance(node, Call) and node.arguments
        else None
    )
    return _is_device(base)


def _is_device(node: Node | None) -> bool:
    return isinstance(node, Name) and node.name == "device"


def _mixed_type(types: Types, node: Node) -> tuple[str, Node] | None:
    """The part of a literal list or map that has another type than the first; dyn is a type like any other here."""
    match node:
        case ListOf():
            return _first_other_type(
                types, [(element, at in node.optional) for at, element in enumerate(node.elements)]
            )
        case MapOf():
            values = [(entry.value, entry.optional) for entry in node.entries]
            return _first_other_type(types, [(entry.key, False) for entry in node.entries]) or _first_other_type(
                types, values
            )
    return None


def _first_other_type(types: Types, parts: list[tuple[Node, bool]]) -> tuple[str, Node] | None:
    first: Type | None = None
    for part, optional in parts:
        kind = _type_of(types, part)
        if optional and kind.parameters:
            kind = kind.parameters[0]
        if first is None:
            first = kind
        elif first != kind:
            return f"expected type '{first}' but found '{kind}'", part
    return None


def _call_problem(types: Types, call: Call) -> str | None:
    narrower = _NARROWER.get(call.function)
    if narrower is not None and not narrower(_type_of(types, call.arguments[0])):
        return f"found no matching overload for '{call.function}' applied to '({_type_of(types, call.arguments[0])})'"
    if _is_constant(call):
        run, slots = build(call, environment(False))
        try:
            run(Frame(None, Budget(_CONSTANT_COST), slots))
        except (EvaluationError, BudgetExceeded) as error:
            return str(error)
    if call.function in _REGULAR and len(call.arguments) > 1 and isinstance(call.arguments[1], Literal):
        try:
            compile_pattern(str(call.arguments[1].value), PATTERNS)
        except EvaluationError as error:
            return str(error)
    if call.function == "format" and len(call.arguments) == 2:
        return _format_problem(types, call.arguments[0], call.arguments[1])
    return None


def _is_constant(node: Node) -> bool:
    """What Kubernetes computes when it compiles: conversions of constants. No optional part of a list or map is one."""
    match node:
        case Literal():
            return True
        case ListOf():
            return all(map(_is_constant, node.elements))
        case MapOf():
            return all(_is_constant(entry.key) and _is_constant(entry.value) for entry in node.entries)
        case Call():
            return node.function in _CONVERSIONS and len(node.arguments) == 1 and _is_constant(node.arguments[0])
    return False


def _unprintable_type(types: Types, node: Node) -> Type:
    """The type of ``node``, or of the first part of a literal list or map that has no form as text."""
    parts = children(node) if isinstance(node, (ListOf, MapOf)) else ()
    kinds = [_unprintable_type(types, part) for part in parts]
    return next((kind for kind in kinds if kind.name not in SHOWN), _type_of(types, node))


def _format_problem(types: Types, text: Node, arguments: Node) -> str | None:
    """Whether a literal format fits a literal list of arguments."""
    if not isinstance(text, Literal) or not isinstance(text.value, str) or not isinstance(arguments, ListOf):
        return None
    clauses = [clause for clause in CLAUSE.finditer(text.value) if not clause[1]]
    for index, clause in enumerate(clauses):
        if index >= len(arguments.elements):
            return f"index {index} out of range"
        verb = clause[3]
        if verb not in VERBS or clause[2] == "":
            return f"unrecognized formatting clause {verb!r}"
        wanted, kind = VERBS[verb], _type_of(types, arguments.elements[index])
        if wanted is None:
            kind, wanted = _unprintable_type(types, arguments.elements[index]), tuple(SHOWN)
        if kind != DYN and kind.name not in wanted:
            return f"%{verb} does not take a {kind}"
    if len(arguments.elements) > len(clauses):
        return f"too many arguments supplied to string.format (expected {len(clauses)})"
    return None
