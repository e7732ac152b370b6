"""An exhaustive search for small instances of resource.k8s.io: allocated or not, and the best firstAvailable choices.

Written from the rules, for instances of ``dra_instances``, sharing nothing with the solver, its check or its CEL: the
few expressions that are drawn are looked up in a table. Only devices that are equal in everything but their name are
taken together, or larger instances would never end.

Where upstream's released allocator is known to answer otherwise than the rules, a *quirk* makes the oracle do the same,
so that a difference can be told from an unknown one by solving again.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

QUIRKS = {
    "admin access blocks": "a device that an admin request took is in use for the requests of the claims after it",
    "admin access draws": "admin requests need counters and capacity, though they ignore allocations",
    "dedicated while shared": "a device that is not shareable any more is given away while its shares are in use",
}
"""What v0.37.2 does otherwise, by the name that the documentation gives it."""

BUDGET = 15_000
"""Steps of a search, after which the outcome is unknown."""
LIMIT = 32
"""Devices of a claim."""

Manifest = Mapping[str, Any]
Value = tuple[str, Any]
"""(type, value) of an attribute"""


@dataclass(frozen=True)
class Verdict:
    outcome: str
    """allocated, not-allocated, error or unknown (the search took too long, or the rules leave it open)"""
    choices: tuple[int | None, ...] = ()
    """the alternative of each request of each claim, None where a request has none; only when allocated"""
    node_local: bool = False
    reasons: tuple[str, ...] = ()
    """kinds of what is wrong: of errors all that apply, otherwise what may have excluded devices"""


class _Open(Exception):
    """The rules do not say, or it takes too long."""


def solve(instance: Manifest, quirks: frozenset[str] = frozenset(), budget: int = BUDGET) -> Verdict:
    """The outcome by the rules, with the given quirks of upstream."""
    problem = _Problem(instance, quirks)
    fatal = problem.fatal()
    if fatal:
        return Verdict("error", reasons=tuple(sorted(fatal)))
    if not problem.claims:
        return Verdict("not-allocated")
    try:
        for choices in itertools.product(*(range(len(options)) for options in problem.requests)):
            slots = [options[index] for options, index in zip(problem.requests, choices, strict=True)]
            if _Search(problem, slots, budget).found():
                pairs = zip(problem.requests, choices, strict=True)
                told = tuple(None if options[0].parent is None else index for options, index in pairs)
                return Verdict("allocated", told)
    except _Open as reason:
        return Verdict("unknown", reasons=(str(reason),))
    if problem.failing:
        return Verdict("error", reasons=("selector fails",))
    if problem.contradicted:
        return Verdict("error", reasons=("constraint on all devices",))
    if any(pool.invalid for pool in problem.pools):
        return Verdict("error", node_local=True, reasons=("invalid pool",))
    return Verdict("not-allocated", reasons=("constraint on all devices",) if problem.contradictory() else ())


# -- The world -------------------------------------------------------------------------------------------------------


@dataclass
class _Device:
    driver: str
    pool: int
    manifest: Manifest
    shareable: bool
    dedicated: bool
    """in use as a whole"""
    shared: bool
    """some of its shares are in use"""
    used: dict[str, Fraction]
    lists: bool
    """whether list attributes are understood"""
    skips: bool
    """whether its slice skips operations of the node, an alpha feature"""
    size: int = 1
    """how many devices are equal to this one, itself included"""

    def values(self, name: str) -> frozenset[Value]:
        attributes = self.manifest.get("attributes") or {}
        domain, _, plain = name.partition("/")
        found = attributes.get(name)
        if found is None and domain == self.driver:
            found = attributes.get(plain)
        if not self.lists and any(key.endswith("s") for key in found or ()):
            return frozenset()
        return frozenset(_values(found or {}))

    @property
    def draws(self) -> Iterator[tuple[tuple[int, str, str], Fraction]]:
        for entry in self.manifest.get("consumesCounters") or ():
            for counter, amount in entry["counters"].items():
                yield (self.pool, entry["counterSet"], counter), quantity(amount["value"])


@dataclass
class _Pool:
    index: int
    incomplete: bool = False
    invalid: bool = False
    devices: list[_Device] = field(default_factory=list)
    """those that the node reaches"""


@dataclass(eq=False)
class _Slot:
    """A request without alternatives, or one alternative."""

    claim: int
    name: str
    parent: str | None
    spec: Manifest
    admin: bool
    everything: bool
    count: int
    candidates: list[tuple[_Device, dict[str, Fraction]]]
    """selectable devices, and what a share takes"""

    def in_scope(self, requests: list[str]) -> bool:
        own = self.name if self.parent is None else f"{self.parent}/{self.name}"
        return not requests or own in requests or self.parent in requests


class _Problem:
    def __init__(self, instance: Manifest, quirks: frozenset[str]) -> None:
        given = instance["input"]
        self.quirks = quirks
        self.on = {name for name, enabled in instance["features"].items() if enabled}
        self.node: Manifest = given["node"]
        self.claims: list[Manifest] = given["claimsToAllocate"] or []
        self.classes = {one["metadata"]["name"]: one for one in given["classes"] or ()}
        self.dedicated = {_key(one) for one in given["allocatedDevices"] or ()}
        self.shared = {_key(one) for one in given["allocatedSharedDeviceIDs"] or ()}
        self.used: dict[tuple[str, str, str], dict[str, Fraction]] = {}
        for one in given["aggregatedCapacity"] or ():
            amounts = self.used.setdefault(_key(one), {})
            for name, amount in one["consumedCapacity"].items():
                amounts[name] = amounts.get(name, Fraction(0)) + quantity(amount)
        self.left: dict[tuple[int, str, str], Fraction] = {}
        """counters that devices in use leave, by pool, set and counter"""
        self.pools = self._pools(given["slices"] or [])
        self.failing = False
        """whether a selector failed on a device"""
        self.contradicted = False
        """whether a device of an ``All`` request could be had but for a constraint"""
        self.errors: set[str] = set()
        self.requests: list[list[_Slot]] = [
            self._options(number, request)
            for number, claim in enumerate(self.claims)
            for request in claim["spec"]["devices"].get("requests") or ()
        ]

    def contradictory(self) -> bool:
        """Whether all devices of some request violate a constraint among themselves."""
        for slot in (slot for options in self.requests for slot in options if slot.everything):
            search = _Search(self, [slot])
            for device, _ in slot.candidates:
                if not search.is_related(slot, device, device.size):
                    return True
                search.taken.append((slot, device, device.size))
        return False

    # -- Pools

    def _pools(self, slices: list[Manifest]) -> list[_Pool]:
        by_pool: dict[tuple[str, str], list[Manifest]] = {}
        for one in sorted(slices, key=lambda one: str(one["metadata"]["name"])):
            spec = one["spec"]
            by_pool.setdefault((spec["driver"], spec["pool"]["name"]), []).append(spec)
        pools: list[_Pool] = []
        for driver, name in sorted(by_pool):
            specs = by_pool[driver, name]
            seen = [spec for spec in specs if self._is_relevant(spec)]
            if not seen:
                continue
            generation = max(spec["pool"]["generation"] for spec in seen)
            current = [spec for spec in specs if spec["pool"]["generation"] == generation]
            seen = [spec for spec in seen if spec["pool"]["generation"] == generation]
            if len(seen) == seen[0]["pool"]["resourceSliceCount"]:
                # Nobody looks further: a newer generation that has nothing for the node goes unnoticed.
                current = seen
            elif any(spec["pool"]["generation"] > generation for spec in specs):
                continue
            current = [spec for spec in current if not _has_groups(spec)]
            pool = _Pool(len(pools))
            pool.incomplete = len(current) != seen[0]["pool"]["resourceSliceCount"]
            pools.append(pool)
            if not pool.incomplete:
                self._fill(pool, driver, name, seen, current)
        return pools

    def _is_relevant(self, spec: Manifest) -> bool:
        per_device = spec.get("perDeviceNodeSelection")
        if _has_groups(spec):
            return False
        if "PartitionableDevices" not in self.on and (per_device is not None or spec.get("sharedCounters")):
            return False
        if per_device:
            return any(self._reaches(device) for device in spec.get("devices") or ())
        return self._reaches(spec)

    def _reaches(self, selection: Manifest) -> bool:
        if selection.get("nodeName"):
            return bool(selection["nodeName"] == self.node["metadata"]["name"])
        if selection.get("allNodes"):
            return True
        terms = (selection.get("nodeSelector") or {}).get("nodeSelectorTerms") or ()
        return any(_term_matches(term, self.node) for term in terms)

    def _fill(self, pool: _Pool, driver: str, name: str, seen: list[Manifest], current: list[Manifest]) -> None:
        names = [device["name"] for spec in seen for device in spec.get("devices") or ()]
        pool.invalid = len(names) != len(set(names))
        partitions = "PartitionableDevices" in self.on
        sets = [one for spec in current for one in spec.get("sharedCounters") or () if partitions]
        totals = {
            (pool.index, one["name"], c): quantity(v["value"]) for one in sets for c, v in one["counters"].items()
        }
        known = {one["name"] for one in sets}
        pool.invalid |= len(known) != len(sets)
        every = [
            self._device(driver, name, pool.index, device, spec)
            for spec in current
            for device in spec.get("devices") or ()
        ]
        for device in every if partitions else ():
            entries = device.manifest.get("consumesCounters") or ()
            pool.invalid |= any(entry["counterSet"] not in known for entry in entries)
            pool.invalid |= any(key not in totals for key, _ in device.draws)
        if pool.invalid:
            return
        self.left |= totals
        for device in every if partitions else ():
            if device.dedicated or device.shared:
                for key, amount in device.draws:
                    self.left[key] -= amount
        visible: dict[str, _Device] = {}
        for spec in seen:
            for manifest in spec.get("devices") or ():
                if spec.get("perDeviceNodeSelection") and not self._reaches(manifest):
                    continue
                device = self._device(driver, name, pool.index, manifest, spec)
                alike = {key: value for key, value in manifest.items() if key != "name"}
                same = json.dumps([alike, device.dedicated, device.shared, device.skips], sort_keys=True)
                if device.shareable or device.dedicated or device.shared or self.quirks:
                    same += manifest["name"]
                if same in visible:
                    visible[same].size += 1
                else:
                    visible[same] = device
        pool.devices = list(visible.values())

    def _device(self, driver: str, name: str, pool: int, manifest: Manifest, spec: Manifest) -> _Device:
        key = (driver, name, manifest["name"])
        shareable = "ConsumableCapacity" in self.on and bool(manifest.get("allowMultipleAllocations"))
        shared = key in self.shared or key in self.used
        lists = "ListTypeAttributes" in self.on
        used = self.used.get(key, {})
        skips = bool(spec.get("skipNodeOperations"))
        return _Device(driver, pool, manifest, shareable, key in self.dedicated, shared, used, lists, skips)

    # -- Requests

    def fatal(self) -> set[str]:
        """What makes the call fail whatever else there is."""
        for number, claim in enumerate(self.claims):
            devices = claim["spec"]["devices"]
            for constraint in devices.get("constraints") or ():
                if not constraint.get("matchAttribute") and not constraint.get("distinctAttribute"):
                    self.errors.add("empty constraint")
                if constraint.get("distinctAttribute") and "ConsumableCapacity" not in self.on:
                    self.errors.add("distinctAttribute while its gate is off")
            mine = [options for options in self.requests if options and options[0].claim == number]
            if sum(min(slot.count for slot in options) for options in mine) > LIMIT:
                self.errors.add("limit")
        return self.errors

    def _options(self, claim: int, request: Manifest) -> list[_Slot]:
        subs = request.get("firstAvailable") or ()
        if subs and "PrioritizedList" not in self.on:
            self.errors.add("gate")
        if subs:
            return [self._slot(claim, sub["name"], request["name"], sub) for sub in subs]
        return [self._slot(claim, request["name"], None, request["exactly"])]

    def _slot(self, claim: int, name: str, parent: str | None, spec: Manifest) -> _Slot:
        if spec.get("adminAccess") is not None and "AdminAccess" not in self.on:
            self.errors.add("gate")
        if spec.get("capacity") is not None and "ConsumableCapacity" not in self.on:
            self.errors.add("gate")
        everything = spec.get("allocationMode") == "All"
        if spec.get("allocationMode") not in ("All", "ExactCount"):
            self.errors.add("mode")
        device_class = self.classes.get(spec.get("deviceClassName") or "")
        if device_class is None:
            self.errors.add("class")
        class_selectors = (device_class or {}).get("spec", {}).get("selectors") or ()
        selectors = [*class_selectors, *(spec.get("selectors") or ())]
        if any(not selector.get("cel") for selector in selectors):
            self.errors.add("selector")
        expressions = [selector["cel"]["expression"] for selector in selectors if selector.get("cel")]
        known = set(_MEANING)
        if "ConsumableCapacity" not in self.on:
            known.discard("device.allowMultipleAllocations")
        if not known.issuperset(expressions):
            self.errors.add("compile")
        slot = _Slot(claim, name, parent, spec, bool(spec.get("adminAccess")), everything, 0, [])
        if spec.get("derivedAttributes"):
            self.errors.add("gate")
        if everything and any(pool.incomplete or pool.invalid for pool in self.pools):
            self.errors.add("all of a pool that is incomplete or invalid")
        if not self.errors:
            slot.candidates = list(self._candidates(slot, expressions))
        size = sum(device.size for device, _ in slot.candidates)
        slot.count = size if everything else spec.get("count", 1)
        return slot

    def _candidates(self, slot: _Slot, expressions: list[str]) -> Iterator[tuple[_Device, dict[str, Fraction]]]:
        requested = {name: quantity(text) for name, text in _requested(slot.spec).items()}
        if any(amount < 0 for amount in requested.values()):
            self.errors.add("amount")
        for pool in self.pools:
            for device in pool.devices:
                if device.manifest.get("bindingConditions") and "DeviceBindingAndStatus" not in self.on:
                    continue
                try:
                    if not self._selected(device, expressions):
                        continue
                except LookupError:
                    # Nobody looks at a device in use, unless all are asked for or it does not matter.
                    taken = device.dedicated or (device.shared and not device.shareable)
                    self.failing |= slot.everything or slot.admin or not taken
                    continue
                amounts = self._amounts(device, requested)
                if amounts is not None:
                    yield device, amounts

    def _selected(self, device: _Device, expressions: list[str]) -> bool:
        if expressions:
            for attribute in (device.manifest.get("attributes") or {}).values():
                if not list(_values(attribute)):
                    raise LookupError("unsupported attribute value")
                if attribute.get("version") == "1.02":
                    raise LookupError("no version")
        return all(_MEANING[expression](device) for expression in expressions)

    def _amounts(self, device: _Device, requested: Mapping[str, Fraction]) -> dict[str, Fraction] | None:
        """What the request takes of each capacity; None when the device cannot offer that even when it is free."""
        capacities = device.manifest.get("capacity") or {}
        if "ConsumableCapacity" not in self.on:
            return {}
        if any(name not in capacities for name in requested):
            return None
        amounts = {}
        fits = True
        for name, capacity in capacities.items():
            try:
                amount = rounded(requested.get(name), capacity, "FractionalCapacityRange" in self.on)
            except OverflowError:
                self.errors.add("amount")
                return None
            fits &= amount is not None and amount <= quantity(capacity["value"])
            amounts[name] = amount or Fraction(0)
        return amounts if fits else None


# -- The search ------------------------------------------------------------------------------------------------------


class _Search:
    """Whether the chosen slots can all be filled."""

    def __init__(self, problem: _Problem, slots: list[_Slot], budget: int = BUDGET) -> None:
        self.problem = problem
        self.slots = slots
        self.taken: list[tuple[_Slot, _Device, int]] = []
        self.budget = budget
        self.relations = [
            (number, constraint)
            for number, claim in enumerate(problem.claims)
            for constraint in claim["spec"]["devices"].get("constraints") or ()
        ]

    def found(self) -> bool:
        for number in range(len(self.problem.claims)):
            if sum(slot.count for slot in self.slots if slot.claim == number) > LIMIT:
                return False
        return self._fill(0)

    def _fill(self, index: int) -> bool:
        if index == len(self.slots):
            return True
        slot = self.slots[index]
        if slot.everything and not slot.candidates:
            return False
        return self._choose(index, 0, slot.count)

    def _choose(self, index: int, first: int, wanted: int) -> bool:
        """Take `wanted` devices for a slot from its candidates, beginning with the `first`."""
        self.budget -= 1
        if self.budget < 0:
            raise _Open("too many steps")
        slot = self.slots[index]
        if wanted == 0:
            return self._fill(index + 1)
        if sum(device.size for device, _ in slot.candidates[first:]) < wanted:
            return False
        device, amounts = slot.candidates[first]
        most = min(wanted, device.size)
        for times in range(most, most - 1 if slot.everything else -1, -1):
            if times == 0:
                return self._choose(index, first + 1, wanted)
            if self._may_take(slot, device, amounts, times):
                self.taken.append((slot, device, times))
                if self._choose(index, first + 1, wanted - times):
                    return True
                self.taken.pop()
        return False

    def _may_take(self, slot: _Slot, device: _Device, amounts: Mapping[str, Fraction], times: int) -> bool:
        if device.skips or self._is_tainted(slot, device):
            return False
        others = [(other, count) for other, held, count in self.taken if held is device]
        draws = "admin access draws" in self.problem.quirks
        if not self._is_free(slot, device, others, times):
            return False
        if (not slot.admin or draws) and not self._has_room(slot, device, amounts, draws):
            return False
        if not self._has_counters(slot, device, others, times, draws):
            return False
        if not self.is_related(slot, device, times):
            self.problem.contradicted |= slot.everything
            return False
        return True

    def _is_tainted(self, slot: _Slot, device: _Device) -> bool:
        if "DeviceTaints" not in self.problem.on:
            return False
        tolerations = slot.spec.get("tolerations") or ()
        return any(
            taint.get("effect") in ("NoSchedule", "NoExecute") and not any(_tolerates(t, taint) for t in tolerations)
            for taint in device.manifest.get("taints") or ()
        )

    def _is_free(self, slot: _Slot, device: _Device, others: list[tuple[_Slot, int]], times: int) -> bool:
        quirks = self.problem.quirks
        if not slot.admin and device.dedicated:
            return False
        if device.shareable:
            return True
        if not slot.admin and device.shared and "dedicated while shared" not in quirks:
            return False
        ordinary = sum(count for other, count in others if not other.admin)
        same_claim = sum(count for other, count in others if other.claim == slot.claim)
        if same_claim + times > device.size:
            return False
        if "admin access blocks" in quirks and not slot.admin and others:
            return False
        return slot.admin or ordinary + times <= device.size

    def _has_room(self, slot: _Slot, device: _Device, amounts: Mapping[str, Fraction], draws: bool) -> bool:
        used = dict(device.used)
        for other, held, _ in self.taken:
            if held is device and device.shareable and (draws or not other.admin):
                for name, amount in next(a for d, a in other.candidates if d is device).items():
                    used[name] = used.get(name, Fraction(0)) + amount
        capacities = device.manifest.get("capacity") or {}
        return all(used.get(n, Fraction(0)) + a <= quantity(capacities[n]["value"]) for n, a in amounts.items())

    def _has_counters(
        self, slot: _Slot, device: _Device, others: list[tuple[_Slot, int]], times: int, draws: bool
    ) -> bool:
        if not device.manifest.get("consumesCounters"):
            return True
        if "PartitionableDevices" not in self.problem.on:
            return False
        if slot.admin and not draws:
            return True
        charged = [(slot, device, times)] + [one for one in self.taken if draws or not one[0].admin]
        needs: dict[tuple[int, str, str], Fraction] = {}
        seen: list[_Device] = []
        for _, one, count in charged:
            if one.shareable and (one.shared or any(one is before for before in seen)):
                continue
            seen.append(one)
            for key, amount in one.draws:
                needs[key] = needs.get(key, Fraction(0)) + amount * count
        if device.shareable and device.shared:
            return True
        # Every counter of the pool: one that is overcommitted blocks all devices that draw on any.
        left = self.problem.left
        return all(amount >= needs.get(key, 0) for key, amount in left.items() if key[0] == device.pool)

    def is_related(self, slot: _Slot, device: _Device, times: int) -> bool:
        for claim, constraint in self.relations:
            requests = constraint.get("requests") or []
            if claim != slot.claim or not slot.in_scope(requests):
                continue
            name = constraint.get("matchAttribute") or constraint["distinctAttribute"]
            values = device.values(name)
            before = [d.values(name) for s, d, _ in self.taken if s.claim == claim and s.in_scope(requests)]
            if not values:
                return False
            if constraint.get("matchAttribute") and not values.intersection(*before):
                return False
            if constraint.get("distinctAttribute") and (times > 1 or any(values & other for other in before)):
                return False
        return True


# -- What the words of the API mean -----------------------------------------------------------------------------------


def quantity(text: str) -> Fraction:
    """A Kubernetes quantity: rounded up to nano units; binary ones are capped at 2^63-1."""
    match = re.fullmatch(r"([+-]?[\d.]+)(?:[eE]([+-]?\d+)|([numkKMGTPE]?i?))", text)
    assert match is not None, text
    number, exponent, suffix = match.groups()
    value = Fraction(number)
    if exponent:
        value *= Fraction(10) ** int(exponent)
    elif suffix and suffix.endswith("i"):
        value *= 1024 ** (1 + "KMGTPE".index(suffix[0]))
    elif suffix:
        value *= Fraction(10) ** {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}[suffix]
    nano = -((-abs(value) * 10**9) // 1)
    value = Fraction(int(nano), 10**9) * (1 if value >= 0 else -1)
    return min(value, Fraction(2**63 - 1)) if suffix and suffix.endswith("i") else value


def rounded(requested: Fraction | None, capacity: Manifest, fractional: bool) -> Fraction | None:
    """What a request takes of a capacity; None when its policy has nothing for it. Raises OverflowError."""
    policy = capacity.get("requestPolicy") or {}
    if requested is None:
        return quantity(policy["default"] if policy.get("default") is not None else capacity["value"])
    if policy.get("validValues"):
        return min((v for v in map(quantity, policy["validValues"]) if v >= requested), default=None)
    limits = policy.get("validRange") or {}
    amount = max(requested, quantity(limits["min"])) if limits.get("min") else requested
    if limits.get("step") and amount > quantity(limits["min"]):
        amount = _stepped(amount, limits, fractional)
    if amount < 0:
        raise OverflowError
    return None if limits.get("max") and amount > quantity(limits["max"]) else amount


def _stepped(amount: Fraction, limits: Manifest, fractional: bool) -> Fraction:
    scale = 1000 if fractional and all(_is_milli(quantity(text)) for text in limits.values()) else 1
    low, step = (-((-quantity(limits[name]) * scale) // 1) for name in ("min", "step"))
    wanted = -((-amount * scale) // 1)
    if scale == 1000 and wanted != amount * scale:
        raise OverflowError
    result = low + step * -((low - wanted) // step)
    if max(wanted, result) >= 2**63:
        raise OverflowError
    return Fraction(int(result), scale)


def _is_milli(amount: Fraction) -> bool:
    return (amount * 1000).denominator == 1 and abs(amount * 1000) < 2**63


def _requested(spec: Manifest) -> dict[str, str]:
    return dict((spec.get("capacity") or {}).get("requests") or {})


def _has_groups(spec: Manifest) -> bool:
    """Compatibility groups are an alpha feature: such a slice is not seen."""
    draws = [draw for device in spec.get("devices") or () for draw in device.get("consumesCounters") or ()]
    return any(draw.get("compatibilityGroups") for draw in draws)


def _key(one: Manifest) -> tuple[str, str, str]:
    return one["driver"], one["pool"], one["device"]


def _values(attribute: Manifest) -> Iterator[Value]:
    for kind in ("int", "bool", "string", "version"):
        yield from ((kind, value) for value in attribute.get(f"{kind}s") or ())
        if kind in attribute:
            yield kind, attribute[kind]


def _tolerates(toleration: Manifest, taint: Manifest) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    return bool(toleration.get("value", "") == taint.get("value", ""))


def _term_matches(term: Manifest, node: Manifest) -> bool:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    labels = node["metadata"].get("labels") or {}
    names = {"metadata.name": node["metadata"]["name"]}
    matched = [_matches(one, labels) for one in expressions] + [_matches(one, names) for one in fields]
    return bool(matched) and all(matched)


def _matches(requirement: Manifest, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement["key"])
    values = requirement.get("values") or ()
    match requirement["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return value is not None and int(value) > int(values[0])
        case "Lt":
            return value is not None and int(value) < int(values[0])
    raise AssertionError(requirement)


def _own(device: _Device, name: str, domain: str | None = None) -> Any:
    """The value of ``device.attributes[domain].name``, a scalar or a list; None when there is none."""
    domain = domain or device.driver
    attributes = device.manifest.get("attributes") or {}
    found = attributes.get(f"{domain}/{name}")
    if found is None and domain == device.driver:
        found = attributes.get(name)
    return None if found is None else next(iter(found.values()))


def _must(value: Any) -> Any:
    if value is None:
        raise LookupError("no such key")
    return value


def _scalar(value: Any) -> Any:
    if isinstance(value, list):
        raise LookupError("no such overload")
    return _must(value)


def _memory(device: _Device, domain: str | None = None) -> Fraction | None:
    found = (device.manifest.get("capacity") or {}).get("m") if domain in (None, device.driver) else None
    return None if found is None else quantity(found["value"])


_MEANING: dict[str, Callable[[_Device], bool]] = {
    'device.driver == "a.io"': lambda d: d.driver == "a.io",
    "device.attributes[device.driver].?ok.orValue(false)": lambda d: bool(_own(d, "ok")),
    'device.attributes[device.driver].?model.orValue("") == "big"': lambda d: _own(d, "model") == "big",
    'device.attributes["x.org"].?root.orValue("") == "r"': lambda d: _own(d, "root", "x.org") == "r",
    "device.attributes[device.driver].serial < 3": lambda d: _must(_own(d, "serial")) < 3,
    'device.attributes[device.driver].firmware.isGreaterThan(semver("1.9.9"))': lambda d: (
        _scalar(_own(d, "firmware")) > "1.9.9"
    ),
    'has(device.capacity[device.driver].m) && device.capacity[device.driver].m.compareTo(quantity("3")) >= 0': (
        lambda d: (_memory(d) or 0) >= 3
    ),
    "device.attributes[device.driver].serial in [0, 1, 3, 5]": lambda d: _must(_own(d, "serial")) in (0, 1, 3, 5),
    "!device.attributes[device.driver].ok || device.attributes[device.driver].serial != 1": (
        lambda d: not _must(_own(d, "ok")) or _must(_own(d, "serial")) != 1
    ),
    "device.allowMultipleAllocations": lambda d: bool(d.manifest.get("allowMultipleAllocations")),
    "true": lambda d: True,
    'device.attributes[device.driver].model == "big"': lambda d: _must(_own(d, "model")) == "big",
    "device.attributes[device.driver].numa == 0": lambda d: _must(_own(d, "numa")) == 0,
    'device.attributes["x.org"].root == "r"': lambda d: _must(_own(d, "root", "x.org")) == "r",
    'device.capacity["c.io"].m.isGreaterThan(quantity("0"))': lambda d: _must(_memory(d, "c.io")) > 0,
}
