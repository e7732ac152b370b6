"""Selectors over devices: each expression compiled once, each verdict on a device remembered (settled D3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from devalloc.api.semver import SemVer
from devalloc_solver.dra.cel import CelDevice, CompileError, EvaluationError, ExhaustedError, Program, Read, compile
from devalloc_solver.dra.errors import AllocationError
from devalloc_solver.dra.features import DEFAULT
from devalloc_solver.dra.inventory import Offer
from devalloc_solver.dra.objects import Attribute, Device

compile("true", DEFAULT)  # loads the CEL runtime together with the dialect, so that no claim has to wait for it


MOST_EXHAUSTED = 4
"""Devices on which an expression may exceed its cost limit before it is not evaluated any more."""
MOST_READ = 200_000
"""Devices that are remembered as selectors see them; when there are more, all are forgotten."""


class Selectors:
    """Judges devices by CEL expressions, under one set of feature gates.

    An expression is evaluated once for all devices that agree in what it reads.
    """

    def __init__(self, gates: frozenset[str]) -> None:
        self._gates = gates
        self._programs: dict[str, Program] = {}
        self._verdicts: dict[str, dict[object, bool | str]] = {}
        self._exhausted: dict[str, int] = {}
        self._devices: dict[Device, CelDevice | str] = {}

    def check(self, expression: str, where: str) -> None:
        """Raises AllocationError for an expression that does not compile."""
        if expression in self._programs:
            return
        try:
            self._programs[expression] = compile(expression, self._gates)
        except CompileError as error:
            raise AllocationError(f"{where}: CEL compile error: {error}; correct the expression") from None
        self._verdicts[expression], self._exhausted[expression] = {}, 0

    def verdict(self, expression: str, offer: Offer) -> bool | str:
        """True, False, or why the expression cannot be evaluated on the device. It has passed ``check``."""
        device = self._devices.get(offer.device)
        if device is None:
            device = self._read(offer)
        if isinstance(device, str):
            return device
        program, known = self._programs[expression], self._verdicts[expression]
        key = offer.device if program.reads is None else tuple([_part(device, read) for read in program.reads])
        if key not in known:
            known[key] = self._evaluate(expression, program, device)
        return known[key]

    def program(self, expression: str) -> Program:
        """An expression that has passed ``check``."""
        return self._programs[expression]

    def is_exhausting(self, expression: str) -> bool:
        """Whether an expression that has passed ``check`` was too expensive on some device."""
        return self._exhausted[expression] > 0

    @property
    def is_spent(self) -> bool:
        """Whether any expression was, so that it depends on what was asked before what is evaluated."""
        return any(self._exhausted.values())

    def _read(self, offer: Offer) -> CelDevice | str:
        if len(self._devices) >= MOST_READ:
            self._devices.clear()
            for expression, program in self._programs.items():
                if program.reads is None:
                    self._verdicts[expression].clear()
        found = self._devices[offer.device] = cel_device(offer)
        return found

    def _evaluate(self, expression: str, program: Program, device: CelDevice) -> bool | str:
        if self._exhausted[expression] >= MOST_EXHAUSTED:
            return f"the expression was given up: it is too expensive on {MOST_EXHAUSTED} other devices"
        try:
            return program.matches(device)
        except ExhaustedError as error:
            self._exhausted[expression] += 1
            return str(error)
        except EvaluationError as error:
            return str(error)


def _part(device: CelDevice, read: Read) -> object:
    """One part of a device, such that equal parts are of one type."""
    match read.kind:
        case "driver":
            return device.driver
        case "allow_multiple":
            return device.allow_multiple
        case "capacity":
            amount = device.capacity.get(read.domain, {}).get(read.id)
            return None if amount is None else (amount.nano, amount.format)
    value = device.attributes.get(read.domain, {}).get(read.id)
    members = value if isinstance(value, tuple) else (value,)
    return type(value), tuple((type(member), member) for member in members)


def cel_device(offer: Offer) -> CelDevice | str:
    """A device as selectors see it, or which attribute cannot be read."""
    attributes: dict[str, dict[str, Any]] = {}
    for name, attribute in _names_last(offer.device.attributes):
        if attribute.fault is not None:
            return f"attribute {name}: {attribute.fault}"
        domain, identifier = _split(name, offer.pool.driver)
        attributes.setdefault(domain, {})[identifier] = _value(attribute)
    capacity: dict[str, dict[str, Any]] = {}
    for name, found in _names_last(offer.device.capacity):
        domain, identifier = _split(name, offer.pool.driver)
        capacity.setdefault(domain, {})[identifier] = found.value.quantity
    return CelDevice(offer.pool.driver, attributes, capacity, offer.device.allow_multiple)


def _names_last(found: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Full names after short ones: where a device has both, the full name counts, as in constraints."""
    names = sorted(found)
    return [(n, found[n]) for n in names if "/" not in n] + [(n, found[n]) for n in names if "/" in n]


def _split(name: str, driver: str) -> tuple[str, str]:
    domain, slash, identifier = name.partition("/")
    return (domain, identifier) if slash else (driver, name)


def _value(attribute: Attribute) -> Any:
    is_version = attribute.kind == "version"
    values = tuple(SemVer(str(value)) if is_version else value for value in attribute.values)
    return values if attribute.is_list else values[0]
