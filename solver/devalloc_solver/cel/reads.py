"""What an expression reads of a device, and the equalities that it demands, without evaluating it.

A place is what a chain of fields and indexes from a variable of the device leads to. With these, a caller evaluates
once for each distinct tuple of the values read, and finds candidates by index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from devalloc_solver.cel.syntax_tree import (
    Call,
    Comprehension,
    ListOf,
    Literal,
    Name,
    Node,
    Select,
    children,
    is_binding,
)

_INDEX = frozenset(("_[_]", "_[?_]", "_?._"))


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the device: the keys that lead to it, and how many more lead to a value: 0 for a value itself, less
    for what can only be used as a whole."""

    path: tuple[str, ...]
    steps: int

    def below(self, key: str) -> Place | None:
        return Place((*self.path, key), self.steps - 1) if self.steps > 0 else None


Places = Mapping[str, Place]
"""The places that variables denote."""


class _DependsOnDevice(Exception):
    """What is read depends on the device."""


def paths_read(root: Node, variables: Places) -> frozenset[tuple[str, ...]] | None:
    """The paths of all values of the device that can influence the result; None if that is not known beforehand."""
    collected: set[tuple[str, ...]] = set()
    try:
        _collect(root, variables, collected)
    except _DependsOnDevice:
        return None
    return frozenset(collected)


def place_of(node: Node, variables: Places) -> Place | None:
    """The place in the device that ``node`` denotes."""
    if isinstance(node, Name):
        return variables.get(node.name)
    if (step := _step(node)) is None:
        return None
    place = place_of(step[0], variables)
    return None if place is None else place.below(step[1])


def _step(node: Node) -> tuple[Node, str] | None:
    """``x["key"]``, ``x.key`` and their optional forms, as (x, key)."""
    if isinstance(node, Select):
        return node.operand, node.field
    if isinstance(node, Call) and node.function in _INDEX:
        base, key = node.arguments
        if isinstance(key, Literal) and isinstance(key.value, str):
            return base, key.value
    return None


def _collect(node: Node, variables: Places, collected: set[tuple[str, ...]]) -> None:
    if isinstance(node, Literal):
        return
    place = _place_read(node, variables)
    if place is not None:
        if place.steps != 0:
            raise _DependsOnDevice
        collected.add(place.path)
    elif isinstance(node, Comprehension):
        _collect_fold(node, variables, collected)
    else:
        for part in children(node):
            _collect(part, variables, collected)


def _place_read(node: Node, variables: Places) -> Place | None:
    """The place that a node denotes, or ``"x" in place`` looks into: that asks only whether x is present."""
    place = place_of(node, variables)
    if place is None and isinstance(node, Call) and node.function == "@in":
        key, container = node.arguments
        within = place_of(container, variables)
        if within is not None and within.steps == 1 and isinstance(key, Literal) and isinstance(key.value, str):
            return within.below(key.value)
    return place


def _collect_fold(fold: Comprehension, variables: Places, collected: set[tuple[str, ...]]) -> None:
    own = _places_within(fold, variables)
    if fold.accumulator in own:
        _collect(fold.result, own, collected)
        return
    for part in (fold.range, fold.start):
        _collect(part, variables, collected)
    for part in (fold.condition, fold.step, fold.result):
        _collect(part, own, collected)


def _places_within(fold: Comprehension, variables: Places) -> Places:
    """The places that variables denote in a comprehension, which hides some and may bind one."""
    hidden = (fold.variable, fold.second_variable, fold.accumulator)
    own = {name: place for name, place in variables.items() if name not in hidden}
    start = place_of(fold.start, variables) if is_binding(fold) else None
    if start is not None and start.steps != 0:
        own[fold.accumulator] = start
    return own


def nodes_with_places(root: Node, variables: Places) -> Iterator[tuple[Node, Places]]:
    """The node and all below it, in their order, each with the places that its variables denote."""
    pending = [(root, variables)]
    while pending:
        node, outside = pending.pop()
        yield node, outside
        within = _places_within(node, outside) if isinstance(node, Comprehension) else outside
        first, others = children(node)[:2], children(node)[2:]  # of a comprehension the range and the start, the rest
        pending += reversed([*((part, outside) for part in first), *((part, within) for part in others)])


