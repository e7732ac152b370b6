"""Relaxations: rules that can be dropped from a question, and the fewest of them that make the unit fit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any, ClassVar

from devalloc.api.findings import Fact, group_ref, member_ref
from devalloc.api.node_rules import NodeRestriction
from devalloc.api.reasons import Reason
from devalloc_solver.explain.feasibility import FeasibilityChecker, FeasibilityQuestion
from devalloc_solver.problem.allocations import Key
from devalloc_solver.problem.demand import Demand, PlacementUnit, Request

MAX_HALVINGS = 40
"""Questions that the search for the largest amount that fits may ask."""
MAX_TRIES = 64
"""Questions that the search for a smallest set may ask; beyond, the set is irreducible and may not be the smallest."""


@dataclass(frozen=True, slots=True, eq=False)
class Relaxation:
    """Something to take away. ``entry`` is the blocker's JSON."""

    entry: Mapping[str, Any]
    apply: Callable[[FeasibilityQuestion], FeasibilityQuestion]
    order: int = 0
    """edits of the source (-1) come first, since the problem is decoded anew; edits of a claim's spec (0) come before
    those of the supply (1), which look at the requests that come out"""
    narrow: Callable[[RelaxedQuestion, FeasibilityChecker], Sequence[Relaxation]] | None = None
    """Of an edit that takes away more than it needs to: what it takes once all else is taken away."""

    why: tuple[Fact, ...] = ()
    """causes that say it, of what no user wrote: then it is none of what is in the way"""

    alike: object | None = None
    """equal for edits of which one is as good as the other; None: like no other"""

    instead: Sequence[Relaxation] = ()
    """edits that may do as well: other nodes to make schedulable"""

    member: Key | None = None
    """the claim that the edit leaves out of its group, if that is all it does"""

    @property
    def kind(self) -> str:
        return str(self.entry["kind"])


RelaxedQuestion = Callable[[Sequence[Relaxation]], FeasibilityQuestion]
"""The question once all else is taken away, and these edits, each in its order."""


def apply_relaxations(question: FeasibilityQuestion, edits: Sequence[Relaxation]) -> FeasibilityQuestion:
    """The question once all these are taken away."""
    before = question.source
    for edit in sorted(_with_members_at_once(edits), key=lambda e: e.order):
        if edit.order >= 0 and question.source is not before:
            assert question.source is not None
            before, question = question.source, question.source.decode(question)
        question = edit.apply(question)
    if question.source is not None and question.source is not before:
        question = question.source.decode(question)
    return question


def _with_members_at_once(edits: Sequence[Relaxation]) -> list[Relaxation]:
    """The same with one edit that leaves out all members of a group that these do: one after the other, each of them
    costs as much as the group is large."""
    left_out = frozenset(edit.member for edit in edits if edit.member is not None)
    if len(left_out) < 2:
        return [*edits]
    at_once = Relaxation({}, lambda question: question.without_members(left_out))
    return [at_once, *(edit for edit in edits if edit.member is None)]


def fewest_relaxations(
    question: FeasibilityQuestion, edits: Sequence[Relaxation], finder: FeasibilityChecker
) -> list[Relaxation] | None:
    """The fewest edits that make the unit fit, earlier ones rather than later ones; None when not even all do.

    No edit of the answer can be left out, unless the finder says that it was cut short. It is the smallest set wherever
    ``MAX_TRIES`` questions tell.
    """

    def works(chosen: Sequence[Relaxation]) -> bool:
        return finder.works(apply_relaxations(question, chosen))

    if not edits or not works(edits):
        return None
    if all(edit.alike is not None and edit.alike == edits[0].alike for edit in edits):
        fewest = bisect_left(range(1, len(edits)), True, key=lambda size: works(edits[:size])) + 1
        return narrow_relaxations(question, edits[:fewest], finder)
    was_cut_short = finder.is_cut_short
    for chosen in islice(relaxation_sets(edits), MAX_TRIES):
        if len(chosen) == len(edits) or works(chosen):
            return narrow_relaxations(question, chosen, finder)
    if finder.is_cut_short:
        singles = [chosen for chosen in islice(relaxation_sets(edits), MAX_TRIES) if len(chosen) == 1]
        for chosen in _largest_requests_first(question, singles):
            if finder.works_if_searched(apply_relaxations(question, chosen)):
                finder.is_cut_short = was_cut_short
                finder.refill()
                return narrow_relaxations(question, chosen, finder)
    return narrow_relaxations(question, drop_unneeded(question, edits, finder), finder)


