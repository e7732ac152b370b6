"""From text to a checked tree: the official runtime's parser and type checker, and the rules that Kubernetes adds.

The runtime is imported and its environment built on the first use (tens of milliseconds), once for each set of gates.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from devalloc_solver.dra.cel.build import build
from devalloc_solver.dra.cel.declarations import GATES, LIST_GATE, SHARING_GATE, environment_text
from devalloc_solver.dra.cel.errors import CompileError, CostExceeded, EvaluationError
from devalloc_solver.dra.cel.library.conversions import FUNCTIONS as CONVERSIONS
from devalloc_solver.dra.cel.library.formatting import CLAUSE, SHOWN, VERBS
from devalloc_solver.dra.cel.library.strings import pattern
from devalloc_solver.dra.cel.tree import (
    BOOL,
    DYN,
    Call,
    Checked,
    ListOf,
    Literal,
    MapOf,
    Name,
    Node,
    Select,
    Type,
    children,
    decode,
    walk,
)
from devalloc_solver.dra.cel.values import Frame

MAX_LENGTH = 10 * 1024
"""Bytes of an expression."""

MAX_DOUBLINGS = 6
"""Uses of optMap and optFlatMap: each copies what it is applied to, so that a chain of them grows exponentially."""

_DOUBLING = re.compile(r"\.\s*opt(?:Flat)?Map\s*\(")
_POSITION = re.compile(r"ERROR: <input>:(-?\d+):(-?\d+): (.*)")
_STATUS = re.compile(r"^[A-Z_]+: |\s*\[[A-Z_]+\]$")
_WHOLE = re.compile(r"has\s*\(\s*device\s*\.\s*\w+\s*\)")
_FIELDS = frozenset(("driver", "attributes", "capacity"))
_CONVERSIONS = frozenset(name for name, _kinds, _implementation in CONVERSIONS)
_NARROWER: dict[str, Callable[[Type], bool]] = {
    "duration": lambda kind: kind.name != "int",
    "flatten": lambda kind: kind == DYN or (bool(kind.parameters) and kind.parameters[0].name in ("list", "dyn")),
}
"""Functions of which the runtime accepts more first arguments than Kubernetes."""

Types = dict[int, Type]

_REGULAR = frozenset(("matches", "find", "findAll"))


def check(text: str, gates: frozenset[str]) -> Checked:
    """Parse ``text`` and give every part its type. Raises CompileError."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise CompileError("the expression is not valid Unicode", 1, error.start + 1) from None
    if size > MAX_LENGTH:
        raise CompileError(f"the expression has {size} bytes, at most {MAX_LENGTH} are allowed")
    if len(_DOUBLING.findall(text)) > MAX_DOUBLINGS:
        raise CompileError(f"optMap and optFlatMap may be used {MAX_DOUBLINGS} times")
    whole = _WHOLE.search(text) is not None  # has(device.driver): the checker must see a field, not a variable
    try:
        compiled = _environment(gates & GATES, whole).compile(text)
        checked = decode(compiled.serialize())
        _validate(checked, text, gates)
    except RecursionError:
        raise CompileError("the expression is nested too deeply") from None
    except (RuntimeError, ValueError, TypeError) as error:
        if isinstance(error, CompileError):
            raise
        raise _translated(str(error), gates) from None
    return checked


@lru_cache(maxsize=8)
def _environment(gates: frozenset[str], whole: bool) -> Any:
    from cel_expr_python import cel

    return cel.NewEnv(config=cel.NewEnvConfigFromYaml(environment_text(gates, whole)))


def _translated(report: str, gates: frozenset[str]) -> CompileError:
    """The runtime's report, cut down to its first error; what a gate would allow names that gate."""
    first = _POSITION.search(report)
    message = _STATUS.sub("", first[3] if first else report).strip()
    if "'includes'" in message and LIST_GATE not in gates:
        message += f"; it needs the feature gate {LIST_GATE}"
    if first is None:
        return CompileError(message)
    return CompileError(message, max(1, int(first[1])), max(1, int(first[2])))


