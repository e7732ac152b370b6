"""The pools that slices publish to a node: newest generations, their devices, their counters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from devalloc.api.device_records import Draws
from devalloc_solver.check.resource_k8s.quantities import UncountableAmount, to_nano

Manifest = Mapping[str, Any]
DeviceId = tuple[str, str, str]
"""driver, pool, device"""
CounterId = tuple[str, str, str, str]
"""driver, pool, counter set, counter"""
_TYPES = {"string": str, "int": int, "bool": bool}
"""of an attribute of one value"""
_UNUSUAL = frozenset(("taints", "bindingConditions", "bindingFailureConditions", "allowMultipleAllocations"))
"""Fields of devices that few have."""


class NodeDevice:
    """A device of a pool's newest generation, as its slice has it."""

    __slots__ = (
        "_draws",
        "_is_plain",
        "_is_simple",
        "driver",
        "id",
        "manifest",
        "place",
        "pool",
        "skips_operations",
    )

    def __init__(self, driver: str, pool: str, manifest: Manifest, place: Manifest, skips_operations: bool) -> None:
        """``place``: what says which nodes reach it, its slice's spec or itself; ``skips_operations``: whether its
        slice has skipNodeOperations, an alpha feature."""
        self.driver, self.pool, self.manifest, self.place = driver, pool, manifest, place
        self.skips_operations = skips_operations
        self.id: DeviceId = (driver, pool, manifest["name"])
        self._draws: tuple[tuple[CounterId, int], ...] | None = None
        self._is_plain: bool | None = None
        self._is_simple: bool | None = None

    @property
    def is_plain(self) -> bool:
        """Whether all that expressions read can be read: single values of the usual types, each under one name."""
        if self._is_plain is None:
            self._is_plain = _is_plain(self.manifest, f"{self.driver}/")
        return self._is_plain

    @property
    def is_ordinary(self) -> bool:
        """Whether nothing but selectors can keep it from a request that takes it whole and asks for no amounts."""
        return self.is_simple and "consumesCounters" not in self.manifest

    @property
    def is_simple(self) -> bool:
        """The same, but for what it draws on counters."""
        if self._is_simple is None:
            policies = (one.get("requestPolicy") for one in (self.manifest.get("capacity") or {}).values())
            self._is_simple = (
                self.is_plain and not self.skips_operations and _UNUSUAL.isdisjoint(self.manifest) and not any(policies)
            )
        return self._is_simple

    @property
    def draws(self) -> tuple[tuple[CounterId, int], ...]:
        if self._draws is None:
            self._draws = tuple(
                ((self.driver, self.pool, entry["counterSet"], counter), to_nano(amount["value"]))
                for entry in self.manifest.get("consumesCounters") or ()
                for counter, amount in (entry.get("counters") or {}).items()
            )
        return self._draws

    def values(self, name: str, *, lists: bool) -> frozenset[tuple[str, object]]:
        """The typed values of an attribute by its full name: none, one, or those of a list where `lists` count."""
        attributes = self.manifest.get("attributes") or {}
        domain, _, short = name.partition("/")
        attribute = attributes.get(name)
        if attribute is None and domain == self.driver:
            attribute = attributes.get(short)
        typed: set[tuple[str, object]] = set()
        for kind, value in (attribute or {}).items():
            if isinstance(value, list):
                typed |= {(kind.removesuffix("s"), member) for member in value if lists}
            elif value is not None:
                typed.add((kind, value))
        return frozenset(typed)


def _is_plain(manifest: Manifest, prefix: str) -> bool:
    attributes, capacity = manifest.get("attributes") or {}, manifest.get("capacity") or {}
    for name, content in attributes.items():
        if name.startswith(prefix) or len(content) != 1:
            return False
        for kind, value in content.items():
            if _TYPES.get(kind) is not type(value):
                return False
    try:
        for name, content in capacity.items():
            if name.startswith(prefix):
                return False
            if to_nano(content["value"]) < 0:
                return False
    except UncountableAmount:
        return False
    return True


