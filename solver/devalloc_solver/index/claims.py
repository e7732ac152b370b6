"""DeviceClaims as the index asks for them: shapes, the rules of classes, and what a claim reads and says plainly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from devalloc.api.claim import DeviceClaim, DeviceClaimDetail
from devalloc_solver.budget import Allowance
from devalloc_solver.demand import Demand, Slot, Unit, find_refusal, make_demand
from devalloc_solver.eligibility import Eligibility, ExpressionError
from devalloc_solver.index.kinds import Kinds
from devalloc_solver.index.literals import compared, literals, reads
from devalloc_solver.intake import Intake, Refused
from devalloc_solver.snapshot import Device, Snapshot

MOST_SHAPES = 4_096
MOST_VERDICTS = 200_000
"""Shapes of claims of which it is remembered whether they are valid, and what is known of their expressions; when
there are more of either, all are forgotten."""


@dataclass(slots=True, eq=False)
class Rules:
    """Classes and configuration objects, and the verdicts of expressions, which outlive both."""

    kinds: Kinds
    intake: Intake
    """only its classes and configuration objects count"""
    allowance: Allowance = field(default_factory=Allowance)
    """of the call that goes on"""
    shared: Eligibility = field(init=False)
    """judges one device of each kind there was when it was made"""
    _refusals: dict[tuple[object, str], Refused | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        intake = self.intake
        self.shared = Eligibility(self.kinds.sample(), intake.classes, intake.invalid_classes, allowance=self.allowance)

    def on(self, snapshot: Snapshot) -> Eligibility:
        """The judge of the devices of a snapshot; verdicts and errors are common to all."""
        return self.shared.beside(snapshot, self.intake.classes, self.intake.invalid_classes)

    def renewed(self, intake: Intake) -> Rules:
        """The same after classes or configuration objects have changed."""
        fresh = Rules(self.kinds, intake, self.allowance)
        fresh.shared = self.shared.beside(fresh.shared.snapshot, intake.classes, intake.invalid_classes)
        return fresh

    def after_failure(self, *, begin: bool) -> Rules:
        """The same once an expression that was valid for one device of each kind has spent its budget on others (S6).

        ``begin``: with fresh budgets, as they may have gone to devices that are there no more. Without, its error
        stands: it refuses the claims that have it, and the classes.
        """
        return Rules(self.kinds, self.intake, self.allowance) if begin else self.renewed(self.intake)

    def refusal(self, claim: DeviceClaim, shape: object) -> Refused | None:
        """Why a claim is not solved, whatever is free (S5, S6, S16). Raises OutOfTime."""
        if claim.is_deleting:
            return find_refusal(claim, self.intake, self.shared)
        key = (shape, claim.namespace)
        if key not in self._refusals:
            if len(self._refusals) >= MOST_SHAPES or self.shared.remembered > MOST_VERDICTS:
                self._refusals.clear()
                self._begin()
            self._refusals[key] = find_refusal(claim, self.intake, self.shared)
        known = self._refusals[key]
        return None if known is None else replace(known, key=claim.key, group=claim.group)


class ClaimAsk(NamedTuple):
    """One claim that asks; see ``seams.Ask``."""

    claim: DeviceClaim
    shape: object
    rules: Rules

    def unit_on(self, snapshot: Snapshot) -> Unit:
        return Unit((self.demand(self.rules.on(snapshot)),), None, None)

    def demand(self, eligibility: Eligibility) -> Demand:
        """In terms of the snapshot of a judge."""
        return make_demand(self.claim, eligibility)

    def reads(self, slot: Slot) -> frozenset[str] | None:
        found: frozenset[str] = frozenset()
        for expression in self._expressions(slot.spec, every=True):
            mine = reads(expression)
            if mine is None:
                return None
            found |= mine
        return found

    def literals(self, slot: Slot) -> Iterable[tuple[str, frozenset[Any]]]:
        for expression in self._expressions(slot.spec, every=False):
            yield from literals(expression)

    def compared(self, slot: Slot) -> Mapping[str, frozenset[Any]] | None:
        """The attributes that its expressions read, with all that they are compared with; None when more is done."""
        found: dict[str, frozenset[Any]] = {}
        for expression in self._expressions(slot.spec, every=True):
            mine = compared(expression)
            if mine is None:
                return None
            found |= {name: values | found.get(name, frozenset()) for name, values in mine.items()}
        return found

    def passing(self, slot: Slot, name: str, values: Iterable[object]) -> Sequence[object] | None:
        texts = [text for text in self._expressions(slot.spec, every=False) if reads(text) == frozenset((name,))]
        if not texts:
            return None
        judge = self.rules.shared
        try:
            return [each for each in values if all(judge.verdict(t, _with_only(name, each)) is True for t in texts)]
        except ExpressionError:
            return None

    def drivers(self, slot: Slot) -> frozenset[str] | None:
        classes = self.rules.shared.classes_of(slot.spec)
        if classes is None or any(not each.spec.driver for each in classes):
            return None
        return frozenset(each.spec.driver for each in classes)

    def _expressions(self, detail: DeviceClaimDetail, *, every: bool) -> Iterable[str]:
        """Those that a candidate must pass; with ``every`` also those of classes of which any will do."""
        if detail.constraints and detail.constraints.strip():
            yield detail.constraints
        classes = self.rules.shared.classes_of(detail) or []
        if every or len(classes) == 1:
            for each in classes:
                if each.spec.constraints and each.spec.constraints.strip():
                    yield each.spec.constraints


def _with_only(name: str, value: object) -> Device:
    """A device that nothing is known of but one attribute."""
    return Device(0, 0, "", {name: value}, {}, (), None)
