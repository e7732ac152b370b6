"""Units outside the column model: each is placed exactly on what is left, one by one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from devalloc_solver.exact.device_naming import name_devices
from devalloc_solver.exact.goals import may_fit, optimize_goals
from devalloc_solver.exact.model import build_model
from devalloc_solver.place import DEFAULT_STEPS, SearchDeadline, SearchTimeout, StepBudget, StepsExhausted, place
from devalloc_solver.place.node_order import BatchNodes, batch_nodes
from devalloc_solver.place.search_context import SearchContext
from devalloc_solver.problem.allocations import Holding, Usage
from devalloc_solver.problem.demand import PlacementUnit
from devalloc_solver.problem.placement import Placement
from devalloc_solver.problem.placement_policy import PlacementPolicy
from devalloc_solver.problem.snapshot import Snapshot


@dataclass(slots=True, eq=False)
class RemainingUnits:
    """Places units; ``usage`` is what is in use by now."""

    snapshot: Snapshot
    allocations: Sequence[Holding]
    """what was in use before the batch"""
    units: Sequence[PlacementUnit]
    """the batch"""
    usage: Usage
    policy: PlacementPolicy
    ends: float | None
    new: list[Holding] = field(default_factory=list)
    """what is in use since"""
    satisfied: dict[int, int] = field(default_factory=dict)
    """priority -> claims"""
    possible: dict[int, int] = field(default_factory=dict)
    """priority -> claims that fit somewhere as long as nothing else is placed"""
    _denied: dict[object, bool] = field(default_factory=dict)
    """kind of a unit that found no place -> whether it might have, before the batch: an equal one fares no better"""
    _before: Usage | None = None
    _nodes: BatchNodes | None = None

    def _nodes_left(self) -> BatchNodes:
        if self._nodes is None:
            self._nodes = batch_nodes(SearchContext(self.snapshot, self.usage, self.policy), self.units)
        return self._nodes

    def hold(self, placements: Sequence[Placement]) -> None:
        """Count these as in use."""
        for placement in placements:
            allocation = placement.holding()
            if self._nodes is not None:
                self._nodes.use(placement.node)
            self.new.append(allocation)
            self.usage.add(allocation)

    def place(self, unit: PlacementUnit) -> list[Placement]:
        """The unit's placements, or none."""
        kind = unit.kind
        is_denied = kind is not None and kind in self._denied
        placements, is_certain = ([], True) if is_denied else self._place(unit)
        if is_denied:
            fits = self._denied[kind]
        else:
            fits = bool(placements) or not is_certain or self._might_fit(unit)
            if not placements and is_certain and kind is not None:
                self._denied[kind] = fits
        for demand in unit.demands:
            priority = demand.claim.priority
            self.satisfied[priority] = self.satisfied.get(priority, 0) + bool(placements)
            self.possible[priority] = self.possible.get(priority, 0) + fits
        return placements

    def find(self, unit: PlacementUnit) -> list[Placement]:
        """The same, without counting the unit among those that are placed here."""
        return self._place(unit)[0]

    def _place(self, unit: PlacementUnit) -> tuple[list[Placement], bool]:
        """The unit's placements, or none, and whether it is certain that there are no others if there are none."""
        if self.ends is not None and time.monotonic() > self.ends:
            return [], False
        try:
            steps = StepBudget(DEFAULT_STEPS, SearchDeadline(self.ends))
            nodes = self._nodes_left()
            placed = place(self.snapshot, self.usage, unit, policy=self.policy, steps=steps, batch=nodes)
        except SearchTimeout:
            return [], False
        except StepsExhausted:
            held = [*self.allocations, *self.new]
            try:
                model = build_model(self.snapshot, held, [unit], policy=self.policy, ends=self.ends)
            except SearchTimeout:
                return [], False
            search, levels = optimize_goals(model, policy=self.policy, ends=self.ends)
            placements = name_devices(search)
            is_certain = all(level.is_proven for level in levels if level.goal == "satisfied")
        else:
            placements, is_certain = [] if placed is None else [*placed.placements], True
        self.hold(placements)
        return placements, is_certain

    def _might_fit(self, unit: PlacementUnit) -> bool:
        """False only when it is proven that the unit does not fit, whatever else is placed."""
        if not self.new:
            return False  # nothing was placed yet, and it did not fit
        if self._before is None:
            self._before = Usage.of(self.snapshot, self.allocations)
        try:
            steps = StepBudget(DEFAULT_STEPS, SearchDeadline(self.ends))
            return place(self.snapshot, self._before, unit, policy=self.policy, steps=steps) is not None
        except SearchTimeout:
            return True
        except StepsExhausted:
            return may_fit(self.snapshot, self.allocations, unit, self.ends)
