"""CEL selectors of resource.k8s.io on devices: each operand of ``&&`` is evaluated once for all devices that agree in
what it reads, within the bounds of ``cel.budget``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, cast

from devalloc.api.semver import SemVer
from devalloc_solver.cel.budget import (
    TOO_EXPENSIVE_ONCE,
    Allowance,
    Budget,
    BudgetExceeded,
    CommonBudgetExceeded,
    Costs,
    OutOfTime,
    check_deadline,
)
from devalloc_solver.cel.free_evaluations import evaluate_free
from devalloc_solver.cel.kubernetes import (
    COST_LIMIT,
    CelDevice,
    CompileError,
    DeviceField,
    EvaluationError,
    ExhaustedError,
    Program,
    compile,
)
from devalloc_solver.dialects.resource_k8s.feature_gates import DEFAULT_GATES
from devalloc_solver.dialects.resource_k8s.fields import AllocationError
from devalloc_solver.dialects.resource_k8s.published_devices import PublishedDevice, find_qualified
from devalloc_solver.dialects.resource_k8s.slices import DeviceAttribute, UnusualAttribute

compile("true", DEFAULT_GATES)  # loads the CEL runtime together with the dialect, so that no claim has to wait for it


MAX_EXHAUSTED = 4
"""Devices on which an expression may exceed its cost limit before it is not evaluated any more."""
MAX_EXPRESSIONS = 256
"""Expressions of which the verdicts are remembered; when there are more, all are forgotten."""
MAX_VERDICTS = 200_000
"""Verdicts of an expression that are remembered; when there are more, all are forgotten."""


class SelectorJudge:
    """Judges devices by CEL expressions, under one set of feature gates.

    An expression is evaluated once for all devices that agree in what it reads.
    """

    def __init__(self, gates: frozenset[str], allowance: Allowance | None = None) -> None:
        """``allowance``: of the call that goes on."""
        self._gates = gates
        self.allowance = Allowance() if allowance is None else allowance
        self._programs: dict[str, Program] = {}
        self._operands: dict[str, tuple[_Operand, ...]] = {}
        self._exhausted: dict[str, int] = {}
        self._costs = Costs()
        self._spent: set[str] = set()
        """expressions whose budget is spent"""
        self._anew: dict[str, int] = {}
        """expression -> number of the call in which all was forgotten about it"""
        self._cut: set[str] = set()
        """expressions that a call had no time for: the next one goes on from there, and what they cost adds up"""
        self._of_classes: set[str] = set()
        """expressions that no claim pays for"""
        self.is_spent = False
        """whether any expression was too expensive on some device: verdicts then depend on what was asked before"""

    def __len__(self) -> int:
        """Expressions that are remembered."""
        return len(self._programs)

    def renewed(self) -> SelectorJudge:
        """Itself, or one that remembers nothing of expressions of which verdicts depend on what was asked before, and
        nothing at all if they are too many."""
        if not self.is_spent and len(self) <= MAX_EXPRESSIONS:
            return self
        judge = SelectorJudge(self._gates, self.allowance)
        for expression, program in self._programs.items() if len(self) <= MAX_EXPRESSIONS else ():
            if self.is_exhausting(expression):
                continue
            judge._programs[expression] = program
            judge._operands[expression] = self._operands[expression]
            judge._exhausted[expression] = 0
            judge._costs.take_over(expression, self._costs)
            judge._anew[expression] = self._anew[expression]
            judge._cut |= self._cut & {expression}
            judge._of_classes |= self._of_classes & {expression}
        return judge

    def forget_cuts(self) -> None:
        """The devices are others now: what expressions have cost was for those before."""
        self._cut.clear()

    def check(self, expression: str, where: str, *, is_of_class: bool = False) -> None:
        """Raises AllocationError for an expression that does not compile, OutOfTime where there is no time for that."""
        if is_of_class:
            self._of_classes.add(expression)
        if expression in self._programs:
            return
        check_deadline(self.allowance.ends)
        try:
            self._programs[expression] = compile(expression, self._gates)
        except CompileError as error:
            raise AllocationError(f"{where}: CEL compile error: {error}; correct the expression") from None
        apart = self._programs[expression].operands or (self._programs[expression],)
        self._operands[expression] = tuple(_Operand.of(operand, len(apart)) for operand in apart)
        self._exhausted[expression] = 0
        self._anew[expression] = self.allowance.serial

    def verdict(self, expression: str, offer: PublishedDevice) -> bool | str:
        """True, False, or why the expression cannot be evaluated on the device. It has passed ``check``.

        Raises BudgetExceeded or CommonBudgetExceeded when it costs too much over all devices, OutOfTime when the time
        of the call is over.
        """
        if offer.device.has_fault:
            return str(cel_device(offer))
        failure: str | None = None
        cost = 0
        for operand in self._operands[expression]:
            outcome = operand.verdicts.get(operand.key(offer))
            if outcome is None:
                outcome = self._outcome(expression, operand, offer)
            if outcome is True:
                continue
            if outcome is False:
                return False
            if type(outcome) is _Costly:
                cost += outcome.cost
                if cost > COST_LIMIT:
                    return self._exhaust(expression)
                outcome = outcome.verdict
                if outcome is False:
                    return False
            if type(outcome) is _Exhausted:
                return outcome  # nothing can hide that it was stopped
            if outcome is not True:
                failure = failure or str(outcome)
        return True if failure is None else failure

    def verdicts(
        self, expression: str, offers: Sequence[PublishedDevice], faults: Mapping[int, str]
    ) -> Sequence[bool | str]:
        """The verdicts on many devices, in their order, each operand being evaluated on all before the next one.

        ``faults``: the devices, by index, with an attribute that cannot be read, and why. Raises as ``verdict``.
        """
        outcomes: list[bool | str] = [True] * len(offers)
        left: Sequence[int] = range(len(offers))
        if faults:
            outcomes = [faults.get(offer.index, True) for offer in offers]
            left = [number for number in left if outcomes[number] is True]
        for operand in self._operands[expression]:
            key = operand.key
            keys = [key(offers[index]) for index in left]
            results = self._outcomes(expression, operand, {k: offers[i] for k, i in zip(keys, left, strict=True)})
            if results is None:  # an evaluation that is stopped counts for the devices after it
                return [self.verdict(expression, offer) for offer in offers]
            undecided = []
            for k, index in zip(keys, left, strict=True):
                outcome = results[k]
                if outcome is False:
                    outcomes[index] = False
                    continue
                undecided.append(index)
                if outcome is not True and outcomes[index] is True:
                    outcomes[index] = outcome
            left = undecided
        return outcomes

    def _outcomes(
        self, expression: str, operand: _Operand, examples: Mapping[object, PublishedDevice]
    ) -> Mapping[object, bool | str] | None:
        """What an operand says of all devices that agree with an example in what it reads; None if any evaluation is
        too expensive for the others to be apart from it."""
        verdicts = operand.verdicts
        new = [key for key in examples if key not in verdicts]
        if len(new) > operand.room:
            self._forget_verdicts(expression)
            new, operand.room = [*examples], max(operand.room, len(examples))
        operand.room -= len(new)
        results = {key: verdicts[key] for key in examples if key in verdicts}
        if not self.is_exhausting(expression):
            devices = operand.devices(new, examples)
            free = evaluate_free(operand.program.evaluator, devices, operand.program.cost, self.allowance.ends)
            for key, verdict in zip(new, free, strict=True):
                outcome = (
                    verdict if verdict is not None else self._run(expression, operand, operand.device(examples[key]))
                )
                results[key] = verdicts[key] = outcome
        is_apart = not self.is_exhausting(expression) and not any(type(one) is _Costly for one in results.values())
        return cast(Mapping[object, bool | str], results) if is_apart else None

    def operand_verdict(self, expression: str, number: int, offer: PublishedDevice) -> bool | str:
        """The same of one operand of ``&&`` alone, by its number in ``Program.operands``."""
        if offer.device.has_fault:
            return str(cel_device(offer))
        operand = self._operands[expression][number]
        outcome = operand.verdicts.get(operand.key(offer))
        outcome = self._outcome(expression, operand, offer) if outcome is None else outcome
        return outcome.verdict if isinstance(outcome, _Costly) else outcome

    def _outcome(self, expression: str, operand: _Operand, offer: PublishedDevice) -> _Outcome:
        """The outcome of an operand that is not remembered yet."""
        if operand.room <= 0:
            self._forget_verdicts(expression)
        outcome = operand.verdicts[operand.key(offer)] = self._run(expression, operand, operand.device(offer))
        operand.room -= 1
        return outcome

    def _exhaust(self, expression: str) -> bool | str:
        """The operands of an expression cost too much together, each of them having been evaluated."""
        if self._exhausted[expression] >= MAX_EXHAUSTED:
            return f"not evaluated: the expression was too expensive on {MAX_EXHAUSTED} other devices"
        self._exhausted[expression] += 1
        self.is_spent = True
        return f"{TOO_EXPENSIVE_ONCE} {COST_LIMIT} units"

    def _forget_verdicts(self, expression: str) -> None:
        operands = self._operands[expression]
        for operand in operands:
            operand.verdicts.clear()
            operand.room = MAX_VERDICTS // len(operands)

    def matches(self, expression: str, device: CelDevice) -> bool:
        """Whether an expression that has passed ``check`` is true of a device, which need not exist.

        Raises as ``verdict``.
        """
        outcome = self._run(expression, _Operand.of(self._programs[expression], 1), device)
        return (outcome.verdict if isinstance(outcome, _Costly) else outcome) is True

    def charge(self, expression: str) -> None:
        """Charge the call for cached results of an expression that has passed ``check``.

        Raises BudgetExceeded or CommonBudgetExceeded when that costs too much.
        """
        if expression in self._spent and not self._begin_anew(expression):
            raise BudgetExceeded
        if expression in self._of_classes:
            return
        try:
            self.allowance.charge(expression, self._costs.of(expression))
        except CommonBudgetExceeded:
            if not self._begin_anew(expression):
                raise

    def _begin_anew(self, expression: str) -> bool:
        """Forget what an expression cost in earlier calls, on devices that may be gone; False where this is done."""
        if self._anew.get(expression) == self.allowance.serial or expression in self._cut:
            return False
        self._forget_verdicts(expression)
        self._exhausted[expression] = 0
        self._costs.forget(expression)
        self._spent.discard(expression)
        self._anew[expression] = self.allowance.serial
        return True

    def too_expensive(self, expression: str) -> str:
        """Why an expression is refused of which ``verdict`` or ``charge`` raised BudgetExceeded."""
        return self._costs.too_expensive(expression)

    def program(self, expression: str) -> Program:
        """An expression that has passed ``check``."""
        return self._programs[expression]

    def is_exhausting(self, expression: str) -> bool:
        """Whether an expression that has passed ``check`` was too expensive on some device."""
        return self._exhausted[expression] > 0 or expression in self._spent

    def _run(self, expression: str, operand: _Operand, device: CelDevice | str) -> _Outcome:
        """One evaluation of an operand, which the expression pays."""
        if isinstance(device, str):
            return device
        program, is_common = operand.program, expression not in self._of_classes
        if self._exhausted[expression] >= MAX_EXHAUSTED:
            return f"not evaluated: the expression was too expensive on {MAX_EXHAUSTED} other devices"
        spent = 0

        def run(budget: Budget) -> bool:
            nonlocal spent
            try:
                return program.matches(device, budget)
            finally:
                spent = budget.spent

        outcome: _Outcome
        try:
            outcome = self._costs.evaluate(
                expression, run, self.allowance, is_common=is_common, base=program.cost, most=COST_LIMIT
            )
        except BudgetExceeded as error:
            if self._begin_anew(expression):
                return self._run(expression, operand, device)
            if not isinstance(error, CommonBudgetExceeded):
                self._spent.add(expression)
                self.is_spent = True
                if is_common:
                    self.allowance.charge(expression, self._costs.of(expression))
            raise
        except OutOfTime:
            self._cut.add(expression)
            raise
        except ExhaustedError as error:
            self._exhausted[expression] += 1
            self.is_spent = True
            outcome = _Exhausted(str(error))
        except EvaluationError as error:
            outcome = str(error)
        if is_common and (cost := self._costs.of(expression)):
            self.allowance.charge(expression, cost)
        return _Costly(outcome, spent) if spent > operand.costly else outcome


class _Exhausted(str):
    """Why an evaluation was stopped: no other operand can hide it."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class _Costly:
    """A verdict that counts towards what one evaluation of all operands may cost."""

    verdict: bool | str
    cost: int


