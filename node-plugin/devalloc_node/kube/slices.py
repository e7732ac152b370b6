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

A counter set holds 32 counters, and a device draws on two sets at most. Most cards need one set. If there are more
resources than that, those that the most devices draw on come into one set, and what remains falls apart into parts of
which each device touches one.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from devalloc.api.dedicated_pools import DEVALLOC, TAINT, is_dedicated
from devalloc.api.fields import is_label, is_subdomain_name
from devalloc.api.meta import COMPATIBILITY_GROUP, UNAVAILABLE
from devalloc.api.pool import AttributeValue, Device, DevicePool, unavailability
from devalloc.api.problems import Problem
from devalloc.api.quantity import Quantity, ceil_blocks, floor_blocks
from devalloc.api.semver import SemVer

MAX_LABEL = 63
MAX_SUBDOMAIN = 253
MAX_ID = 32
"""Characters of an attribute's or capacity's name, without its domain."""
MAX_VALUE = 64
"""Bytes of a text attribute."""

_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_NOT_IN_LABELS = re.compile(r"[^a-z0-9]+", re.ASCII)
_NOT_IN_LABEL_VALUES = re.compile(r"[^A-Za-z0-9_.]+", re.ASCII)


def is_qualified(name: str) -> bool:
    """Whether it can name an attribute: an identifier, with or without ``domain/`` before it."""
    domain, slash, short = name.rpartition("/")
    if slash and not (len(domain) <= MAX_LABEL and is_subdomain_name(domain)):
        return False
    return len(short) <= MAX_ID and _ID.fullmatch(short) is not None


def dns_label(name: str) -> str:
    """The name, if it is a DNS label; else the nearest one and a digest, so that different names stay different."""
    if is_label(name):
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    near = _NOT_IN_LABELS.sub("-", name.lower()).strip("-")[: MAX_LABEL - 9].rstrip("-")
    return f"{near}-{digest}" if near else digest


def label_value(text: str) -> str:
    """A text as the value of a taint, for people: ``in-use-mdev-4f3c…``. At most 63 characters, perhaps none."""
    return _NOT_IN_LABEL_VALUES.sub("-", text)[:MAX_LABEL].strip("-_.")


def text_value(text: str) -> str:
    """As much of a text as an attribute takes, cut between characters."""
    encoded = text.encode()
    if len(encoded) <= MAX_VALUE:
        return text
    return encoded[: MAX_VALUE - 3].decode(errors="ignore") + "..."


def object_name(*parts: str) -> str:
    """A name for an object, made of parts that are subdomains; a digest stands for what is too long."""
    name = "-".join(parts)
    if len(name) <= MAX_SUBDOMAIN:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    tail = f"-{digest}-{parts[-1]}"
    return name[: MAX_SUBDOMAIN - len(tail)].rstrip("-.") + tail


COUNTERS_PER_SET = 32
SETS_PER_DEVICE = 2

Blocks = dict[str, int]


@dataclass(frozen=True, slots=True)
class CounterPlan:
    """The counters of a pool."""

    sets: tuple[dict[str, Any], ...] = ()
    """CounterSets."""
    consumed: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    """By device: its consumesCounters."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Devices whose draws cannot be told, and why."""


def plan_counters(pool: DevicePool) -> CounterPlan:
    """Counters for a pool; resources that cannot run short are not told."""
    blocks = {resource.name: resource.block for resource in pool.spec.resources}
    usable = {resource.name: floor_blocks(resource.capacity, resource.block) for resource in pool.spec.resources}
    draws, left_out = _draws(pool, blocks)
    binding = {name: draw for name, draw in usable.items() if sum(d.get(name, 0) for d in draws.values()) > draw}
    draws = {device: {name: n for name, n in drawn.items() if name in binding} for device, drawn in draws.items()}

    homes = {name: number for number, names in enumerate(_sets(binding, draws)) for name in names}
    consumed: dict[str, list[dict[str, Any]]] = {}
    for device, drawn in draws.items():
        touched = sorted({homes[name] for name in drawn})
        if len(touched) > SETS_PER_DEVICE:
            left_out[device] = f"draws on {len(drawn)} resources, more than two counter sets can express"
        elif touched:
            consumed[device] = [
                _counters("counterSet", number, {n: v for n, v in drawn.items() if homes[n] == number}, blocks)
                for number in touched
            ]
    sets = [
        _counters("name", number, {name: usable[name] for name in binding if homes[name] == number}, blocks)
        for number in sorted(set(homes.values()))
    ]
    return CounterPlan(tuple(sets), consumed, left_out)


def compatible_devices(pool: DevicePool, unavailable: Collection[str]) -> tuple[set[str], dict[str, str]]:
    """Without counters: devices that can all be had at once, and why the others not. Those that draw least come first,
    and those that are ``unavailable`` last: they must not keep others from being offered."""
    blocks = {resource.name: resource.block for resource in pool.spec.resources}
    left = {resource.name: floor_blocks(resource.capacity, resource.block) for resource in pool.spec.resources}
    draws, left_out = _draws(pool, blocks)
    total = dict(left)
    offered = set()

    def order(device: str) -> tuple[bool, float]:
        return device in unavailable, max((n / (total[name] or 1) for name, n in draws[device].items()), default=0)

    for device in sorted(draws, key=order):
        if all(n <= left[name] for name, n in draws[device].items()):
            for name, n in draws[device].items():
                left[name] -= n
            offered.add(device)
        else:
            left_out[device] = (
                "excludes other devices, which the cluster cannot express: DRAPartitionableDevices is off"
            )
    return offered, left_out


