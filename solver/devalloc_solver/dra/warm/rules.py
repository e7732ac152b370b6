"""What claims may take, kind by kind of device; see ``index.seams`` for what the index asks.

What holds for one device of a kind holds for all, since kinds have all that a claim can ask for. Where an expression
reads what differs within a kind (a uuid), nodes are judged one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from devalloc_solver.budget import BudgetExceeded
from devalloc_solver.demand import Demand, Relation, Slot, Unit
from devalloc_solver.dra.candidates import UNJUDGED, Judge, Verdict
from devalloc_solver.dra.cel import CelDevice, Program
from devalloc_solver.dra.cel import Read as CelRead
from devalloc_solver.dra.demands import pending
from devalloc_solver.dra.documents import Intake
from devalloc_solver.dra.errors import AllocationError
from devalloc_solver.dra.inventory import Offer
from devalloc_solver.dra.objects import Ask, Claim
from devalloc_solver.dra.selectors import Selectors
from devalloc_solver.dra.translate import make_demand
from devalloc_solver.dra.usage import Usage
from devalloc_solver.dra.warm.traits import RESERVED, Traits, cel_value, offer_of, order_of
from devalloc_solver.index.kinds import Kind
from devalloc_solver.index.nodes import NodeIndex
from devalloc_solver.index.states import NodeRecord
from devalloc_solver.snapshot import Snapshot

MAX_SHAPES = 1_000
"""Shapes remembered; when there are more, all are forgotten."""


@dataclass(frozen=True, slots=True)
class Commons:
    """What is not of one node's own pools: devices that several nodes may reach."""

    offers: tuple[Offer, ...] = ()
    broken: frozenset[str] = frozenset()
    """nodes with a pool among these that is incomplete or invalid"""


@dataclass(slots=True)
class _Sight:
    """What is known of a shape, as long as kinds and rules are the same."""

    demand: Demand
    """its candidates are kinds"""
    warned: tuple[int, tuple[str, ...]] = (-1, ())
    """(layout of the fleet, devices that could not be judged)"""
    failures: dict[tuple[int, str], tuple[NodeRecord, tuple[str, ...]]] = field(default_factory=dict)
    """(number of a request, node) -> the same of the node as it was then"""


