"""Why a claim gets nothing, told from a part of the fleet: the same as the whole one would tell, in a fraction of it.

The numbers are those of all devices, counted by kind. What would have to change is looked for on a few nodes that
stand for all: one of each kind, where the least is in use, and those where the fewest claims are in the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from devalloc.api.claim import DeviceClaim
from devalloc_solver.blockers.edits import Edit, applied
from devalloc_solver.blockers.question import Question
from devalloc_solver.blockers.slips import MOST_VALUES, Slips
from devalloc_solver.collector import quiet_collector
from devalloc_solver.demand import Mode, Unit
from devalloc_solver.eligibility import Eligibility
from devalloc_solver.explain import Explainer, Fleetwide
from devalloc_solver.holdings import Key
from devalloc_solver.index.apart import Apart
from devalloc_solver.index.census import NETWORK, Census
from devalloc_solver.index.claims import ClaimAsk, Rules
from devalloc_solver.index.counts import KindCounts
from devalloc_solver.index.excerpt import Excerpt
from devalloc_solver.index.nodes import NodeIndex
from devalloc_solver.index.screen import MOST_KINDS, Screen
from devalloc_solver.index.shape import Shape
from devalloc_solver.index.split import Split, SplitCounts
from devalloc_solver.index.states import NodeRecord
from devalloc_solver.solution import ClaimAnswer

FEW, MANY = 16, 128
"""Nodes with the fewest claims in the way that are looked at, first and where that does not prove the answer."""
MEMO = 1_000
"""Answers remembered; when there are more, all is forgotten that was found out for them."""
SCREENS = 64
"""Shapes whose view of the nodes is remembered; when there are more, all are forgotten."""
EXCERPTS = 16
"""Parts of the fleet that are kept."""
SPLITS = 4
"""Sets of attributes by whose values the fleet is kept split; each takes time and room for all devices."""


@dataclass(slots=True, eq=False)
class Refusals:
    """Explains claims that the index finds no place for."""

    index: NodeIndex
    holders: Mapping[str | None, set[Key]]
    priority: Callable[[Key], int]
    census: Census = field(init=False)
    _rules: Rules | None = None
    _layout: int = 0
    """of the census, when what is kept here began"""
    _answers: dict[object, tuple[int, ClaimAnswer]] = field(default_factory=dict)
    _excerpts: dict[tuple[NodeRecord, ...], tuple[Excerpt, Eligibility]] = field(default_factory=dict)
    _sample: Eligibility | None = None
    _slips: Slips | None = None
    _screens: dict[object, Screen] = field(default_factory=dict)
    _splits: dict[tuple[str, ...], Split] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.census = Census(self.index, self.holders)

    def explain(self, ask: ClaimAsk, warnings: Sequence[str]) -> dict[str, Any]:
        """The answer for a claim without a group that fits nowhere now."""
        claim = ask.claim
        self.census.update()
        if ask.rules is not self._rules or self.census.layout != self._layout:
            self._rules, self._layout = ask.rules, self.census.layout
            self._forget()
        key = ask.shape, claim.pinned_node, claim.priority
        known = self._answers.get(key)
        if known is None or known[0] != self.census.stamp:
            if len(self._answers) >= MEMO:
                self._forget()
            known = self.census.stamp, self._find(ask, claim)
            if not self.index.allowance.is_over:
                self._answers[key] = known
        namespace, name = claim.key
        own = replace(known[1], namespace=namespace, name=name, warnings=tuple(warnings))
        return deepcopy(own.to_dict())

    def _forget(self) -> None:
        """Whatever is kept here, judges and slips too: they remember each shape that was ever explained."""
        self._answers.clear()
        self._excerpts.clear()
        self._screens.clear()
        self._splits.clear()
        self._sample = self._slips = None

    def _find(self, ask: ClaimAsk, claim: DeviceClaim) -> ClaimAnswer:
        shape = self.index.shape(ask)
        if isinstance(shape, Shape) and not shape.wide:
            found = self._find_in_part(ask, claim, shape)
            if found is not None:
                return found
        if isinstance(shape, Apart) and self.index.network is None:
            found = self._find_apart(ask, claim, shape)
            if found is not None:
                return found
        with quiet_collector():
            return self._answer(ask, claim, [*self.census.in_order()], None)[0]

    def _find_in_part(self, ask: ClaimAsk, claim: DeviceClaim, shape: Shape) -> ClaimAnswer | None:
        """From a few nodes, and from more where these do not prove it; None where too many nodes differ."""
        screen = self._screens.get(ask.shape)
        if screen is None:
            if len(self._screens) >= SCREENS:
                self._screens.clear()
            screen = self._screens[ask.shape] = Screen(self.census, shape.demand)
        choice = screen.choose(FEW)
        if choice is None:
            return None
        pinned = self.index.records.get(claim.pinned_node or "")
        ranks = {*choice.ranks, *(() if pinned is None else (pinned.rank,))}
        answer, edits = self._answer_from(ask, claim, ranks)
        if edits and _released(answer):
            # Once these are made, other nodes may be those where the fewest claims are in the way.
            screen = self._edited(ask, edits)
            choice = screen.choose(FEW)
            assert choice is not None
            ranks = ranks.union(choice.ranks)
            answer, _ = self._answer_from(ask, claim, ranks)
        if _released(answer) <= choice.left or pinned is not None:
            return answer
        choice = screen.choose(MANY)
        assert choice is not None
        return self._answer_from(ask, claim, ranks.union(choice.ranks))[0]

    def _find_apart(self, ask: ClaimAsk, claim: DeviceClaim, shape: Apart) -> ClaimAnswer | None:
        """From the nodes that have what its expressions name, and the emptiest of each kind."""
        split = None if any(s.mode is not Mode.WHOLE for s in shape.demand.slots) else self._split(ask, shape)
        emptiest = self.census.emptiest()
        if split is None or len(emptiest) > MOST_KINDS:
            return None
        judge = self._rules_now().on(split.kinds.sample())
        ranks = {*emptiest.values()}
        for slot in ask.demand(judge).slots:
            devices = split.devices({*slot.candidates.accepted})
            wanted = sorted(devices, key=lambda node: (-len(devices[node]), self.index.records[node or ""].rank))
            if len(wanted) > MANY:
                return None
            ranks.update(self.index.records[node or ""].rank for node in wanted)
        if claim.pinned_node in self.index.records:
            ranks.add(self.index.records[claim.pinned_node].rank)
        identifiers = {name: partial(split.known, name) for name in split.read if split.literals is not None}
        slips = Slips(judge.snapshot, judge, split.sizes, identifiers)
        records = [self.census.record(rank) for rank in sorted(ranks)]
        fleet = Fleetwide(SplitCounts(self.census, judge, split), slips, self.index.records.keys())
        return self._answer(ask, claim, records, fleet)[0]

    def _split(self, ask: ClaimAsk, shape: Apart) -> Split | None:
        """The fleet by what the claim reads; None when there is no end of it."""
        kinds = self.index.kinds
        read: set[str] = set()
        literals: dict[str, frozenset[object]] = {}
        plain = True
        for slot in shape.demand.slots:
            mine, told = ask.reads(slot), ask.compared(slot)
            if mine is None:
                return None
            read |= mine & kinds.varied
            plain = plain and told is not None
            for name, values in (told or {}).items():
                literals[name] = literals.get(name, frozenset()) | values
        many = {name for name in read if len(kinds.places.get(name, ())) > MOST_VALUES}
        if many and not (plain and many == read):
            return None
        names = tuple(sorted(read))
        if many == read:
            return Split(self.census, names, {name: literals[name] for name in names})
        if names not in self._splits:
            if len(self._splits) >= SPLITS:
                del self._splits[next(iter(self._splits))]
            self._splits[names] = Split(self.census, names, None)
        return self._splits[names]

    def _rules_now(self) -> Rules:
        assert self._rules is not None
        return self._rules

    def _edited(self, ask: ClaimAsk, edits: Sequence[Edit]) -> Screen:
        """For what the claim asks for once its spec is edited."""
        judge = self._judge_of_kinds()
        question = Question(judge.snapshot, Unit((ask.demand(judge),), None, None))
        return Screen(self.census, applied(question, [e for e in edits if not e.order]).unit.demands[0], least=0)

    def _answer_from(self, ask: ClaimAsk, claim: DeviceClaim, ranks: set[int]) -> tuple[ClaimAnswer, Sequence[Edit]]:
        return self._answer(ask, claim, [self.census.record(rank) for rank in sorted(ranks)], self._fleetwide())

    def _answer(
        self, ask: ClaimAsk, claim: DeviceClaim, records: Sequence[NodeRecord], fleet: Fleetwide | None
    ) -> tuple[ClaimAnswer, Sequence[Edit]]:
        """The answer, and what would have to change besides what claims hold; ``fleet`` unless these are all nodes."""
        if fleet is not None and self.index.network is not None:
            records = [self.census.record(NETWORK), *records]
        excerpt, eligibility = self._excerpt(tuple(records))
        keys = {key for record in records for key in self.holders.get(record.name, ())}
        holdings = excerpt.holdings(self.index.held, keys, self.priority)
        demand = ask.demand(eligibility)
        explainer = Explainer(
            excerpt.snapshot,
            holdings,
            (),
            self.index.allowance.until,
            eligibility,
            ask.rules.intake,
            fleet,
        )
        unit = Unit((demand,), None, claim.pinned_node)
        (answer,) = explainer.explain(unit, {})
        finding = explainer.known.get(unit.kind)
        return answer, () if finding is None else finding.edits

    def _excerpt(self, records: tuple[NodeRecord, ...]) -> tuple[Excerpt, Eligibility]:
        if records not in self._excerpts:
            if len(self._excerpts) >= EXCERPTS:
                del self._excerpts[next(iter(self._excerpts))]
            assert self._rules is not None
            excerpt = Excerpt.of(records)
            self._excerpts[records] = excerpt, self._rules.on(excerpt.snapshot)
        return self._excerpts[records]

    def _fleetwide(self) -> Fleetwide:
        if self._slips is None:
            judge, sizes = self._judge_of_kinds(), self.census.sizes()
            copies = {kind.index: sizes.get(kind.index, 0) for kind in self.index.kinds.kinds}
            self._slips = Slips(judge.snapshot, judge, copies)
        counts = KindCounts(self.census, self._slips.eligibility)
        return Fleetwide(counts, self._slips, self.index.records.keys())

    def _judge_of_kinds(self) -> Eligibility:
        """Judges one device of each kind."""
        assert self._rules is not None
        if self._sample is None:
            self._sample = self._rules.on(self.index.kinds.sample())
        return self._sample


def _released(answer: ClaimAnswer) -> int:
    """Claims that would have to go."""
    return sum(blocker["kind"] == "claim" for blocker in answer.blockers)