@dataclass(slots=True, eq=False)
class NodePool:
    """A pool as the node sees it: the newest generation of which it reaches something."""

    problem: str | None = None
    """why nothing may be taken of it"""
    devices: dict[str, NodeDevice] = field(default_factory=dict)
    """those that the node reaches, by name"""
    every: list[NodeDevice] = field(default_factory=list)
    drawing: dict[str, dict[DeviceId, list[NodeDevice]]] = field(default_factory=dict)
    """counter set -> what draws on it, reached or not; several of one name only where the pool is invalid"""
    counters: dict[CounterId, int] = field(default_factory=dict)
    """totals, in nano units"""
    _published: dict[DeviceId, NodeDevice] | None = None
    _recorded: dict[DeviceId, Draws | None] = field(default_factory=dict)

    @property
    def published(self) -> dict[DeviceId, NodeDevice]:
        """The devices of its slices, reached or not."""
        if self._published is None:
            self._published = {device.id: device for device in self.every}
        return self._published

    def draws_to_record(self, device: NodeDevice) -> Draws | None:
        """What a claim that gets a device records of its draws; None if some of the counters are not there."""
        key = device.id
        if key in self._recorded:
            return self._recorded[key]
        total: dict[str, int] = {}
        for counter, amount in device.draws:
            name = "/".join(counter[2:])
            total[name] = total.get(name, 0) + amount
        is_there = all(counter in self.counters for counter, _ in device.draws)
        draws = tuple([(name, amount) for name, amount in sorted(total.items()) if amount > 0]) if is_there else None
        self._recorded[key] = draws
        return draws