def value_path(node: Node, variables: Places) -> tuple[str, ...] | None:
    """The path of the value that a node reads, or only looks for (``has``, ``in``); None if it does neither."""
    place = _place_read(node, variables)
    return place.path if place is not None and place.steps == 0 else None


Comparison = tuple[str, tuple[str, ...], object]
"""(operator, path, literal)"""
_SWAPPED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def comparisons(node: Node, variables: Places) -> Iterator[Comparison]:
    """What a node compares with literals: ``device.a == literal``, or ``device.a in [literals]``."""

    def path_of(part: Node) -> tuple[str, ...] | None:
        place = place_of(part, variables)
        return None if place is None or place.steps != 0 or is_optional(part) else place.path

    match node:
        case Call(function="@in", arguments=(left, ListOf(elements=items))) if (path := path_of(left)) is not None:
            yield from (("==", path, item.value) for item in items if isinstance(item, Literal))
        case Call(arguments=(left, right)) if (operator := node.function.strip("_")) in _SWAPPED:
            if (path := path_of(left)) is not None and isinstance(right, Literal):
                yield operator, path, right.value
            elif (path := path_of(right)) is not None and isinstance(left, Literal):
                yield _SWAPPED[operator], path, left.value


MAX_OPERANDS = 8
"""Operands of ``&&`` that are evaluated apart; further ones are evaluated together."""


def conjuncts(root: Node, variables: Places) -> list[tuple[Node, frozenset[tuple[str, ...]] | None]]:
    """The operands of the top-level ``&&``, those that read the same as one, with the paths that each reads (None: not
    known beforehand). An expression is what these are together, whatever their order."""
    apart: dict[frozenset[tuple[str, ...]] | None, list[Node]] = {}
    for operand in _operands(root):
        read = paths_read(operand, variables)
        if read not in apart and len(apart) >= MAX_OPERANDS:
            read = next(reversed(apart))
        apart.setdefault(read, []).append(operand)
    joined = [_and(operands) for operands in apart.values()]
    return [(node, paths_read(node, variables)) for node in joined]


def _operands(node: Node) -> Iterator[Node]:
    if isinstance(node, Call) and node.function == "_&&_":
        for part in node.arguments:
            yield from _operands(part)
    else:
        yield node


def _and(operands: Sequence[Node]) -> Node:
    return operands[0] if len(operands) == 1 else Call(operands[0].id, "_&&_", tuple(operands), False)


Equality = tuple[tuple[str, ...], tuple[object, ...]]
"""(path, values) of which a device must have one there for the expression to be true of it"""
Accepts = Callable[[tuple[str, ...], Sequence[object]], bool]


def equalities(root: Node, variables: Places, accepts: Accepts) -> Iterator[Equality]:
    """The equalities with literals that every matching device fulfils: those among the top-level conjuncts, and of
    alternatives those on a place that each of them demands something of. ``accepts``: which ones are of use."""
    match root:
        case Call(function="_&&_", arguments=parts):
            for part in parts:
                yield from equalities(part, variables, accepts)
        case Call(function="_||_", arguments=parts):
            first, *others = [dict(reversed([*equalities(part, variables, accepts)])) for part in parts]
            for path in first:
                if all(path in other for other in others):
                    values = [value for each in (first, *others) for value in each[path]]
                    if accepts(path, values):
                        yield path, (*dict.fromkeys(values),)
        case Call(function="_==_", arguments=(left, right)):
            yield from _one_of(left, (right,), variables, accepts)
            yield from _one_of(right, (left,), variables, accepts)
        case Call(function="@in", arguments=(left, ListOf(elements=elements, optional=optional))) if not optional:
            yield from _one_of(left, elements, variables, accepts)


def _one_of(node: Node, values: Sequence[Node], variables: Places, accepts: Accepts) -> Iterator[Equality]:
    place = place_of(node, variables)
    if place is None or place.steps != 0 or is_optional(node):
        return
    constants = [each.value for each in values if isinstance(each, Literal)]
    if len(constants) == len(values) and accepts(place.path, constants):
        yield place.path, (*dict.fromkeys(constants),)


def is_optional(node: Node) -> bool:
    """Whether a place is asked for in a way that takes its absence: ``has``, ``.?x`` or ``[?x]``."""
    while (step := _step(node)) is not None:
        if isinstance(node, Select) and node.test:
            return True
        if isinstance(node, Call) and node.function != "_[_]":
            return True
        node = step[0]
    return False
