"""A claim with the place that was found for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from devalloc_solver.fleet.node_index import HeldDevices, HeldItem


@dataclass(slots=True, eq=False)  # not frozen, nor a tuple: either takes twice as long to make
class PlacedClaim:
    """What a claim gets by its place."""

    answer: dict[str, Any]
    """its dict (settled L2), which the caller gets"""
    written: Mapping[str, Any]
    """what of it is written on the claim: never changed, because later answers share it"""
    held: HeldDevices
    items: Sequence[HeldItem]
    """the same in the index"""
