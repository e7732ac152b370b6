"""How good a placement is: the goals of S17 for one unit, as a tuple that is compared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from devalloc_solver.problem.demand import Request


class PlacementScore(NamedTuple):
    """Goals 2 to 6 of S17 in their order; the smaller, the better.

    A search also keeps scores that nothing can beat, before it knows what is there.
    """

    one_of: tuple[int, ...]
    """chosen alternatives, claims and details in order, of details that have a choice"""
    pools: int
    """distinct pools, those of admin details too"""
    devices: int
    """distinct devices, likewise"""
    shares: int = 0
    """devices of shares (S9)"""
    node_cost: int = 0
    """how little the policy likes what comes into use: of the node"""
    pool_cost: int = 0
    """of the pools"""
    partition_loss: int = 0
    """what is lost of large partitions, where the policy keeps them"""
    order: tuple[Any, ...] = ()
    """natural order of the node, the pools and the devices; empty where they are looked at in that order"""


def alternatives_of(requests: Iterable[Request]) -> tuple[int, ...]:
    """The alternatives that requests are, one request for each detail: those of details that have a choice."""
    return tuple([request.alternative for request in requests if request.alternative is not None])
