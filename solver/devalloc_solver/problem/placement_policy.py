"""The placement policies: which of the answers that are as good in goals 1 to 4 is preferred (S17, goal 5).

``pack`` counts nodes and pools that come into use, and what is lost of large partitions
(``bounds.largest_partition``). ``spread`` evens out how much of each node is in use, then of each pool (``loads``).

A user's word becomes a policy once, at the door (``policy_named``). From there on, searches ask the policy, never which
one it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from devalloc_solver.problem.loads import UNIT, Measure, growth, unevenness

if TYPE_CHECKING:
    from devalloc_solver.problem.allocations import Usage


class PartlyUsed(Protocol):
    """A node or a pool, with what is in use of it."""

    @property
    def in_use(self) -> bool:
        """Whether some device is in use."""

    @property
    def load(self) -> int:
        """How much is in use, see ``Loads``."""

    @property
    def capacity(self) -> int:
        """How much there is, see ``PoolScale``."""


class PlacementPolicy(Protocol):
    """What is asked of a policy."""

    @property
    def name(self) -> str:
        """The user's word for it."""

    @property
    def preference(self) -> str:
        """What it does, for the help of options: ``fill nodes that are in use``."""

    @property
    def weighs_loads(self) -> bool:
        """Whether it matters how much of devices, pools and nodes is in use, and not only whether they are."""

    @property
    def measure(self) -> Measure:
        """What a load costs, if it weighs loads: the policy keeps the sum low."""

    @property
    def prefers_used(self) -> bool:
        """Whether nodes and pools of which something is in use come first."""

    @property
    def keeps_partitions(self) -> bool:
        """Whether it matters what is lost of large partitions."""

    def use(self, place: PartlyUsed) -> int:
        """All that it looks at of what is in use of a pool, or of a node of which the capacity is known."""

    def cost(self, place: PartlyUsed, more: int) -> int:
        """How little it likes that so much more (see ``Loads``) of a node or a pool is in use."""

    def first_fit_order(self, nodes: Sequence[str], usage: Usage) -> Sequence[str]:
        """The order in which to look for the first of these nodes, given in natural order, that has room."""


class _Pack:
    name = "pack"
    preference = "fill nodes that are in use"
    weighs_loads = False
    measure: Measure = staticmethod(unevenness)
    prefers_used = True
    keeps_partitions = True

    def use(self, place: PartlyUsed) -> int:
        return place.in_use

    def cost(self, place: PartlyUsed, more: int) -> int:
        return not place.in_use

    def first_fit_order(self, nodes: Sequence[str], usage: Usage) -> Sequence[str]:
        return nodes


class _Spread:
    name = "spread"
    preference = "prefer nodes of which the smallest share is in use"
    weighs_loads = True
    measure: Measure = staticmethod(unevenness)
    prefers_used = False
    keeps_partitions = False

    def use(self, place: PartlyUsed) -> int:
        return place.load

    def cost(self, place: PartlyUsed, more: int) -> int:
        return growth(place.load, place.capacity, more, self.measure)

    def first_fit_order(self, nodes: Sequence[str], usage: Usage) -> Sequence[str]:
        return sorted(nodes, key=lambda node: usage.loads.growth_of_node(node, UNIT, self.measure))  # stable


PACK: PlacementPolicy = _Pack()
SPREAD: PlacementPolicy = _Spread()
POLICIES = (PACK, SPREAD)
DEFAULT_PLACEMENT = PACK.name
"""The word for users who give none."""


def policy_named(placement: str) -> PlacementPolicy:
    """Return the policy of this name. Raises ValueError where there is none."""
    for policy in POLICIES:
        if policy.name == placement:
            return policy
    raise ValueError(f"placement must be one of {', '.join(each.name for each in POLICIES)}, not {placement!r}")
