"""CEL selectors evaluated on devices: each expression is compiled once, each verdict remembered (settled D3)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from devalloc.api.semver import SemVer
from devalloc_solver.cel.budget import Allowance, Budget, BudgetExceeded, CommonBudgetExceeded, Costs, check_deadline
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
from devalloc_solver.dialects.resource_k8s.errors import AllocationError
from devalloc_solver.dialects.resource_k8s.feature_gates import DEFAULT_GATES
from devalloc_solver.dialects.resource_k8s.published_devices import PublishedDevice, find_qualified
from devalloc_solver.dialects.resource_k8s.slices import DeviceAttribute

compile("true", DEFAULT_GATES)  # loads the CEL runtime together with the dialect, so that no claim has to wait for it


MAX_EXHAUSTED = 4
"""Devices on which an expression may exceed its cost limit before it is not evaluated any more."""
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
        self._verdicts: dict[str, dict[object, bool | str]] = {}
        self._exhausted: dict[str, int] = {}
        self._costs = Costs()
        self._spent: set[str] = set()
        """expressions whose budget is spent"""
        self._anew: dict[str, int] = {}
        """expression -> number of the call in which all was forgotten about it"""
        self._of_classes: set[str] = set()
        """expressions that no claim pays for"""
        self.is_spent = False
        """whether any expression was too expensive on some device: verdicts then depend on what was asked before"""

    def __len__(self) -> int:
        """Expressions that are remembered."""
        return len(self._programs)

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
        self._verdicts[expression], self._exhausted[expression] = {}, 0
        self._anew[expression] = self.allowance.serial

    def verdict(self, expression: str, offer: PublishedDevice) -> bool | str:
        """True, False, or why the expression cannot be evaluated on the device. It has passed ``check``.

        Raises BudgetExceeded or CommonBudgetExceeded when it costs too much over all devices, OutOfTime when the time
        of the call is over.
        """
        for attribute in offer.device.attributes.values():
            if attribute.fault is not None:
                return str(cel_device(offer))
        program, verdicts = self._programs[expression], self._verdicts[expression]
        key = offer.device if program.reads is None else tuple([_device_field(offer, read) for read in program.reads])
        if key not in verdicts:
            if len(verdicts) >= MAX_VERDICTS:
                verdicts.clear()
            device = cel_device(offer)
            verdicts[key] = device if isinstance(device, str) else self._run(expression, device)
        return verdicts[key]

    def matches(self, expression: str, device: CelDevice) -> bool:
        """Whether an expression that has passed ``check`` is true of a device, which need not exist.

        Raises as ``verdict``.
        """
        return self._run(expression, device) is True

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
        if self._anew.get(expression) == self.allowance.serial:
            return False
        self._verdicts[expression].clear()
        self._exhausted[expression] = 0
        self._costs.forget(expression)
        self._spent.discard(expression)
        self._anew[expression] = self.allowance.serial
        return True

    def program(self, expression: str) -> Program:
        """An expression that has passed ``check``."""
        return self._programs[expression]

    def is_exhausting(self, expression: str) -> bool:
        """Whether an expression that has passed ``check`` was too expensive on some device."""
        return self._exhausted[expression] > 0 or expression in self._spent

    def _run(self, expression: str, device: CelDevice) -> bool | str:
        program, is_common = self._programs[expression], expression not in self._of_classes
        if self._exhausted[expression] >= MAX_EXHAUSTED:
            return f"not evaluated: the expression was too expensive on {MAX_EXHAUSTED} other devices"

        def run(budget: Budget) -> bool:
            return program.matches(device, budget)

        verdict: bool | str
        try:
            verdict = self._costs.evaluate(
                expression, run, self.allowance, is_common=is_common, base=program.cost, most=COST_LIMIT
            )
        except BudgetExceeded as error:
            if self._begin_anew(expression):
                return self._run(expression, device)
            if not isinstance(error, CommonBudgetExceeded):
                self._spent.add(expression)
                self.is_spent = True
                if is_common:
                    self.allowance.charge(expression, self._costs.of(expression))
            raise
        except ExhaustedError as error:
            self._exhausted[expression] += 1
            self.is_spent = True
            verdict = str(error)
        except EvaluationError as error:
            verdict = str(error)
        if is_common and (cost := self._costs.of(expression)):
            self.allowance.charge(expression, cost)
        return verdict


def _device_field(offer: PublishedDevice, read: DeviceField) -> object:
    """One part of a device, such that equal parts are of one type."""
    match read.kind:
        case "driver":
            return offer.pool.driver
        case "allow_multiple":
            return offer.device.allow_multiple
        case "capacity":
            capacity = find_qualified(offer, offer.device.capacity, f"{read.domain}/{read.id}")
            return None if capacity is None else (capacity.value.nano, capacity.value.format)
    attribute = find_qualified(offer, offer.device.attributes, f"{read.domain}/{read.id}")
    return None if attribute is None else (attribute.kind, attribute.is_list, attribute.values)


def cel_device(offer: PublishedDevice) -> CelDevice | str:
    """A device as selectors see it, or which attribute cannot be read."""
    device, driver = offer.device, offer.pool.driver
    attributes: dict[str, dict[str, Any]] = {}
    for name, domain, identifier in _by_domain(tuple(device.attributes), driver):
        attribute = device.attributes[name]
        if attribute.fault is not None:
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
    values: Sequence[Any] = attribute.values
    if attribute.kind == "version":
        values = tuple(SemVer(str(value)) for value in values)
    return values if attribute.is_list else values[0]