def _largest_requests_first(
    question: FeasibilityQuestion, singles: Sequence[Sequence[Relaxation]]
) -> Iterator[Sequence[Relaxation]]:
    """The sets of one edit each; where they leave out whole requests, the one that frees most comes first, because only
    a few of them are searched."""

    def rest(chosen: Sequence[Relaxation]) -> tuple[int, int]:
        demands = apply_relaxations(question, chosen).unit.demands
        left = [detail[0] for demand in demands for detail in demand.details]
        return sum(map(_amount, left)), sum(request.min_count for request in left)

    by_size = iter(sorted((chosen for chosen in singles if chosen[0].kind == "request"), key=rest))
    for chosen in singles:
        yield next(by_size) if chosen[0].kind == "request" else chosen


def _amount(request: Request) -> int:
    """What a request wants at least of shared devices, over all resources."""
    portions = (sum(amount for _, amount in portion) for portion in request.portions.values())
    return request.min_count * (sum(request.requests.values()) or min(portions, default=0))


def relaxation_sets(edits: Sequence[Relaxation]) -> Iterator[Sequence[Relaxation]]:
    """All sets but the empty one, smaller ones first; of edits that are alike, the first so many stand for all."""
    before: dict[int, int] = {}
    last: dict[object, int] = {}
    for number, edit in enumerate(edits):
        if edit.alike is not None:
            if edit.alike in last:
                before[number] = last[edit.alike]
            last[edit.alike] = number
    for size in range(1, len(edits) + 1):
        for numbers in _ordered_combinations(len(edits), size, before):
            yield [edits[number] for number in numbers]


def _ordered_combinations(count: int, size: int, before: Mapping[int, int]) -> Iterator[tuple[int, ...]]:
    """Ascending numbers below ``count``, each only together with the one that must come ``before`` it."""

    def extend(chosen: tuple[int, ...], start: int) -> Iterator[tuple[int, ...]]:
        if len(chosen) == size:
            yield chosen
            return
        for number in range(start, count):
            if number not in before or before[number] in chosen:
                yield from extend((*chosen, number), number + 1)

    return extend((), 0)


def drop_unneeded(
    question: FeasibilityQuestion, edits: Sequence[Relaxation], finder: FeasibilityChecker
) -> list[Relaxation]:
    """What is left of edits that work when each that is not needed is put back, the last ones first."""
    remaining = list(edits)
    indispensable: set[object] = set()
    for edit in reversed(edits):
        if edit.alike is not None and edit.alike in indispensable:
            continue
        rest = [other for other in remaining if other is not edit]
        if finder.works(apply_relaxations(question, rest)):
            remaining = rest
        elif edit.alike is not None:
            indispensable.add(edit.alike)
    return remaining


def without_redundant(edits: Sequence[Relaxation]) -> list[Relaxation]:
    """The same without those that change a detail, or a member of a group, which another one leaves out."""
    left_out = {f"{e.entry['namespace']}/{e.entry['name']}" for e in edits if e.kind == "member"}
    gone = {(e.entry.get("claim"), e.entry["request"]) for e in edits if e.kind == "request"}

    def is_moot(edit: Relaxation) -> bool:
        claim, detail = edit.entry.get("claim"), str(edit.entry.get("request", "")).partition(".")[0]
        return claim in left_out or (edit.kind != "request" and (claim, detail) in gone)

    return [edit for edit in edits if not is_moot(edit)]


