"""What an expression reads of a device, and the equalities that it demands, found without evaluating it.

Equalities are ``device.a == 'x'`` and ``device.a in ['x', 'y']``, joined by ``&&``, or by ``||`` where each
alternative has one for the same attribute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from devalloc_solver.cel import reads as analysis
from devalloc_solver.cel.device_claims.environment import PLACES
from devalloc_solver.cel.device_claims.parser import parse
from devalloc_solver.cel.device_claims.program import compile
from devalloc_solver.cel.errors import CompileError
from devalloc_solver.cel.reads import is_optional, place_of
from devalloc_solver.cel.syntax_tree import Call, ListOf, Literal, Node, children

Equalities = tuple[tuple[str, frozenset[str | int]], ...]
"""(attribute, values) of which a device must have one each for the expression to be true of it"""


@lru_cache(maxsize=1024)
def equalities(expression: str) -> Equalities:
    """The attributes that such a conjunct names. An expression that does not parse says nothing."""
    try:
        pairs = analysis.equalities(parse(expression), PLACES, lambda _, values: _texts_and_numbers(values) is not None)
        return tuple((path[0], _texts_and_numbers(values) or frozenset()) for path, values in pairs)
    except CompileError:
        return ()


@lru_cache(maxsize=1024)
def attributes_read(expression: str) -> frozenset[str] | None:
    """The attributes that an expression reads; None for all, also of one that is invalid."""
    try:
        return compile(expression).attributes
    except CompileError:
        return None


@lru_cache(maxsize=1024)
def compared_literals(expression: str) -> Mapping[str, frozenset[str | int]] | None:
    """Attributes and the texts and whole numbers that an expression compares them with (``==``, ``!=``, ``in``); None
    when it does anything else with one, such as to order or to search its values."""
    literals: dict[str, set[str | int]] = {}
    try:
        plain = _collect_compared(parse(expression), literals)
    except CompileError:
        return None
    return {name: frozenset(values) for name, values in literals.items()} if plain else None


def _collect_compared(node: Node, literals: dict[str, set[str | int]]) -> bool:
    if attribute_of(node) is not None:
        return False
    pairs: list[tuple[Node, tuple[Node, ...]]] = []
    match node:
        case Call(function="_==_" | "_!=_", arguments=(left, right)):
            pairs = [(left, (right,)), (right, (left,))]
        case Call(function="@in", arguments=(left, ListOf(elements=elements))):
            pairs = [(left, elements)]
    for attribute, others in pairs:
        name = attribute_of(attribute)
        values = _texts_and_numbers([each.value if isinstance(each, Literal) else None for each in others])
        if name is not None and values is not None:
            literals.setdefault(name, set()).update(values)
            return True
    return all(_collect_compared(child, literals) for child in children(node))


def attribute_of(node: Node) -> str | None:
    """The attribute that ``device.name`` or ``device['name']`` is."""
    place = place_of(node, PLACES)
    return place.path[0] if place is not None and place.steps == 0 and not is_optional(node) else None


def _texts_and_numbers(values: Sequence[object]) -> frozenset[str | int] | None:
    """The values, if all are texts or whole numbers. A version may equal a text that is written otherwise."""
    plain = [value for value in values if isinstance(value, str | int) and not isinstance(value, bool)]
    return frozenset(plain) if len(plain) == len(values) else None
