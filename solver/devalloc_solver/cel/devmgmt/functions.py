"""The functions of the dialect: one table for the static check, the evaluation and ``docs/cel.md``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

DYN = "dyn"
"""The type of what is known only when a device is looked at."""

_SIGNATURE = re.compile(r"(?:(?P<receiver>\w+)\.)?(?P<name>\w+)\((?P<params>[\w, ]*)\) -> (?P<result>\w+)")


@dataclass(frozen=True, slots=True)
class Overload:
    """One row: a function for exactly these types (``dyn``: any), a member's receiver being the first parameter."""

    signature: str
    name: str
    member: bool
    params: tuple[str, ...]
    result: str
    run: Callable[..., object]
    """Raises EvaluationError for what cannot be computed."""
    note: str = ""
    budgeted: bool = False
    """``run`` takes the budget as its last argument and spends what it costs; otherwise the sizes of the arguments
    are spent before it runs, so that its result must not be longer than them."""

    def accepts(self, types: Iterable[str]) -> bool:
        """Whether values of these types fit, a ``dyn`` being taken for what it should be."""
        return all(DYN in (want, have) or want == have for want, have in zip(self.params, types, strict=True))


def overload(signature: str, run: Callable[..., Any], note: str = "", *, budgeted: bool = False) -> Overload:
    """A row from its signature, such as ``quantity.add(int) -> quantity``."""
    match = _SIGNATURE.fullmatch(signature)
    assert match is not None, signature
    receiver = match["receiver"]
    params = tuple(part.strip() for part in match["params"].split(",") if part.strip())
    return Overload(
        signature,
        match["name"],
        receiver is not None,
        params if receiver is None else (receiver, *params),
        match["result"],
        run,
        note,
        budgeted,
    )


Table = Mapping[tuple[str, bool], tuple[Overload, ...]]
"""Overloads by name and whether they are members, in the order in which they are written."""


def function_table(*rows: Iterable[Overload]) -> Table:
    by_name: dict[tuple[str, bool], list[Overload]] = {}
    for group in rows:
        for row in group:
            by_name.setdefault((row.name, row.member), []).append(row)
    return MappingProxyType({key: tuple(value) for key, value in by_name.items()})
