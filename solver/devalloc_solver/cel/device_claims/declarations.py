"""The functions and operators of the dialect with their types, one line per overload, for the static check.

``docs/cel.md`` lists the functions; where a member of a quantity or version takes another one, its text does as well:
``device.vram.isLessThan('8Gi')``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

DYN = "dyn"
"""The type of what is known only when a device is looked at."""

_SIGNATURE = re.compile(r"(?:(?P<receiver>\w+)\.)?(?P<name>[^\s.(]+)\((?P<params>[\w, ]*)\) -> (?P<result>\w+)")


@dataclass(frozen=True, slots=True)
class Declaration:
    """A function for exactly these types (``dyn``: any), a member's receiver being the first parameter."""

    signature: str
    name: str
    member: bool
    params: tuple[str, ...]
    result: str

    def accepts(self, types: Iterable[str]) -> bool:
        """Whether values of these types fit, a ``dyn`` being taken for what it should be."""
        return all(DYN in (want, have) or want == have for want, have in zip(self.params, types, strict=True))


def _declaration(signature: str) -> Declaration:
    """One from its signature, such as ``quantity.add(int) -> quantity``."""
    match = _SIGNATURE.fullmatch(signature)
    assert match is not None, signature
    receiver = match["receiver"]
    params = tuple(part.strip() for part in match["params"].split(",") if part.strip())
    params = params if receiver is None else (receiver, *params)
    return Declaration(signature, match["name"], receiver is not None, params, match["result"])


Declarations = Mapping[tuple[str, bool], tuple[Declaration, ...]]
"""Overloads by name and whether they are members, in the order in which they are written."""


def _by_name(*signatures: str) -> Declarations:
    by_name: dict[tuple[str, bool], list[Declaration]] = {}
    for row in map(_declaration, signatures):
        by_name.setdefault((row.name, row.member), []).append(row)
    return MappingProxyType({key: tuple(rows) for key, rows in by_name.items()})


OPERATORS = _by_name(
    *(f"_+_({kind}, {kind}) -> {kind}" for kind in ("int", "uint", "double", "string", "list")),
    *(f"_{symbol}_({kind}, {kind}) -> {kind}" for symbol in "-*/" for kind in ("int", "uint", "double")),
    *(f"_%_({kind}, {kind}) -> {kind}" for kind in ("int", "uint")),
    *(f"-_({kind}) -> {kind}" for kind in ("int", "double")),
)
"""Arithmetic; the type checker knows the rules of logic and comparisons."""

FUNCTIONS = _by_name(
    *(f"size({kind}) -> int" for kind in ("string", "list", "map")),
    *(f"{kind}.size() -> int" for kind in ("string", "list", "map")),
    *(f"string.{name}(string) -> bool" for name in ("contains", "startsWith", "endsWith", "matches")),
    "matches(string, string) -> bool",
    *(f"bool({kind}) -> bool" for kind in ("bool", "string")),
    *(f"int({kind}) -> int" for kind in ("int", "uint", "double", "string")),
    *(f"uint({kind}) -> uint" for kind in ("uint", "int", "double", "string")),
    *(f"double({kind}) -> double" for kind in ("double", "int", "uint", "string")),
    *(f"string({kind}) -> string" for kind in ("string", "bool", "int", "uint", "semver")),
    "string.charAt(int) -> string",
    "string.indexOf(string) -> int",
    "string.indexOf(string, int) -> int",
    "string.lastIndexOf(string) -> int",
    "string.lowerAscii() -> string",
    "string.upperAscii() -> string",
    "string.replace(string, string) -> string",
    "string.replace(string, string, int) -> string",
    "string.split(string) -> list",
    "string.split(string, int) -> list",
    "string.substring(int) -> string",
    "string.substring(int, int) -> string",
    "string.trim() -> string",
    "list.join() -> string",
    "list.join(string) -> string",
    "list.indexOf(dyn) -> int",
    "list.lastIndexOf(dyn) -> int",
    "list.isSorted() -> bool",
    *(f"list.{name}() -> dyn" for name in ("max", "min", "sum")),
    "quantity(string) -> quantity",
    "isQuantity(string) -> bool",
    "semver(string) -> semver",
    "isSemver(string) -> bool",
    *(
        f"{receiver}.{name}({argument}) -> {result}"
        for receiver in ("quantity", "semver")
        for argument in (receiver, "string")
        for name, result in (("compareTo", "int"), ("isGreaterThan", "bool"), ("isLessThan", "bool"))
    ),
    "quantity.sign() -> int",
    "quantity.isInteger() -> bool",
    "quantity.asInteger() -> int",
    "quantity.asApproximateFloat() -> double",
    *(f"quantity.{name}({kind}) -> quantity" for name in ("add", "sub") for kind in ("quantity", "string", "int")),
    *(f"semver.{part}() -> int" for part in ("major", "minor", "patch")),
)