@dataclass(slots=True, eq=False)
class Rules:
    """Classes, and what they and claims accept of an index."""

    gates: frozenset[str]
    index: NodeIndex
    intake: Intake
    """only its classes count"""
    commons: Commons = field(default_factory=Commons)
    _selectors: Selectors = field(init=False)
    _sights: dict[Hashable, _Sight | None] = field(default_factory=dict)
    _seen: tuple[object, int] | None = None
    """the kinds that sights are of"""
    _of_kinds: Judge = field(init=False)
    _of_commons: Judge = field(init=False)

    def __post_init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._selectors = Selectors(self.gates, self.index.allowance)
        self._of_commons = self.judge(self.commons.offers, self.commons.broken)
        self._of_kinds = self._judge_kinds()
        self._sights.clear()

    def ask(self, claim: Claim, shape: Hashable) -> ClaimAsk | None:
        """What a claim asks the index; None for what the index has no words for."""
        kinds = self.index.kinds
        if self._seen is None or self._seen[0] is not kinds or self._seen[1] != len(kinds.kinds):
            self._seen = kinds, len(kinds.kinds)
            self._of_kinds = self._judge_kinds()
            self._sights.clear()
        if shape not in self._sights:
            if len(self._sights) >= MAX_SHAPES:
                self._forget()
            self._sights[shape] = self._look(claim)
        sight = self._sights[shape]
        return None if sight is None else ClaimAsk(claim, shape, self, sight)

    def _look(self, claim: Claim) -> _Sight | None:
        if not claim.requests or any(one.attribute in RESERVED for one in claim.constraints):
            return None
        try:
            demand = self.demand(claim, self._of_kinds)
            if self._reaches_commons(claim):
                return None
        except AllocationError:
            return None
        programs = [program for slot in demand.slots for program in self.programs(slot.spec.ask)]
        return None if self.is_strange(programs) else _Sight(demand)

    @property
    def is_spent(self) -> bool:
        """Whether any expression is too expensive on some device."""
        return self._selectors.is_spent

    def is_strange(self, programs: Iterable[Program]) -> bool:
        """Whether an expression is too expensive on some device, or reads what the core has a meaning for."""
        return any(
            self._selectors.is_exhausting(program.text)
            or any(f"{read.domain}/{read.id}" in RESERVED for read in program.reads or ())
            for program in programs
        )

    def _reaches_commons(self, claim: Claim) -> bool:
        """Whether a claim may have to do with devices that are not of one node."""
        if not self.commons.offers and not self.commons.broken:
            return False
        for ask in (ask for request in claim.requests for ask in request.asks):
            verdict = self.judge_commons(claim, ask)
            if verdict.accepted or verdict.blocked or verdict.errors or (ask.is_all and self.commons.broken):
                return True
        return False

    def judge_commons(self, claim: Claim, ask: Ask) -> Verdict:
        """What a request may take of the commons. Raises AllocationError."""
        return self._of_commons.choose(claim, ask).verdict

    def is_beside_commons(self, claim: Claim) -> bool:
        """Whether no class that a claim names has any device of the commons."""
        if not self.commons.offers:
            return True
        asks = (replace(ask, selectors=(), capacity={}) for request in claim.requests for ask in request.asks)
        try:
            verdicts = [self.judge_commons(claim, ask) for ask in asks]
        except AllocationError:
            return False
        return not any(verdict.accepted or verdict.blocked or verdict.errors for verdict in verdicts)

    def programs(self, ask: Ask) -> list[Program]:
        """The expressions that a device must pass, in order."""
        texts = (*self.intake.classes[ask.class_name].selectors, *ask.selectors)
        return [self._selectors.program(text) for text in texts]

    # -- judges ------------------------------------------------------------------------------------------------------

    def judge(self, offers: Iterable[Offer], broken: frozenset[str] = frozenset()) -> Judge:
        """Judges these devices; ``broken`` are nodes where nobody can tell what ``All`` is."""
        return Judge(self.gates, [*offers], Usage(), self._selectors, self.intake.classes, broken)

    def _judge_kinds(self) -> Judge:
        """Judges one device of each kind, as if it were alone on its node."""
        kinds = self.index.kinds.kinds
        offers = [replace(offer_of(kind.one), index=kind.index, nodes=frozenset((str(kind.index),))) for kind in kinds]
        return self.judge(offers, frozenset(str(kind.index) for kind in kinds if is_broken(kind.one.traits)))

    def judge_node(self, snapshot: Snapshot) -> Judge:
        """Judges the devices of one node."""
        broken = snapshot.nodes if any(is_broken(device.traits) for device in snapshot.devices) else ()
        return self.judge(map(offer_of, snapshot.devices), frozenset(broken))

    def demand(self, claim: Claim, judge: Judge) -> Demand:
        """The demand of a claim in terms of a judge. Raises AllocationError."""
        choices = [[judge.choose(claim, ask) for ask in request.asks] for request in claim.requests]
        return self._plainer(make_demand(pending(claim, 0), choices))

    def _plainer(self, demand: Demand) -> Demand:
        """Constraints over all requests, or over one, as the core's match attributes, which are quicker to place."""
        every = {slot.label for slot in demand.slots}
        match: list[str] = []
        own: dict[int, list[str]] = {}
        relations: list[Relation] = []
        for relation in demand.relations:
            covered = {number for number, slots in enumerate(demand.details) if _labels(slots) & relation.labels}
            one = min(covered) if len(covered) == 1 and len(demand.details) > 1 else None
            if relation.distinct or self._is_listed(relation.attribute):
                relations.append(relation)
            elif relation.labels == every:
                match.append(relation.attribute)
            elif one is not None and relation.labels == _labels(demand.details[one]):
                own.setdefault(one, []).append(relation.attribute)
            else:
                relations.append(relation)
        details = tuple(
            tuple(replace(slot, match=tuple(own[number])) for slot in slots) if number in own else slots
            for number, slots in enumerate(demand.details)
        )
        return replace(demand, details=details, match=tuple(match), relations=tuple(relations))

    def _is_listed(self, attribute: str) -> bool:
        """Whether some device has a list of values under a name."""
        return any(isinstance(kind.one.attributes.get(attribute), frozenset) for kind in self.index.kinds.kinds)

    # -- what is known before any node is looked at ------------------------------------------------------------------

    def passing(self, ask: Ask, name: str, values: Iterable[object]) -> Sequence[object] | None:
        """Those of the values of an attribute that pass the expressions that read nothing else; None without any."""
        domain, _, identifier = name.partition("/")
        only = frozenset((CelRead("attribute", domain, identifier),))
        programs = [program for program in self.programs(ask) if program.reads == only]
        if not programs or any(order_of(name) in kind.one.attributes for kind in self.index.kinds.kinds):
            return None

        def passes(value: object) -> bool:
            device = CelDevice("", {domain: {identifier: cel_value(value)}}, {}, False)
            return all(self._selectors.matches(program.text, device) for program in programs)

        try:
            return [each for each in values if passes(each)]
        except BudgetExceeded:
            return None

    def drivers(self, ask: Ask) -> frozenset[str]:
        """The drivers of the kinds that no expression rules out which reads nothing that varies within them."""
        found = set()
        for kind in self.index.kinds.kinds:
            offer, varied = offer_of(kind.one), self.index.kinds.varied.intersection(kind.one.attributes)
            told = [p for p in self.programs(ask) if p.reads is not None and varied.isdisjoint(_names(p))]
            if all(self._selectors.verdict(program.text, offer) is True for program in told):
                found.add(kind.driver)
        return frozenset(found)

    def is_of_kinds(self, program: Program) -> bool:
        """Whether an expression reads nothing that varies within kinds."""
        return program.reads is not None and self.index.kinds.varied.isdisjoint(_names(program))

    def places(self, program: Program) -> Collection[str | None] | None:
        """The only nodes that may have devices of which an expression is true, as it compares what varies within kinds
        with literals; None where it does not, or may fail on other devices of a kind rather than be false."""
        kinds, found = self.index.kinds, None
        if program.reads is None:
            return None
        read = kinds.varied & _names(program)
        for name, values in _equalities(program):
            if name not in read:
                continue
            for kind in kinds.kinds:
                if order_of(name) in kind.one.attributes:
                    return None
                is_told = _has_type(kind, name, values) and not kind.one.shareable and not _is_faulty(kind)
                if not (is_told or read.isdisjoint(kind.one.attributes)):
                    break
            else:
                nodes = kinds.find(name, values)
                if nodes is not None and (found is None or len(nodes) < len(found)):
                    found = nodes
        return found

    # -- devices that cannot be judged -------------------------------------------------------------------------------

    def warnings(self, ask: ClaimAsk, layout: int) -> tuple[str, ...]:
        """The devices of the fleet that expressions of a claim fail on, told as sentences; ``layout`` numbers states of
        the fleet.

        Raises AllocationError.
        """
        sight = ask.sight
        if sight.warned[0] != layout:
            asks = {id(slot.spec.verdict): slot.spec.ask for slot in sight.demand.slots}
            told = (self._failures(ask.claim, one, sight, number) for number, one in enumerate(asks.values()))
            sight.warned = layout, tuple(sorted({error for errors in told for error in errors}))
        return sight.warned[1]

    def _failures(self, claim: Claim, ask: Ask, sight: _Sight, number: int) -> list[str]:
        kinds, nodes = self._suspects(claim, ask)
        records = self.index.records
        found: list[str] = []
        for name in records if kinds else sorted(nodes & records.keys()):
            record = records[name]
            known = sight.failures.get((number, name))
            if known is None or known[0] is not record:
                offers = [
                    offer_of(device)
                    for device, kind in zip(record.snapshot.devices, record.kinds, strict=True)
                    if name in nodes or kind.index in kinds
                ]
                errors = self.judge(offers, frozenset()).choose(claim, ask).verdict.errors if offers else ()
                known = sight.failures[number, name] = record, tuple(errors)
            found += known[1]
        return found

    def _suspects(self, claim: Claim, ask: Ask) -> tuple[set[int], set[str]]:
        """(kinds whose devices may fail, nodes on which any may fail)"""
        failed = {index for index, _ in self._of_kinds.choose(claim, ask).verdict.fallen.get(UNJUDGED, ())}
        kinds: set[int] = set()
        nodes: set[str] = set()
        programs = self.programs(ask)
        for kind in self.index.kinds.kinds:
            if self.index.kinds.varied.isdisjoint(kind.one.attributes):
                kinds |= failed & {kind.index}
            elif self._may_fail(programs, kind, nodes):
                kinds.add(kind.index)
        return kinds, nodes

    def _may_fail(self, programs: Iterable[Program], kind: Kind, nodes: set[str]) -> bool:
        """Whether devices of a kind may fail; ``nodes`` are filled in where only few of them may."""
        offer, varied = offer_of(kind.one), self.index.kinds.varied.intersection(kind.one.attributes)
        for program in programs:
            if program.reads is not None and varied.isdisjoint(_names(program)):
                verdict = self._selectors.verdict(program.text, offer)
                if verdict is not True:
                    return isinstance(verdict, str)
                continue
            for name, values in _equalities(program):
                places = self.index.kinds.find(name, values) if name in varied else None
                if places is not None and _has_type(kind, name, values):
                    # Whoever has another value is not selected, whatever the rest of the expression would say.
                    nodes.update(node for node in places if node is not None)
                    return False
            return True
        return False