def narrow_relaxations(
    question: FeasibilityQuestion, edits: Sequence[Relaxation], finder: FeasibilityChecker
) -> list[Relaxation]:
    """The same set with each edit that takes away too much replaced by what it needs."""
    exact = [edit for edit in edits if edit.narrow is None]
    vague = [edit for edit in edits if edit.narrow is not None]
    several = len(edits) > 1 and bool(vague)
    while vague:
        edit = vague.pop(0)
        assert edit.narrow is not None
        exact += edit.narrow(partial(_relaxed, question, [*exact, *vague]), finder)
    # What one edit was narrowed to, others that were still too generous had a part in.
    return drop_unneeded(question, exact, finder) if several else exact


def _relaxed(
    question: FeasibilityQuestion, others: Sequence[Relaxation], edits: Sequence[Relaxation]
) -> FeasibilityQuestion:
    return apply_relaxations(question, [*others, *edits])


# -- all that a unit offers --------------------------------------------------------------------------------------------

RelaxationTier = tuple[Reason, Sequence[Relaxation]]
"""Relaxations that are tried together, and the reason if they suffice."""


@dataclass(frozen=True, slots=True)
class RelaxationSet:
    """What a unit offers to be taken away, in the order in which it is tried."""

    short: Reason
    """if nothing more special than the number or the size of the devices is what is short"""
    others: Iterable[RelaxationTier]
    """rules and requests, in the order of the dialect, after these; may ask questions when it comes to them"""
    pins: Sequence[Relaxation] = ()
    matches: Sequence[Relaxation] = ()
    """that devices agree on attributes, or differ"""
    shared: Sequence[Relaxation] = ()
    """what the devices of a pool share"""
    own_node: Relaxation | None = None
    """makes the node schedulable that the unit is bound to, if that gets nothing new"""

    def why_impossible(
        self, question: FeasibilityQuestion, finder: FeasibilityChecker, *, is_brief: bool, lacks_amounts: bool
    ) -> tuple[Reason, list[Relaxation]]:
        """Find the first tier with which a unit would fit an empty fleet: the special ones, then those of its dialect;
        where amounts are short (``Explainer._lacks_amounts``), NotEnoughDevices becomes InsufficientCapacity.

        Returns the reason and which rules to take away: none can be left out, and without all of them it fits. The
        question, on a fleet where nothing is held, has no answer. ``is_brief``: the reason only. ``lacks_amounts``:
        counting shows that amounts are what is short, and not devices. Raises Undecided.
        """
        is_capacity = lacks_amounts and self.short is Reason.NOT_ENOUGH_DEVICES
        short = Reason.INSUFFICIENT_CAPACITY if is_capacity else self.short
        for reason, edits in () if is_brief else chain(self.special_tiers(), self.others):
            needed = fewest_relaxations(question, edits, finder)
            if needed is None:
                continue
            own = [self.own_node] if self.own_node is not None and reason is Reason.NODE_UNAVAILABLE else []
            reason = short if reason is self.short else reason
            return reason, own if own and finder.works(apply_relaxations(question, own)) else needed
        if is_brief or finder.is_cut_short:
            for reason, edits in self.special_tiers():
                if edits and finder.fits(apply_relaxations(question, edits)):
                    return reason, []
        return short, []

    def special_tiers(self) -> Iterator[RelaxationTier]:
        """Yield what has a reason of its own, unless nothing matches: the pin to a node, then values that devices must
        share or not, then what devices of a pool draw on together."""
        if self.short is Reason.NO_MATCHING_DEVICES:
            return
        yield Reason.NODE_UNAVAILABLE, self.pins
        yield Reason.MATCH_ATTRIBUTES_CONFLICT, self.matches
        yield Reason.POOL_RESOURCES_EXHAUSTED, self.shared
        if self.matches and self.shared:
            yield Reason.MATCH_ATTRIBUTES_CONFLICT, [*self.matches, *self.shared]


