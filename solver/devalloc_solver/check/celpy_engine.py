"""cel-python (``import celpy``) as the evaluator of the check: the dialect of docs/cel.md on a library's engine.

cel-python parses an expression, walks its tree, resolves names and absorbs errors in logic. This module adds what the
dialect has more of: amounts and versions that compare with texts (S6), the functions of Kubernetes, and types that
never compare. It is written from docs/cel.md alone and imports nothing of ``devalloc_solver.cel``.

A tenant writes these expressions, and cel-python bounds nothing. So ``Work`` counts every node that it visits and the
size of what every function reads and makes, and ``UNSUPPORTED_FORMS`` lists what cel-python must not see at all. The
interpreting evaluator is used, not the compiling one: that would turn the expression into Python and call ``exec``, and
a process can only have one of the two, because cel-python keeps one parser for all.

Importing cel-python takes 0.3 s and 20 MB, so only ``cel_results`` imports this module, when it has an expression.
"""

from __future__ import annotations

import logging
import math
import operator
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import celpy
import lark
import re2  # type: ignore[import-untyped]
from celpy import celtypes
from celpy.evaluation import Activation, CELEvalError, Evaluator

from devalloc.api.pool import AttributeValue
from devalloc.api.quantity import NANO, Quantity
from devalloc.api.semver import SemVer

Tree = lark.Tree[lark.Token]

MAX_TEXT = 2048
"""Characters of an expression that cel-python parses: about 10 ms."""
MAX_DEPTH = 90
"""Levels of its tree: each operator in parentheses has about ten, each ``&&`` of a chain one, and each level takes four
frames of Python's stack.
"""
CHARACTERS_PER_STEP = 16
_Function = Callable[..., Any]
_REGEX_MEMORY = 1 << 20
"""Bytes of a compiled pattern, as in docs/cel.md's evaluator: a larger one is an error."""


class TooCostly(Exception):
    """The evaluation needs more steps than it may have. It says nothing about the device."""


class UnreadableExpression(Exception):
    """cel-python refuses the text of an expression."""


class _Failure(Exception):
    """A function or operator has no result for these values."""


class Work:
    """The steps that cel-python may still take: a step is one node of the tree, or some characters or elements."""

    __slots__ = ("limit", "spent")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.spent = 0

    def spend(self, steps: int) -> None:
        """Take `steps`. Raises TooCostly if there are fewer."""
        if self.spent + steps > self.limit:
            raise TooCostly
        self.spent += steps


# -- what cel-python must not judge ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UnsupportedForm:
    """A form of expression that cel-python 0.5 misreads or lacks, with an example that shows it."""

    name: str
    reason: str
    is_in: Callable[[str, Tree | None], bool]
    """whether an expression has the form: its text, and its tree, None if only the text is known"""
    example: str
    wanted: bool
    """whether a device matches the example, by docs/cel.md"""


def _macros(tree: Tree) -> Iterator[Tree]:
    return (call for call in tree.find_data("member_dot_arg") if call.children[1] in _MACROS)


_MACROS = frozenset({"all", "exists", "exists_one", "filter", "map", "min", "reduce"})


def _has_macro(*names: str) -> Callable[[str, Tree | None], bool]:
    return lambda _, tree: tree is not None and any(call.children[1] in names for call in _macros(tree))


def _has_loop_over_a_value(_: str, tree: Tree | None) -> bool:
    return tree is not None and any(not _is_list(call.children[0]) for call in _macros(tree))


def _is_list(node: Any) -> bool:
    """Whether a node is a list that is written out."""
    while len(node.children) == 1 and node.data in ("member", "primary"):
        node = node.children[0]
    return bool(node.data == "list_lit")


def _tests_a_value(_: str, tree: Tree | None) -> bool:
    """Whether a ``has()`` looks into anything but the device."""
    calls = () if tree is None else tree.find_data("ident_arg")
    tests = [call for call in calls if call.children[0] == "has"]
    names = [_names(test) for test in tests]
    if any(len(each) != 3 or each[1] != "device" for each in names):
        return True
    return bool(tests) and tree is not None and any("device" in _variable(call) for call in _macros(tree))


def _variable(call: Tree) -> list[str]:
    """The variable of a macro: the names in its first argument."""
    arguments: Any = call.children[2] if len(call.children) > 2 else None
    return [] if arguments is None else _names(arguments.children[0])


def _names(tree: Tree) -> list[str]:
    return [str(token) for token in tree.scan_values(lambda leaf: getattr(leaf, "type", None) == "IDENT")]


