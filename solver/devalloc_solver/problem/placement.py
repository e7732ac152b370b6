"""Placements: the node and devices of a claim; what they bring into use; the goals they reach (S11, S17, S18)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from devalloc_solver.problem.allocations import GIVEN_NOW, AllocatedDevice, Holding, Usage
from devalloc_solver.problem.demand import Demand, Request
from devalloc_solver.problem.loads import Measure
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

    def holding(self) -> Holding:
        """What the claim holds from now on."""
        items = tuple(
            AllocatedDevice(e.device.index, e.amounts if e.amounts or e.device.shareable else None)
            for e in self.entries
            if not e.request.mode.is_admin
        )
        return Holding(self.demand.key, self.demand.claim.priority, items, GIVEN_NOW)


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


def added_loads(usage: Usage, entries: Iterable[PlacedDevice]) -> dict[int, int]:
    """pool -> how much more of it is in use once these are given; what admin details look at does not count."""
    devices: dict[int, Device] = {}
    whole: set[int] = set()
    shared: dict[int, dict[str, int]] = {}
    for entry in entries:
        device = entry.device
        if entry.request.mode.is_admin:
            continue
        devices[device.index] = device
        if not entry.amounts and not device.shareable:
            whole.add(device.index)
            continue
        if device.index not in shared:
            shared[device.index] = dict(usage.shared.get(device.index, {}))
        amounts = shared[device.index]
        for name, nano in entry.amounts:
            amounts[name] = amounts.get(name, 0) + nano
    by_pool: dict[int, int] = defaultdict(int)
    for index, device in devices.items():
        after = usage.loads.scale(device.pool).load(device, None if index in whole else shared[index])
        by_pool[device.pool] += max(0, after - usage.load_of(device))
    return by_pool


def growth_of(usage: Usage, placements: Iterable[Placement], measure: Measure) -> tuple[int, int]:
    """What placements add to a measure beside what is in use: for nodes, then for pools (S17, goal 5)."""
    entries = [entry for placed in placements for entry in placed.entries]
    return usage.loads.growth(added_loads(usage, entries), measure)
