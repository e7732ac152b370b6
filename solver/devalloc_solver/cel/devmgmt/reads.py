"""What an expression reads of a device, and the equalities that it demands, found without evaluating it.

Equalities are ``device.a == 'x'`` and ``device.a in ['x', 'y']``, joined by ``&&``, or by ``||`` where each
alternative has one for the same attribute.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from devalloc_solver.cel import devmgmt as cel
from devalloc_solver.cel.devmgmt.parser import parse
from devalloc_solver.cel.devmgmt.syntax_tree import Binary, Index, ListOf, Literal, Logical, Name, Node, Select

Equalities = tuple[tuple[str, frozenset[str | int]], ...]
"""(attribute, values) of which a device must have one each for the expression to be true of it"""


@lru_cache(maxsize=1024)
def equalities(expression: str) -> Equalities:
    """The attributes that such a conjunct names. An expression that does not parse says nothing."""
    try:
        return tuple(_conjuncts(parse(expression)))
    except cel.CompileError:
        return ()


@lru_cache(maxsize=1024)
def attributes_read(expression: str) -> frozenset[str] | None:
    """The attributes that an expression reads; None for all, also of one that is invalid."""
    try:
        return cel.compile(expression).attributes
    except cel.CompileError:
        return None


@lru_cache(maxsize=1024)
def compared_literals(expression: str) -> Mapping[str, frozenset[str | int]] | None:
    """Attributes and the texts and whole numbers that an expression compares them with (``==``, ``!=``, ``in``); None
    when it does anything else with one, such as to order or to search its values."""
    literals: dict[str, set[str | int]] = {}
    try:
        plain = _collect_compared(parse(expression), literals)
    except cel.CompileError:
        return None
    return {name: frozenset(values) for name, values in literals.items()} if plain else None


def _collect_compared(node: Node, literals: dict[str, set[str | int]]) -> bool:
    if _attribute(node) is not None:
        return False
    pairs: list[tuple[Node, tuple[Node, ...]]] = []
    if isinstance(node, Binary) and node.operator in ("==", "!="):
        pairs = [(node.left, (node.right,)), (node.right, (node.left,))]
    elif isinstance(node, Binary) and node.operator == "in" and isinstance(node.right, ListOf):
        pairs = [(node.left, tuple(node.right.items))]
    for attribute, others in pairs:
        name, values = _attribute(attribute), [_literal_value(each) for each in others]
        if name is not None and None not in values:
            literals.setdefault(name, set()).update(value for value in values if value is not None)
            return True
    return all(_collect_compared(child, literals) for child in node.children())


def _conjuncts(node: Node) -> Iterator[tuple[str, frozenset[str | int]]]:
    if isinstance(node, Logical) and node.operator == "&&":
        for operand in node.operands:
            yield from _conjuncts(operand)
    elif isinstance(node, Logical):
        first, *others = [dict(_conjuncts(operand)) for operand in node.operands]
        for name, values in first.items():
            if all(name in other for other in others):
                yield name, values.union(*(other[name] for other in others))
    elif isinstance(node, Binary) and node.operator == "==":
        for attribute, value in ((node.left, node.right), (node.right, node.left)):
            yield from _one_of(attribute, (value,))
    elif isinstance(node, Binary) and node.operator == "in" and isinstance(node.right, ListOf):
        yield from _one_of(node.left, node.right.items)


def _one_of(attribute: Node, values: Iterable[Node]) -> Iterator[tuple[str, frozenset[str | int]]]:
    name = _attribute(attribute)
    constants = [_literal_value(each) for each in values]
    plain = [value for value in constants if value is not None]
    if name is not None and len(plain) == len(constants):
        yield name, frozenset(plain)


def _attribute(node: Node) -> str | None:
    """The attribute that ``device.name`` or ``device['name']`` is."""
    if isinstance(node, Select) and not node.test and _is_device(node.operand):
        return node.field
    if isinstance(node, Index) and _is_device(node.operand) and isinstance(node.key, Literal):
        return node.key.value if isinstance(node.key.value, str) else None
    return None


def _is_device(node: Node) -> bool:
    return isinstance(node, Name) and node.name in ("device", ".device")


def _literal_value(node: Node) -> str | int | None:
    """A text or a whole number. Of texts, see ``Kinds.find``: a version may equal a text that is written otherwise."""
    value = node.value if isinstance(node, Literal) else None
    return value if isinstance(value, str | int) and not isinstance(value, bool) else None