UNSUPPORTED_FORMS: Sequence[UnsupportedForm] = (
    UnsupportedForm(
        "a backslash",
        "its patterns for strings end at an escaped quote, and take exponential time on a string that is not closed",
        lambda text, _: "\\" in text,
        r"r'\' == '\\'",
        True,
    ),
    UnsupportedForm(
        "a comma before a closing bracket",
        "its grammar has none",
        lambda text, _: re.search(r",\s*[\]}]", text) is not None,
        "size([1, 2,]) == 2",
        True,
    ),
    UnsupportedForm(
        "a function of a number that is written out",
        "the dot becomes a part of the number",
        lambda text, _: re.search(r"[0-9]\.[A-Za-z_]", text) is not None,
        "1.isGreaterThan(device.vram) || true",
        True,
    ),
    UnsupportedForm(
        "a map that is written out",
        "an error inside becomes a value of the map, and keys of two types are one key",
        lambda _, tree: tree is not None and any(True for _ in tree.find_data("map_lit")),
        "size({'a': device.absent}) == 1",
        False,
    ),
    UnsupportedForm(
        "map(), filter(), exists_one()",
        "an error inside ends the evaluation, so that || and && cannot absorb it",
        _has_macro("map", "filter", "exists_one"),
        "[0].map(x, 1 / x) == [1] || true",
        True,
    ),
    UnsupportedForm(
        "min()",
        "it is a macro that compares the values of Python",
        _has_macro("min"),
        "[1, 'a'].min() == 1 || true",
        True,
    ),
    UnsupportedForm(
        "a macro over anything but a list that is written out",
        "it walks through the characters of a string, and what it cannot walk through ends the evaluation",
        _has_loop_over_a_value,
        "device.model.all(c, true)",
        False,
    ),
    UnsupportedForm(
        "has() of anything but the device",
        "an error before the last field is false and not an error",
        _tests_a_value,
        "!has(device.absent.field)",
        False,
    ),
)
"""What is left to the evaluator of the solver. Everything else that the two judge differently is a complaint."""


# -- values ------------------------------------------------------------------------------------------------------------

_KINDS: Sequence[tuple[type | tuple[type, ...], str]] = (
    (celtypes.BoolType, "bool"),
    (celtypes.UintType, "uint"),
    (celtypes.IntType, "int"),
    (celtypes.DoubleType, "double"),
    (str, "string"),
    (Quantity, "quantity"),
    (SemVer, "semver"),
    (list, "list"),
    (dict, "map"),
    (type(None), "null"),
)


def _kind(value: object) -> str:
    """The CEL type of a value; cel-python's types are subclasses of Python's."""
    return next((name for types, name in _KINDS if isinstance(value, types)), "other")


def to_cel(value: Any) -> Any:
    """A value of Python as one of cel-python; what is one, an amount or a version stays as it is."""
    converters: Mapping[type, _Function] = {
        bool: celtypes.BoolType,
        int: celtypes.IntType,
        float: celtypes.DoubleType,
        str: celtypes.StringType,
        list: lambda items: celtypes.ListType([to_cel(item) for item in items]),
    }
    convert = converters.get(type(value))
    return value if convert is None else convert(value)


def _size(value: object) -> int:
    return len(value) if isinstance(value, str | list | dict) else 0


def _quantity(value: Any) -> Quantity:
    if isinstance(value, Quantity):
        return value
    return Quantity.parse(value) if isinstance(value, str) else Quantity(int(value) * NANO)


def _comparable(left: Any, right: Any, *, ordered: bool) -> tuple[Any, Any]:
    """What compares in place of two values that are neither lists nor maps (S6). Raises _Failure."""
    kinds = {_kind(left), _kind(right)}
    if kinds in ({"quantity"}, {"quantity", "string"}):
        return _quantity(left).nano, _quantity(right).nano
    if kinds in ({"semver"}, {"semver", "string"}):
        return SemVer.parse(left).precedence, SemVer.parse(right).precedence
    if kinds == {"null"} and not ordered:
        return None, None
    for kind, plain in (("bool", bool), ("int", int), ("uint", int), ("double", float), ("string", str)):
        if kinds == {kind}:
            return plain(left), plain(right)
    raise _Failure("two types that do not compare")


def _first_false(results: Iterable[Callable[[], bool]]) -> bool:
    """Whether all are true; false wins over failures, as with ``&&``."""
    failure = None
    for result in results:
        try:
            if not result():
                return False
        except (_Failure, ValueError) as error:
            failure = error
    if failure is not None:
        raise failure
    return True


