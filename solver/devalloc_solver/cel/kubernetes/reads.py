"""What a selector reads of a device, and the equalities that it demands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal as Only

from devalloc_solver.cel import reads as analysis
from devalloc_solver.cel.reads import Place
from devalloc_solver.cel.syntax_tree import Node


@dataclass(frozen=True, slots=True)
class DeviceField:
    """One part of a device. ``domain`` and ``id`` are empty for the driver and allowMultipleAllocations."""

    kind: Only["driver", "attribute", "capacity", "allow_multiple"]
    domain: str = ""
    id: str = ""


@dataclass(frozen=True, slots=True)
class Equality:
    """The device matches only if the attribute is present and is one of ``values``: strings, ints or booleans.

    Booleans and numbers are different values here, though Python takes True for 1: ``values`` never holds both.
    """

    domain: str
    id: str
    values: tuple[str | int | bool, ...]


DRIVER = DeviceField("driver")
ALLOW_MULTIPLE = DeviceField("allow_multiple")

PLACES = {
    "device": Place((), -1),
    "device.driver": Place(("driver",), 0),
    "device.allowMultipleAllocations": Place(("allow_multiple",), 0),
    "device.attributes": Place(("attribute",), 2),
    "device.capacity": Place(("capacity",), 2),
}
"""The variables of the device; a path is a kind, a domain and an identifier."""


def reads(root: Node) -> frozenset[DeviceField] | None:
    """Everything of the device that can influence the value; None when that is not known beforehand."""
    paths = analysis.paths_read(root, PLACES)
    return None if paths is None else frozenset(DeviceField(*path) for path in paths)  # type: ignore[arg-type]


def equalities(root: Node) -> tuple[Equality, ...]:
    """The equalities with literals of one type that every matching device fulfils."""
    return tuple(
        Equality(path[1], path[2], tuple(value for value in values if isinstance(value, str | int)))
        for path, values in analysis.equalities(root, PLACES, _is_indexed)
    )


def _is_indexed(path: tuple[str, ...], values: Sequence[object]) -> bool:
    kinds = {type(value) for value in values}
    return path[0] == "attribute" and len(kinds) == 1 and kinds <= {str, int, bool}
