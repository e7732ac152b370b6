"""Functions by name, chosen by the types of their arguments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from devalloc_solver.cel.errors import EvaluationError
from devalloc_solver.cel.values import LISTS, MAPS, Frame, UInt, no_overload

Implementation = Callable[..., Any]
"""Takes the Frame, then the arguments (the receiver of a method first). Raises EvaluationError."""


class Preparable(ABC):
    """An implementation with something to do once for all calls with one literal."""

    @abstractmethod
    def prepare(self, literal: Any) -> Implementation:
        """What calls with this literal do, which take all but that."""

    @abstractmethod
    def __call__(self, frame: Frame, text: Any, other: Any) -> Any:
        """What a call does whose second argument is no literal."""


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

    __slots__ = ("_chosen", "_no_overload", "_overloads", "name")

    def __init__(
        self,
        name: str,
        overloads: Iterable[tuple[tuple[Kind, ...], Implementation]],
        no_overload: Callable[..., EvaluationError],
    ) -> None:
        self.name = name
        self._no_overload = no_overload
        self._overloads = tuple(overloads)
        self._chosen: dict[tuple[type, ...], Implementation] = {}

    def __call__(self, frame: Frame, *arguments: Any) -> Any:
        types = tuple(map(type, arguments))
        implementation = self._chosen.get(types)
        if implementation is None:
            implementation = self._find(types)
            if implementation is None:
                raise self._no_overload(self.name, *arguments)
            self._chosen[types] = implementation
        return implementation(frame, *arguments)

    def of_text(self, *literals: Any) -> Implementation | None:
        """What a call does with a text and these literals, without looking for the overload; None if there is none."""
        implementation = self._find((str, *map(type, literals)))
        if isinstance(implementation, Preparable) and len(literals) == 1:
            return implementation.prepare(*literals)
        return None if implementation is None else lambda frame, text: implementation(frame, text, *literals)

    def _find(self, types: tuple[type, ...]) -> Implementation | None:
        for kinds, implementation in self._overloads:
            if len(kinds) == len(types) and all(map(_fits, kinds, types)):
                return implementation
        return None


def _fits(kind: Kind, actual: type) -> bool:
    return kind is None or (actual in kind if isinstance(kind, tuple) else actual is kind)


def functions_by_name(
    *tables: Iterable[Overload], no_overload: Callable[..., EvaluationError] = no_overload
) -> dict[str, Function]:
    """One Function for each name in ``tables``; ``no_overload`` gives its error for arguments that it does not take."""
    overloads: dict[str, list[tuple[tuple[Kind, ...], Implementation]]] = {}
    for table in tables:
        for name, kinds, implementation in table:
            overloads.setdefault(name, []).append((kinds, implementation))
    return {name: Function(name, same_name, no_overload) for name, same_name in overloads.items()}
