"""Pools as nodes see them: which slices count, and which pools are incomplete or invalid.

A pool's devices come in slices; a newer generation replaces an older one. A node judges a pool by the slices that
reach it, and looks at the others only when these alone are not all: slices of other nodes cost nothing before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from devalloc_solver.dialects.resource_k8s import feature_gates as gate
from devalloc_solver.dialects.resource_k8s.decode import read_slice
from devalloc_solver.dialects.resource_k8s.fields import AllocationError, FieldError, SelectorError, short_text
from devalloc_solver.dialects.resource_k8s.slices import (
    UNNAMED_NODE,
    ClusterNode,
    NodeAccess,
    ResourceSlice,
    is_reachable,
)
from devalloc_solver.problem.ordering import natural_key

PoolId = tuple[str, str]
Manifest = Mapping[str, Any]


class PoolStatus(Enum):
    COMPLETE = "complete"
    INCOMPLETE = "incomplete"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True, eq=False)
class ResourcePool:
    """A pool of devices, as a node sees it."""

    driver: str
    name: str
    generation: int
    state: PoolStatus
    why: str
    """what is wrong with it; empty when it is complete"""
    slices: tuple[ResourceSlice, ...]
    """with devices that reach the node, in order of name"""
    hidden: tuple[ResourceSlice, ...]
    """with devices that do not reach it, as far as they count: they draw from the same counters"""
    counters: Mapping[tuple[str, str], int]
    """(counter set, counter) -> nano units there are"""
    is_of_network: bool = False
    """whether a slice of it, with devices or without, names no node"""

    @property
    def id(self) -> PoolId:
        return self.driver, self.name

    @property
    def title(self) -> str:
        return f"{self.driver}/{self.name}"

    @property
    def is_complete(self) -> bool:
        return self.state is PoolStatus.COMPLETE

    @property
    def fault(self) -> str:
        """Why none of its devices counts; "" if they do."""
        return "" if self.is_complete else f"pool {self.name} is {self.state.value} ({self.why})"

    @property
    def has_binding_conditions(self) -> bool:
        return any(one.order[0] for one in self.slices)


def faults_by_driver(left_out: Mapping[str, str], pools: Iterable[ResourcePool]) -> dict[str, str]:
    """What else than devices shows that drivers published something wrong: slices that are ``left_out``, or pools of
    which no device is there."""
    faults, broken = {**left_out}, [pool for pool in pools if pool.fault]
    with_devices = {pool.driver for pool in broken if any(one.devices for one in pool.slices)}
    for pool in broken:
        if pool.driver not in left_out and pool.driver not in with_devices:
            faults[pool.driver] = min(pool.fault, faults.get(pool.driver, pool.fault))
    return faults


@dataclass(frozen=True, slots=True, eq=False)
class PoolView:
    """A pool, and the nodes that see it so."""

    pool: ResourcePool
    nodes: tuple[ClusterNode, ...]


@dataclass(frozen=True, slots=True)
class IgnoredObject:
    """A slice that is left out, or a claim of which only what it holds counts, and why."""

    name: str
    why: str


@dataclass(slots=True)
class _SliceEntry:
    """A slice as it was given, and what was read of it."""

    content: Manifest
    resource_slice: ResourceSlice | None = None
    is_read: bool = False


class SliceBook:
    """The slices of a cluster, sorted by the node that they name; read at the first use."""

    def __init__(
        self, slices: Iterable[Manifest], gates: frozenset[str], read: Mapping[int, ResourceSlice] | None = None
    ) -> None:
        """``read``: slices that were read before, by the id of their manifest."""
        self._gates = gates
        self._read_before = read or {}
        self._entries = [_SliceEntry(content) for content in slices]
        self._local: dict[str, list[_SliceEntry]] = defaultdict(list)
        self._shared: list[_SliceEntry] = []
        self._by_pool: dict[object, list[_SliceEntry]] | None = None
        self._ignored: set[IgnoredObject] = set()
        self._compared: set[PoolId] = set()
        """pools whose devices were compared with those in use"""
        for entry in self._entries:
            name = _spec(entry.content).get("nodeName")
            (self._local[name] if isinstance(name, str) and name else self._shared).append(entry)
        self._network_pools = {_pool_id(entry.content) for entry in self._shared}

    @property
    def node_names(self) -> list[str]:
        """The nodes that slices or their devices name."""
        return sorted({*self._local} | {r.node_name for r in self._shared_reaches() if r.node_name is not None})

    @property
    def selected_names(self) -> frozenset[str]:
        """The nodes that selectors select by nothing but their names."""
        return frozenset().union(*(reach.selected_names for reach in self._shared_reaches()))

    @property
    def reaches_any_node(self) -> bool:
        """Whether a slice or device says that all nodes reach it."""
        return any(reach.all_nodes for reach in self._shared_reaches())

    def _shared_reaches(self) -> Iterator[NodeAccess]:
        """What slices that do not name their node say of nodes, and their devices."""
        for entry in self._shared:
            resource_slice = self._read(entry)
            if resource_slice is not None:
                yield resource_slice.spec
                yield from resource_slice.devices if resource_slice.spec.per_device else ()

    def unreached(self, nodes: Sequence[ClusterNode]) -> tuple[int, int]:
        """(devices that select nodes and are selected by none of these, slices that they are of)"""
        reached: dict[int, bool] = {}
        """by the identity of what says so"""
        devices, slices = 0, 0
        for resource_slice in filter(None, map(self._read, self._shared)):
            spec, before = resource_slice.spec, devices
            for device in resource_slice.devices:
                reach: NodeAccess = device if spec.per_device else spec
                if reach.node_selector is not None:
                    if id(reach) not in reached:
                        reached[id(reach)] = any(is_reachable(node, reach) for node in nodes)
                    devices += not reached[id(reach)]
            slices += devices > before
        return devices, slices

    @property
    def ignored(self) -> tuple[IgnoredObject, ...]:
        """The slices that were left out so far."""
        return tuple(sorted(self._ignored, key=lambda i: (i.name, i.why)))

    def seen(self, pools: Iterable[ResourcePool]) -> list[Manifest]:
        """The manifests of these pools, without those that were left out; of one that was not read, its position."""
        pool_ids = {(pool.driver, pool.name) for pool in pools}
        return [
            entry.content if entry.is_read else _place_of(entry.content, self._compared)
            for entry in self._entries
            if (entry.resource_slice is not None or not entry.is_read) and _pool_id(entry.content) in pool_ids
        ]

    def pools(self, node: ClusterNode) -> tuple[ResourcePool, ...]:
        """The pools that reach a node, those with binding conditions last, otherwise by driver and name.

        Raises AllocationError for a node selector that is none.
        """
        near: dict[PoolId, list[ResourceSlice]] = defaultdict(list)
        for entry in (*self._local.get(node.name, ()), *self._shared):
            resource_slice = self._read(entry)
            if resource_slice is not None and self._is_near(node, resource_slice):
                near[resource_slice.pool_id].append(resource_slice)
        pools = [pool for key in near if (pool := self._pool(key, near[key])) is not None]
        return tuple(sorted(pools, key=lambda p: (p.has_binding_conditions, p.driver, p.name)))

    def _read(self, entry: _SliceEntry) -> ResourceSlice | None:
        if not entry.is_read:
            entry.resource_slice, entry.is_read = self._decode(entry.content), True
        return entry.resource_slice

    def _decode(self, content: Manifest) -> ResourceSlice | None:
        name = name_of(content) or "without name"
        try:
            resource_slice = self._read_before.get(id(content)) or read_slice(content)
        except SelectorError as error:
            message = f"slice {name}: failed to perform node selection: {error}; correct the slice"
            raise AllocationError(message) from None
        except FieldError as error:
            self._ignored.add(IgnoredObject(name, str(error)))
            return None
        if not resource_slice.uses_groups:
            return resource_slice
        if gate.COMPATIBILITY_GROUPS in self._gates:
            raise AllocationError(
                f"slice {name}: spec.devices.consumesCounters.compatibilityGroups is an alpha feature "
                f"({gate.COMPATIBILITY_GROUPS}) that is not supported; leave the gate out, and the pool is skipped"
            )
        self._ignored.add(IgnoredObject(name, f"uses compatibilityGroups, and {gate.COMPATIBILITY_GROUPS} is disabled"))
        return None

    def _is_near(self, node: ClusterNode, resource_slice: ResourceSlice) -> bool:
        """Whether a slice is for the node, as far as it can be told."""
        spec = resource_slice.spec
        partitions = spec.per_device is not None or bool(spec.counter_sets)
        if partitions and gate.PARTITIONABLE_DEVICES not in self._gates:
            return False
        if spec.per_device:
            return any(is_reachable(node, device) for device in spec.devices)
        if not spec.is_specified:
            self._ignored.add(
                IgnoredObject(resource_slice.name, "does not select the nodes that reach it in any supported way")
            )
        return is_reachable(node, spec)

    def _pool(self, key: PoolId, near: Sequence[ResourceSlice]) -> ResourcePool | None:
        """The pool of the newest slices that reach a node; None when a newer generation has left the node."""
        generation = max(resource_slice.spec.pool.generation for resource_slice in near)
        newest = [resource_slice for resource_slice in near if resource_slice.spec.pool.generation == generation]
        if len(newest) > 1:
            newest.sort(key=lambda one: (*one.order, [device.name for device in one.devices]))
        hidden: list[ResourceSlice] = []
        of_network = key in self._network_pools
        counts = {resource_slice.spec.pool.slice_count for resource_slice in newest}
        if counts != {len(newest)}:
            newer, total, hidden = self._others(key, generation, newest)
            if newer:
                return None
            if counts != {total}:
                message = f"{total} of {max(counts)} slices of generation {generation} are there"
                if total > max(counts):
                    message = f"resourceSliceCount says {max(counts)}, but there are {total} of generation {generation}"
                if len(counts) > 1:
                    numbers = ", ".join(map(str, sorted(counts)))
                    message = f"slices of generation {generation} disagree about resourceSliceCount: {numbers}"
                return ResourcePool(*key, generation, PoolStatus.INCOMPLETE, message, tuple(newest), (), {}, of_network)
        counters: dict[tuple[str, str], int] = {}
        why = _duplicate_device(newest)
        if not why and gate.PARTITIONABLE_DEVICES in self._gates:
            why = _read_counters((*newest, *hidden), counters)
        if why:
            return ResourcePool(*key, generation, PoolStatus.INVALID, why, tuple(newest), (), {}, of_network)
        seen = _with_devices(newest), _with_devices(hidden)
        return ResourcePool(*key, generation, PoolStatus.COMPLETE, "", *seen, counters, of_network)

    def _others(
        self, key: PoolId, generation: int, newest: Sequence[ResourceSlice]
    ) -> tuple[bool, int, list[ResourceSlice]]:
        """(whether a newer generation exists, number of slices of this one, those besides with a say in counters)

        A slice of another node that has none is counted and not read.
        """
        seen = {id(resource_slice) for resource_slice in newest}
        total, hidden = 0, []
        for entry in self._of_pool(key):
            number = _generation(entry.content)
            if number != generation:
                if number > generation:
                    return True, 0, []
                continue
            if not entry.is_read and not _counts(entry.content):
                total += 1
            elif (resource_slice := self._read(entry)) is not None:
                total += 1
                spec = resource_slice.spec
                says = spec.counter_sets or any(device.consumes for device in spec.devices)
                hidden += [resource_slice] if says and id(resource_slice) not in seen else []
        return False, total, hidden

    def _of_pool(self, key: PoolId) -> Sequence[_SliceEntry]:
        if self._by_pool is None:
            self._by_pool = defaultdict(list)
            for entry in self._entries:
                self._by_pool[_pool_id(entry.content)].append(entry)
        return self._by_pool.get(key, ())

    def absent_devices(self, key: PoolId, names: Collection[str]) -> set[str]:
        """Those of the names that no slice of a pool has, of the newest generation of its node; none while slices are
        missing."""
        self._compared.add(key)
        newest: dict[object, int] = {}
        for entry in self._of_pool(key):
            node = _spec(entry.content).get("nodeName") or None
            newest[node] = max(newest.get(node, 0), _generation(entry.content))
        contents = [
            entry.content
            for entry in self._of_pool(key)
            if _generation(entry.content) == newest[_spec(entry.content).get("nodeName") or None]
        ]
        counts = [_pool_field(content, "resourceSliceCount") for content in contents]
        if any(isinstance(count, int) and count > len(contents) for count in counts):
            return set()
        return set(names).difference(*map(_device_names, contents))


def name_of(content: Manifest) -> str:
    """The name of an object; empty where it has none."""
    metadata = content.get("metadata")
    return short_text(metadata.get("name") or "") if isinstance(metadata, Mapping) else ""


def _spec(content: Manifest) -> Mapping[str, Any]:
    spec = content.get("spec")
    return spec if isinstance(spec, Mapping) else {}


def _place_of(content: Manifest, named: Container[PoolId]) -> Manifest:
    """A slice of another node without its content, which was not read; with the names of its devices for some pools."""
    spec = _spec(content)
    pool = {"name": _pool_field(content, "name"), "generation": _generation(content)}
    place = {"driver": spec.get("driver"), "nodeName": spec.get("nodeName"), "pool": pool}
    if _pool_id(content) in named:
        place["devices"] = [{"name": name} for name in _device_names(content)]
        pool["resourceSliceCount"] = _pool_field(content, "resourceSliceCount")
    return {"spec": place}


def _device_names(content: Manifest) -> list[str]:
    devices = _spec(content).get("devices")
    named = (one.get("name") for one in (devices if isinstance(devices, list) else ()) if isinstance(one, Mapping))
    return [name for name in named if isinstance(name, str)]


def _pool_id(content: Manifest) -> tuple[str, str]:
    return short_text(_spec(content).get("driver")), short_text(_pool_field(content, "name"))


def _generation(content: Manifest) -> int:
    number = _pool_field(content, "generation")
    return number if isinstance(number, int) else 0


def _pool_field(content: Manifest, name: str) -> Any:
    pool = _spec(content).get("pool")
    return pool.get(name) if isinstance(pool, Mapping) else None


def _with_devices(slices: Iterable[ResourceSlice]) -> tuple[ResourceSlice, ...]:
    return tuple(resource_slice for resource_slice in slices if resource_slice.devices)


def _counts(content: Manifest) -> bool:
    """Whether a slice has a say in counters."""
    spec = _spec(content)
    devices = spec.get("devices")
    devices = devices if isinstance(devices, list) else ()
    return bool(spec.get("sharedCounters")) or any(
        isinstance(device, Mapping) and device.get("consumesCounters") for device in devices
    )


def _duplicate_device(slices: Iterable[ResourceSlice]) -> str:
    names = [device.name for resource_slice in slices for device in resource_slice.devices]
    seen: set[str] = set()
    for name in names if len({*names}) < len(names) else ():
        if name in seen:
            return f"two devices are named {name}"
        seen.add(name)
    return ""


def _read_counters(slices: Sequence[ResourceSlice], counters: dict[tuple[str, str], int]) -> str:
    """Fill in the counters of a pool; what is wrong with them, or nothing."""
    sets: set[str] = set()
    for own in (own for resource_slice in slices for own in resource_slice.spec.counter_sets):
        if own.name in sets:
            return f"two counter sets are named {own.name}"
        sets.add(own.name)
        counters |= {(own.name, name): counter.value.nano for name, counter in own.counters.items()}
    for device in (device for one in slices for device in one.devices if device.consumes):
        for use in device.consumes:
            if use.counter_set not in sets:
                return f"device {device.name} uses the counter set {use.counter_set}, which does not exist"
            for counter in use.counters:
                if (use.counter_set, counter) not in counters:
                    return f"device {device.name} uses the counter {use.counter_set}/{counter}, which does not exist"
    return ""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What all nodes see."""

    nodes: Mapping[str, ClusterNode]
    views: tuple[PoolView, ...]
    broken: Mapping[str, ResourcePool]
    """node -> a pool of it that is incomplete or invalid"""
    unreached: UnreachedDevices


