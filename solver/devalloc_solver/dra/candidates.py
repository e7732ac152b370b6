"""Which devices a request may take, and at which step the others fell.

The order of steps is upstream's, so that an error in the input is met on the same devices. A device that cannot be
judged is skipped, and the error kept: it is the answer when nothing fits (settled D3).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from devalloc_solver.budget import (
    COMMON_SPENT,
    OUT_OF_TIME,
    TOO_EXPENSIVE,
    Bound,
    BudgetExceeded,
    CommonBudgetExceeded,
    OutOfTime,
)
from devalloc_solver.dra import features as gate
from devalloc_solver.dra.amounts import Amount
from devalloc_solver.dra.errors import AllocationError
from devalloc_solver.dra.inventory import Offer, overdrawn
from devalloc_solver.dra.objects import Ask, Claim, Class
from devalloc_solver.dra.pools import State
from devalloc_solver.dra.selectors import Selectors
from devalloc_solver.dra.shares import AmountError, taken
from devalloc_solver.dra.taints import objection
from devalloc_solver.dra.usage import Usage
from devalloc_solver.eligibility import Candidates, Step

UNJUDGED = "cannot be judged by a selector"
"""The step at which devices fall that an expression fails on."""


@dataclass(frozen=True, slots=True)
class Fall:
    """Why a device is not for a request: the step in the words of the funnel, and what there is to say of it."""

    what: str
    why: str = ""


@dataclass(slots=True, eq=False)
class Verdict:
    """What requests that ask for the same may take."""

    nodes: Sequence[frozenset[str]]
    """which nodes reach a device"""
    broken: frozenset[str]
    """nodes where nobody can tell what ``All`` is"""
    accepted: list[int] = field(default_factory=list)
    """devices to be had; for ``All`` every one that it must take"""
    takes: dict[int, Mapping[str, Amount]] = field(default_factory=dict)
    """shareable device -> what one share takes of it"""
    fallen: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    """step -> (device, what there is to say)"""
    blocked: dict[int, Fall] = field(default_factory=dict)
    """devices that ``All`` must take and cannot have"""
    errors: list[str] = field(default_factory=list)
    """devices that could not be judged"""
    binds: bool = False
    """one of the accepted devices binds the claim to its node"""
    _candidates: Candidates | None = None

    def candidates(self, class_name: str) -> Candidates:
        """The same for the core, one object for all that ask for the same."""
        if self._candidates is None:
            steps = [Step(what, tuple(i for i, _ in found), found[0][1] or None) for what, found in self.fallen.items()]
            for index, fall in self.blocked.items():
                steps.append(Step(fall.what, (index,), fall.why or None))
            barred = self._barred()
            # A device that a barred node shares with others is to be had on these.
            offered = [index for index in self.accepted if not self.nodes[index] <= barred] if barred else self.accepted
            accepted = dict.fromkeys(offered, class_name)
            self._candidates = Candidates(accepted, tuple(steps), frozenset(self.blocked), barred)
        return self._candidates

    def _barred(self) -> frozenset[str]:
        """Nodes where ``All`` cannot have all."""
        return self.broken.union(*(self.nodes[index] for index in self.blocked))


@dataclass(frozen=True, slots=True)
class Choice:
    """A request that stands alone, or one alternative, and what it may take."""

    ask: Ask
    verdict: Verdict
    judge: Judge
    """who can be asked what it might take if it asked for something else"""

    @property
    def size(self) -> int:
        """How many devices it takes on a single node."""
        return len(self.verdict.accepted) if self.ask.is_all else self.ask.count

    @property
    def is_exhausting(self) -> bool:
        """Whether a selector was too expensive on some device."""
        expressions = (*self.judge.classes[self.ask.class_name].selectors, *self.ask.selectors)
        return any(self.judge.selectors.is_exhausting(expression) for expression in expressions)

    def candidates(self) -> Candidates:
        return self.verdict.candidates(self.ask.class_name)


@dataclass(slots=True)
class Judge:
    """Judges devices for requests; what asks for the same is judged once."""

    gates: frozenset[str]
    offers: Sequence[Offer]
    usage: Usage
    selectors: Selectors
    classes: Mapping[str, Class]
    broken: frozenset[str] = frozenset()
    """nodes with a pool that is incomplete or invalid"""
    _overdrawn: dict[int, str] = field(init=False)
    _reached: list[frozenset[str]] = field(init=False)
    _known: dict[object, Verdict] = field(default_factory=dict)
    _wider: Judge | None = None

    @property
    def size(self) -> int:
        """Verdicts that are remembered."""
        return len(self._known) + (0 if self._wider is None else len(self._wider._known))

    def with_class(self, added: Class) -> Judge:
        """The same judge with one class more, the same one whenever it is asked for."""
        if self._wider is None:
            self._wider = replace(self, classes={**self.classes, added.name: added}, _known={})
        return self._wider

    def __post_init__(self) -> None:
        self._overdrawn = overdrawn(self.offers, self.usage)
        self._reached = [offer.nodes for offer in self.offers]

    def choose(self, claim: Claim, ask: Ask) -> Choice:
        """Judge every device.

        Raises AllocationError for an expression or an amount that is wrong in itself, or an expression that is too
        expensive; OutOfTime, with the expression that there was no time for; and in a turn of a claim
        CommonBudgetExceeded.
        """
        key = (ask.class_name, ask.selectors, ask.is_all, ask.admin, ask.tolerations, *sorted(ask.capacity.items()))
        if key not in self._known:
            self._known[key] = self._judge(ask, f"claim {claim.title}, request {ask.name}")
        return Choice(ask, self._known[key], self)

    def _judge(self, ask: Ask, where: str) -> Verdict:
        self._check(ask, where)
        verdict = Verdict(self._reached, self.broken if ask.is_all else frozenset())
        for offer in self.offers:
            if not offer.nodes:
                continue
            fall = self._fall(verdict, ask, offer, where)
            if fall is not None:
                verdict.fallen.setdefault(fall.what, []).append((offer.index, fall.why))
                continue
            barred = self._bar(verdict, ask, offer)
            if barred is None or ask.is_all:
                verdict.accepted.append(offer.index)
                verdict.binds = verdict.binds or offer.binds
            if barred is not None and ask.is_all:
                verdict.blocked[offer.index] = barred
            elif barred is not None:
                verdict.fallen.setdefault(barred.what, []).append((offer.index, barred.why))
        return verdict

    def _check(self, ask: Ask, where: str) -> None:
        chosen = self.classes[ask.class_name]
        for number, expression in enumerate(chosen.selectors):
            told = f"class {chosen.name}: selector #{number}"
            with self._bounded(told):
                self.selectors.check(expression, told, is_of_class=True)
                self.selectors.charge(expression)
        for number, expression in enumerate(ask.selectors):
            told = f"{where}: selector #{number}"
            with self._bounded(told):
                self.selectors.check(expression, told)
                self.selectors.charge(expression)

    @contextmanager
    def _bounded(self, where: str) -> Iterator[None]:
        """Says which selector was too expensive, or there was no time for."""
        try:
            yield
        except OutOfTime:
            raise OutOfTime(f"{where}: {OUT_OF_TIME}") from None
        except CommonBudgetExceeded:
            allowance = self.selectors.allowance
            if allowance.is_turn:
                raise
            allowance.exhaust()
            raise AllocationError(f"{where}: {COMMON_SPENT}", exceeded=Bound.COMMON) from None
        except BudgetExceeded:
            raise AllocationError(f"{where}: {TOO_EXPENSIVE}", exceeded=Bound.EXPRESSION) from None

    def _fall(self, verdict: Verdict, ask: Ask, offer: Offer, where: str) -> Fall | None:
        """Why a device is not among those that the request is about, whoever uses them."""
        device = offer.device
        if offer.pool.state is not State.COMPLETE:
            return Fall(f"are of a pool that is {offer.pool.state.value}", f"{offer.pool.title}: {offer.pool.why}")
        if device.binding_conditions and gate.BINDING_CONDITIONS not in self.gates:
            return Fall("have binding conditions, which are disabled", gate.BINDING_CONDITIONS)
        if not ask.is_all and (used := self._in_use(ask, offer)) is not None:
            return used
        chosen = self.classes[ask.class_name]
        of_class = f"class {chosen.name}"
        fall = self._selected(
            verdict, offer, chosen.selectors, "fail a selector of the class", of_class, f"{of_class}, "
        )
        fall = fall or self._selected(verdict, offer, ask.selectors, "fail a selector of the request", where, "")
        return fall or self._capacity(verdict, ask, offer, where)

    def _selected(
        self, verdict: Verdict, offer: Offer, expressions: Sequence[str], what: str, where: str, prefix: str
    ) -> Fall | None:
        for number, expression in enumerate(expressions):
            try:
                found = self.selectors.verdict(expression, offer)
            except (BudgetExceeded, OutOfTime):
                with self._bounded(f"{where}: selector #{number}"):
                    raise
            if isinstance(found, str):
                told = f"{prefix}selector #{number} on device {offer.title}: CEL runtime error: {found}"
                verdict.errors.append(f"{told}; correct the device, or guard the expression against it")
                return Fall(UNJUDGED, found)
            if not found:
                return Fall(what, expression)
        return None

    def _capacity(self, verdict: Verdict, ask: Ask, offer: Offer, where: str) -> Fall | None:
        if gate.CONSUMABLE_CAPACITY not in self.gates:
            return None
        try:
            found = taken(ask.capacity, offer.device, fractional=gate.FRACTIONAL_RANGE in self.gates)
        except AmountError as error:
            path = f"{ask.path}.capacity.requests"
            raise AllocationError(f"{where}: {path}: checking capacity for device {offer.title}: {error}") from None
        if isinstance(found, str):
            return Fall("do not offer the capacity", found)
        if offer.is_shareable:
            verdict.takes[offer.index] = found
        return None

    def _bar(self, verdict: Verdict, ask: Ask, offer: Offer) -> Fall | None:
        """Why a device that the request is about cannot be had."""
        device = offer.device
        if (used := self._in_use(ask, offer)) is not None:
            return used
        if offer.slice.skip_node_operations:
            return Fall("skip node operations, an alpha feature that is not supported", gate.OPTIONAL_NODE_OPERATIONS)
        if device.uses_allocatable and gate.NODE_ALLOCATABLE in self.gates:
            return Fall("use nodeAllocatableResources, an alpha feature that is not supported", gate.NODE_ALLOCATABLE)
        if device.consumes and gate.PARTITIONABLE_DEVICES not in self.gates:
            return Fall("consume counters, which are disabled", gate.PARTITIONABLE_DEVICES)
        if self._draws(ask, offer) and (over := self._overdrawn.get(id(offer.pool))) is not None:
            return Fall("are of a pool with an overdrawn counter", f"{over} of {offer.pool.title}")
        if gate.DEVICE_TAINTS in self.gates and (taint := objection(device.taints, ask.tolerations)) is not None:
            value = f"={taint.value}" if taint.value else ""
            return Fall("have a taint that is not tolerated", f"{taint.key}{value}:{taint.effect}")
        return self._exhausted(verdict, ask, offer)

    def _draws(self, ask: Ask, offer: Offer) -> bool:
        """Whether giving the device draws counters: admin access never does, nor one more share."""
        more = offer.is_shareable and offer.id in self.usage.shared
        return bool(offer.device.consumes) and not ask.admin and not more

    def _in_use(self, ask: Ask, offer: Offer) -> Fall | None:
        if ask.admin:
            return None
        if offer.id in self.usage.whole:
            return Fall("are in use")
        if offer.id in self.usage.shared and not offer.is_shareable:
            return Fall("are in use", "in shares")
        return None

    def _exhausted(self, verdict: Verdict, ask: Ask, offer: Offer) -> Fall | None:
        if ask.admin or not offer.is_shareable:
            return None
        used = self.usage.shared.get(offer.id, {})
        for name, amount in verdict.takes[offer.index].items():
            capacity = offer.device.capacity[name].value
            left = capacity.nano - used.get(name, 0)
            if amount.nano > left:
                shown = Amount(max(0, left), capacity.format)
                return Fall("have too little capacity left", f"{shown} of {capacity} {name}, {amount} asked for")
        return None
