"""Why a claim gets nothing, told from a few nodes with the numbers of all: what ``world`` would tell, and sooner.

What would have to change is looked for on the first node of each kind, which stands for all of the kind where nothing
is in use, on the emptiest of each kind, on those that have what it names, and on those where the fewest claims are in
the way. Whatever these do not prove is left to the whole world.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from devalloc_solver.blockers.claims import TRIES
from devalloc_solver.demand import Unit
from devalloc_solver.dra.demands import alone, make, pending
from devalloc_solver.dra.documents import Refused, pin_of
from devalloc_solver.dra.objects import Claim
from devalloc_solver.dra.reasons import Explainer
from devalloc_solver.dra.slips import Slips
from devalloc_solver.dra.warm.counts import Counts, FleetNumbers
from devalloc_solver.dra.warm.firsts import Firsts
from devalloc_solver.dra.warm.named import KindSlips, Named
from devalloc_solver.dra.warm.part import Part
from devalloc_solver.dra.warm.rules import ClaimAsk, Rules
from devalloc_solver.dra.warm.state import State
from devalloc_solver.dra.warm.traits import offer_of
from devalloc_solver.holdings import Ledger
from devalloc_solver.index.census import Census
from devalloc_solver.index.shape import Shape
from devalloc_solver.index.states import NodeRecord
from devalloc_solver.place import OutOfSteps, fits

MOST_KINDS = 64
"""Kinds of nodes that are all looked at."""
FEW, MANY = 8, 80
"""Nodes with the fewest claims in the way, first and where that does not prove the answer; no search asks so many."""
MEMO = 1_000
"""Answers and shapes remembered; when there are more, all are forgotten."""
PARTS = 16
"""Parts of the cluster that are kept."""
MAX_VERDICTS = 64
"""Requests of which a part remembers what they may take; when there are more, it is made anew."""


@dataclass(slots=True, eq=False)
class Refusals:
    """Explains claims that the index finds no place for."""

    state: State
    census: Census = field(init=False)
    _rules: Rules | None = None
    _layout: int = -1
    _answers: dict[object, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    """(claim, what it asks for, node) -> (stamp of the census, answer)"""
    _parts: dict[tuple[NodeRecord, ...], Part] = field(default_factory=dict)
    _counts: dict[Hashable, Counts] = field(default_factory=dict)
    _firsts: Firsts = field(default_factory=Firsts)
    _slips: Slips | None = None
    _ranks: tuple[int, ...] = ()
    """of the first node of each kind"""

    def __post_init__(self) -> None:
        self.census = Census(self.state.index, self.state.holders)

    def explain(self, claim: Claim, ask: ClaimAsk) -> dict[str, Any] | None:
        """The answer for a claim that fits nowhere now; None where a part of the cluster does not tell."""
        state, pin = self.state, pin_of(claim)
        if state.scattered or ask.is_strange:
            return None
        if not ask.rules.is_beside_commons(claim):
            return None
        self._catch_up(ask.rules)
        if not 0 < len(self._ranks) <= MOST_KINDS:
            return None
        counts = self._counts_for(ask)
        if counts is None:
            return None
        counts.layout = state.layout
        if not counts.is_exact:
            return None
        key = claim.namespace, claim.name, ask.shape, pin
        known = self._answers.get(key)
        if known is None or known[0] != self.census.stamp:
            answer = self._find(claim, counts, pin)
            if answer is None or ask.is_strange or self._may_need_commons(answer):
                return None
            if len(self._answers) >= MEMO:
                self._answers.clear()
            known = self.census.stamp, answer
            if not state.index.allowance.is_over:
                self._answers[key] = known
        return deepcopy(known[1])

    def _catch_up(self, rules: Rules) -> None:
        self.census.update()
        if rules is self._rules and self.census.layout == self._layout:
            return
        if self.census.layout != self._layout:
            self._firsts.update(self.state.index.by_rank)
            first: dict[int, int] = {}
            for node, rank in self.census.classes():
                first[node.kind.index] = min(rank, first.get(node.kind.index, rank))
            self._ranks = tuple(first.values())
        self._rules, self._layout = rules, self.census.layout
        self._answers.clear()
        self._parts.clear()
        self._counts.clear()
        self._slips = None

    def _counts_for(self, ask: ClaimAsk) -> Counts | None:
        found = self._counts.get(ask.shape)
        if found is None or found.ask.sight is not ask.sight:
            if len(self._counts) >= MEMO:
                self._counts.clear()
            named = Named() if isinstance(self.state.index.shape(ask), Shape) else Named.of(ask)
            if named is None:
                return None
            found = self._counts[ask.shape] = Counts(self.census, self._firsts, ask, self.state.layout, named)
        return found

    def _find(self, claim: Claim, counts: Counts, pin: str | None) -> dict[str, Any] | None:
        """None where a few nodes do not tell what the whole cluster would."""
        index, rules = self.state.index, counts.ask.rules
        ranks = {*self._ranks, *self.census.emptiest().values(), *counts.named.ranks}
        if pin in index.records:
            ranks.add(index.records[pin].rank)
        part = self._part(ranks, rules)
        crowded = _unit(claim, part, rules)
        try:
            is_full = pin is None and crowded is not None and fits(part.snapshot, Ledger(part.snapshot), crowded)
        except OutOfSteps:
            return None
        answer = None
        if not is_full:
            answer, crowded = self._explain(claim, part, counts)
            if crowded is None or crowded.pin is not None:
                return answer
        if crowded is not None and counts.named.labels:
            is_here = counts.named.is_all_there(crowded.demands[0].details)
            if is_here is None:
                return None
            if is_here:  # no other node would do, whatever is in use there
                return self._explain(claim, part, counts)[0] if answer is None else answer
        lots = None if crowded is None else counts.lots(crowded, part)
        if lots is None:
            return None
        for most in (FEW, MANY):
            near, left = counts.fewest_claims(lots, most)
            ranks.update(near, () if is_full else counts.roomy(lots, most))
            answer, crowded = self._explain(claim, self._part(ranks, rules), counts)
            if answer is None or crowded is None or self._is_proven(answer, near, left):
                return answer
        return None

    def _may_need_commons(self, answer: Mapping[str, Any]) -> bool:
        """Whether what is in the way may depend on which nodes reach which of the commons."""
        if not self.state.rules.commons.offers:
            return False
        kinds = {str(blocker["kind"]) for blocker in answer["blockers"]}
        # Without its class a request may take them. What is tried after that is other requests, and edits of all sorts.
        edits = kinds - {"claim"}
        mixed = len(edits) > 1 and not edits <= {"constraint", "counter"}
        return not kinds or mixed or not edits.isdisjoint(("class", "request"))

    def _is_proven(self, answer: Mapping[str, Any], near: Collection[int], left: int) -> bool:
        """Whether these are the claims that the whole cluster would tell, which asks nodes in the order of ``near``."""
        index = self.state.index
        claims = [(b["namespace"], b["name"]) for b in answer["blockers"] if b["kind"] == "claim"]
        nodes = {node for key in claims for node, *_ in index.held[key]}
        if not nodes or not all(index.records[node or ""].rank in near for node in nodes):
            return False
        asked = sum(bool(self.state.holders.get(index.by_rank[rank].name)) for rank in near)
        return len(claims) <= left or asked >= TRIES

    def _explain(self, claim: Claim, part: Part, counts: Counts) -> tuple[dict[str, Any] | None, Unit | None]:
        """(the answer as these nodes tell it, the claim as it must be changed where others are in its way then)"""
        unit = _unit(claim, part, counts.ask.rules)
        if unit is None:
            return None, None
        holdings = part.holdings(self.state)
        ends = self.state.index.allowance.until
        numbers = FleetNumbers(part.snapshot, part.offers, holdings, counts)
        explainer = Explainer(part.snapshot, part.offers, holdings, [], ends, self._get_slips(), numbers)
        (answer,) = explainer.explain(unit)
        return answer, explainer.crowded

    def _part(self, ranks: Iterable[int], rules: Rules) -> Part:
        records = tuple(self.state.index.by_rank[rank] for rank in sorted(ranks))
        found = self._parts.pop(records, None)
        if found is None or found.judge.size > MAX_VERDICTS:
            if len(self._parts) >= PARTS:
                del self._parts[next(iter(self._parts))]
            found = Part.of(records, rules)
        self._parts[records] = found  # the last one asked for is the last of the dict
        return found

    def _get_slips(self) -> Slips:
        if self._slips is None:
            sizes = self.census.sizes()
            kinds = [kind for kind in self.state.index.kinds.kinds if sizes.get(kind.index)]
            offers, copies = [offer_of(kind.one) for kind in kinds], [sizes[kind.index] for kind in kinds]
            commons = self.state.rules.commons.offers
            copies += [1] * len(commons)
            self._slips = KindSlips([*offers, *commons], copies, kinds=self.state.index.kinds, commons=commons)
        return self._slips


def _unit(claim: Claim, part: Part, rules: Rules) -> Unit | None:
    demand = make(pending(claim, 0), rules.intake, part.judge)
    return None if isinstance(demand, Refused) else alone(demand)
