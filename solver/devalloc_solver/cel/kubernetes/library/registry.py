"""Functions by name, chosen by the types of their arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from devalloc_solver.cel.kubernetes.values import LISTS, MAPS, Frame, UInt, no_overload

Implementation = Callable[..., Any]
"""Takes the Frame, then the arguments (the receiver of a method first). Raises EvaluationError."""

Kind = type | tuple[type, ...] | None
"""The class of an argument, any of several, or None: every one."""

Overload = tuple[str, tuple[Kind, ...], Implementation]

INT: Kind = int
UINT: Kind = UInt
DOUBLE: Kind = float
BOOL: Kind = bool
STRING: Kind = str
BYTES: Kind = bytes
LIST: Kind = LISTS
MAP: Kind = MAPS
ANY: Kind = None


class Function:
    """All overloads of one name. A call picks the one for its arguments; raises EvaluationError if there is none."""

    __slots__ = ("_chosen", "_overloads", "name")

    def __init__(self, name: str, overloads: Iterable[tuple[tuple[Kind, ...], Implementation]]) -> None:
        self.name = name
        self._overloads = tuple(overloads)
        self._chosen: dict[tuple[type, ...], Implementation] = {}

    def __call__(self, frame: Frame, *arguments: Any) -> Any:
        types = tuple(map(type, arguments))
        implementation = self._chosen.get(types)
        if implementation is None:
            implementation = self._find(types)
            if implementation is None:
                raise no_overload(self.name, *arguments)
            self._chosen[types] = implementation
        return implementation(frame, *arguments)

    def _find(self, types: tuple[type, ...]) -> Implementation | None:
        for kinds, implementation in self._overloads:
            if len(kinds) == len(types) and all(map(_fits, kinds, types)):
                return implementation
        return None


def _fits(kind: Kind, actual: type) -> bool:
    return kind is None or (actual in kind if isinstance(kind, tuple) else actual is kind)


def functions_by_name(*tables: Iterable[Overload]) -> dict[str, Function]:
    """One Function for each name in ``tables``."""
    overloads: dict[str, list[tuple[tuple[Kind, ...], Implementation]]] = {}
    for table in tables:
        for name, kinds, implementation in table:
            overloads.setdefault(name, []).append((kinds, implementation))
    return {name: Function(name, same_name) for name, same_name in overloads.items()}
