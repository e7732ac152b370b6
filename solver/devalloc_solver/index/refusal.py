"""Why a claim gets nothing, told from a part of the fleet: the same as the whole one would tell, in a fraction of it.

The numbers are those of all devices, counted by kind. What would have to change is looked for on a few nodes that
stand for all: one of each kind, where the least is in use, and those where the fewest claims are in the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from devalloc.api.claim import DeviceClaim
from devalloc_solver.blockers.slips import Slips
from devalloc_solver.demand import Mode, Unit
from devalloc_solver.eligibility import Eligibility
from devalloc_solver.explain import Explainer, Fleetwide
from devalloc_solver.holdings import Key
from devalloc_solver.index.census import NETWORK, Census
from devalloc_solver.index.claims import ClaimAsk, Rules
from devalloc_solver.index.counts import KindCounts
from devalloc_solver.index.excerpt import Excerpt
from devalloc_solver.index.nodes import NodeIndex
from devalloc_solver.index.screen import Screen
from devalloc_solver.index.shape import Shape
from devalloc_solver.index.states import NodeRecord
from devalloc_solver.solution import ClaimAnswer

FEW, MANY = 16, 128
"""Nodes with the fewest claims in the way that are looked at, first and where that does not prove the answer."""
SPARE = 32
"""Nodes of each kind that are looked at where something else has to change besides."""
MEMO = 1_000
"""Answers remembered; when there are more, all are forgotten."""
EXCERPTS = 16
"""Parts of the fleet that are kept."""


@dataclass(slots=True, eq=False)
class Refusals:
    """Explains claims that the index finds no place for."""

    index: NodeIndex
    holders: Mapping[str | None, set[Key]]
    priority: Callable[[Key], int]
    census: Census = field(init=False)
    _rules: Rules | None = None
    _answers: dict[object, tuple[int, ClaimAnswer]] = field(default_factory=dict)
    _excerpts: dict[tuple[NodeRecord, ...], tuple[Excerpt, Eligibility]] = field(default_factory=dict)
    _sample: tuple[int, Eligibility, Slips] | None = None
    _screens: dict[object, Screen] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.census = Census(self.index, self.holders)

    def explain(self, ask: ClaimAsk, warnings: Sequence[str]) -> dict[str, Any]:
        """The answer for a claim without a group that fits nowhere now."""
        claim = ask.claim
        layout = self.census.layout
        self.census.update()
        if ask.rules is not self._rules or self.census.layout != layout:
            self._rules = ask.rules
            self._answers.clear()
            self._excerpts.clear()
            self._screens.clear()
            self._sample = None
        key = ask.shape, claim.pinned_node, claim.priority
        known = self._answers.get(key)
        if known is None or known[0] != self.census.stamp:
            if len(self._answers) >= MEMO:
                self._answers.clear()
            known = self._answers[key] = self.census.stamp, self._find(ask, claim)
        return known[1].to_dict() | _named(claim, warnings)

    def _find(self, ask: ClaimAsk, claim: DeviceClaim) -> ClaimAnswer:
        shape = self.index._shape(ask)
        if isinstance(shape, Shape) and not shape.wide and all(s.mode is not Mode.SHARE for s in shape.demand.slots):
            screen = self._screens.setdefault(ask.shape, Screen(self.census, shape.demand))
            for most, of_each in ((FEW, 1), (MANY, SPARE)):
                choice = screen.choose(most, of_each)
                if choice is None:
                    break
                ranks = {*choice.ranks, *self._pinned(claim)}
                records = [self.census.record(rank) for rank in sorted(ranks)]
                answer = self._answer(ask, claim, records, everywhere=False)
                kinds = [blocker["kind"] for blocker in answer.blockers]
                released = kinds.count("claim")
                settled = released == len(kinds) and (released <= choice.left or claim.pinned_node is not None)
                if not released or settled:
                    break
            if choice is not None:
                return answer
        return self._answer(ask, claim, self.census.in_order(), everywhere=True)

    def _pinned(self, claim: DeviceClaim) -> list[int]:
        record = self.index.records.get(claim.pinned_node or "")
        return [] if record is None else [record.rank]

    def _answer(
        self, ask: ClaimAsk, claim: DeviceClaim, records: Sequence[NodeRecord], *, everywhere: bool
    ) -> ClaimAnswer:
        if not everywhere and self.index.network is not None:
            records = [self.census.record(NETWORK), *records]
        excerpt, eligibility = self._excerpt(tuple(records))
        keys = {key for record in records for key in self.holders.get(record.name, ())}
        holdings = excerpt.holdings(self.index.held, keys, self.priority)
        demand = ask.demand(eligibility)
        explainer = Explainer(
            excerpt.snapshot,
            holdings,
            (),
            None,
            eligibility,
            ask.rules.intake,
            None if everywhere else self._fleetwide(),
        )
        (answer,) = explainer.explain(Unit((demand,), None, claim.pinned_node), {})
        return answer

    def _excerpt(self, records: tuple[NodeRecord, ...]) -> tuple[Excerpt, Eligibility]:
        if records not in self._excerpts:
            if len(self._excerpts) >= EXCERPTS:
                del self._excerpts[next(iter(self._excerpts))]
            assert self._rules is not None
            excerpt = Excerpt.of(records)
            self._excerpts[records] = excerpt, self._rules.on(excerpt.snapshot)
        return self._excerpts[records]

    def _fleetwide(self) -> Fleetwide:
        assert self._rules is not None
        if self._sample is None:
            sample = self.index.kinds.sample()
            eligibility = self._rules.on(sample)
            sizes = self.census.sizes()
            copies = {kind.index: sizes.get(kind.index, 0) for kind in self.index.kinds.kinds}
            self._sample = self.census.layout, eligibility, Slips(sample, eligibility, copies)
        return Fleetwide(KindCounts(self.census, self._sample[1]), self._sample[2])


def _named(claim: DeviceClaim, warnings: Sequence[str]) -> dict[str, Any]:
    namespace, name = claim.key
    own: dict[str, Any] = {"namespace": namespace, "name": name}
    return own | ({"warnings": [*warnings]} if warnings else {})
