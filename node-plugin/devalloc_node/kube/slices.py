"""From a DevicePool to the ResourceSlices of this node.

======================================  ==============================================================================
DevicePool                              ResourceSlice
======================================  ==============================================================================
attribute, text, number, version        attribute; texts are cut at 64 bytes
attribute, quantity                     capacity: attributes have no quantities there
pool resource, what a device draws      counter, consumed counters; left out where it can never run short
``devalloc.io/unavailable``             the attribute, and a taint of that name with effect NoSchedule
``devalloc.io/compatibilityGroup``      compatibilityGroups where the cluster has them; else the devices of one group
                                        are offered and the others tainted with ``devalloc.io/compatibility``
a pool that is set aside                the attribute ``allocator`` and a taint on each device (``dedicated_pools``)
resources of a device itself            cannot be expressed: the device is left out
======================================  ==============================================================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from devalloc.api.dedicated_pools import DEVALLOC, TAINT, is_dedicated
from devalloc.api.meta import COMPATIBILITY_GROUP, UNAVAILABLE
from devalloc.api.pool import AttributeValue, Device, DevicePool
from devalloc.api.problems import Problem
from devalloc.api.quantity import Quantity
from devalloc.api.semver import SemVer
from devalloc_node.kube import counters
from devalloc_node.kube.names import MAX_VALUE, dns_label, is_qualified, label_value, text_value
from devalloc_node.model.names import is_label

COMPATIBILITY_TAINT = "devalloc.io/compatibility"
"""Key of the taint on devices that do not go together with those that are offered."""
SETS_PER_SLICE = 8
DEVICES_PER_SLICE = 128
DEVICES_PER_SLICE_WITH_MORE = 64
"""Where any device of the slice has counters or taints."""
ATTRIBUTES_PER_DEVICE = 32
"""Attributes and capacities together."""

Content = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SliceFeatures:
    """What the API server keeps of a slice."""

    counters: bool = True
    """DRAPartitionableDevices"""
    taints: bool = True
    """DRADeviceTaints"""
    groups: bool = False
    """DRADeviceCompatibilityGroups"""


@dataclass(frozen=True, slots=True)
class SlicePool:
    """A pool as slices."""

    name: str
    slices: tuple[Content, ...]
    """Of each slice what differs: ``{"sharedCounters": …}`` or ``{"devices": …}``; never empty."""
    problems: tuple[Problem, ...] = field(default=())


def slices_of_pool(pool: DevicePool, features: SliceFeatures) -> SlicePool:
    """The slices of a pool. What the API cannot say is left out, and said in the problems."""
    shared = {attribute.name: attribute.value for attribute in pool.spec.attributes}
    attributes = {device.name: _attributes_of(device, shared) for device in pool.spec.devices}
    aside = is_dedicated(pool.metadata.name)
    left_out: dict[str, str] = {}
    problems: list[Problem] = []
    plan = counters.CounterPlan()
    offered = {device.name for device in pool.spec.devices}
    if features.counters:
        plan = counters.plan_counters(pool)
        left_out.update(plan.left_out)
    else:
        offered, unsaid = counters.compatible_devices(
            pool, {name for name, values in attributes.items() if UNAVAILABLE in values}
        )
        left_out.update(unsaid)

    closed = _closed_groups(attributes, plan, features)
    devices: list[Content] = []
    for device in pool.spec.devices:
        name = device.name
        if not is_label(name):
            left_out[name] = "has a name that the API does not accept (a DNS label of at most 63 characters)"
        elif device.resources:
            left_out[name] = "has resources of its own, which slices cannot share yet"
        elif not features.taints and (UNAVAILABLE in attributes[name] or name in closed):
            left_out[name] = "is not available, which the cluster cannot express: DRADeviceTaints is off"
        elif not features.taints and aside:
            left_out[name] = "is set aside, which the cluster cannot express: DRADeviceTaints is off"
        if name not in offered or name in left_out:
            continue
        reported = {"allocator": DEVALLOC, **attributes[name]} if aside else attributes[name]
        content, unsaid_of = _device(device, reported, closed.get(name))
        if aside:
            content["taints"] = [*content.get("taints", ()), dict(TAINT)]
        if consumed := plan.consumed.get(name):
            content["consumesCounters"] = _with_group(consumed, attributes[name], features)
        devices.append(content)
        problems += (_problem(pool, f"device {name}: {text}", "warning") for text in unsaid_of)

    by_reason: dict[str, list[str]] = {}
    for name, why in left_out.items():
        by_reason.setdefault(why, []).append(name)
    problems += (_problem(pool, f"{_listed(names)}: not published: {why}") for why, names in by_reason.items())
    return SlicePool(pool.metadata.name, tuple(_chunks(plan.sets, devices)), tuple(problems))


def _chunks(sets: Sequence[Content], devices: Sequence[Content]) -> list[Content]:
    """Slices within the API's limits; the counters come first. An empty pool is one empty slice."""
    more = any("taints" in device or "consumesCounters" in device for device in devices)
    size = DEVICES_PER_SLICE_WITH_MORE if more else DEVICES_PER_SLICE
    slices: list[Content] = [
        {"sharedCounters": list(sets[i : i + SETS_PER_SLICE])} for i in range(0, len(sets), SETS_PER_SLICE)
    ]
    slices += [{"devices": list(devices[i : i + size])} for i in range(0, len(devices), size)]
    return slices or [{}]


