"""Whether expressions accept devices: verdicts are cached, and evaluations are bounded by ``cel.budget``.

An operand of an expression is evaluated once for all devices that agree in what it reads.

=================  ====================================================================================================
verdicts           by operand and by the values that it reads, which are all that can influence it
one expression     ``Costs``: what it may cost over all devices, and on one
one call           ``Allowance``: what the expressions of its claims may cost together, and until when
=================  ====================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from devalloc_solver.cel.budget import (
    COMMON_SPENT,
    TOO_EXPENSIVE_ONCE,
    Allowance,
    Bound,
    Budget,
    BudgetExceeded,
    CommonBudgetExceeded,
    Costs,
    OutOfTime,
    check_deadline,
)
from devalloc_solver.cel.errors import CompileError, EvaluationError, ExhaustedError
from devalloc_solver.cel.free_evaluations import evaluate_free
from devalloc_solver.eligibility.predicate import CostlyVerdict, Exhausted, Language, Operand, Outcome, Predicate

MAX_EXHAUSTED = 4
"""Devices on which an expression may exceed its cost limit before it is not evaluated any more."""
MAX_EXPRESSIONS = 256
"""Expressions of which the verdicts are cached; when there are more, all are forgotten."""
NO_FAULTS: Mapping[int, str] = {}


class ExpressionRefusal(NamedTuple):
    """Why an expression is not evaluated."""

    message: str
    exceeded: Bound | None = None
    """the bound that it exceeds; None if it is invalid"""


class ExpressionError(Exception):
    """An expression that is invalid, or too expensive to evaluate."""

    def __init__(self, refusal: ExpressionRefusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


@dataclass(slots=True, eq=False)
class _Entry:
    """What is cached of an expression, and what it has cost."""

    predicate: Predicate
    begun: int
    """number of the call in which all was forgotten about it"""
    is_of_class: bool = False
    """whether no claim pays for it"""
    dear: int = 0
    """devices on which it was stopped"""
    is_spent: bool = False
    """whether its budget over all devices is"""
    was_cut: bool = False
    """whether a call had no time for it: the next one goes on from there, and what it cost adds up"""
    is_costly: bool = False
    """whether operands of it have verdicts that count towards what they may cost together"""
    counted: int = 0
    """its cached verdicts that ``_Count`` has"""

    @property
    def is_exhausting(self) -> bool:
        return self.dear > 0 or self.is_spent


@dataclass(slots=True)
class _Count:
    """What judges of the same expressions have in common."""

    verdicts: int = 0
    """how many are cached: too many to count them for each new expression"""


@dataclass(slots=True, eq=False)
class _Pass:
    """One operand after the other is evaluated on all devices."""

    devices: Sequence[Any]
    verdicts: list[bool | str]
    """on all devices, as far as they are decided"""
    left: Sequence[int]
    """positions of the devices that no operand is false of"""
    done: int = 0
    """operands that are done"""
    keys: list[object] | None = None
    """what the next one reads of each device that is left"""
    examples: Mapping[object, Any] = field(default_factory=dict)
    """a device for each of these"""
    outcomes: dict[object, Outcome] = field(default_factory=dict)
    new: list[object] = field(default_factory=list)
    """those without an outcome yet"""

    @classmethod
    def of(cls, devices: Sequence[Any], faults: Mapping[int, str]) -> _Pass:
        if not faults:
            return cls(devices, [True] * len(devices), range(len(devices)))
        verdicts: list[bool | str] = [faults.get(device.index, True) for device in devices]
        return cls(devices, verdicts, [number for number, verdict in enumerate(verdicts) if verdict is True])

    def decide(self) -> None:
        """Write down what an operand has said, and go on to the next one."""
        outcomes, verdicts, undecided = self.outcomes, self.verdicts, []
        assert self.keys is not None
        for key, number in zip(self.keys, self.left, strict=True):
            outcome = outcomes[key]
            if outcome is False:
                verdicts[number] = False
                continue
            undecided.append(number)
            if outcome is not True and verdicts[number] is True:
                assert isinstance(outcome, str)
                verdicts[number] = outcome
        self.left, self.keys, self.done = undecided, None, self.done + 1


@dataclass(slots=True, eq=False)
class Judge:
    """Judges devices by expressions of one language."""

    language: Language
    allowance: Allowance = field(default_factory=Allowance)
    """of the call that goes on"""
    costs: Costs = field(default_factory=Costs)
    is_charging: bool = True
    """whether the call pays for expressions of claims that are evaluated"""
    is_spent: bool = False
    """whether any expression was too expensive on some device: verdicts then depend on what was asked before"""
    refused: dict[str, ExpressionRefusal] = field(default_factory=dict)
    """expressions that stay refused"""
    judged: set[str] = field(default_factory=set)
    """expressions that all devices were judged by: any others are those of a question what if, which costs nothing"""
    _entries: dict[str, _Entry] = field(default_factory=dict)
    _count: _Count = field(default_factory=_Count)
    _passes: dict[str, _Pass] = field(default_factory=dict)
    """those that a call had no more time for"""

    def of_others(self) -> Judge:
        """Make a judge of other devices; what expressions say, and may cost, is common to both."""
        return Judge(
            *(self.language, self.allowance, self.costs, self.is_charging, self.is_spent, self.refused),
            _entries=self._entries,
            _count=self._count,
        )

    def forget_exhausting(self) -> bool:
        """Forget the expressions of which verdicts depend on what was asked before, and all if they are too many.
        Whether there may be any of which verdicts are cached elsewhere."""
        is_full, was_spent = len(self._entries) > MAX_EXPRESSIONS, self.is_spent
        for text in [text for text, entry in self._entries.items() if is_full or entry.is_exhausting]:
            self.forget(text)
        self.is_spent = False
        return is_full or was_spent

    def forget_cuts(self) -> None:
        """Know that the devices are others now: what expressions have cost was for those before."""
        self._passes.clear()
        for entry in self._entries.values():
            entry.was_cut = False

    # -- expressions ---------------------------------------------------------------------------------------------------

    def predicate(self, text: str, *, is_of_class: bool = False) -> Predicate:
        """Compile an expression, if that is not done yet.

        Raises ExpressionError if it does not compile, OutOfTime where there is no time for that.
        """
        entry = self._find(text)
        entry.is_of_class = entry.is_of_class or is_of_class
        return entry.predicate

    def _find(self, text: str) -> _Entry:
        entry = self._entries.get(text)
        if entry is None:
            check_deadline(self.allowance.ends)
            try:
                predicate = self.language.compile(text)
            except CompileError as error:
                refusal = ExpressionRefusal(str(error))
                if self.language.on_error == "refuse":
                    self.refused[text] = refusal
                raise ExpressionError(refusal) from None
            entry = self._entries[text] = _Entry(predicate, self.allowance.serial)
            self._forget_verdicts(entry)
        return entry

    def is_exhausting(self, text: str) -> bool:
        """Whether an expression is too expensive on some device."""
        entry = self._entries.get(text)
        return entry is not None and entry.is_exhausting

    def charge(self, text: str) -> None:
        """Charge the call for what an expression has cost, unless it is of a class.

        Raises ExpressionError when it costs too much over all devices, CommonBudgetExceeded when all expressions of the
        call do.
        """
        entry = self._find(text)
        if entry.is_spent and not self._begin_anew(entry):
            raise self._too_expensive(text)
        if entry.is_of_class:
            return
        try:
            self.allowance.charge(text, self.costs.of(text))
        except CommonBudgetExceeded:
            if not self._begin_anew(entry):
                raise

    def refuse_common(self) -> ExpressionRefusal:
        """Return why an expression is refused of which CommonBudgetExceeded was raised, which is raised again in a turn
        of a claim: it gets another one."""
        if self.allowance.is_turn:
            raise CommonBudgetExceeded
        self.allowance.exhaust()
        return ExpressionRefusal(COMMON_SPENT, Bound.COMMON)

    def _begin_anew(self, entry: _Entry) -> bool:
        """Forget what an expression cost in earlier calls, on devices that may be gone; False where this is done."""
        if self.language.on_error == "refuse" or entry.begun == self.allowance.serial or entry.was_cut:
            return False
        self._forget_verdicts(entry)
        entry.dear, entry.is_spent, entry.begun = 0, False, self.allowance.serial
        self.costs.forget(entry.predicate.text)
        return True

    def _forget_verdicts(self, entry: _Entry) -> None:
        operands, language = entry.predicate.operands, self.language
        entry.is_costly = False
        for operand in operands:
            operand.verdicts = {}
            if language.max_verdicts is not None:
                operand.capacity = language.max_verdicts // len(operands)
            if language.most is not None:
                operand.costly = language.most // len(operands)
        self._recount(entry)

    def _too_expensive(self, text: str) -> ExpressionError:
        refusal = ExpressionRefusal(self.costs.too_expensive(text), Bound.EXPRESSION)
        if self.language.on_error == "refuse" and text not in self.judged:
            self.refused[text] = refusal  # otherwise it is as good as ever for the devices that there are
        return ExpressionError(refusal)

    @property
    def expressions(self) -> Collection[str]:
        """The expressions that are cached, in the order in which they were asked for first."""
        return self._entries.keys()

    @property
    def size(self) -> int:
        """How many verdicts are cached."""
        return self._count.verdicts

    def _recount(self, entry: _Entry) -> None:
        size = sum(len(operand.verdicts) for operand in entry.predicate.operands)
        self._count.verdicts += size - entry.counted
        entry.counted = size

    def forget(self, text: str) -> None:
        """Forget all about an expression."""
        if text in self._entries:
            self._count.verdicts -= self._entries[text].counted
        for remembering in (self._entries, self.refused, self._passes):
            remembering.pop(text, None)
        self.judged.discard(text)
        self.costs.forget(text)

    # -- verdicts ------------------------------------------------------------------------------------------------------

    def verdict(self, text: str, device: Any) -> bool | str:
        """Return True, False, or why the expression cannot be evaluated on the device.

        Raises ExpressionError when it costs too much over all devices, CommonBudgetExceeded when all expressions of the
        call do, OutOfTime when its time is over.
        """
        if text in self.refused:
            raise ExpressionError(self.refused[text])
        if self.language.fault is not None and (fault := self.language.fault(device)) is not None:
            return fault
        entry = self._entries.get(text) or self._find(text)
        failure: str | None = None
        cost = 0
        for operand in entry.predicate.operands:
            key = operand.key(device)
            outcome = operand.verdicts.get(key)
            if outcome is None:
                outcome = self._evaluate(entry, operand, key, operand.view(device))
            if outcome is True:
                continue
            if outcome is False:
                return False
            if type(outcome) is CostlyVerdict:
                cost += outcome.cost
                if self.language.most is not None and cost > self.language.most:
                    return self._exhaust(entry, self.language.most)
                outcome = outcome.verdict
                if outcome is False:
                    return False
            if type(outcome) is Exhausted:
                return outcome  # nothing can hide that it was stopped
            if outcome is not True:
                failure = failure or str(outcome)
        return True if failure is None else failure

    def verdicts(
        self, text: str, devices: Sequence[Any], faults: Mapping[int, str] = NO_FAULTS
    ) -> Sequence[bool | str]:
        """Return the verdicts on many devices, in their order, each operand being evaluated on all before the next one.

        Args:
            text: the expression.
            devices: if it is a tuple, a call for which there is no time is gone on with when it is asked for again.
            faults: the devices, by index, on which nothing is evaluated, and their verdicts.

        Raises as ``verdict``.
        """
        if text in self.refused:
            raise ExpressionError(self.refused[text])
        entry, so_far = self._find(text), self._passes.pop(text, None)
        if so_far is None or so_far.devices is not devices:
            so_far = _Pass.of(devices, faults)
        try:
            for operand in entry.predicate.operands[so_far.done :]:
                if not self._evaluate_on_all(entry, operand, so_far):
                    return [self.verdict(text, device) for device in devices]
                so_far.decide()
        except (CommonBudgetExceeded, OutOfTime):
            if isinstance(devices, tuple):
                self._passes[text] = so_far
            raise
        return so_far.verdicts

    def _evaluate_on_all(self, entry: _Entry, operand: Operand, so_far: _Pass) -> bool:
        """Evaluate an operand for all that it reads of devices, with an example each.

        False if an evaluation was too expensive for others to be apart from it: it counts for the devices after it.
        """
        if so_far.keys is None:
            self._begin_operand(entry, operand, so_far)
        if entry.is_exhausting:
            return False
        outcomes, new, examples, done = so_far.outcomes, so_far.new, so_far.examples, 0
        views = operand.views(new, examples)
        free = evaluate_free(operand.program.evaluator, views, operand.program.cost, self.allowance.ends)
        try:
            for key, outcome in zip(new, free, strict=True):
                if outcome is None:
                    outcomes[key] = self._evaluate(entry, operand, key, operand.view(examples[key]))
                else:  # operand.verdicts is another dict once verdicts were forgotten
                    outcomes[key] = operand.verdicts[key] = outcome
                done += 1
        finally:
            self._recount(entry)
            if done < len(new):
                del new[:done]
        return not entry.is_exhausting and not entry.is_costly

    def _begin_operand(self, entry: _Entry, operand: Operand, so_far: _Pass) -> None:
        key, devices = operand.key, so_far.devices
        so_far.keys = [key(devices[number]) for number in so_far.left]
        so_far.examples = {key: devices[number] for key, number in zip(so_far.keys, so_far.left, strict=True)}
        so_far.new = [key for key in so_far.examples if key not in operand.verdicts]
        if len(so_far.new) + len(operand.verdicts) > operand.capacity:
            self._forget_verdicts(entry)
            so_far.new = [*so_far.examples]
        so_far.outcomes = operand.verdicts

    def operand_verdict(self, text: str, operand: Operand, device: Any) -> bool | str:
        """Return the verdict of one operand of an expression alone. Raises as ``verdict``."""
        if self.language.fault is not None and (fault := self.language.fault(device)) is not None:
            return fault
        key = operand.key(device)
        outcome = operand.verdicts.get(key)
        if outcome is None:
            outcome = self._evaluate(self._find(text), operand, key, operand.view(device))
        return outcome.verdict if isinstance(outcome, CostlyVerdict) else outcome

    def passing(self, text: str, values: Iterable[object]) -> list[object]:
        """List the values of ``Predicate.only`` with which an expression is true of a device, which need not exist: a
        question what if.

        Raises as ``verdict``.
        """
        if text in self.refused:
            raise ExpressionError(self.refused[text])
        entry, judged = self._find(text), self.judged
        self.judged = {*judged, text}
        try:
            return [value for value in values if self._is_true_with(entry, value)]
        finally:
            self.judged = judged

    def _is_true_with(self, entry: _Entry, value: object) -> bool:
        for operand in entry.predicate.operands:
            assert operand.view_of_key is not None
            key = value if operand.reads else ()
            outcome = operand.verdicts.get(key)
            if outcome is None:
                outcome = self._evaluate(entry, operand, key, operand.view_of_key(key))
            if (outcome.verdict if isinstance(outcome, CostlyVerdict) else outcome) is not True:
                return False
        return True

    # -- evaluations ---------------------------------------------------------------------------------------------------

    def _exhaust(self, entry: _Entry, most: int) -> bool | str:
        """Count a device on which the operands cost too much together, each of them having been evaluated."""
        if entry.dear >= MAX_EXHAUSTED:
            return _not_evaluated()
        entry.dear += 1
        self.is_spent = True
        return f"{TOO_EXPENSIVE_ONCE} {most} units"

    def _evaluate(self, entry: _Entry, operand: Operand, key: object, view: Any) -> Outcome:
        """Evaluate an operand of which no outcome is cached. The expression pays, and the claim if there is one."""
        if entry.dear >= MAX_EXHAUSTED:
            return _not_evaluated()
        if len(operand.verdicts) >= operand.capacity:
            self._forget_verdicts(entry)
        text, costs = entry.predicate.text, self.costs
        is_common = self.is_charging and not entry.is_of_class
        spent: list[int] = []
        outcome: Outcome
        try:
            outcome = costs.evaluate(
                text,
                partial(operand.evaluate, view)
                if self.language.most is None
                else partial(_evaluate_metered, operand.evaluate, view, spent),
                self.allowance,
                is_common=is_common,
                is_counted=text not in self.judged,
                base=operand.base,
                most=self.language.most,
            )
        except BudgetExceeded as error:
            if self._begin_anew(entry):
                return self._evaluate(entry, operand, key, view)
            if isinstance(error, CommonBudgetExceeded):
                raise
            if self.language.on_error == "skip":
                entry.is_spent = self.is_spent = True
            if is_common:
                self.allowance.charge(text, costs.of(text))
            raise self._too_expensive(text) from None
        except OutOfTime:
            entry.was_cut = True
            raise
        except ExhaustedError as error:
            entry.dear += 1
            self.is_spent = True
            outcome = Exhausted(str(error))
        except EvaluationError as error:
            outcome = str(error)
        if is_common and (cost := costs.of(text)):
            self.allowance.charge(text, cost)
        if spent and spent[0] > operand.costly:
            entry.is_costly, outcome = True, CostlyVerdict(outcome, spent[0])
        operand.verdicts[key] = outcome
        entry.counted += 1
        self._count.verdicts += 1
        return outcome


def _evaluate_metered(evaluate: Callable[[Any, Budget], bool], view: Any, spent: list[int], budget: Budget) -> bool:
    """Evaluate a view, and note what that spends."""
    try:
        return evaluate(view, budget)
    finally:
        spent.append(budget.spent)


def _not_evaluated() -> str:
    return f"not evaluated: the expression was too expensive on {MAX_EXHAUSTED} other devices"
