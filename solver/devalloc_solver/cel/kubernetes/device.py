"""What a selector of resource.k8s.io sees of a device: the variable ``device``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from devalloc.api.quantity import Quantity
from devalloc.api.semver import SemVer

Scalar = bool | int | str | SemVer
Value = Scalar | tuple[bool, ...] | tuple[int, ...] | tuple[str, ...] | tuple[SemVer, ...]
"""An attribute's value: one of the four scalar types, or a tuple of one of them (gate DRAListTypeAttributes)."""


@dataclass(frozen=True, slots=True, eq=False)
class CelDevice:
    """A device as CEL reads it.

    ``attributes`` and ``capacity`` map a domain to a map of identifiers; names that a manifest leaves without a domain
    stand under the driver's. ``int`` values are within 64 bits. The builder has refused what upstream refuses
    to convert (a version that is none, an attribute without a value); the maps must not change afterwards.
    """

    driver: str
    attributes: Mapping[str, Mapping[str, Value]]
    capacity: Mapping[str, Mapping[str, Quantity]]
    allow_multiple: bool = False
