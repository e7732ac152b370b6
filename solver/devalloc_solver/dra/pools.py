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
from devalloc_solver.dra.fields import FieldError
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
    def title(self) -> str:
        return f"{self.driver}/{self.name}"

    @property
    def has_binding_conditions(self) -> bool:
        return any(device.binding_conditions for one in self.slices for device in one.devices)


@dataclass(frozen=True, slots=True)
class Ignored:
    """A slice that is left out, and why; what it holds is as good as absent."""

    name: str
    why: str


def gather_pools(
    slices: Iterable[Manifest], node: Node, gates: frozenset[str]
) -> tuple[tuple[Pool, ...], tuple[Ignored, ...]]:
    """The pools that reach a node, those with binding conditions last, otherwise by driver and name.

    Raises AllocationError for a node selector that is none.
    """
    ignored: list[Ignored] = []
    near: dict[PoolId, list[Slice]] = defaultdict(list)
    far: dict[PoolId, list[Slice]] = defaultdict(list)
    elsewhere: list[Manifest] = []
    for content in slices:
        name = _spec(content).get("nodeName")
        if name and name != node.name:
            elsewhere.append(content)
            continue
        found = _read(content, ignored, gates)
        if found is None:
            continue
        partitions = found.per_device is not None or bool(found.counter_sets)
        if gate.PARTITIONABLE_DEVICES not in gates and partitions:
            far[found.pool_id].append(found)
        elif not found.reach.is_told and not found.per_device:
            ignored.append(Ignored(found.name, "says in no way known here which nodes reach it"))
            far[found.pool_id].append(found)
        else:
            (near if _reaches(node, found) else far)[found.pool_id].append(found)
    others = _Others(far, elsewhere, {*near}, ignored, gates)
    pools = [pool for key in near if (pool := _pool(key, near[key], others, gates)) is not None]
    pools.sort(key=lambda p: (p.has_binding_conditions, p.driver, p.name))
    return tuple(pools), tuple(sorted(ignored, key=lambda i: (i.name, i.why)))


def _spec(content: Manifest) -> Mapping[str, Any]:
    spec = content.get("spec")
    return spec if isinstance(spec, Mapping) else {}


def _read(content: Manifest, ignored: list[Ignored], gates: frozenset[str]) -> Slice | None:
    name = str((content.get("metadata") or {}).get("name") or "without name")
    try:
        found = read_slice(content)
    except SelectorError as error:
        raise AllocationError(f"slice {name}: failed to perform node selection: {error}; correct the slice") from None
    except FieldError as error:
        ignored.append(Ignored(name, str(error)))
        return None
    if any(device.uses_groups for device in found.devices):
        if gate.COMPATIBILITY_GROUPS in gates:
            raise AllocationError(
                f"slice {name}: spec.devices.consumesCounters.compatibilityGroups is an alpha feature "
                f"({gate.COMPATIBILITY_GROUPS}) that is not supported; leave the gate out, and the pool is skipped"
            )
        ignored.append(Ignored(name, f"uses compatibilityGroups, and {gate.COMPATIBILITY_GROUPS} is disabled"))
        return None
    return found


def _reaches(node: Node, found: Slice) -> bool:
    if found.per_device:
        return any(reaches(node, device.reach) for device in found.devices)
    return reaches(node, found.reach)


@dataclass(slots=True)
class _Others:
    """The slices that do not reach the node, read when somebody asks for those of a pool."""

    far: Mapping[PoolId, Sequence[Slice]]
    elsewhere: Sequence[Manifest]
    wanted: set[PoolId]
    ignored: list[Ignored]
    gates: frozenset[str]
    _by_pool: dict[PoolId, list[Manifest]] | None = None

    def of(self, key: PoolId, generation: int) -> tuple[bool, int, list[Slice]]:
        """(whether a newer generation exists, number of slices of this one, those with a say in counters)"""
        if self._by_pool is None:
            self._by_pool = defaultdict(list)
            for content in self.elsewhere:
                pool = _spec(content).get("pool") or {}
                if (name := (_spec(content).get("driver"), pool.get("name"))) in self.wanted:
                    self._by_pool[name].append(content)
        known = [found for found in self.far.get(key, ()) if found.generation >= generation]
        newer = any(found.generation > generation for found in known)
        count = len(known)
        for content in self._by_pool.get(key, ()):
            told = (_spec(content).get("pool") or {}).get("generation", 0)
            newer = newer or (isinstance(told, int) and told > generation)
            if told != generation:
                continue
            count += 1
            if _counts(content):
                found = _read(content, self.ignored, self.gates)
                known += [found] if found is not None else []
                count -= found is None
        return newer, count, known


def _counts(content: Manifest) -> bool:
    """Whether a slice has a say in counters."""
    spec = _spec(content)
    devices = spec.get("devices") or ()
    return bool(spec.get("sharedCounters")) or any(
        isinstance(device, Mapping) and device.get("consumesCounters") for device in devices
    )


def _pool(key: PoolId, near: Sequence[Slice], others: _Others, gates: frozenset[str]) -> Pool | None:
    """The pool of the newest slices that reach the node; None when a newer generation has left the node."""
    generation = max(found.generation for found in near)
    mine = sorted(
        (found for found in near if found.generation == generation),
        key=lambda found: (found.name, [device.name for device in found.devices]),
    )
    hidden: list[Slice] = []
    counts = {found.slice_count for found in mine}
    if counts != {len(mine)}:
        newer, count, hidden = others.of(key, generation)
        if newer:
            return None
        if counts != {len(mine) + count}:
            told = f"{len(mine) + count} of {max(counts)} slices of generation {generation} are there"
            return Pool(*key, State.INCOMPLETE, told, tuple(mine), (), {})
    if gate.PARTITIONABLE_DEVICES not in gates:
        why = _name_twice(mine)
        return Pool(*key, State.INVALID if why else State.COMPLETE, why, tuple(mine), (), {})
    counters: dict[tuple[str, str], int] = {}
    why = _name_twice(mine) or _read_counters((*mine, *hidden), counters)
    if why:
        return Pool(*key, State.INVALID, why, tuple(mine), (), {})
    devices = tuple(found for found in mine if found.devices)
    return Pool(*key, State.COMPLETE, "", devices, tuple(found for found in hidden if found.devices), counters)


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
