"""A type-checked expression: its tree, with the type of every node.

It is read from the serialized form of the official runtime (the protocol buffer ``cel.expr.CheckedExpr``), so that
neither that form nor the protocol buffer library is known anywhere else.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from devalloc_solver.cel.library.times import Duration, Timestamp
from devalloc_solver.cel.syntax_tree import Call, Comprehension, Entry, ListOf, Literal, MapOf, Name, Node, Select
from devalloc_solver.cel.values import UInt


@dataclass(frozen=True, slots=True)
class Type:
    """A static type: its name, such as ``int``, ``list`` or ``kubernetes.Quantity``, and its parameters."""

    name: str
    parameters: tuple[Type, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.parameters))})" if self.parameters else self.name


DYN = Type("dyn")
BOOL = Type("bool")


@dataclass(frozen=True, slots=True)
class CheckedExpression:
    """A whole expression: its root, and by the ids of the nodes their types and positions, still serialized."""

    root: Node
    _types: tuple[bytes, ...]
    _offsets: tuple[bytes, ...]

    def types(self) -> dict[int, Type]:
        """The types by node; what is absent is ``dyn``."""
        return {id: _type(value) for id, value in map(_entry_of_map, self._types)}

    def offset(self, node: Node) -> int:
        """Where the node stands in the text, in characters."""
        for item in self._offsets:
            entry = _fields(item)
            if _int64(entry.get(1, (0,))[0]) == node.id:
                return int(entry.get(2, (0,))[0])
        return 0


def decode(serialized: bytes) -> CheckedExpression:
    """Read a checked expression as the runtime serializes it: wrapped in ``google.protobuf.Any``."""
    checked = _fields(_fields(serialized)[2][0])
    references = {}
    for id, value in map(_entry_of_map, checked.get(2, ())):
        reference = _fields(value)
        if 1 in reference:
            references[id] = reference[1][0].decode()
    positions = _fields(checked[5][0]).get(4, ()) if 5 in checked else ()
    return CheckedExpression(_node(checked[4][0], references), tuple(checked.get(3, ())), tuple(positions))


# -- protocol buffers -------------------------------------------------------------------------------------------------

Fields = dict[int, list[Any]]


def _fields(data: bytes) -> Fields:
    """The fields of one message by number: integers for varints, bytes for everything else."""
    fields: Fields = {}
    position, end = 0, len(data)
    while position < end:
        tag, position = _varint(data, position)
        number, wire = tag >> 3, tag & 7
        value: Any
        if wire == 0:
            value, position = _varint(data, position)
        elif wire == 2:
            size, position = _varint(data, position)
            value, position = data[position : position + size], position + size
        else:
            size = 8 if wire == 1 else 4
            value, position = data[position : position + size], position + size
        fields.setdefault(number, []).append(value)
    return fields


def _entry_of_map(data: bytes) -> tuple[int, bytes]:
    """One entry of a map from integers to messages."""
    id, position = _varint(data, 1)
    size, position = _varint(data, position + 1)
    return id, data[position : position + size]


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _int64(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _text(fields: Fields, number: int) -> str:
    return str(fields[number][0].decode()) if number in fields else ""


def _node(data: bytes, references: dict[int, str]) -> Node:
    fields = _fields(data)
    id = _int64(fields.get(2, (0,))[0])
    if 3 in fields:
        return Literal(id, _literal(_fields(fields[3][0])))
    if 4 in fields:
        return Name(id, references.get(id) or _text(_fields(fields[4][0]), 1))
    if 5 in fields:
        select = _fields(fields[5][0])
        test = bool(select.get(3, (0,))[0])
        if id in references and not test:
            return Name(id, references[id])
        return Select(id, _node(select[1][0], references), _text(select, 2), test)
    if 6 in fields:
        return _call(id, _fields(fields[6][0]), references)
    if 7 in fields:
        items = _fields(fields[7][0])
        marked = items.get(2, [])
        optional = _unpack_varints(marked[0]) if marked and isinstance(marked[0], bytes) else marked
        return ListOf(id, tuple(_node(item, references) for item in items.get(1, ())), frozenset(optional))
    if 8 in fields:
        built = _fields(fields[8][0])
        message = _text(built, 1)
        return MapOf(id, () if message else tuple(_entry(item, references) for item in built.get(2, ())), message)
    fold = _fields(fields[9][0])
    parts = [_node(fold[number][0], references) for number in (2, 4, 5, 6, 7)]
    return Comprehension(
        id, _text(fold, 1), _text(fold, 8), parts[0], _text(fold, 3), parts[1], parts[2], parts[3], parts[4]
    )


def _call(id: int, call: Fields, references: dict[int, str]) -> Call:
    function = _text(call, 2)
    arguments = [_node(item, references) for item in call.get(3, ())]
    if 1 not in call:
        return Call(id, function, tuple(arguments), False)
    if "." in references.get(id, ""):  # a function with a qualified name, such as ip.isCanonical
        return Call(id, references[id], tuple(arguments), False)
    return Call(id, function, (_node(call[1][0], references), *arguments), True)


def _entry(data: bytes, references: dict[int, str]) -> Entry:
    entry = _fields(data)
    return Entry(_node(entry[3][0], references), _node(entry[4][0], references), bool(entry.get(5, (0,))[0]))


def _unpack_varints(data: bytes) -> list[int]:
    values, position = [], 0
    while position < len(data):
        value, position = _varint(data, position)
        values.append(value)
    return values


def _literal(constant: Fields) -> Any:
    if 2 in constant:
        return bool(constant[2][0])
    if 3 in constant:
        return _int64(constant[3][0])
    if 4 in constant:
        return UInt(constant[4][0])
    if 5 in constant:
        return struct.unpack("<d", constant[5][0])[0]
    if 6 in constant:
        return constant[6][0].decode()
    if 7 in constant:
        return constant[7][0]
    return None


_PRIMITIVES = ("", "bool", "int", "uint", "double", "string", "bytes")
_WELL_KNOWN = ("", "any", Timestamp.type_name, Duration.type_name)


def _type(data: bytes) -> Type:
    fields = _fields(data)
    if 3 in fields:
        return Type(_PRIMITIVES[fields[3][0]])
    if 4 in fields:
        return Type("wrapper", (Type(_PRIMITIVES[fields[4][0]]),))
    if 5 in fields:
        return Type(_WELL_KNOWN[fields[5][0]])
    if 6 in fields:
        return Type("list", tuple(_type(item) for item in _fields(fields[6][0]).get(1, ())))
    if 7 in fields:
        parts = _fields(fields[7][0])
        return Type("map", (_type(parts[1][0]), _type(parts[2][0])))
    if 9 in fields:
        return Type(fields[9][0].decode())
    if 10 in fields:
        return DYN  # a parameter that nothing binds
    if 11 in fields:
        return Type("type", (_type(fields[11][0]),) if fields[11][0] else ())
    if 14 in fields:
        abstract = _fields(fields[14][0])
        return Type(_text(abstract, 1), tuple(_type(item) for item in abstract.get(2, ())))
    return Type("null") if 2 in fields else DYN