def _draws(pool: DevicePool, blocks: Mapping[str, Quantity]) -> tuple[dict[str, Blocks], dict[str, str]]:
    """What each device draws, in blocks, and which devices draw on what the pool does not have."""
    draws: dict[str, Blocks] = {}
    left_out = {}
    for device in pool.spec.devices:
        if unknown := [name for name in device.requests if name not in blocks]:
            left_out[device.name] = f"draws on {unknown[0]}, which the pool does not have"
        else:
            drawn = {name: ceil_blocks(amount, blocks[name]) for name, amount in device.requests.items()}
            draws[device.name] = {name: n for name, n in drawn.items() if n}
    return draws, left_out


def _counters(key: str, number: int, amounts: Mapping[str, int], blocks: Mapping[str, Quantity]) -> dict[str, Any]:
    return {
        key: f"set-{number}",
        "counters": {dns_label(name): {"value": str(blocks[name].times(n))} for name, n in amounts.items()},
    }


def _sets(names: Iterable[str], draws: Mapping[str, Blocks]) -> list[list[str]]:
    """The resources by the set they are in."""
    packed: list[list[str]] = []
    heads = []
    for part in _parts(list(names), draws.values()):
        if len(part) <= COUNTERS_PER_SET:
            _pack(part, packed)
            continue
        uses = Counter(name for drawn in draws.values() for name in drawn)
        by_use = sorted(part, key=lambda name: -uses[name])
        heads.append(by_use[:COUNTERS_PER_SET])
        for rest in _parts(by_use[COUNTERS_PER_SET:], draws.values()):
            _pack(rest, packed)
    return heads + packed


def _pack(part: Sequence[str], packed: list[list[str]]) -> None:
    """Into the first set with room; what is larger than a set is cut."""
    for start in range(0, len(part), COUNTERS_PER_SET):
        piece = part[start : start + COUNTERS_PER_SET]
        home = next((names for names in packed if len(names) + len(piece) <= COUNTERS_PER_SET), None)
        if home is None:
            packed.append(list(piece))
        else:
            home.extend(piece)


def _parts(names: Sequence[str], draws: Iterable[Blocks]) -> list[list[str]]:
    """The names, split so that each device draws on names of one part; in the order given."""
    leader = {name: name for name in names}

    def find(name: str) -> str:
        while leader[name] != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    for drawn in draws:
        roots = [find(name) for name in drawn if name in leader]
        for other in roots[1:]:
            leader[find(other)] = find(roots[0])
    parts: dict[str, list[str]] = {}
    for name in names:
        parts.setdefault(find(name), []).append(name)
    return list(parts.values())


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
    attributes = pool.spec.effective_attributes
    aside = is_dedicated(pool.metadata.name)
    left_out: dict[str, str] = {}
    problems: list[Problem] = []
    plan = CounterPlan()
    offered = {device.name for device in pool.spec.devices}
    if features.counters:
        plan = plan_counters(pool)
        left_out.update(plan.left_out)
    closed = _closed_groups(attributes, plan, features)
    if not features.counters:
        unavailable = {name for name, values in attributes.items() if unavailability(values) is not None}
        offered, unsaid = compatible_devices(pool, unavailable | closed.keys())
        left_out.update(unsaid)

    devices: list[Content] = []
    for device in pool.spec.devices:
        name = device.name
        if not is_label(name):
            left_out[name] = "has a name that the API does not accept (a DNS label of at most 63 characters)"
        elif device.resources:
            left_out[name] = "has resources of its own, which slices cannot share yet"
        elif not features.taints and (unavailability(attributes[name]) is not None or name in closed):
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
            unsaid.append(f"there is no room for the attribute {name}: a device has at most {ATTRIBUTES_PER_DEVICE}")
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
    if (reason := unavailability(attributes)) is not None:
        taints.append(_taint(UNAVAILABLE, reason))
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
    attributes: Mapping[str, Mapping[str, AttributeValue]], plan: CounterPlan, features: SliceFeatures
) -> dict[str, str]:
    """Devices that do not go together with those on offer, and the group that is; nothing where the API tells it.

    The group that the most devices are available in is open, the first of several by name.
    """
    groups = {
        name: str(values[COMPATIBILITY_GROUP]) for name, values in attributes.items() if COMPATIBILITY_GROUP in values
    }
    if len(set(groups.values())) <= 1 or (features.groups and _share_counter_set(groups, plan)):
        return {}
    offered = Counter(group for name, group in groups.items() if unavailability(attributes[name]) is None)
    opened = min(offered or groups.values(), key=lambda group: (-offered[group], group))
    return {name: opened for name, group in groups.items() if group != opened}


def _share_counter_set(groups: Mapping[str, str], plan: CounterPlan) -> bool:
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
