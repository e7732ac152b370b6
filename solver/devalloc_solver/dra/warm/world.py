"""The whole cluster as one problem: for claims that the index has no words for, and for why one gets nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from devalloc_solver.assignment import Placement
from devalloc_solver.demand import Unit
from devalloc_solver.dra.candidates import Judge
from devalloc_solver.dra.cluster import Survey, survey
from devalloc_solver.dra.demands import alone, make, pending
from devalloc_solver.dra.documents import Intake, Key, Refused
from devalloc_solver.dra.inventory import Offer, UsedDevices, list_offers, make_snapshot
from devalloc_solver.dra.objects import Claim
from devalloc_solver.dra.reasons import Explainer
from devalloc_solver.dra.search import find
from devalloc_solver.dra.selectors import Selectors
from devalloc_solver.dra.usage import Usage
from devalloc_solver.dra.warm.state import State, Tenant
from devalloc_solver.holdings import Holding, Ledger
from devalloc_solver.snapshot import Snapshot

MAX_VERDICTS = 64
"""Requests of which it is remembered what they may take; when there are more, all are forgotten."""


@dataclass(slots=True, eq=False)
class World:
    """Valid as long as slices, classes and nodes are as they were; told who comes to hold what."""

    intake: Intake
    seen: Survey
    offers: list[Offer]
    snapshot: Snapshot
    gates: frozenset[str]
    placement: str
    holdings: dict[Key, Holding] = field(default_factory=dict)
    _used: UsedDevices = field(init=False)
    _judge: Judge = field(init=False)
    _ledger: Ledger | None = field(init=False)

    @classmethod
    def of(cls, state: State) -> World:
        seen = survey(state.all_slices(), state.nodes)
        offers = list_offers(seen.views, None, state.gates)
        names = {full for offer in offers for full in _full_names(offer)}
        snapshot = make_snapshot(offers, seen.nodes, sorted(names), state.gates)
        world = cls(state.classes, seen, offers, snapshot, state.gates, state.placement)
        for key, tenant in state.tenants.items():
            world.hold(key, tenant)
        return world

    def __post_init__(self) -> None:
        self._used = UsedDevices(self.offers)
        self._ledger = Ledger(self.snapshot)
        self._renew_judge()

    def _renew_judge(self) -> None:
        broken = frozenset(self.seen.broken)
        selectors = Selectors(self.gates)
        self._judge = Judge(self.gates, self.offers, Usage(), selectors, self.intake.classes, broken)

    def hold(self, key: Key, tenant: Tenant) -> None:
        """A claim has these devices."""
        self.free(key)
        self.holdings[key] = Holding(key, tenant.priority, self._used.items(tenant.usage))
        if self._ledger is not None:
            self._ledger.add(self.holdings[key])

    def free(self, key: Key) -> None:
        """A claim has nothing any more."""
        if self.holdings.pop(key, None) is not None:
            self._ledger = None

    def unit(self, claim: Claim) -> Unit | Refused:
        """What a claim asks for, or why it is not solved."""
        if len(self._judge._known) > MAX_VERDICTS:
            self._renew_judge()
        demand = make(pending(claim, 0), self.intake, self._judge)
        return demand if isinstance(demand, Refused) else alone(demand)

    def find(self, unit: Unit) -> Placement | None:
        """Where a claim goes."""
        if self._ledger is None:
            self._ledger = Ledger.of(self.snapshot, self.holdings.values())
        holdings = list(self.holdings.values())
        found = find(self.snapshot, holdings, unit, ledger=self._ledger, placement=self.placement)
        return None if found is None else found[0]

    def explain(self, unit: Unit) -> dict[str, Any]:
        """The answer for a claim that fits nowhere."""
        holdings = [self.holdings[key] for key in sorted(self.holdings)]
        (answer,) = Explainer(self.snapshot, self.offers, holdings, [], None).explain(unit)
        return answer


def _full_names(offer: Offer) -> Iterable[str]:
    driver = offer.pool.driver
    return (name if "/" in name else f"{driver}/{name}" for name in offer.device.attributes)
