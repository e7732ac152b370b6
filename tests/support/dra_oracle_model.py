"""An instance of resource.k8s.io as the oracle sees it: what a node can have, and what is asked of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from tests.support.dra_semantics import (
    MEANING,
    Manifest,
    Value,
    has_groups,
    key_of,
    quantity,
    requested_amounts,
    rounded,
    term_matches,
    typed_values,
)

LIMIT = 32
"""Devices of a claim."""


@dataclass
class OracleDevice:
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
        entry = attributes.get(name)
        if entry is None and domain == self.driver:
            entry = attributes.get(plain)
        if not self.lists and any(key.endswith("s") for key in entry or ()):
            return frozenset()
        return frozenset(typed_values(entry or {}))

    @property
    def draws(self) -> Iterator[tuple[tuple[int, str, str], Fraction]]:
        for entry in self.manifest.get("consumesCounters") or ():
            for counter, amount in entry["counters"].items():
                yield (self.pool, entry["counterSet"], counter), quantity(amount["value"])


@dataclass
class OraclePool:
    index: int
    incomplete: bool = False
    invalid: bool = False
    devices: list[OracleDevice] = field(default_factory=list)
    """those that the node reaches"""


@dataclass(eq=False)
class Slot:
    """A request without alternatives, or one alternative."""

    claim: int
    name: str
    parent: str | None
    spec: Manifest
    admin: bool
    everything: bool
    count: int
    candidates: list[tuple[OracleDevice, dict[str, Fraction]]]
    """selectable devices, and what a share takes"""

    def in_scope(self, requests: list[str]) -> bool:
        own = self.name if self.parent is None else f"{self.parent}/{self.name}"
        return not requests or own in requests or self.parent in requests


class Problem:
    def __init__(self, instance: Manifest, quirks: frozenset[str]) -> None:
        given = instance["input"]
        self.quirks = quirks
        self.on = {name for name, enabled in instance["features"].items() if enabled}
        self.node: Manifest = given["node"]
        self.claims: list[Manifest] = given["claimsToAllocate"] or []
        self.classes = {one["metadata"]["name"]: one for one in given["classes"] or ()}
        self.dedicated = {key_of(one) for one in given["allocatedDevices"] or ()}
        self.shared = {key_of(one) for one in given["allocatedSharedDeviceIDs"] or ()}
        self.used: dict[tuple[str, str, str], dict[str, Fraction]] = {}
        for one in given["aggregatedCapacity"] or ():
            amounts = self.used.setdefault(key_of(one), {})
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
        self.requests: list[list[Slot]] = [
            self._options(number, request)
            for number, claim in enumerate(self.claims)
            for request in claim["spec"]["devices"].get("requests") or ()
        ]

    # -- Pools

    def _pools(self, slices: list[Manifest]) -> list[OraclePool]:
        by_pool: dict[tuple[str, str], list[Manifest]] = {}
        for one in sorted(slices, key=lambda one: str(one["metadata"]["name"])):
            spec = one["spec"]
            by_pool.setdefault((spec["driver"], spec["pool"]["name"]), []).append(spec)
        pools: list[OraclePool] = []
        for driver, name in sorted(by_pool):
            specs = by_pool[driver, name]
            seen = [spec for spec in specs if self._is_relevant(spec)]
            if not seen:
                continue
            generation = max(spec["pool"]["generation"] for spec in seen)
            current = [spec for spec in specs if spec["pool"]["generation"] == generation]
            seen = [spec for spec in seen if spec["pool"]["generation"] == generation]
            if len(seen) == seen[0]["pool"]["resourceSliceCount"]:
                # Upstream looks no further: a newer generation that has nothing for the node goes unnoticed.
                current = seen
            elif any(spec["pool"]["generation"] > generation for spec in specs):
                continue
            current = [spec for spec in current if not has_groups(spec)]
            pool = OraclePool(len(pools))
            pool.incomplete = len(current) != seen[0]["pool"]["resourceSliceCount"]
            pools.append(pool)
            if not pool.incomplete:
                self._fill(pool, driver, name, seen, current)
        return pools

    def _is_relevant(self, spec: Manifest) -> bool:
        per_device = spec.get("perDeviceNodeSelection")
        if has_groups(spec):
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
        return any(term_matches(term, self.node) for term in terms)

    def _fill(self, pool: OraclePool, driver: str, name: str, seen: list[Manifest], current: list[Manifest]) -> None:
        names = [device["name"] for spec in seen for device in spec.get("devices") or ()]
        pool.invalid = len(names) != len(set(names))
        partitions = "PartitionableDevices" in self.on
        sets = [one for spec in current for one in spec.get("sharedCounters") or () if partitions]
        totals = {
            (pool.index, one["name"], c): quantity(v["value"]) for one in sets for c, v in one["counters"].items()
        }
        set_names = {one["name"] for one in sets}
        pool.invalid |= len(set_names) != len(sets)
        every = [
            self._device(driver, name, pool.index, device, spec)
            for spec in current
            for device in spec.get("devices") or ()
        ]
        for device in every if partitions else ():
            entries = device.manifest.get("consumesCounters") or ()
            pool.invalid |= any(entry["counterSet"] not in set_names for entry in entries)
            pool.invalid |= any(key not in totals for key, _ in device.draws)
        if pool.invalid:
            return
        self.left |= totals
        for device in every if partitions else ():
            if device.dedicated or device.shared:
                for key, amount in device.draws:
                    self.left[key] -= amount
        visible: dict[str, OracleDevice] = {}
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

    def _device(self, driver: str, name: str, pool: int, manifest: Manifest, spec: Manifest) -> OracleDevice:
        key = (driver, name, manifest["name"])
        shareable = "ConsumableCapacity" in self.on and bool(manifest.get("allowMultipleAllocations"))
        shared = key in self.shared or key in self.used
        lists = "ListTypeAttributes" in self.on
        used = self.used.get(key, {})
        skips = bool(spec.get("skipNodeOperations"))
        return OracleDevice(driver, pool, manifest, shareable, key in self.dedicated, shared, used, lists, skips)

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
            own_requests = [options for options in self.requests if options and options[0].claim == number]
            if sum(min(slot.count for slot in options) for options in own_requests) > LIMIT:
                self.errors.add("limit")
        return self.errors

    def _options(self, claim: int, request: Manifest) -> list[Slot]:
        subs = request.get("firstAvailable") or ()
        if subs and "PrioritizedList" not in self.on:
            self.errors.add("gate")
        if subs:
            return [self._slot(claim, sub["name"], request["name"], sub) for sub in subs]
        return [self._slot(claim, request["name"], None, request["exactly"])]

    def _slot(self, claim: int, name: str, parent: str | None, spec: Manifest) -> Slot:
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
        names = set(MEANING)
        if "ConsumableCapacity" not in self.on:
            names.discard("device.allowMultipleAllocations")
        if not names.issuperset(expressions):
            self.errors.add("compile")
        slot = Slot(claim, name, parent, spec, bool(spec.get("adminAccess")), everything, 0, [])
        if spec.get("derivedAttributes"):
            self.errors.add("gate")
        if everything and any(pool.incomplete or pool.invalid for pool in self.pools):
            self.errors.add("all of a pool that is incomplete or invalid")
        if not self.errors:
            slot.candidates = list(self._candidates(slot, expressions))
        size = sum(device.size for device, _ in slot.candidates)
        slot.count = size if everything else spec.get("count", 1)
        return slot

    def _candidates(self, slot: Slot, expressions: list[str]) -> Iterator[tuple[OracleDevice, dict[str, Fraction]]]:
        requested = {name: quantity(text) for name, text in requested_amounts(slot.spec).items()}
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
                    # Upstream looks at no device in use, unless all are asked for or it does not matter.
                    taken = device.dedicated or (device.shared and not device.shareable)
                    self.failing |= slot.everything or slot.admin or not taken
                    continue
                amounts = self._amounts(device, requested)
                if amounts is not None:
                    yield device, amounts

    def _selected(self, device: OracleDevice, expressions: list[str]) -> bool:
        if expressions:
            for attribute in (device.manifest.get("attributes") or {}).values():
                if not list(typed_values(attribute)):
                    raise LookupError("unsupported attribute value")
                if attribute.get("version") == "1.02":
                    raise LookupError("no version")
        return all(MEANING[expression](device) for expression in expressions)

    def _amounts(self, device: OracleDevice, requested: Mapping[str, Fraction]) -> dict[str, Fraction] | None:
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