_Outcome = bool | str | _Costly
_Reader = Callable[[PublishedDevice], object]


@dataclass(slots=True, eq=False)
class _Operand:
    """An operand of the top-level ``&&`` of an expression, or all of it, and its verdicts."""

    program: Program
    key: _Reader
    """what it reads of a device"""
    device: Callable[[PublishedDevice], CelDevice | str]
    """a device with what it reads"""
    costly: int
    """units up to which the operands together are within the bound of one evaluation"""
    room: int
    """verdicts that may still be remembered"""
    attribute: DeviceField | None = None
    """the attribute, if that is all it reads"""
    verdicts: dict[object, _Outcome] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program, operands: int) -> _Operand:
        """``operands``: how many the expression has."""
        reads = program.reads
        costly, room = COST_LIMIT // operands, MAX_VERDICTS // operands
        if reads is None:
            return cls(program, attrgetter("device"), cel_device, costly, room)
        fields = sorted(reads, key=attrgetter("kind", "domain", "id"))
        readers = [_reader(read) for read in fields]
        key: _Reader = readers[0] if len(readers) == 1 else lambda offer: tuple([read(offer) for read in readers])
        only = fields[0] if len(fields) == 1 and fields[0].kind == "attribute" else None
        return cls(program, key, partial(_device_of, fields), costly, room, only)

    def devices(self, keys: Sequence[object], examples: Mapping[object, PublishedDevice]) -> Iterator[CelDevice]:
        """For each of the things read, a device with that; it is to be looked at before the next one."""
        if self.attribute is None:
            for key in keys:
                device = self.device(examples[key])
                assert isinstance(device, CelDevice)  # it has no fault
                yield device
            return
        values: dict[str, Any] = {}
        there = CelDevice("", {self.attribute.domain: values}, {})
        absent = CelDevice("", {}, {})
        for key in keys:
            if key is None:
                yield absent
                continue
            values[self.attribute.id] = _value(cast(DeviceAttribute, key))
            yield there


