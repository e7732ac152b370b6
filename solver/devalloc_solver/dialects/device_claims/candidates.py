"""Which devices a request of a DeviceClaim may take, by class, type and constraints (S5, S6).

An expression is evaluated once per distinct tuple of the attributes it reads, however many devices there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from devalloc.api.claim import DeviceClaimDetail, Effect, fields_with
from devalloc.api.device_class import DeviceClass
from devalloc.api.fields import is_empty
from devalloc.api.findings import Rule, RuleCode, rule
from devalloc.api.meta import ONLY_CLASS, UNAVAILABLE
from devalloc.printable import one_line
from devalloc_solver.cel.budget import Bound, CommonBudgetExceeded, check_deadline
from devalloc_solver.cel.device_claims.reads import attributes_read
from devalloc_solver.dialects.device_claims.expressions import LANGUAGE
from devalloc_solver.dialects.device_claims.parts import WholeDevices, is_part, says_which, why_left_out
from devalloc_solver.eligibility.facts import ClassRule, Eligible
from devalloc_solver.eligibility.judge import ExpressionError, ExpressionRefusal, Judge
from devalloc_solver.eligibility.predicate import Predicate
from devalloc_solver.problem.demand import Candidates, FunnelStep
from devalloc_solver.problem.snapshot import Device, Snapshot


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A device is rejected at this stage of the funnel; stages are shown in order."""

    stage: int
    rule: Rule
    example: str | None = None


MAX_REMEMBERED = 10_000
"""Answers to whether a request can have a whole device that are remembered; when there are more, all are forgotten."""


GHOST = "no request is offered it"
"""Verdict on devices that no expression is asked of."""

_SELECTING = fields_with(Effect.DEVICES)
SAMPLE = 1_024
"""Devices by which it is guessed whether an expression tells most apart."""


def _selection(detail: DeviceClaimDetail) -> tuple[object, ...]:
    """Equal for requests that may take the same devices."""
    values = (getattr(detail, name) for name in _SELECTING)
    one_by_one = (None if is_empty(value) else value for value in values)
    names = (tuple(dict.fromkeys(value)) if isinstance(value, list) else value for value in one_by_one)
    return (*names, detail.driver, detail.value_restrictions)


def _needed(detail: DeviceClaimDetail) -> tuple[str, ...]:
    """Attributes that a device must have, whatever their values."""
    return tuple(dict.fromkeys(detail.match_attributes))


