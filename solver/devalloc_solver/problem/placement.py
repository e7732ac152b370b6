"""Placements: the node and devices of a claim; and the goals that a set of placements reaches (S11, S17, S18)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from devalloc_solver.problem.allocations import AllocatedDevice, Allocation
from devalloc_solver.problem.demand import Demand, Request
from devalloc_solver.problem.snapshot import Device


@dataclass(frozen=True, slots=True)
class PlacedDevice:
    """One take: a device given to one request; of a shareable device there may be several.

    ``amounts`` are the (resource, nano units) of a share or portion, empty for a whole device.
    """

    request: Request
    device: Device
    amounts: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one claim goes."""

    demand: Demand
    node: str | None
    entries: tuple[PlacedDevice, ...]

    def allocation(self) -> Allocation:
        """What the claim holds from now on."""
        items = tuple(
            AllocatedDevice(e.device.index, e.amounts if e.amounts or e.device.shareable else None)
            for e in self.entries
            if not e.request.mode.is_admin
        )
        return Allocation(self.demand.key, self.demand.claim.priority, items)


@dataclass(frozen=True, slots=True)
class GoalLevel:
    """One goal's outcome: what was reached, and the bound that proves how good it is."""

    goal: str
    value: int
    bound: int
    priority: int | None = None
    choice: bool = False
    """of satisfied claims: those chosen among equal counts are the earliest ones, for certain (S17)"""

    @property
    def is_proven(self) -> bool:
        """Whether no answer is better in this goal, those before it fixed."""
        return self.value == self.bound

    @property
    def gap(self) -> int:
        """How much better an answer could be at the very most; 0 is a proof that none is."""
        return abs(self.bound - self.value)

    def to_dict(self) -> dict[str, Any]:
        """The level in the answer's JSON (settled L2)."""
        shown: dict[str, Any] = {"goal": self.goal}
        if self.priority is not None:
            shown["priority"] = self.priority
        shown |= {"value": self.value, "bound": self.bound, "gap": self.gap}
        if self.priority is not None:
            shown["choice"] = "exact" if self.choice else "best effort"
        return shown