@dataclass(frozen=True, slots=True, eq=False)
class ClaimAsk:
    """One claim that asks; see ``seams.Ask``."""

    claim: Claim
    shape: Hashable
    rules: Rules
    sight: _Sight

    def unit_on(self, snapshot: Snapshot) -> Unit:
        """Raises AllocationError."""
        if snapshot.nodes == ("",):  # one device of each kind
            return Unit((self.sight.demand,), None, None)
        return Unit((self.rules.demand(self.claim, self.rules.judge_node(snapshot)),), None, None)

    def reads(self, slot: Slot) -> frozenset[str] | None:
        found: set[str] = set()
        for program in self.rules.programs(slot.spec.ask):
            if program.reads is None:
                return None
            found |= _names(program)
        return frozenset(found)

    def literals(self, slot: Slot) -> Iterator[tuple[str, frozenset[Any]]]:
        for program in self.rules.programs(slot.spec.ask):
            yield from _equalities(program)

    def passing(self, slot: Slot, name: str, values: Iterable[object]) -> Sequence[object] | None:
        return self.rules.passing(slot.spec.ask, name, values)

    def drivers(self, slot: Slot) -> frozenset[str] | None:
        return self.rules.drivers(slot.spec.ask)

    @property
    def is_strange(self) -> bool:
        """Whether an expression turned out too expensive."""
        return self.rules.is_spent and self.rules.is_strange(
            program for slot in self.sight.demand.slots for program in self.rules.programs(slot.spec.ask)
        )


def _labels(slots: Iterable[Slot]) -> set[str]:
    return {slot.label for slot in slots}


def is_broken(traits: Hashable) -> bool:
    return isinstance(traits, Traits) and traits.is_broken


def _names(program: Program) -> set[str]:
    """The attributes that an expression reads; those of its lists also in their order."""
    names = [f"{read.domain}/{read.id}" for read in program.reads or () if read.kind == "attribute"]
    return {*names, *map(order_of, names)}


_TYPES = {str: "string", int: "int", bool: "bool"}


def _equalities(program: Program) -> Iterator[tuple[str, frozenset[Any]]]:
    for one in program.equalities:
        yield f"{one.domain}/{one.id}", frozenset((_TYPES[type(value)], value) for value in one.values)


def _is_faulty(kind: Kind) -> bool:
    """Whether the devices of a kind have an attribute that cannot be read."""
    return any(attribute.fault is not None for attribute in offer_of(kind.one).device.attributes.values())


def _has_type(kind: Kind, name: str, values: Iterable[tuple[str, object]]) -> bool:
    """Whether the attribute of a kind is a single value of the type of these."""
    value = kind.one.attributes.get(name)
    return isinstance(value, tuple) and {value[0]} == {type_ for type_, _ in values}