def _reader(read: DeviceField) -> _Reader:
    """How to read one part of a device, such that equal parts are of one type."""
    if read.kind == "driver":
        return lambda offer: offer.pool.driver
    if read.kind == "allow_multiple":
        return lambda offer: offer.device.allow_multiple
    name = f"{read.domain}/{read.id}"
    if read.kind == "capacity":

        def capacity(offer: PublishedDevice) -> object:
            there = find_qualified(offer, offer.device.capacity, name)
            return None if there is None else (there.value.nano, there.value.format)

        return capacity
    domain, short = read.domain, read.id

    def attribute(offer: PublishedDevice) -> object:
        attributes = offer.device.attributes
        value = attributes.get(name)
        return attributes.get(short) if value is None and offer.pool.driver == domain else value

    return attribute


def _device_of(reads: Sequence[DeviceField], offer: PublishedDevice) -> CelDevice:
    """A device of which selectors see no more than some parts."""
    attributes: dict[str, dict[str, Any]] = {}
    capacity: dict[str, dict[str, Any]] = {}
    for read in reads:
        name = f"{read.domain}/{read.id}"
        if read.kind == "attribute":
            attribute = find_qualified(offer, offer.device.attributes, name)
            if attribute is not None:
                attributes.setdefault(read.domain, {})[read.id] = _value(attribute)
        elif read.kind == "capacity":
            amount = find_qualified(offer, offer.device.capacity, name)
            if amount is not None:
                capacity.setdefault(read.domain, {})[read.id] = amount.value.quantity
    return CelDevice(offer.pool.driver, attributes, capacity, offer.device.allow_multiple)