@dataclass(slots=True)
class CandidateFinder:
    """Judges devices; keeps every verdict."""

    snapshot: Snapshot
    classes: Mapping[str, DeviceClass]
    invalid_classes: Mapping[str, str]
    """classes that do not exist for deviceType; those with an invalid expression are found with ``class_error``"""
    judge: Judge = field(default_factory=lambda: Judge(LANGUAGE, is_charging=False))
    """of expressions"""
    _candidates: dict[tuple[object, ...], Candidates] = field(default_factory=dict)
    _eligible: dict[tuple[object, ...], Eligible] = field(default_factory=dict)
    """``_selection`` -> what decides for a detail that has it"""
    _errors: dict[str, ExpressionRefusal | None] = field(default_factory=dict)
    _examples: dict[frozenset[str] | None, Sequence[Device]] = field(default_factory=dict)
    """what an expression reads -> one of the devices that are alike in that, each"""
    _is_common: bool = False
    """whether the call has a budget that its claims have in common"""
    _refused: dict[str, ExpressionRefusal] = field(default_factory=dict)
    """expressions that do not fit into the common budget of this call"""
    _groups: dict[tuple[frozenset[str], tuple[str, ...]], Sequence[Sequence[Device]]] = field(default_factory=dict)
    _samples: dict[frozenset[str], bool] = field(default_factory=dict)
    """what an expression reads -> whether most of the first devices differ in that"""
    _apart: dict[str, Sequence[bool | str]] = field(default_factory=dict)
    """expression that tells most devices apart -> the verdicts on all"""
    wholes: WholeDevices | None = None
    """of the whole fleet, if the snapshot is an extract of it"""
    _with_parts: dict[tuple[object, ...], frozenset[str]] = field(default_factory=dict)
    """drivers of parts that a request may take, but for S6b"""
    _left_out: dict[tuple[object, ...], bool] = field(default_factory=dict)
    _without_parts: dict[tuple[object, ...], Candidates] = field(default_factory=dict)

    def for_others(
        self, snapshot: Snapshot, classes: Mapping[str, DeviceClass], invalid_classes: Mapping[str, str]
    ) -> CandidateFinder:
        """A judge of other devices, or with other classes; what expressions say, and may cost, is common to both."""
        return CandidateFinder(
            snapshot,
            classes,
            invalid_classes,
            judge=self.judge.of_others(),
            _eligible=self._eligible if classes is self.classes else {},
            _errors=self._errors,
            wholes=self.wholes,
        )

    def begin(self, until: float | None = None, started: float | None = None, *, is_quick: bool = False) -> None:
        """A call with many claims begins, which have one budget in common; see ``Allowance.begin``.

        An expression is charged what it costs, whether or not an earlier call has paid for it: answers do not depend
        on what was asked before.
        """
        self.judge.allowance.begin(until, started, is_quick=is_quick)
        self._is_common, self._refused = True, {}

    # -- expressions ---------------------------------------------------------------------------------------------------

    def _verdict(self, expression: str | None, device: Device) -> bool | str:
        """True, False, or why the expression cannot be evaluated (which means: does not match). Raises as ``Judge``."""
        return self.judge.verdict(expression, device) if expression and expression.strip() else True

    def _verdicts_on_all(self, expression: str) -> Sequence[bool | str]:
        """The same on the devices of the snapshot, in their order, for an expression that tells most apart."""
        if expression not in self._apart:
            ghosts = {device.index: GHOST for device in self.snapshot.devices if device.ghost is not None}
            self._apart[expression] = self.judge.verdicts(expression, self.snapshot.devices, ghosts)
        return self._apart[expression]

    def class_error(self, name: str) -> str | None:
        """Why a class is invalid, or None. Judges its expression over the whole fleet, for the budget's sake."""
        if name in self.invalid_classes:
            return self.invalid_classes[name]
        error = self.own_error(self.classes[name].spec.constraints)
        return None if error is None else f"spec.constraints: {error.message}"

    def expression_error(self, expression: str | None) -> ExpressionRefusal | None:
        """Why an expression of a claim cannot be used on this fleet, or None.

        Raises OutOfTime, and CommonBudgetExceeded in a turn of a claim.
        """
        if not self._is_common or not expression or not expression.strip():
            return self.own_error(expression)
        if expression not in self._refused:
            self.judge.is_charging = True
            try:
                self.judge.charge(expression)
                return self.own_error(expression)
            except ExpressionError as error:
                return error.refusal
            except CommonBudgetExceeded:
                self._refused[expression] = self.judge.refuse_common()
            finally:
                self.judge.is_charging = False
        return self._refused[expression]

    def own_error(self, expression: str | None) -> ExpressionRefusal | None:
        """The same whatever other expressions cost: those of classes are no claim's."""
        if not expression or not expression.strip():
            return None
        if expression not in self._errors:
            self._errors[expression] = self._find_error(expression)
            self.judge.judged.add(expression)
        # It may be refused since on devices that were not looked at then.
        return self.judge.refused.get(expression, self._errors[expression])

    def _find_error(self, expression: str) -> ExpressionRefusal | None:
        check_deadline(self.judge.allowance.ends)
        try:
            if self._tells_most_apart(expression):
                self._verdicts_on_all(expression)
                return None
            reads = self.judge.predicate(expression).reads
            if reads not in self._examples:
                self._examples[reads] = tuple(alike[0] for alike in self._alike(reads, ()))
            self.judge.verdicts(expression, self._examples[reads])
        except ExpressionError as error:
            return error.refusal
        return None

    def exceeded(self, expression: str | None) -> Bound | None:
        """The bound that an expression with an error exceeded; None if the error is another one."""
        error = self._refused.get(expression or "") or self.judge.refused.get(expression or "")
        return error.exceeded if error is not None else None

    @property
    def cached_requests(self) -> int:
        """Different requests whose candidates are kept."""
        return len(self._candidates)

    @property
    def remembered(self) -> int:
        """Expressions, and verdicts of them, that are kept."""
        return len(self._errors) + self.judge.size

    def forget(self, most: int) -> None:
        """Forget the expressions that were asked for first, so that no more than this is remembered."""
        if self.remembered <= most:
            return
        for expression in [*dict.fromkeys((*self.judge.expressions, *self._errors))]:
            if self.remembered <= most:
                return
            self.judge.forget(expression)
            for remembering in (self._errors, self._apart):
                remembering.pop(expression, None)

    # -- candidates ----------------------------------------------------------------------------------------------------

    def is_admin(self, detail: DeviceClaimDetail) -> bool:
        """Whether the detail names an admin class (S14): admin classes are reached only by name."""
        named = self.classes.get(detail.device_class or "")
        return named is not None and bool(named.spec.admin_access)

    def classes_of(self, detail: DeviceClaimDetail) -> list[DeviceClass] | None:
        """The valid classes a device may belong to, in order of name; None for no class at all (S5)."""
        if detail.device_class:
            named = self.classes[detail.device_class]
            fits = not detail.device_type or named.spec.device_type == detail.device_type
            return [named] if fits else []
        if not detail.device_type:
            return None
        return [
            self.classes[name]
            for name in sorted(self.classes)
            if self.classes[name].spec.device_type == detail.device_type
            and not self.classes[name].spec.admin_access
            and self.class_error(name) is None
        ]

    def eligible(self, detail: DeviceClaimDetail) -> Eligible:
        """What decides by expressions about a device. Raises ExpressionError."""
        key = _selection(detail)
        is_named = bool(detail.device_class or detail.driver) and not detail.device_type
        eligible = self._eligible.get(key) if is_named else None
        if eligible is None:
            classes = self.classes_of(detail)
            rules = None if classes is None else tuple(map(self._class_rule, classes))
            if detail.driver is not None:
                rules = (ClassRule(frozenset((detail.driver,)), ()),)
            values = tuple((each.attribute, each.values) for each in detail.value_restrictions)
            eligible = Eligible(self.judge, rules, self._predicates(detail.constraints), values)
            if is_named:  # others may be of fewer classes once some are refused
                if len(self._eligible) >= MAX_REMEMBERED:
                    self._eligible.clear()
                self._eligible[key] = eligible
        return eligible

    def _class_rule(self, one: DeviceClass) -> ClassRule:
        drivers = frozenset((one.spec.driver,)) if one.spec.driver else None
        return ClassRule(drivers, self._predicates(one.spec.constraints))

    def _predicates(self, expression: str | None) -> tuple[Predicate, ...]:
        return (self.judge.predicate(expression),) if expression and expression.strip() else ()

    def attributes_read(self, detail: DeviceClaimDetail) -> frozenset[str] | None:
        """The attributes by which devices of a driver differ for a detail; None for all.

        Those that bear on every detail are left out (``UNAVAILABLE``, ``ONLY_CLASS``), and those in matchAttributes.
        """
        try:
            return self.eligible(detail).reads
        except ExpressionError:
            return None

    def candidates(self, detail: DeviceClaimDetail, pin: str | None = None) -> Candidates:
        """The devices a detail may take, leaving aside what is in use. The detail's classes must be valid.

        ``pin``: the only node of the claim, which decides whether it can have a whole device (S6b).
        """
        key = _selection(detail)
        if key not in self._candidates:
            judged = self._judge(detail, _needed(detail))
            parts = (i for i in judged.accepted if is_part(self.snapshot.devices[i]))
            self._candidates[key], self._with_parts[key] = judged, frozenset(map(self._driver, parts))
        judged, drivers = self._candidates[key], self._with_parts[key]
        left_out = self.left_out(detail, pin, drivers) if drivers else None
        if not left_out:
            return judged
        if (*key, left_out) not in self._without_parts:
            self._without_parts[*key, left_out] = self._leave_out(judged, left_out)
        return self._without_parts[*key, left_out]

    def left_out(self, detail: DeviceClaimDetail, pin: str | None, drivers: Iterable[str]) -> frozenset[str]:
        """Of these drivers, those whose parts a detail is not given: it does not say that it wants one, and a whole
        device is offered that it accepts (S6b)."""
        named = self.classes.get(detail.device_class or "")
        texts = detail.constraints, named.spec.constraints if named else None
        if self.is_admin(detail) or says_which(texts, (each.attribute for each in detail.value_restrictions)):
            return frozenset()
        if self.wholes is None:
            self.wholes = WholeDevices.of(self.snapshot)
        key, edition = (*_selection(detail), pin), self.wholes.edition
        for driver in drivers:
            if (*key, driver, edition) not in self._left_out:
                if len(self._left_out) >= MAX_REMEMBERED:
                    self._left_out.clear()
                self._left_out[*key, driver, edition] = self._is_offered_whole(detail, driver, pin, self.wholes)
        return frozenset(driver for driver in drivers if self._left_out[*key, driver, edition])

    def _is_offered_whole(self, detail: DeviceClaimDetail, driver: str, pin: str | None, wholes: WholeDevices) -> bool:
        classes, reads = self.classes_of(detail), self.attributes_read(detail)
        match = _needed(detail)

        def accepts(whole: Device) -> bool:
            outcome = self._class_of_driver(whole, driver, classes, detail)
            return not isinstance(outcome, Mismatch) and not self._find_mismatch(whole, detail, match, admin=False)

        return wholes.is_offered(driver, pin, None if reads is None else reads | {ONLY_CLASS, *match}, accepts)

    def _leave_out(self, judged: Candidates, left_out: frozenset[str]) -> Candidates:
        """The candidates without the parts of some drivers."""
        by_step: dict[Rule, list[int]] = {}
        accepted = dict(judged.accepted)
        for index in judged.accepted:
            if (why := self._part_mismatch(self.snapshot.devices[index], left_out)) is not None:
                by_step.setdefault(why.rule, []).append(index)
                del accepted[index]
        steps = sorted(by_step.items(), key=lambda step: (-len(step[1]), step[0]))
        more = tuple(FunnelStep(by, tuple(sorted(devices))) for by, devices in steps)
        return replace(judged, accepted=accepted, funnel=(*judged.funnel, *more), left_out=left_out)

    def _part_mismatch(self, device: Device, left_out: frozenset[str]) -> Mismatch | None:
        is_left_out = bool(left_out) and is_part(device) and self.snapshot.pools[device.pool].driver in left_out
        return Mismatch(7, why_left_out(device)) if is_left_out else None

    def accepts(self, detail: DeviceClaimDetail, device: Device, left_out: frozenset[str] = frozenset()) -> bool:
        """The same for one device, which need not be of the snapshot. False also when the budget does not reach.

        ``left_out``: see ``Candidates``.
        """
        try:
            return self.mismatch(detail, device, left_out) is None
        except ExpressionError:
            return False

    def mismatch(
        self, detail: DeviceClaimDetail, device: Device, left_out: frozenset[str] = frozenset()
    ) -> Mismatch | None:
        """Why a device of the snapshot is rejected, or None for one that passes. The detail's classes must be valid.

        ``left_out``: see ``Candidates``.
        """
        outcome = self._class_for(device, self.classes_of(detail), detail)
        if isinstance(outcome, Mismatch):
            return outcome
        match = _needed(detail)
        rejected = self._find_mismatch(device, detail, match, self.is_admin(detail))
        return rejected or self._part_mismatch(device, left_out)

    def _judge(self, detail: DeviceClaimDetail, match: tuple[str, ...]) -> Candidates:
        accepted: list[tuple[int, str | None]] = []
        rejected: dict[tuple[int, Rule], list[int]] = {}
        examples: dict[tuple[int, Rule], tuple[Device, str]] = {}
        for alike, outcome in self._outcomes(detail, match):
            if not isinstance(outcome, Mismatch):
                accepted += [(device.index, outcome) for device in alike]
                continue
            step, one = (outcome.stage, outcome.rule), alike[0]
            rejected.setdefault(step, []).extend([device.index for device in alike])
            if outcome.example and (step not in examples or one.index < examples[step][0].index):
                examples[step] = one, f"{self._title(one)}: {outcome.example}"
        steps = sorted(rejected.items(), key=lambda item: (item[0][0], -len(item[1]), item[0][1]))
        funnel = tuple(
            FunnelStep(key[1], tuple(sorted(devices)), examples[key][1] if key in examples else None)
            for key, devices in steps
        )
        return Candidates(dict(sorted(accepted)), funnel)

    def _outcomes(
        self, detail: DeviceClaimDetail, match: tuple[str, ...]
    ) -> Iterator[tuple[Sequence[Device], str | Mismatch | None]]:
        """Devices that fare alike, with the class that accepts them, or why they are rejected."""
        classes, admin = self.classes_of(detail), self.is_admin(detail)
        apart = detail.constraints if self._tells_most_apart(detail.constraints) else None
        # The verdicts on most devices apart are known by now, and soon looked up; all else is common to many.
        judged = detail if apart is None else detail.model_copy(update={"constraints": None})
        for alike in self._alike(self.attributes_read(judged), () if admin else match):
            outcome = self._class_for(alike[0], classes, detail)
            if isinstance(outcome, Mismatch):
                yield alike, outcome
                continue
            for same in (alike,) if apart is None else self._by_verdict(apart, alike):
                yield same, self._find_mismatch(same[0], detail, match, admin) or outcome

    def _tells_most_apart(self, expression: str | None) -> bool:
        """Whether most devices differ in what an expression reads, as far as was looked."""
        reads = attributes_read(expression) if expression and expression.strip() else None
        if reads is None:
            return False
        if (groups := self._groups.get((reads, ()))) is not None:
            return 2 * len(groups) > len(self.snapshot.devices)
        if reads not in self._samples:
            sample = self.snapshot.devices[:SAMPLE]
            kinds = {tuple([device.attributes.get(name) for name in reads]) for device in sample}
            self._samples[reads] = len(sample) == SAMPLE and 2 * len(kinds) > len(sample)
        return self._samples[reads]

    def _by_verdict(self, expression: str, devices: Sequence[Device]) -> Iterable[Sequence[Device]]:
        verdicts = self._verdicts_on_all(expression)
        by_verdict: dict[bool | str, list[Device]] = {}
        for device in devices:
            by_verdict.setdefault(verdicts[device.index], []).append(device)
        return by_verdict.values()

    def _alike(self, reads: frozenset[str] | None, present: tuple[str, ...]) -> Sequence[Sequence[Device]]:
        """All devices, those together that no expression which reads these attributes can tell apart.

        ``present`` are attributes that a device must have, whatever their value. In order of the first of each.
        """
        if reads is None:
            return [[device] for device in self.snapshot.devices if device.ghost is None]
        if (reads, present) not in self._groups:
            groups: dict[object, list[Device]] = {}
            names = sorted(reads | {UNAVAILABLE, ONLY_CLASS})
            for pool in self.snapshot.pools:
                for device in pool.devices:
                    if device.ghost is not None:
                        continue
                    attributes = device.attributes
                    has = tuple(name in attributes for name in present)
                    key = (pool.driver, device.undefined, has, *map(attributes.get, names))
                    groups.setdefault(key, []).append(device)
            self._groups[reads, present] = list(groups.values())
        return self._groups[reads, present]

    def _class_for(
        self, device: Device, classes: list[DeviceClass] | None, detail: DeviceClaimDetail
    ) -> str | Mismatch | None:
        """The class that accepts the device, None where the detail asks for none, or why it is rejected."""
        return self._class_of_driver(device, self.snapshot.pools[device.pool].driver, classes, detail)

    def _class_of_driver(
        self, device: Device, driver: str, classes: list[DeviceClass] | None, detail: DeviceClaimDetail
    ) -> str | Mismatch | None:
        """The same for a device that need not be of the snapshot."""
        if detail.driver not in (None, driver):
            return Mismatch(1, rule(RuleCode.OTHER_DRIVER, drivers=str(detail.driver)), f"driver {driver}")
        if classes is None:
            return None
        if not classes and detail.device_class:
            return Mismatch(
                0, rule(RuleCode.CLASS_OF_OTHER_TYPE, device_class=detail.device_class, type=detail.device_type or "")
            )
        if not classes:
            return Mismatch(0, rule(RuleCode.NO_CLASS_OF_TYPE, type=detail.device_type or ""))
        of_driver = [c for c in classes if c.spec.driver in ("", driver)]
        if not of_driver:
            drivers = " or ".join(sorted({c.spec.driver for c in classes}))
            return Mismatch(1, rule(RuleCode.OTHER_DRIVER, drivers=drivers), f"driver {driver}")
        error: str | None = None
        for device_class in of_driver:
            verdict = self._verdict(device_class.spec.constraints, device)
            if verdict is True:
                return device_class.metadata.name
            error = error or (verdict if isinstance(verdict, str) else None)
        only = of_driver[0]
        if len(of_driver) == 1 and detail.device_class:
            expression = one_line(only.spec.constraints or "")
            by = rule(RuleCode.CLASS_CONSTRAINTS, expression=expression, device_class=only.metadata.name)
            return Mismatch(2, by, error)
        return Mismatch(2, rule(RuleCode.ALL_CLASSES, type=detail.device_type or ""), error)

    def _find_mismatch(
        self, device: Device, detail: DeviceClaimDetail, match: tuple[str, ...], admin: bool
    ) -> Mismatch | None:
        """What speaks against a device of the right class."""
        verdict = self._verdict(detail.constraints, device)
        if verdict is not True:
            by = rule(RuleCode.CONSTRAINTS, expression=one_line(detail.constraints or ""))
            return Mismatch(3, by, verdict if isinstance(verdict, str) else None)
        for _, attribute, values in detail.value_restrictions:
            if device.attributes.get(attribute) not in values:
                return Mismatch(3, rule(RuleCode.OTHER_VALUE, attribute=attribute))
        if device.undefined is not None:
            why = f"requests {device.undefined!r}, which its pool does not define"
            return Mismatch(4, rule(RuleCode.UNDEFINED_RESOURCE), why)
        if not admin and device.unavailable is not None:
            return Mismatch(5, rule(RuleCode.UNAVAILABLE), device.unavailable)
        is_reserved = device.attributes.get(ONLY_CLASS, detail.device_class) != detail.device_class
        if is_reserved and not admin and detail.driver is None:
            return Mismatch(5, rule(RuleCode.RESERVED, device_class=str(device.attributes[ONLY_CLASS])))
        missing = [name for name in match if name not in device.attributes]
        if missing and not admin:
            return Mismatch(6, rule(RuleCode.NO_ATTRIBUTE, attribute=missing[0]))
        return None

    def _driver(self, device: int) -> str:
        return self.snapshot.pools[self.snapshot.devices[device].pool].driver

    def _title(self, device: Device) -> str:
        return f"{self.snapshot.pools[device.pool].name}/{device.name}"