def _validate(checked: Checked, text: str, gates: frozenset[str]) -> None:
    """The rules of Kubernetes that the type checker does not know. Raises CompileError."""
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
    for node in walk(checked.root):
        problem = _problem(types, node, gates)
        if not problem and node.id not in formatted:
            problem = _mixture(types, node)
        if problem:
            raise CompileError(problem, *_position(text, checked.offset(node)))


def _type_of(types: Types, node: Node) -> Type:
    return types.get(node.id, DYN)


def _position(text: str, offset: int) -> tuple[int, int]:
    before = text[:offset]
    return before.count("\n") + 1, offset - before.rfind("\n")


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
        case Select(operand=Name(name="device")) if node.field not in _fields(gates):
            hint = f"; it needs the feature gate {SHARING_GATE}" if node.field == "allowMultipleAllocations" else ""
            return f"undefined field '{node.field}'{hint}"
        case Call():
            return _call_problem(types, node)
    return None


def _fields(gates: frozenset[str]) -> frozenset[str]:
    return _FIELDS | {"allowMultipleAllocations"} if SHARING_GATE in gates else _FIELDS


def _mixture(types: Types, node: Node) -> str | None:
    """A literal list or map holds one type, and what is only known at run time is a type of its own."""
    match node:
        case ListOf():
            marked = [(element, at in node.optional) for at, element in enumerate(node.elements)]
            return _mixed(types, marked)
        case MapOf():
            keys = _mixed(types, [(entry.key, False) for entry in node.entries])
            return keys or _mixed(types, [(entry.value, entry.optional) for entry in node.entries])
    return None


def _mixed(types: Types, parts: list[tuple[Node, bool]]) -> str | None:
    first: Type | None = None
    for part, optional in parts:
        kind = _type_of(types, part)
        if optional and kind.parameters:
            kind = kind.parameters[0]
        if first is None:
            first = kind
        elif first != kind:
            return f"expected type '{first}' but found '{kind}'"
    return None


def _call_problem(types: Types, call: Call) -> str | None:
    narrower = _NARROWER.get(call.function)
    if narrower is not None and not narrower(_type_of(types, call.arguments[0])):
        return f"found no matching overload for '{call.function}' applied to '({_type_of(types, call.arguments[0])})'"
    if _is_constant(call):
        run, slots = build(call, False)
        try:
            run(Frame(None, MAX_LENGTH, slots))
        except (EvaluationError, CostExceeded) as error:
            return str(error)
    if call.function in _REGULAR and len(call.arguments) > 1 and isinstance(call.arguments[1], Literal):
        try:
            pattern(str(call.arguments[1].value))
        except EvaluationError as error:
            return str(error)
    if call.function == "format" and len(call.arguments) == 2:
        return _format_problem(types, call.arguments[0], call.arguments[1])
    return None


def _is_constant(node: Node) -> bool:
    """What Kubernetes computes when it compiles: conversions of constants."""
    match node:
        case Literal():
            return True
        case ListOf():
            return not node.optional and all(map(_is_constant, node.elements))
        case MapOf():
            return all(
                not entry.optional and _is_constant(entry.key) and _is_constant(entry.value) for entry in node.entries
            )
        case Call():
            return node.function in _CONVERSIONS and len(node.arguments) == 1 and _is_constant(node.arguments[0])
    return False


def _least_shown(types: Types, node: Node) -> Type:
    """The type of ``node``, or of the first part of a literal list or map that has no form as text."""
    parts = children(node) if isinstance(node, (ListOf, MapOf)) else ()
    kinds = [_least_shown(types, part) for part in parts]
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
            kind, wanted = _least_shown(types, arguments.elements[index]), tuple(SHOWN)
        if kind != DYN and kind.name not in wanted:
            return f"%{verb} does not take a {kind}"
    if len(arguments.elements) > len(clauses):
        return f"too many arguments supplied to string.format (expected {len(clauses)})"
    return None
