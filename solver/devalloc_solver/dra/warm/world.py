"""The whole cluster as one problem: for claims that the index has no words for, and for why one gets nothing."""

from __future__ import annotations

from copy import deepcopy
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
from devalloc_solver.dra.slips import Slips
from devalloc_solver.dra.usage import DeviceId, Usage
from devalloc_solver.dra.warm.state import State, Tenant
from devalloc_solver.holdings import Holding, Ledger
from devalloc_solver.snapshot import Snapshot

MAX_VERDICTS = 64
"""Requests of which it is remembered what they may take; when there are more, all are forgotten."""

MAX_EXPRESSIONS = 256
"""Expressions of which the verdicts are remembered, likewise."""


@dataclass(slots=True, eq=False)
class World:
    """Told who comes to hold what, as long as slices, classes and nodes are as they were."""

    intake: Intake
    seen: Survey
    offers: list[Offer]
    snapshot: Snapshot
    gates: frozenset[str]
    placement: str
    selectors: Selectors
    is_stale: bool = False
    """slices, classes or nodes have changed: kept until there is another, since it takes long to throw away"""
    hidden: frozenset[DeviceId] = frozenset()
    """devices that draw on counters where no node reaches them: there they are among the offers only while in use"""
    holdings: dict[Key, Holding] = field(default_factory=dict)
    _used: UsedDevices = field(init=False)
    _judge: Judge = field(init=False)
    _slips: Slips = field(init=False)
    _ledger: Ledger | None = field(init=False)
    _told: dict[object, dict[str, Any]] = field(default_factory=dict)
    """claim and what it asks for -> why it gets nothing, as long as nobody gets or gives back anything"""

    @classmethod
    def of(cls, state: State, selectors: Selectors | None) -> World:
        """``selectors``: those of the world before, whose verdicts hold as long as devices do."""
        seen = survey(state.all_slices(), state.nodes)
        usage = Usage()
        for tenant in state.tenants.values():
            usage.whole |= tenant.usage.whole
            usage.shared.update(tenant.usage.shared)
        offers = list_offers(seen.views, None, state.gates)
        hidden = frozenset(offer.id for offer in offers if not offer.nodes)
        if hidden:
            offers = list_offers(seen.views, usage, state.gates)
        snapshot = make_snapshot(offers, seen.nodes, None, state.gates)
        kept = Selectors(state.gates, state.index.allowance) if selectors is None else selectors
        world = cls(state.classes, seen, offers, snapshot, state.gates, state.placement, kept)
        for key, tenant in state.tenants.items():
            world.hold(key, tenant)
        world.hidden = hidden
        return world

    def __post_init__(self) -> None:
        self._used = UsedDevices(self.offers)
        self._ledger = Ledger(self.snapshot)
        self._renew()

    def _renew(self) -> None:
        """Forget what was found out about requests."""
        if self.selectors.is_spent or len(self.selectors) > MAX_EXPRESSIONS:
            self.selectors = Selectors(self.gates, self.selectors.allowance)
        self._slips = Slips(self.offers)
        broken = frozenset(self.seen.broken)
        self._judge = Judge(self.gates, self.offers, Usage(), self.selectors, self.intake.classes, broken)

    def hold(self, key: Key, tenant: Tenant) -> None:
        """A claim has these devices."""
        if self.is_stale:
            return
        self.free(key)
        self.is_stale |= not self.hidden.isdisjoint((*tenant.usage.whole, *tenant.usage.shared))
        self._told.clear()
        self.holdings[key] = Holding(key, tenant.priority, self._used.items(tenant.usage))
        if self._ledger is not None:
            self._ledger.add(self.holdings[key])

    def free(self, key: Key) -> None:
        """A claim has nothing any more."""
        held = None if self.is_stale else self.holdings.pop(key, None)
        if held is not None:
            self.is_stale = any(self.offers[item.device].id in self.hidden for item in held.items)
            self._ledger = None
            self._told.clear()

    def unit(self, claim: Claim) -> Unit | Refused:
        """What a claim asks for, or why it is not solved. Raises OutOfTime."""
        if self._judge.size > MAX_VERDICTS:
            self._renew()
        demand = make(pending(claim, 0), self.intake, self._judge)
        return demand if isinstance(demand, Refused) else alone(demand)

    def find(self, unit: Unit) -> Placement | None:
        """Where a claim goes. Raises OutOfTime."""
        if self._ledger is None:
            self._ledger = Ledger.of(self.snapshot, self.holdings.values())
        holdings, ends = list(self.holdings.values()), self.selectors.allowance.until
        found = find(self.snapshot, holdings, unit, ledger=self._ledger, placement=self.placement, ends=ends)
        return None if found is None else found[0]

    def explain(self, unit: Unit) -> dict[str, Any]:
        """The answer for a claim that fits nowhere."""
        asked = unit.demands[0].key, unit.kind
        known = self._told.get(asked) if unit.kind is not None else None
        if known is None:
            holdings = [self.holdings[key] for key in sorted(self.holdings)]
            allowance = self.selectors.allowance
            explainer = Explainer(self.snapshot, self.offers, holdings, [], allowance.until, self._slips)
            (known,) = explainer.explain(unit)
            if unit.kind is not None and not allowance.is_over:
                self._told[asked] = known
        return deepcopy(known)