@dataclass(frozen=True, slots=True)
class UnitRelaxations(ABC):
    """What a unit of any dialect offers to be taken away. A dialect adds its rules, and names claims and requests."""

    unit: PlacementUnit
    group: PlacementUnit
    """the unit that is explained: the same one, or all members of its group"""

    leaves_when_empty: ClassVar[bool] = False
    """whether a claim without any request is none: it leaves its group, and binds it to no node any more"""

    @abstractmethod
    def request_place(self, demand: Demand, request: Request) -> tuple[str, str]:
        """(name, path) of the whole request."""

    @abstractmethod
    def judge_changed(self, demand: Demand, request: Request, change: Callable[[Any], Any]) -> Request:
        """The request with its spec changed, in the words of the dialect, and the devices judged again."""

    def claim_name(self, demand: Demand) -> Key:
        return demand.key

    def claim_entry(self, demand: Demand) -> dict[str, Any]:
        """Whose spec it is, where several claims are meant."""
        is_shared = self.unit.group is not None or len(self.unit.demands) > 1
        return {"claim": "/".join(self.claim_name(demand))} if is_shared else {}

    def request_entry(self, demand: Demand, request: Request) -> dict[str, Any]:
        """Which request it is, or alternative of one, where the path is not enough."""
        return self.claim_entry(demand)

    def each_request(self) -> Iterator[tuple[Demand, Request]]:
        return ((demand, request) for demand in self.unit.demands for request in demand.requests)

    # -- edits of a claim ----------------------------------------------------------------------------------------------

    def edit_demand(self, demand: Demand, entry: Mapping[str, Any], change: Callable[[Demand], Demand]) -> Relaxation:
        """A rule of the whole claim changed. ``entry`` does not say of which claim."""

        def changed(other: Demand) -> Demand:
            return change(other) if other.key == demand.key else other

        entry = {"kind": entry["kind"], **self.claim_entry(demand), **entry}
        return Relaxation(entry, lambda question: question.with_demands(changed))

    def edit_request(
        self, demand: Demand, request: Request, entry: Mapping[str, Any], change: Callable[[Any], Any]
    ) -> Relaxation:
        """A rule of one request, or alternative, changed; see ``edit_demand`` and ``judge_changed``."""

        def changed(other: Demand, now: Request) -> Request:
            return self.judge_changed(other, now, change) if now.label == request.label else now

        entry = {"kind": entry["kind"], **self.request_entry(demand, request), **entry}
        return Relaxation(entry, lambda question: question.with_requests(changed, demand.key))

    # -- what units of all dialects have -------------------------------------------------------------------------------

    def node_rules_by_reason(self) -> Iterator[RelaxationTier]:
        """Yield the rules that keep claims off nodes, such as excluded nodes (NodeUnavailable), those of one reason
        together; the dialect's ``_rules_and_requests`` decides when they are tried."""
        for reason in dict.fromkeys(rule.reason for demand in self.unit.demands for rule, _ in demand.restrictions):
            yield reason, self.node_rules(reason)

    def node_rules(self, reason: Reason | None = None) -> list[Relaxation]:
        """The rules that keep claims off nodes; only those of a reason, if one is given."""
        rules = ((demand, each) for demand in self.unit.demands for each in demand.restrictions)
        return [self._drop_node_rule(*one) for one in rules if reason in (None, one[1].rule.reason)]

    def _drop_node_rule(self, demand: Demand, dropped: NodeRestriction) -> Relaxation:
        entry = {"kind": "nodeRule", "annotation": dropped.rule.annotation, "path": dropped.path}

        def change(other: Demand) -> Demand:
            free = replace(other, restrictions=tuple(r for r in other.restrictions if r != dropped), shape=None)
            details = [[self.judge_changed(free, each, lambda spec: spec) for each in some] for some in free.details]
            return replace(free, details=tuple(map(tuple, details)))

        return replace(self.edit_demand(demand, entry, change), why=dropped.rule.why)

    def members(self, but: Key | None) -> list[Relaxation]:
        """Leaving out each claim of a unit but the one that gets the message."""
        alike = "member" if ask_for_the_same(self.unit) else None
        return [self._member(demand, alike) for demand in self.unit.demands if demand.key != but]

    def _member(self, demand: Demand, alike: object) -> Relaxation:
        of_pod = {what: name for what, name in group_ref(self.unit.group).items() if what == "pod"}
        entry, key = {"kind": "member", **member_ref(self.claim_name(demand)), **of_pod}, demand.key
        return Relaxation(entry, lambda question: question.without_members({key}), alike=alike, member=key)

    def pins(self) -> list[Relaxation]:
        """The node that the unit is bound to, and by which members of its group."""
        pin, bound_by = self.unit.pin, self.group.bound_by
        members = bound_by or [demand.key for demand in self.group.demands if demand.key in self.group.pinned_by]
        entry: dict[str, Any] = {"kind": "node", "node": pin}
        if members:
            entry["boundBy" if bound_by else "pinned"] = [*map(member_ref, members)]
        released = frozenset(bound_by)
        return [Relaxation(entry, lambda question: question.without(released).pinned(None))] if pin else []

    def requests(self) -> list[Relaxation]:
        """Whole requests."""
        return [self._request(demand, detail) for demand in self.unit.demands for detail in demand.details]

    def _request(self, demand: Demand, detail: Sequence[Request]) -> Relaxation:
        key, number = demand.key, detail[0].detail
        name, path = self.request_place(demand, detail[0])
        entry = {"kind": "request", **self.claim_entry(demand), "request": name, "path": path}

        def apply(question: FeasibilityQuestion) -> FeasibilityQuestion:
            less = question.with_requests(lambda _, request: None if request.detail == number else request, key)
            own = [each for each in less.unit.demands if each.key == key]
            is_gone = self.leaves_when_empty and len(less.unit.demands) > 1 and not any(each.details for each in own)
            return less.without_members({key}) if is_gone else less

        return Relaxation(entry, apply, alike=(key, demand.detail_key(detail)))