def _equal(work: Work, left: Any, right: Any) -> bool:
    work.spend(1 + (_size(left) + _size(right)) // CHARACTERS_PER_STEP)
    kinds = {_kind(left), _kind(right)}
    if kinds == {"list"}:
        pairs = [*zip(left, right, strict=False)]
        return len(left) == len(right) and _first_false(partial(_equal, work, *pair) for pair in pairs)
    if kinds == {"map"}:
        if left.keys() != right.keys():
            return False
        return _first_false(partial(_equal, work, dict.get(left, key), dict.get(right, key)) for key in left)
    one, other = _comparable(left, right, ordered=False)
    return bool(one == other)


def _order(left: Any, right: Any) -> int:
    one, other = _comparable(left, right, ordered=True)
    return int(one > other) - int(one < other)


def _is_in(work: Work, wanted: Any, container: Any) -> bool:
    if _kind(container) == "map":
        if _kind(wanted) not in ("bool", "int", "uint", "string"):
            raise _Failure("not a key")
        return any(_kind(key) == _kind(wanted) and key == wanted for key in container)
    if _kind(container) != "list":
        raise _Failure("nothing to look into")
    return not _first_false(partial(lambda item: not _equal(work, item, wanted), item) for item in container)


def _element(container: Any, key: Any) -> Any:
    if _kind(container) == "list" and _kind(key) == "int" and 0 <= key < len(container):
        return container[key]
    if _kind(container) == "map" and _kind(key) == "string" and key in container:
        return dict.__getitem__(container, key)
    raise _Failure("no such element")


def _and(left: Any, right: Any) -> Any:
    return _decided(False, left, right)


def _or(left: Any, right: Any) -> Any:
    return _decided(True, left, right)


def _decided(decisive: bool, *operands: Any) -> bool:
    booleans = [bool(operand) for operand in operands if _kind(operand) == "bool"]
    if decisive in booleans:
        return decisive
    if len(booleans) < len(operands):
        raise _Failure("an operand is not a boolean")
    return not decisive


# -- functions ---------------------------------------------------------------------------------------------------------


def _number(pattern: str, convert: Callable[[str], Any], text: str) -> Any:
    if re.fullmatch(pattern, text, re.ASCII) is None:
        raise _Failure("not a number")
    value = convert(text)
    if isinstance(value, float) and math.isinf(value):
        raise _Failure("beyond the range")
    return value


def _boolean(text: str) -> bool:
    for value, words in ((True, "1 t T true TRUE True"), (False, "0 f F false FALSE False")):
        if text in words.split():
            return value
    raise _Failure("not a boolean")


def _uint(value: Any) -> Any:
    if value < 0 or value > 2**64 - 1:
        raise _Failure("beyond the range")
    return celtypes.UintType(value)


def _truncated(value: float) -> int:
    if not math.isfinite(value):
        raise _Failure("not finite")
    return math.trunc(value)


@lru_cache(maxsize=128)
def _pattern(text: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _REGEX_MEMORY
    return re2.compile(text, options)


def _matches(work: Work, text: str, pattern: str) -> bool:
    work.spend(32 + len(pattern))
    try:
        compiled = _pattern(str(pattern))
        work.spend((compiled.programsize * (1 + len(text) // CHARACTERS_PER_STEP)) // CHARACTERS_PER_STEP)
        return compiled.search(str(text)) is not None
    except (re2.error, UnicodeError):
        raise _Failure("not a pattern") from None


def _index(text: str, part: str, start: int = 0) -> int:
    if start < 0:
        raise _Failure("a negative index")
    return text.find(part, start) if part else start


def _replace(work: Work, text: str, old: str, new: str, count: int = -1) -> str:
    times = text.count(old) if count < 0 else min(text.count(old), count)
    work.spend(times * len(new) // CHARACTERS_PER_STEP)
    return text.replace(old, new, max(count, -1))


def _split(work: Work, text: str, separator: str, count: int = -1) -> list[str]:
    if count == 0:
        return []
    work.spend(len(text) if not separator else text.count(separator))
    if separator:
        return str(text).split(separator, count - 1 if count > 0 else -1)
    letters = [*str(text)]
    return letters if count < 0 or len(letters) <= count else [*letters[: count - 1], "".join(letters[count - 1 :])]


def _substring(text: str, start: int, end: int | None = None) -> str:
    stop = len(text) if end is None else end
    if not 0 <= start <= stop <= len(text):
        raise _Failure("no such part")
    return text[start:stop]


def _char_at(text: str, at: int) -> str:
    if not 0 <= at <= len(text):
        raise _Failure("no such character")
    return text[at : at + 1]


_SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


def _cased(text: str, first: str, last: str, shift: int) -> str:
    return "".join([chr(ord(letter) + shift) if first <= letter <= last else letter for letter in text])


def _join(work: Work, items: list[Any], separator: str = "") -> str:
    if any(_kind(item) != "string" for item in items):
        raise _Failure("not all are strings")
    work.spend(sum(len(item) + len(separator) for item in items) // CHARACTERS_PER_STEP)
    return str(separator).join(items)


def _list_index(work: Work, positions: Callable[[int], Iterable[int]], items: list[Any], wanted: Any) -> int:
    return next((at for at in positions(len(items)) if _equal(work, items[at], wanted)), -1)


def _maximum(items: list[Any]) -> Any:
    if not items:
        raise _Failure("an empty list")
    largest = items[0]
    for item in items[1:]:
        largest = item if _order(item, largest) > 0 else largest
    return largest


def _is_sorted(items: list[Any]) -> bool:
    return all(_order(left, right) <= 0 for left, right in pairwise(items))


def _sum(items: list[Any]) -> Any:
    kinds = {_kind(item) for item in items} or {"int"}
    if len(kinds) > 1 or not kinds <= {"int", "uint", "double"}:
        raise _Failure("not numbers of one type")
    if kinds == {"double"}:
        return float(sum(map(float, items)))
    total = sum(map(int, items))
    return _uint(total) if kinds == {"uint"} else total


def _whole(value: Quantity) -> int:
    units = value.as_integer()
    if units is None:
        raise _Failure("not a whole number")
    return units


def _divided(left: float, right: float) -> float:
    left, right = float(left), float(right)
    if right != 0:
        return left / right
    return math.nan if left == 0 or math.isnan(left) else math.copysign(math.inf, left) * math.copysign(1.0, right)


def _remainder(left: int, right: int) -> int:
    if left == -(2**63) and right == -1:
        raise _Failure("beyond the range")
    return left % right


def _negated(value: int) -> int:
    return -int(value)


def _is_valid(read: Callable[[str], object], text: str) -> bool:
    try:
        read(text)
    except ValueError:
        return False
    return True


def _part_of_version(at: int, version: SemVer) -> int:
    part: Any = version.precedence[at]
    return int(part)


_Table = Mapping[str, Mapping[tuple[str, ...], _Function]]
_ANY = "any"

_NUMBERS = ("int", "uint", "double")
_MEASURES = ("quantity", "semver")


def _pairs(kinds: Iterable[str], function: _Function) -> dict[tuple[str, ...], _Function]:
    return {(kind, kind): function for kind in kinds}


def _with_texts(function: _Function) -> dict[tuple[str, ...], _Function]:
    return {(kind, other): function for kind in _MEASURES for other in (kind, "string")}


_SIZES: Mapping[tuple[str, ...], _Function] = dict.fromkeys((("string",), ("list",), ("map",)), len)

_FUNCTIONS: _Table = {
    # operators
    "!_": {("bool",): operator.not_},
    "-_": {("int",): _negated, ("double",): operator.neg},
    "_+_": {
        **_pairs(_NUMBERS, operator.add),
        ("string", "string"): lambda left, right: str(left) + str(right),
        ("list", "list"): lambda left, right: [*left, *right],
    },
    "_-_": _pairs(_NUMBERS, operator.sub),
    "_*_": _pairs(_NUMBERS, operator.mul),
    "_/_": {**_pairs(("int", "uint"), operator.truediv), ("double", "double"): _divided},
    "_%_": {("int", "int"): _remainder, ("uint", "uint"): operator.mod},
    "_<_": {(_ANY, _ANY): lambda left, right: _order(left, right) < 0},
    "_<=_": {(_ANY, _ANY): lambda left, right: _order(left, right) <= 0},
    "_>_": {(_ANY, _ANY): lambda left, right: _order(left, right) > 0},
    "_>=_": {(_ANY, _ANY): lambda left, right: _order(left, right) >= 0},
    "_[_]": {(_ANY, _ANY): _element},
    # amounts and versions
    "quantity": {("string",): Quantity.parse},
    "isQuantity": {("string",): partial(_is_valid, Quantity.parse)},
    "semver": {("string",): SemVer.parse},
    "isSemver": {("string",): partial(_is_valid, SemVer.parse)},
    "compareTo": _with_texts(_order),
    "isGreaterThan": _with_texts(lambda left, right: _order(left, right) > 0),
    "isLessThan": _with_texts(lambda left, right: _order(left, right) < 0),
    "sign": {("quantity",): lambda value: (value.nano > 0) - (value.nano < 0)},
    "isInteger": {("quantity",): lambda value: value.as_integer() is not None},
    "asInteger": {("quantity",): _whole},
    "asApproximateFloat": {("quantity",): lambda value: value.nano / NANO},
    "add": {
        ("quantity", kind): lambda value, other: Quantity(value.nano + _quantity(other).nano)
        for kind in ("quantity", "string", "int")
    },
    "sub": {
        ("quantity", kind): lambda value, other: Quantity(value.nano - _quantity(other).nano)
        for kind in ("quantity", "string", "int")
    },
    "major": {("semver",): partial(_part_of_version, 0)},
    "minor": {("semver",): partial(_part_of_version, 1)},
    "patch": {("semver",): partial(_part_of_version, 2)},
    # standard
    "size": _SIZES,
    "contains": {("string", "string"): lambda text, part: str(part) in str(text)},
    "startsWith": {("string", "string"): lambda text, part: text.startswith(part)},
    "endsWith": {("string", "string"): lambda text, part: text.endswith(part)},
    "bool": {("bool",): bool, ("string",): _boolean},
    "int": {
        ("int",): int,
        ("uint",): int,
        ("double",): _truncated,
        ("string",): partial(_number, r"[+-]?[0-9]{1,30}", int),
    },
    "uint": {
        ("uint",): _uint,
        ("int",): _uint,
        ("double",): lambda value: _uint(_truncated(value) if value >= 0 else -1),
        ("string",): lambda text: _uint(_number("[0-9]{1,30}", int, text)),
    },
    "double": {
        ("double",): float,
        ("int",): float,
        ("uint",): float,
        ("string",): partial(_number, r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?", float),
    },
    "string": {
        ("string",): str,
        ("bool",): lambda value: "true" if value else "false",
        ("int",): lambda value: str(int(value)),
        ("uint",): lambda value: str(int(value)),
        ("semver",): str,
    },
    # strings and lists
    "charAt": {("string", "int"): _char_at},
    "lowerAscii": {("string",): lambda text: _cased(text, "A", "Z", 32)},
    "upperAscii": {("string",): lambda text: _cased(text, "a", "z", -32)},
    "substring": {("string", "int"): _substring, ("string", "int", "int"): _substring},
    "trim": {("string",): lambda text: text.strip(_SPACES)},
    "isSorted": {("list",): _is_sorted},
    "max": {("list",): _maximum},
    "sum": {("list",): _sum},
}
"""By name, a member's receiver being its first argument: what a function does with values of these types."""

_COUNTED: _Table = {
    "_==_": {(_ANY, _ANY): _equal},
    "_!=_": {(_ANY, _ANY): lambda work, left, right: not _equal(work, left, right)},
    "_in_": {(_ANY, _ANY): _is_in},
    "matches": {("string", "string"): _matches},
    "indexOf": {
        ("string", "string"): lambda _, text, part: _index(text, part),
        ("string", "string", "int"): lambda _, text, part, start: _index(text, part, start),
        ("list", _ANY): lambda work, items, wanted: _list_index(work, range, items, wanted),
    },
    "lastIndexOf": {
        ("string", "string"): lambda work, text, part: (work.spend(len(text) * len(part) // 64), text.rfind(part))[1],
        ("list", _ANY): lambda work, *rest: _list_index(work, lambda size: range(size - 1, -1, -1), *rest),
    },
    "replace": dict.fromkeys((("string",) * 3, ("string", "string", "string", "int")), _replace),
    "split": {("string", "string"): _split, ("string", "string", "int"): _split},
    "join": {("list",): _join, ("list", "string"): _join},
}
"""The same for functions whose cost is more than the size of what they are given: they spend it themselves."""

_LOGIC: Mapping[str, _Function] = {"_&&_": _and, "_||_": _or}
"""What sees the errors of its operands."""


def _call(work: Work, rows: Mapping[tuple[str, ...], _Function], is_counted: bool, *arguments: Any) -> Any:
    """Call the row for the types of these arguments; an error is returned, as cel-python does."""
    work.spend(1)
    for argument in arguments:
        if isinstance(argument, CELEvalError):
            return argument
        work.spend(_size(argument) // CHARACTERS_PER_STEP)
    kinds = tuple(map(_kind, arguments))
    row = rows.get(kinds) or rows.get((*kinds[:1], *[_ANY for _ in kinds[1:]])) or rows.get((_ANY,) * len(kinds))
    if row is None:
        return CELEvalError(f"no such overload for {' and '.join(kinds)}")
    try:
        return to_cel(row(work, *arguments) if is_counted else row(*arguments))
    except (_Failure, ArithmeticError, ValueError) as error:
        return CELEvalError(str(error))


def _decide(work: Work, function: _Function, *operands: Any) -> Any:
    work.spend(1)
    try:
        return celtypes.BoolType(function(*operands))
    except _Failure as error:
        return next((each for each in operands if isinstance(each, CELEvalError)), CELEvalError(str(error)))


def _functions(work: Work) -> dict[str, _Function]:
    return {
        **{name: partial(_call, work, rows, False) for name, rows in _FUNCTIONS.items()},
        **{name: partial(_call, work, rows, True) for name, rows in _COUNTED.items()},
        **{name: partial(_decide, work, function) for name, function in _LOGIC.items()},
    }


# -- evaluation --------------------------------------------------------------------------------------------------------


class _BoundedEvaluator(Evaluator):
    """cel-python's evaluator, which counts the nodes that it visits."""

    def __init__(self, ast: Tree, activation: Activation, work: Work) -> None:
        super().__init__(ast, activation)
        self._work = work

    def visit_children(self, tree: Tree) -> list[Any]:
        self._work.spend(1)
        return [self.visit(child) if isinstance(child, lark.Tree) else child for child in tree.children]

    def sub_evaluator(self, ast: Tree) -> Evaluator:
        return _BoundedEvaluator(ast, self.activation, self._work)

    def build_ss_macro_eval(self, child: Tree) -> Callable[[Any], Any]:
        """The body of all() and exists(); a value that is not a boolean is an error there."""
        judge = super().build_ss_macro_eval(child)

        def strict(value: Any) -> Any:
            result = judge(value)
            return result if isinstance(result, celtypes.BoolType | CELEvalError) else CELEvalError("not a boolean")

        return strict


@lru_cache(maxsize=1)
def _environment() -> celpy.Environment:
    """cel-python's environment, with its one parser for the process. It sets Python's recursion limit: undone here."""
    logging.getLogger("celpy").setLevel(logging.CRITICAL + 1)  # it logs what tenants write
    limit = sys.getrecursionlimit()
    try:
        return celpy.Environment(runner_class=celpy.InterpretedRunner)
    finally:
        sys.setrecursionlimit(limit)


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression that cel-python has parsed."""

    tree: Tree

    def holds(self, attributes: Mapping[str, AttributeValue], work: Work) -> bool:
        """Whether it is true for a device with these attributes; an error is not.

        Raises TooCostly, also where the stack does not suffice.
        """
        try:
            device = celtypes.MapType({celtypes.StringType(name): to_cel(value) for name, value in attributes.items()})
            activation = Activation(functions=_functions(work), vars={"device": device})
            result = _BoundedEvaluator(self.tree, activation, work).evaluate()
        except (TooCostly, RecursionError, MemoryError):
            raise TooCostly from None
        except Exception:  # what cel-python does not turn into an error of CEL itself: TypeError, IndexError, ...
            return False
        return isinstance(result, celtypes.BoolType) and bool(result)


@lru_cache(maxsize=512)
def parse(text: str) -> Expression | None:
    """The expression for cel-python; None if it has an unsupported form or is too long or too deep.

    Raises UnreadableExpression.
    """
    if len(text) > MAX_TEXT or any(form.is_in(text, None) for form in UNSUPPORTED_FORMS):
        return None
    try:
        tree = _environment().compile(text)
    except (RecursionError, MemoryError):
        return None
    except Exception as error:  # besides CELParseError whatever its parser raises: a tenant wrote the text
        raise UnreadableExpression(str(error).strip() or type(error).__name__) from None
    if _depth(tree) > MAX_DEPTH or any(form.is_in(text, tree) for form in UNSUPPORTED_FORMS):
        return None
    return Expression(tree)


def _depth(tree: Tree) -> int:
    depth, level = 0, [tree]
    while level:
        depth += 1
        level = [child for node in level for child in node.children if isinstance(child, lark.Tree)]
    return depth