class PublishedPools:
    """The pools of some slices, looked into when asked for."""

    def __init__(self, node: Manifest, slices: Iterable[Manifest], features: Container[str]) -> None:
        self.node = node
        self._partitions = "DRAPartitionableDevices" in features
        self._specs: dict[tuple[str, str], list[Manifest]] = defaultdict(list)
        for one in slices:
            spec = one.get("spec") or {}
            self._specs[spec.get("driver", ""), (spec.get("pool") or {}).get("name", "")].append(spec)
        self._pools: dict[tuple[str, str], NodePool | None] = {}

    def pool(self, driver: str, name: str) -> NodePool | None:
        """The pool, or None when the node reaches nothing of it."""
        key = (driver, name)
        if key not in self._pools:
            self._pools[key] = self._look(*key)
        return self._pools[key]

    def device_names(self, driver: str, name: str) -> set[str] | None:
        """The devices of a pool that any node publishes, in its newest generation; None while slices are missing."""
        specs = self._specs.get((driver, name), [])
        newest: dict[object, int] = {}
        for spec in specs:
            node = spec.get("nodeName") or None
            newest[node] = max(newest.get(node, 0), _generation(spec))
        current = [spec for spec in specs if _generation(spec) == newest[spec.get("nodeName") or None]]
        if any((spec["pool"].get("resourceSliceCount") or 0) > len(current) for spec in current):
            return None
        return {manifest["name"] for spec in current for manifest in spec.get("devices") or ()}

    def pools(self) -> Iterator[NodePool]:
        """All pools of which the node reaches something."""
        for key in sorted(self._specs):
            if (pool := self.pool(*key)) is not None:
                yield pool

    def reaches(self, selection: Manifest) -> bool:
        """Whether the node is of a slice, or of a device that says so itself."""
        if selection.get("nodeName"):
            return bool(selection["nodeName"] == self.node["metadata"]["name"])
        if selection.get("allNodes"):
            return True
        if not self.node["metadata"]["name"]:
            return False  # every node, whatever its labels: what a selector selects is unknown
        terms = (selection.get("nodeSelector") or {}).get("nodeSelectorTerms") or []
        return len(terms) == 1 and _is_selected(terms[0], self.node["metadata"])

    def _look(self, driver: str, name: str) -> NodePool | None:
        specs = self._specs.get((driver, name), [])
        relevant = [spec for spec in specs if self._is_relevant(spec)]
        if not relevant:
            return None
        newest = max(_generation(spec) for spec in relevant)
        current = [spec for spec in specs if _generation(spec) == newest]
        seen = [spec for spec in relevant if _generation(spec) == newest]
        wanted = seen[0]["pool"].get("resourceSliceCount") or 0
        if len(seen) == wanted:
            current = seen
        elif any(_generation(spec) > newest for spec in specs):
            return None  # the driver is about to replace it with slices that are none of the node's
        pool = NodePool()
        for spec in current:
            own, skips = bool(spec.get("perDeviceNodeSelection")), bool(spec.get("skipNodeOperations"))
            for manifest in spec.get("devices") or ():
                pool.every.append(NodeDevice(driver, name, manifest, manifest if own else spec, skips))
        count = len([spec for spec in current if not _has_groups(spec)])
        if count != wanted:
            pool.problem = f"is incomplete: {count} of {wanted} slices"
            return pool
        names = [manifest["name"] for spec in seen for manifest in spec.get("devices") or ()]
        if len(names) != len(set(names)):
            pool.problem = "is invalid: it has a device twice"
        if self._partitions:
            self._count(pool, driver, name, current)
        reached: dict[int, bool] = {}
        for device in pool.every:
            if id(device.place) not in reached:
                reached[id(device.place)] = self.reaches(device.place)
            needs_name = not self.node["metadata"]["name"] and device.manifest.get("bindsToNode")
            if reached[id(device.place)] and not needs_name:
                pool.devices.setdefault(device.id[2], device)
        return pool

    def _is_relevant(self, spec: Manifest) -> bool:
        own = spec.get("perDeviceNodeSelection")
        if _has_groups(spec) or (not self._partitions and (own is not None or spec.get("sharedCounters"))):
            return False
        if own:
            return any(self.reaches(device) for device in spec.get("devices") or ())
        return self.reaches(spec)

    def _count(self, pool: NodePool, driver: str, name: str, current: list[Manifest]) -> None:
        sets = [one for spec in current for one in spec.get("sharedCounters") or ()]
        set_names = {one["name"] for one in sets}
        if len(set_names) != len(sets):
            pool.problem = "is invalid: it has a counter set twice"
        for one in sets:
            for counter, amount in (one.get("counters") or {}).items():
                pool.counters[driver, name, one["name"], counter] = to_nano(amount["value"])
        for device in pool.every:
            entries = device.manifest.get("consumesCounters")
            if not entries:
                continue
            for name_of_set in {entry["counterSet"] for entry in entries}:
                pool.drawing.setdefault(name_of_set, {}).setdefault(device.id, []).append(device)
            lost = [entry["counterSet"] for entry in entries if entry["counterSet"] not in set_names]
            lost += [counter[3] for counter, _ in device.draws if counter not in pool.counters]
            if lost:
                pool.problem = f"is invalid: {device.manifest['name']} draws on {lost[0]}, which it does not have"


def _generation(spec: Manifest) -> int:
    return int(spec["pool"].get("generation") or 0)


def _has_groups(spec: Manifest) -> bool:
    """Compatibility groups are an alpha feature: a slice that has any is not seen."""
    devices = spec.get("devices") or ()
    return any(entry.get("compatibilityGroups") for device in devices for entry in device.get("consumesCounters") or ())


def _is_selected(term: Manifest, metadata: Manifest) -> bool:
    labels = metadata.get("labels") or {}
    verdicts = [_requirement_holds(one, labels.get(one["key"])) for one in term.get("matchExpressions") or ()]
    fields = {"metadata.name": metadata["name"]}
    verdicts += [_requirement_holds(one, fields.get(one["key"])) for one in term.get("matchFields") or ()]
    return bool(verdicts) and all(verdicts)


def _requirement_holds(requirement: Manifest, value: str | None) -> bool:
    operator, values = requirement["operator"], requirement.get("values") or ()
    if operator in ("In", "NotIn"):
        return (value in values) is (operator == "In")
    if operator in ("Exists", "DoesNotExist"):
        return (value is not None) is (operator == "Exists")
    try:
        difference = int(value or "") - int("".join(values))
    except ValueError:
        return False
    return difference > 0 if operator == "Gt" else difference < 0