def ask_for_the_same(unit: PlacementUnit) -> bool:
    """Whether each claim of a unit is as good as any other of it."""
    demands = unit.demands
    if len({(demand.claim.priority, demand.key in unit.pinned_by) for demand in demands}) > 1:
        return False
    shape = demands[0].shape
    if shape is not None and all(demand.shape == shape for demand in demands):
        return True
    kinds = {((*map(demand.detail_key, demand.details),), demand.asks) for demand in demands}
    specs = [request.spec for request in demands[0].requests]
    return len(kinds) == 1 and all([request.spec for request in demand.requests] == specs for demand in demands)


def reduce_amount(
    least: int,
    requested: int,
    reduced_to: Callable[[int], Relaxation],
    granularity: Callable[[FeasibilityQuestion], int] = lambda _: 1,
) -> Relaxation:
    """An amount reduced to the ``least`` there is; narrowed to the most that fits, in steps of ``granularity``.

    Of amounts between one that fits and one that does not, the roundest is asked about, and whether more fits: most
    capacities are round, so few questions find them.
    """

    def narrow(relaxed: RelaxedQuestion, finder: FeasibilityChecker) -> Sequence[Relaxation]:
        step = granularity(relaxed([]))

        def works(amount: int) -> bool:
            return finder.works(relaxed([reduced_to(amount * step)]))

        fits, fails = 1, -(-requested // step)
        for _ in range(MAX_HALVINGS):
            if fails - fits <= 1:
                break
            digit = (fits ^ (fails - 1)).bit_length() - 1
            middle = (fails - 1) >> digit << digit
            if not works(middle):
                fails = middle
            elif fails - middle > 1 and works(middle + 1):
                fits = middle + 1
            else:
                fits, fails = middle, middle + 1
        return [reduced_to(fits * step)]

    return replace(reduced_to(least), narrow=narrow)


def unmatched_requests(unit: PlacementUnit) -> list[Request]:
    """All alternatives of each request for which no device passes class, type and constraints."""
    details = (detail for demand in unit.demands for detail in demand.details)
    unmatched = (detail for detail in details if not any(request.candidates.accepted for request in detail))
    return [request for detail in unmatched for request in detail]