def _attributes_of(device: Device, shared: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
    return {**shared, **{attribute.name: attribute.value for attribute in device.attributes}}


def _device(
    device: Device, attributes: Mapping[str, AttributeValue], closed_for: str | None
) -> tuple[Content, list[str]]:
    """The device, and what of it could not be told."""
    unsaid = []
    entries: Content = {}
    capacity: Content = {}
    for name, value in attributes.items():
        if not is_qualified(name):
            unsaid.append(f"the API does not accept the name of the attribute {name}")
        elif len(entries) + len(capacity) == ATTRIBUTES_PER_DEVICE:
            unsaid.append(f"the attribute {name} is one too many: a device has {ATTRIBUTES_PER_DEVICE} at most")
        elif isinstance(value, Quantity):
            capacity[name] = {"value": str(value)}
        elif isinstance(value, SemVer) and len(str(value)) > MAX_VALUE:
            unsaid.append(f"the version in the attribute {name} is longer than {MAX_VALUE} characters")
        else:
            entries[name] = _value(value)
    content: Content = {"name": device.name}
    if entries:
        content["attributes"] = entries
    if capacity:
        content["capacity"] = capacity
    taints = []
    if (reason := attributes.get(UNAVAILABLE)) is not None:
        taints.append(_taint(UNAVAILABLE, str(reason)))
    if closed_for is not None:
        taints.append(_taint(COMPATIBILITY_TAINT, closed_for))
    if taints:
        content["taints"] = taints
    return content, unsaid


def _value(value: AttributeValue) -> Content:
    match value:
        case int():
            return {"int": value}
        case SemVer():
            return {"version": str(value)}
        case _:
            return {"string": text_value(str(value))}


def _taint(key: str, text: str) -> Content:
    taint = {"key": key, "effect": "NoSchedule"}
    if value := label_value(text):
        taint["value"] = value
    return taint


# -- compatibility groups ----------------------------------------------------------------------------------------------


def _closed_groups(
    attributes: Mapping[str, Mapping[str, AttributeValue]], plan: counters.CounterPlan, features: SliceFeatures
) -> dict[str, str]:
    """Devices that do not go together with those on offer, and the group that is; nothing where the API tells it.

    The group that the most devices are available in is open, the first of several by name.
    """
    groups = {
        name: str(values[COMPATIBILITY_GROUP]) for name, values in attributes.items() if COMPATIBILITY_GROUP in values
    }
    if len(set(groups.values())) <= 1 or (features.groups and _share_counter_set(groups, plan)):
        return {}
    offered = Counter(group for name, group in groups.items() if UNAVAILABLE not in attributes[name])
    opened = min(offered or groups.values(), key=lambda group: (-offered[group], group))
    return {name: opened for name, group in groups.items() if group != opened}


def _share_counter_set(groups: Mapping[str, str], plan: counters.CounterPlan) -> bool:
    """Whether all devices with a group draw on one set: groups are compared there."""
    sets = [{entry["counterSet"] for entry in plan.consumed.get(name, [])} for name in groups]
    return bool(set.intersection(*sets))


def _with_group(
    consumed: list[Content], attributes: Mapping[str, AttributeValue], features: SliceFeatures
) -> list[Content]:
    group = attributes.get(COMPATIBILITY_GROUP)
    if group is None or not features.groups:
        return consumed
    return [{**entry, "compatibilityGroups": [dns_label(str(group).lower())]} for entry in consumed]


def _problem(pool: DevicePool, message: str, severity: Any = "error") -> Problem:
    return Problem(message, kind="DevicePool", name=pool.metadata.name, severity=severity)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
