"""Pools as one node sees them: which slices count, and which pools are incomplete or invalid.

A pool's devices come in slices; a newer generation replaces an older one. A node judges a pool by the slices that
reach it, and looks at the others only when these alone are not all: slices of other nodes cost nothing before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from devalloc_solver.dra import features as gate
from devalloc_solver.dra.decode import read_slice
from devalloc_solver.dra.errors import AllocationError
from devalloc_solver.dra.fields import FieldError, shown
from devalloc_solver.dra.nodes import SelectorError, reaches
from devalloc_solver.dra.objects import Node, Slice

PoolId = tuple[str, str]
Manifest = Mapping[str, Any]


class State(Enum):
    COMPLETE = "complete"
    INCOMPLETE = "incomplete"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """A pool of devices, as a node sees it."""

    driver: str
    name: str
    generation: int
    state: State
    why: str
    """what is wrong with it; empty when it is complete"""
    slices: tuple[Slice, ...]
    """with devices that reach the node, in order of name"""
    hidden: tuple[Slice, ...]
    """with devices that do not reach it, as far as they count: they draw from the same counters"""
    counters: Mapping[tuple[str, str], int]
    """(counter set, counter) -> nano units there are"""

    @property
    def id(self) -> PoolId:
        return self.driver, self.name

    @property
    def title(self) -> str:
        return f"{self.driver}/{self.name}"

    @property
    def is_complete(self) -> bool:
        return self.state is State.COMPLETE

    @property
    def has_binding_conditions(self) -> bool:
        return any(device.binding_conditions for one in self.slices for device in one.devices)


@dataclass(frozen=True, slots=True)
class Ignored:
    """A slice that is left out, or a claim of which only what it holds counts, and why."""

    name: str
    why: str


@dataclass(slots=True)
class _Entry:
    """A slice as it was given, and what was read of it."""

    content: Manifest
    found: Slice | None = None
    is_read: bool = False


class SliceBook:
    """The slices of a cluster, sorted by the node that they name; read when somebody asks for them."""

    def __init__(
        self, slices: Iterable[Manifest], gates: frozenset[str], read: Mapping[int, Slice] | None = None
    ) -> None:
        """``read``: slices that were read before, by the id of their manifest."""
        self._gates = gates
        self._known = read or {}
        self._entries = [_Entry(content) for content in slices]
        self._local: dict[str, list[_Entry]] = defaultdict(list)
        self._shared: list[_Entry] = []
        self._by_pool: dict[object, list[_Entry]] | None = None
        self._ignored: set[Ignored] = set()
        for entry in self._entries:
            name = _spec(entry.content).get("nodeName")
            (self._local[name] if isinstance(name, str) and name else self._shared).append(entry)

    @property
    def node_names(self) -> list[str]:
        """The nodes that slices or their devices name."""
        devices = (device for entry in self._shared if (s := self._read(entry)) is not None for device in s.devices)
        return sorted({*self._local} | {d.reach.node_name for d in devices if d.reach.node_name is not None})

    @property
    def ignored(self) -> tuple[Ignored, ...]:
        """The slices that were left out so far."""
        return tuple(sorted(self._ignored, key=lambda i: (i.name, i.why)))

    def seen(self, pools: Iterable[Pool]) -> list[Manifest]:
        """The manifests of these pools, without those that were left out; of one that nobody read, where it is."""
        known = {(pool.driver, pool.name) for pool in pools}
        return [
            entry.content if entry.is_read else _place_of(entry.content)
            for entry in self._entries
            if (entry.found is not None or not entry.is_read) and _pool_id(entry.content) in known
        ]

    def pools(self, node: Node) -> tuple[Pool, ...]:
        """The pools that reach a node, those with binding conditions last, otherwise by driver and name.

        Raises AllocationError for a node selector that is none.
        """
        near: dict[PoolId, list[Slice]] = defaultdict(list)
        for entry in (*self._local.get(node.name, ()), *self._shared):
            found = self._read(entry)
            if found is not None and self._is_near(node, found):
                near[found.pool_id].append(found)
        pools = [pool for key in near if (pool := self._pool(key, near[key])) is not None]
        return tuple(sorted(pools, key=lambda p: (p.has_binding_conditions, p.driver, p.name)))

    def _read(self, entry: _Entry) -> Slice | None:
        if not entry.is_read:
            entry.found, entry.is_read = self._decode(entry.content), True
        return entry.found

    def _decode(self, content: Manifest) -> Slice | None:
        name = name_of(content) or "without name"
        try:
            found = self._known.get(id(content)) or read_slice(content)
        except SelectorError as error:
            told = f"slice {name}: failed to perform node selection: {error}; correct the slice"
            raise AllocationError(told) from None
        except FieldError as error:
            self._ignored.add(Ignored(name, str(error)))
            return None
        if not any(device.uses_groups for device in found.devices):
            return found
        if gate.COMPATIBILITY_GROUPS in self._gates:
            raise AllocationError(
                f"slice {name}: spec.devices.consumesCounters.compatibilityGroups is an alpha feature "
                f"({gate.COMPATIBILITY_GROUPS}) that is not supported; leave the gate out, and the pool is skipped"
            )
        self._ignored.add(Ignored(name, f"uses compatibilityGroups, and {gate.COMPATIBILITY_GROUPS} is disabled"))
        return None

    def _is_near(self, node: Node, found: Slice) -> bool:
        """Whether a slice is for the node, as far as it can be told."""
        partitions = found.per_device is not None or bool(found.counter_sets)
        if partitions and gate.PARTITIONABLE_DEVICES not in self._gates:
            return False
        if found.per_device:
            return any(reaches(node, device.reach) for device in found.devices)
        if not found.reach.is_told:
            self._ignored.add(Ignored(found.name, "says in no way known here which nodes reach it"))
        return reaches(node, found.reach)

    def _pool(self, key: PoolId, near: Sequence[Slice]) -> Pool | None:
        """The pool of the newest slices that reach a node; None when a newer generation has left the node."""
        generation = max(found.generation for found in near)
        mine = sorted(
            (found for found in near if found.generation == generation),
            key=lambda found: (found.name, [device.name for device in found.devices]),
        )
        hidden: list[Slice] = []
        counts = {found.slice_count for found in mine}
        if counts != {len(mine)}:
            newer, total, hidden = self._others(key, generation, mine)
            if newer:
                return None
            if counts != {total}:
                told = f"{total} of {max(counts)} slices of generation {generation} are there"
                return Pool(*key, generation, State.INCOMPLETE, told, tuple(mine), (), {})
        counters: dict[tuple[str, str], int] = {}
        why = _name_twice(mine)
        if not why and gate.PARTITIONABLE_DEVICES in self._gates:
            why = _read_counters((*mine, *hidden), counters)
        if why:
            return Pool(*key, generation, State.INVALID, why, tuple(mine), (), {})
        return Pool(*key, generation, State.COMPLETE, "", _with_devices(mine), _with_devices(hidden), counters)

    def _others(self, key: PoolId, generation: int, mine: Sequence[Slice]) -> tuple[bool, int, list[Slice]]:
        """(whether a newer generation exists, number of slices of this one, those besides with a say in counters)

        A slice of another node that has none is counted and not read.
        """
        if self._by_pool is None:
            self._by_pool = defaultdict(list)
            for entry in self._entries:
                self._by_pool[_pool_id(entry.content)].append(entry)
        known = {id(found) for found in mine}
        total, hidden = 0, []
        for entry in self._by_pool[key]:
            told = _pool_field(entry.content, "generation")
            told = told if isinstance(told, int) else 0
            if told != generation:
                if told > generation:
                    return True, 0, []
                continue
            if not entry.is_read and not _counts(entry.content):
                total += 1
            elif (found := self._read(entry)) is not None:
                total += 1
                says = found.counter_sets or any(device.consumes for device in found.devices)
                hidden += [found] if says and id(found) not in known else []
        return False, total, hidden


def name_of(content: Manifest) -> str:
    """The name of an object; empty where it has none."""
    metadata = content.get("metadata")
    return shown(metadata.get("name") or "") if isinstance(metadata, Mapping) else ""


def _spec(content: Manifest) -> Mapping[str, Any]:
    spec = content.get("spec")
    return spec if isinstance(spec, Mapping) else {}


def _place_of(content: Manifest) -> Manifest:
    """A slice of another node without what is in it, which nobody has looked into."""
    spec, generation = _spec(content), _pool_field(content, "generation")
    number = generation if isinstance(generation, int) else 0
    pool = {"name": _pool_field(content, "name"), "generation": number}
    return {"spec": {"driver": spec.get("driver"), "nodeName": spec.get("nodeName"), "pool": pool}}


def _pool_id(content: Manifest) -> tuple[str, str]:
    return shown(_spec(content).get("driver")), shown(_pool_field(content, "name"))


def _pool_field(content: Manifest, name: str) -> Any:
    pool = _spec(content).get("pool")
    return pool.get(name) if isinstance(pool, Mapping) else None


def _with_devices(slices: Iterable[Slice]) -> tuple[Slice, ...]:
    return tuple(found for found in slices if found.devices)


def _counts(content: Manifest) -> bool:
    """Whether a slice has a say in counters."""
    spec = _spec(content)
    devices = spec.get("devices")
    devices = devices if isinstance(devices, list) else ()
    return bool(spec.get("sharedCounters")) or any(
        isinstance(device, Mapping) and device.get("consumesCounters") for device in devices
    )


def _name_twice(slices: Iterable[Slice]) -> str:
    seen: set[str] = set()
    for device in (device for found in slices for device in found.devices):
        if device.name in seen:
            return f"two devices are named {device.name}"
        seen.add(device.name)
    return ""


def _read_counters(slices: Sequence[Slice], counters: dict[tuple[str, str], int]) -> str:
    """Fill in the counters of a pool; what is wrong with them, or nothing."""
    sets: set[str] = set()
    for name, members in (entry for found in slices for entry in found.counter_sets):
        if name in sets:
            return f"two counter sets are named {name}"
        sets.add(name)
        counters |= {(name, counter): amount.nano for counter, amount in members.items()}
    for device in (device for found in slices for device in found.devices):
        for use in device.consumes:
            if use.counter_set not in sets:
                return f"device {device.name} consumes of the counter set {use.counter_set}, which does not exist"
            for counter in use.counters:
                if (use.counter_set, counter) not in counters:
                    return (
                        f"device {device.name} consumes the counter {use.counter_set}/{counter}, which does not exist"
                    )
    return ""
