"""Results of selectors on devices, evaluated by the check itself and cached."""

from __future__ import annotations

import json
from collections.abc import Container, Hashable
from typing import TYPE_CHECKING, Any

from devalloc.api.quantity import Quantity
from devalloc.api.semver import SemVer
from devalloc_solver.check.resource_k8s.pools import NodeDevice
from devalloc_solver.check.resource_k8s.quantities import UncountableAmount, to_nano

if TYPE_CHECKING:
    from devalloc_solver.cel.kubernetes import CelDevice, DeviceField, Program, Value


MAX_EXPRESSIONS = 10_000
"""Expressions remembered; when there are more, all are forgotten."""
MAX_VERDICTS = 20_000
"""Contents of devices of which it is remembered what an expression says; when there are more, all are forgotten."""
MAX_DEVICES = 200_000
"""Devices likewise, each with one expression."""


class SelectorResults:
    """Whether expressions hold; a device on which one fails, or that cannot be read, does not match.

    It may live as long as its owner likes: what it remembers depends on nothing but its key, and is bounded.
    """

    def __init__(self, features: Container[str]) -> None:
        self._features = features
        self._programs: dict[str, Program | None] = {}
        self._evaluated: dict[tuple[str, Hashable], bool] = {}
        self._of_devices: dict[tuple[NodeDevice, str], bool] = {}
        self.ends: float | None = None
        """monotonic time after which nothing is evaluated any more: OutOfTime then"""

    def matches(self, expression: str, device: NodeDevice) -> bool:
        """Whether the expression is true of the device."""
        verdict = self._of_devices.get((device, expression))
        if verdict is None:
            verdict = self._matches(expression, device)
            if len(self._of_devices) >= MAX_DEVICES:
                self._of_devices.clear()
            self._of_devices[device, expression] = verdict
        return verdict

    def _matches(self, expression: str, device: NodeDevice) -> bool:
        """The same, whatever device had the content that the expression reads."""
        program = self._programs[expression] if expression in self._programs else self._compile(expression)
        if program is None:
            return False
        key = (expression, _content(program, device))
        verdict = self._evaluated.get(key)
        if verdict is None:
            verdict = self._evaluate(program, device)
            if len(self._evaluated) >= MAX_VERDICTS:
                self._evaluated.clear()
            self._evaluated[key] = verdict
        return verdict

    def _compile(self, expression: str) -> Program | None:
        """None for an expression that does not compile."""
        # Importing the dialect's package imports what imports this check.
        from devalloc_solver.cel.kubernetes import CompileError, compile

        if len(self._programs) >= MAX_EXPRESSIONS:
            self._programs.clear()
        try:
            self._programs[expression] = compile(expression, self._features)
        except CompileError:
            self._programs[expression] = None
        return self._programs[expression]

    def _evaluate(self, program: Program, device: NodeDevice) -> bool:
        from devalloc_solver.cel.kubernetes import COST_LIMIT, Budget, EvaluationError

        try:
            return program.matches(_cel_device(device), Budget(COST_LIMIT, self.ends))
        except (EvaluationError, UncountableAmount, ValueError):
            return False


def _content(program: Program, device: NodeDevice) -> Hashable:
    """What an expression reads of a device; all of it if that is not known, or if a part cannot be read."""
    manifest = device.manifest
    if program.reads is None or not device.is_plain:
        seen = [manifest.get(name) for name in ("attributes", "capacity", "allowMultipleAllocations")]
        return json.dumps([device.driver, *seen], sort_keys=True, default=str)
    return tuple([_part(device, read) for read in program.reads])


def _part(device: NodeDevice, read: DeviceField) -> Hashable:
    """One part of a device that is plain."""
    if read.kind == "driver":
        return device.driver
    if read.kind == "allow_multiple":
        return bool(device.manifest.get("allowMultipleAllocations"))
    named = device.manifest.get("attributes" if read.kind == "attribute" else "capacity") or {}
    content = named.get(read.id if read.domain == device.driver else f"{read.domain}/{read.id}")
    if content is None:
        return None
    return tuple(content.items()) if read.kind == "attribute" else str(content["value"])


class _AnyQuantity(Quantity):
    """An amount that may be beyond 64 bits, as decimal ones of this dialect may."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Nothing is too large."""


def _cel_device(device: NodeDevice) -> CelDevice:
    """Raises ValueError for what cannot be read."""
    from devalloc_solver.cel.kubernetes import CelDevice

    attributes: dict[str, dict[str, Value]] = {}
    for name, content in (device.manifest.get("attributes") or {}).items():
        domain, short = _qualified_name(name, device.driver)
        attributes.setdefault(domain, {})[short] = _cel_value(content)
    capacity: dict[str, dict[str, Quantity]] = {}
    for name, content in (device.manifest.get("capacity") or {}).items():
        domain, short = _qualified_name(name, device.driver)
        capacity.setdefault(domain, {})[short] = _AnyQuantity(to_nano(content["value"]))
    return CelDevice(device.driver, attributes, capacity, bool(device.manifest.get("allowMultipleAllocations")))


def _qualified_name(name: str, driver: str) -> tuple[str, str]:
    domain, _, short = name.rpartition("/")
    return domain or driver, short


def _cel_value(content: dict[str, Any] | None) -> Value:
    for kind, value in (content or {}).items():
        if value is None:
            continue
        if kind in ("int", "bool", "string"):
            scalar: Value = value
            return scalar
        if kind == "version":
            return SemVer.parse(value)
        if kind in ("ints", "bools", "strings"):
            return tuple(value)
        if kind == "versions":
            return tuple(SemVer.parse(one) for one in value)
    raise ValueError("unsupported attribute value")
