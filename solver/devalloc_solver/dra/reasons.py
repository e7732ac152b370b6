"""Why a claim of a cluster is not allocated: a code, a sentence, and the funnel of each request (S19)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from devalloc_solver.assignment import Placement
from devalloc_solver.demand import Demand, Unit
from devalloc_solver.dra.funnel import funnel, sentence
from devalloc_solver.dra.inventory import Offer
from devalloc_solver.holdings import Holding, Ledger
from devalloc_solver.place import OutOfSteps, place
from devalloc_solver.reasons import VERDICTS, Reason
from devalloc_solver.snapshot import Snapshot


@dataclass(slots=True)
class Explainer:
    """Explains units that got nothing, each by solving it again under better circumstances."""

    snapshot: Snapshot
    offers: Sequence[Offer]
    holdings: Sequence[Holding]
    placements: Sequence[Placement]
    ends: float | None
    """monotonic time after which nothing is solved any more"""
    _known: dict[object, tuple[Reason, str]] = field(default_factory=dict)

    def explain(self, unit: Unit) -> list[dict[str, Any]]:
        """An answer for each claim of the unit."""
        kind = unit.kind
        if kind is None or kind not in self._known:
            found = self._reason(unit)
            if kind is not None:
                self._known[kind] = found
        else:
            found = self._known[kind]
        return [self._answer(demand, *found) for demand in unit.demands]

    def _answer(self, demand: Demand, reason: Reason, told: str) -> dict[str, Any]:
        ledger = self._now()
        funnels = [funnel(slot.spec, self.offers, self.snapshot, ledger) for slot in demand.slots]
        errors = sorted({error for slot in demand.slots for error in slot.spec.verdict.errors})
        answer = {
            "namespace": demand.key[0],
            "name": demand.key[1],
            "allocated": False,
            "node": None,
            "allocations": {},
            "oneOf": None,
            "reason": str(reason),
            "message": f"{VERDICTS[reason]}: {told}" + (f"; {errors[0]}" if errors else ""),
            "funnel": funnels,
        }
        return answer | ({"warnings": errors} if errors else {})

    # -- the reason --------------------------------------------------------------------------------------------------

    def _reason(self, unit: Unit) -> tuple[Reason, str]:
        for demand in unit.demands:
            for slots in demand.details:
                if not any(slot.candidates.accepted for slot in slots):
                    found = funnel(slots[0].spec, self.offers, self.snapshot, self._empty())
                    return Reason.NO_MATCHING_DEVICES, f"request {found['request']}: {sentence(found)}"
        anywhere = replace(unit, pin=None)
        tests: list[tuple[Unit, Callable[[], Ledger], Reason, str]] = [
            (unit, self._now, *self._lost(unit)),
            (unit, self._empty, Reason.DEVICES_IN_USE, "other claims hold what it asks for"),
        ]
        if unit.pin is not None:
            told = f"the node {unit.pin} does not have what other nodes do"
            tests.append((anywhere, self._empty, Reason.NODE_UNAVAILABLE, told))
        told = "the constraints leave no devices that go together"
        tests.append((_without_relations(anywhere), self._empty, Reason.MATCH_ATTRIBUTES_CONFLICT, told))
        for tried, ledger, reason, why in tests:
            fits = self._fits(tried, ledger())
            if fits is None:
                return Reason.SEARCH_LIMIT, "nothing is known to stand in the way"
            if fits:
                return reason, why
        if any(self.snapshot.devices[i].draws for d in unit.demands for s in d.slots for i in s.candidates.accepted):
            return Reason.POOL_RESOURCES_EXHAUSTED, "no node has that many such devices with the counters they consume"
        return Reason.NOT_ENOUGH_DEVICES, "no one node has that many such devices"

    def _lost(self, unit: Unit) -> tuple[Reason, str]:
        priority = min(demand.claim.priority for demand in unit.demands)
        if any(placement.demand.claim.priority > priority for placement in self.placements):
            return Reason.LOST_TO_HIGHER_PRIORITY, "claims of higher priority got the devices"
        return Reason.LOST_TO_COMPETITION, "other claims of this batch got the devices"

    def _now(self) -> Ledger:
        return Ledger.of(self.snapshot, self.holdings)

    def _empty(self) -> Ledger:
        return Ledger.of(self.snapshot, ())

    def _fits(self, unit: Unit, ledger: Ledger) -> bool | None:
        """Whether a unit fits by itself; None when that cannot be told in time."""
        if self.ends is not None and time.monotonic() > self.ends:
            return None
        try:
            return place(self.snapshot, ledger, unit) is not None
        except OutOfSteps:
            return None


def _without_relations(unit: Unit) -> Unit:
    return replace(unit, demands=tuple(replace(demand, relations=()) for demand in unit.demands))
