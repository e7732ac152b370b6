"""Selectors over devices: each expression compiled once, each verdict on a device remembered (settled D3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from devalloc.api.semver import SemVer
from devalloc_solver.dra.cel import CelDevice, CompileError, EvaluationError, Program, compile
from devalloc_solver.dra.errors import AllocationError
from devalloc_solver.dra.features import DEFAULT
from devalloc_solver.dra.inventory import Offer
from devalloc_solver.dra.objects import Attribute

compile("true", DEFAULT)  # loads the CEL runtime together with the dialect, so that no claim has to wait for it


class Selectors:
    """Judges devices by CEL expressions, under one set of feature gates."""

    def __init__(self, gates: frozenset[str]) -> None:
        self._gates = gates
        self._programs: dict[str, Program] = {}
        self._verdicts: dict[str, dict[int, bool | str]] = {}
        self._devices: dict[int, CelDevice | str] = {}

    def check(self, expression: str, where: str) -> None:
        """Raises AllocationError for an expression that does not compile."""
        if expression in self._programs:
            return
        try:
            self._programs[expression] = compile(expression, self._gates)
        except CompileError as error:
            raise AllocationError(f"{where}: CEL compile error: {error}; correct the expression") from None
        self._verdicts[expression] = {}

    def verdict(self, expression: str, offer: Offer) -> bool | str:
        """True, False, or why the expression cannot be evaluated on the device. It has passed ``check``."""
        known = self._verdicts[expression]
        if offer.index not in known:
            known[offer.index] = self._evaluate(expression, offer)
        return known[offer.index]

    def _evaluate(self, expression: str, offer: Offer) -> bool | str:
        device = self._devices.get(offer.index)
        if device is None:
            device = self._devices[offer.index] = cel_device(offer)
        if isinstance(device, str):
            return device
        try:
            return self._programs[expression].matches(device)
        except EvaluationError as error:
            return str(error)


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
    return sorted(found.items(), key=lambda item: ("/" in item[0], item[0]))


def _split(name: str, driver: str) -> tuple[str, str]:
    domain, slash, identifier = name.partition("/")
    return (domain, identifier) if slash else (driver, name)


def _value(attribute: Attribute) -> Any:
    is_version = attribute.kind == "version"
    values = tuple(SemVer(str(value)) if is_version else value for value in attribute.values)
    return values if attribute.is_list else values[0]