@dataclass(frozen=True, slots=True)
class UnreachedDevices:
    """Devices that select nodes, and reach none of those of the call."""

    devices: int = 0
    slices: int = 0
    has_nodes: bool = True
    """whether the call has Node objects"""

    @property
    def why(self) -> str:
        """What is missing; "" if nothing is."""
        if not self.devices:
            return ""
        devices = f"{self.devices} {'device' if self.devices == 1 else 'devices'}"
        slices = f"{self.slices} {'slice' if self.slices == 1 else 'slices'}"
        select = "selects" if self.devices == 1 else "select"
        if self.has_nodes:
            return f"{devices} of {slices} {select} none of the Nodes; ask who runs the driver to correct it"
        return f"{devices} of {slices} {select} Nodes, and none is in the input; add the Node objects"


def view_cluster(book: SliceBook, nodes: Mapping[str, ClusterNode], names: Iterable[str] = ()) -> ClusterView:
    """See the pools from every node: the objects ``nodes``, other ``names``, and those that slices name.

    Without Node objects, the names in node selectors count too; without any name, one node without a name stands for
    all: it reaches what every node reaches. Raises AllocationError for a slice whose nodes cannot be told.
    """
    listed = {*names, *book.node_names, *(() if nodes else book.selected_names)}
    named = {**{name: ClusterNode(name) for name in listed}, **nodes}
    if not named and book.reaches_any_node:
        named = {UNNAMED_NODE.name: UNNAMED_NODE}
    order = sorted(named, key=natural_key)
    views: list[PoolView] = []
    shared: dict[object, list[tuple[ResourcePool, ClusterNode]]] = {}
    broken: dict[str, ResourcePool] = {}
    for name in order:
        for pool in book.pools(named[name]):
            if pool.state is not PoolStatus.COMPLETE:
                broken.setdefault(name, pool)
            if _is_local_to_one_node(pool):
                views.append(PoolView(pool, (named[name],)))
            else:
                shared.setdefault((pool.driver, pool.name, pool.generation, pool.state), []).append((pool, named[name]))
    views += [_merged_pool(sightings) for sightings in shared.values()]
    position = {name: number for number, name in enumerate(order)}
    views.sort(key=lambda v: (v.pool.has_binding_conditions, v.pool.driver, v.pool.name, position[v.nodes[0].name]))
    unreached = UnreachedDevices(*book.unreached([*named.values()]), has_nodes=bool(nodes))
    return ClusterView({name: named[name] for name in order}, tuple(views), broken, unreached)


def _is_local_to_one_node(pool: ResourcePool) -> bool:
    """Whether all devices that have a say are of one node."""
    return not pool.hidden and all(resource_slice.spec.node_name is not None for resource_slice in pool.slices)


def _merged_pool(sightings: list[tuple[ResourcePool, ClusterNode]]) -> PoolView:
    """One pool of what several nodes see of it."""
    first = sightings[0][0]
    near = _distinct_slices(one for pool, _ in sightings for one in pool.slices)
    near_ids = {id(one) for one in near}
    hidden = _distinct_slices(one for pool, _ in sightings for one in pool.hidden if id(one) not in near_ids)
    counters = {key: nano for pool, _ in sightings for key, nano in pool.counters.items()}
    pool = replace(first, slices=near, hidden=hidden, counters=counters)
    return PoolView(pool, tuple(node for _, node in sightings))


def _distinct_slices(slices: Iterable[ResourceSlice]) -> tuple[ResourceSlice, ...]:
    return tuple(sorted({id(one): one for one in slices}.values(), key=lambda one: one.order))
