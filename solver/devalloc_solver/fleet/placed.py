"""A claim with the place that was found for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from devalloc_solver.fleet.node_index import HeldDevices, HeldItem


class PlacedClaim(NamedTuple):
    """What a claim gets by its place."""

    answer: dict[str, Any]
    """its dict (settled L2), which the caller gets"""
    written: Mapping[str, Any]
    """what of it is written on the claim: never changed, because later answers share it"""
    held: HeldDevices
    items: Sequence[HeldItem]
    """the same in the index"""
