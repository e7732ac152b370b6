"""DeviceTaintRules: taints that an admin puts on the devices of drivers, merged into the slices that publish them.

A rule without a selector is for no device, one with an empty selector for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from devalloc_solver.dialects.resource_k8s.claims import RequiredName
from devalloc_solver.dialects.resource_k8s.decode import check_version, read
from devalloc_solver.dialects.resource_k8s.fields import FieldError, Strict, Text, Tolerant
from devalloc_solver.dialects.resource_k8s.slices import DeviceTaint

KIND = "DeviceTaintRule"
EFFECTS = ("NoSchedule", "NoExecute", "None")

Manifest = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Selector(Strict):
    driver: Text | None = None
    pool: Text | None = None
    device: Text | None = None


@dataclass(frozen=True, slots=True)
class _RuleSpec(Strict):
    taint: Annotated[DeviceTaint, Field(default_factory=dict, validate_default=True)]
    selector: Annotated[_Selector | None, Field(alias="deviceSelector")] = None


@dataclass(frozen=True, slots=True)
class _Rule(Tolerant):
    metadata: Annotated[RequiredName, Field(default_factory=dict, validate_default=True)]
    spec: Annotated[_RuleSpec, Field(default_factory=dict, validate_default=True)]


def check_rule(content: Manifest) -> None:
    """Raises FieldError for a rule that cannot be read, so that it has no effect."""
    check_version(content)
    taint = read(_Rule, content).spec.taint
    if not taint.key:
        raise FieldError("spec.taint.key", "is missing: every taint has a key")
    if taint.effect not in EFFECTS:
        raise FieldError("spec.taint.effect", f"must be one of {', '.join(EFFECTS)}, not {taint.effect!r}")


def with_rule_taints(resource_slice: Manifest, rules: Sequence[Manifest]) -> Manifest:
    """A slice with the taints of the rules that select devices of it, after their own; itself if there are none.

    ``rules``: valid DeviceTaintRules, in the order of their names.
    """
    spec = resource_slice.get("spec")
    devices = spec.get("devices") if isinstance(spec, Mapping) else None
    if not isinstance(spec, Mapping) or not isinstance(devices, list):
        return resource_slice
    pool = spec.get("pool")
    pool_name = pool.get("name") if isinstance(pool, Mapping) else None
    selecting = [rule["spec"] for rule in rules if selects_pool(rule["spec"], spec.get("driver"), pool_name)]
    if not selecting:
        return resource_slice
    return {**resource_slice, "spec": {**spec, "devices": [_tainted(device, selecting) for device in devices]}}


def selects_pool(rule: Manifest, driver: object, pool: object) -> bool:
    """Whether the spec of a rule is for some device of a pool."""
    selector = rule.get("deviceSelector")
    return selector is not None and _matches(selector, "driver", driver) and _matches(selector, "pool", pool)


def selects_device(rule: Manifest, name: object) -> bool:
    """Whether the spec of a rule that is for a pool is for this device of it."""
    return _matches(rule["deviceSelector"], "device", name)


def _matches(selector: Manifest, field_name: str, value: object) -> bool:
    return selector.get(field_name) in (None, value)


def _tainted(device: Any, rules: Sequence[Manifest]) -> Any:
    if not isinstance(device, Mapping):
        return device
    added = [rule["taint"] for rule in rules if selects_device(rule, device.get("name"))]
    return {**device, "taints": [*(device.get("taints") or ()), *added]} if added else device