def cel_device(offer: PublishedDevice) -> CelDevice | str:
    """A device as selectors see it, or which attribute cannot be read."""
    device, driver = offer.device, offer.pool.driver
    attributes: dict[str, dict[str, Any]] = {}
    for name, domain, identifier in _by_domain(tuple(device.attributes), driver):
        attribute = device.attributes[name]
        if isinstance(attribute, UnusualAttribute) and attribute.fault is not None:
            return f"attribute {name}: {attribute.fault}"
        attributes.setdefault(domain, {})[identifier] = _value(attribute)
    capacity: dict[str, dict[str, Any]] = {}
    for name, domain, identifier in _by_domain(tuple(device.capacity), driver):
        capacity.setdefault(domain, {})[identifier] = device.capacity[name].value.quantity
    return CelDevice(driver, attributes, capacity, device.allow_multiple)


@lru_cache(maxsize=1024)
def _by_domain(names: tuple[str, ...], driver: str) -> Sequence[tuple[str, str, str]]:
    """Names with their domains and identifiers: many devices have the same. Full names come after short ones: if a
    device has both, the full name counts, as in constraints."""
    ordered = sorted(names, key=lambda name: ("/" in name, name))
    return [(name, *_split(name, driver)) for name in ordered]


def _split(name: str, driver: str) -> tuple[str, str]:
    domain, slash, identifier = name.partition("/")
    return (domain, identifier) if slash else (driver, name)


def _value(attribute: DeviceAttribute) -> Any:
    if isinstance(attribute, UnusualAttribute):
        return tuple(_value((attribute.kind, value)) for value in attribute.values)
    kind, value = attribute
    return SemVer(value) if kind == "version" else value
