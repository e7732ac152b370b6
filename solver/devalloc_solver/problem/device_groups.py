"""Groups of interchangeable devices, and nodes that are alike: what the exact model need not distinguish.

Devices of one pool are interchangeable if every request sees them alike. Nodes are interchangeable if their pools are,
and the network devices that reach them, up to a renaming of attribute values that only they have. Both merges are
exact: they lose no value of goals 1 to 4.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from devalloc_solver.problem.allocations import Usage
from devalloc_solver.problem.demand import AllocationMode, Demand, PlacementUnit, Request
from devalloc_solver.problem.placement_policy import PACK, PlacementPolicy
from devalloc_solver.problem.snapshot import Device, Pool, Snapshot

MatchValue = tuple[object, ...]
Place = str | None
"""A node; None only in a fleet without nodes, where there are network devices alone."""
Portion = tuple[tuple[str, int], ...]
"""What one take of a shareable device consumes: (resource, nano units)."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceGroup:
    """Interchangeable devices of one pool, in natural order."""

    pool: int
    node: str | None
    devices: tuple[Device, ...]
    held_share: bool
    """a claim already has a share of it: no whole takers, and its pool resources are drawn already"""

    @property
    def size(self) -> int:
        return len(self.devices)

    @property
    def one(self) -> Device:
        """Any of them stands for all."""
        return self.devices[0]

    def is_reached_from(self, place: Place) -> bool:
        """Whether a unit at a place reaches the devices (S7)."""
        if self.node is not None:
            return self.node == place
        return self.one.reach is None or place in self.one.reach

    def match_value(self, names: Sequence[str]) -> MatchValue | None:
        """The values of attributes, or None where one is missing (S15)."""
        attributes = self.one.attributes
        if any(name not in attributes for name in names):
            return None
        return tuple(attributes[name] for name in names)


def make_device_groups(
    snapshot: Snapshot, usage: Usage, units: Sequence[PlacementUnit], *, policy: PlacementPolicy = PACK
) -> tuple[list[DeviceGroup], list[str]]:
    """Bunches of all devices that some request may take, and the nodes that are worth considering, in natural order.

    Of interchangeable nodes those are where the policy would look for room first.
    """
    view = _DeviceKeys.of(usage, units)
    nodes = _representatives(view, units, policy.first_fit_order(snapshot.nodes, usage))
    device_groups: list[DeviceGroup] = []
    for pool in (snapshot.pools[index] for index in sorted(view.pools)):
        if pool.node is not None and pool.node not in nodes:
            continue
        alike: dict[object, list[Device]] = defaultdict(list)
        for device in pool.devices:
            if device.index in view.masks:
                values = tuple(device.attributes.get(name) for name in view.attributes)
                alike[view.state(device), values, device.reach].append(device)
        for devices in alike.values():
            held = devices[0].index in usage.shared
            device_groups.append(DeviceGroup(pool.index, pool.node, tuple(devices), held))
    return device_groups, [node for node in snapshot.nodes if node in nodes]


def may_take(request: Request, device_group: DeviceGroup, usage: Usage) -> bool:
    """Whether a request may take devices of a device group, as far as the device group alone tells."""
    device = device_group.one
    if device.index not in request.candidates.accepted:
        return False
    if request.mode.is_admin:
        return True
    if device.index in usage.whole:
        return False
    if device.shareable:
        portion = request.portions.get(device.index)
        return portion is not None and usage.portions_left(device, portion) != 0
    return request.mode is AllocationMode.SHARE or not device_group.held_share


def attributes_of(demand: Demand) -> Iterable[str]:
    """The attributes that devices of a claim are compared by."""
    yield from demand.match
    yield from demand.shared
    for relation in demand.relations:
        yield relation.attribute
    for request in demand.requests:
        yield from request.match


@dataclass(frozen=True, slots=True, eq=False)
class _DeviceKeys:
    """What the requests of a batch see of a device."""

    usage: Usage
    masks: Mapping[int, int]
    """device -> which of the distinct candidate sets have it, as bits"""
    pools: frozenset[int]
    """of these devices"""
    attributes: Sequence[str]
    resources: Sequence[str]
    portions: Sequence[Mapping[int, Portion]]

    @classmethod
    def of(cls, usage: Usage, units: Sequence[PlacementUnit]) -> _DeviceKeys:
        demands = [demand for unit in units for demand in unit.demands]
        requests = [request for demand in demands for request in demand.requests]
        masks: dict[int, int] = defaultdict(int)
        for bit, candidates in enumerate({id(request.candidates): request.candidates for request in requests}.values()):
            for index in candidates.accepted:
                masks[index] |= 1 << bit
        return cls(
            usage,
            masks,
            frozenset(usage.snapshot.devices[index].pool for index in masks),
            sorted({name for demand in demands for name in attributes_of(demand)}),
            sorted({name for request in requests for name in (*request.requests, *request.limits)}),
            [*{id(request.portions): request.portions for request in requests if request.portions}.values()],
        )

    def state(self, device: Device) -> tuple[object, ...]:
        """Who may take it, what it has left, and what it would draw on its pool: nothing more when it is in use."""
        usage, index = self.usage, device.index
        if device.shareable:
            amounts: tuple[object, ...] = (
                tuple(portions.get(index) for portions in self.portions),
                tuple((name, device.resources[name].nano, usage.free_nano(device, name)) for name in device.resources),
            )
        else:
            amounts = tuple(
                (device.resources[name].block, device.resources[name].blocks, usage.free_blocks(device, name))
                if name in device.resources
                else None
                for name in self.resources
            )
        if usage.in_use(device):
            return self.masks[index], device.shareable, index in usage.whole, index in usage.shared, amounts
        return self.masks[index], device.shareable, device.draws, device.compatibility, amounts


def _representatives(view: _DeviceKeys, units: Sequence[PlacementUnit], order: Sequence[str]) -> set[str]:
    """Enough nodes of each kind, the first in ``order``: no solution needs more nodes of one kind than there are units.

    Of nodes that have no candidates of their own, one of each kind is enough, since network devices are no nearer to
    any other.
    """
    pinned = {unit.pin for unit in units if unit.pin is not None}
    free_units = sum(unit.pin is None for unit in units)
    pools_in_use = view.usage.pools_in_use()
    chosen: set[str] = set()
    counts: dict[object, int] = defaultdict(int)
    for node, signature, useful in _node_signatures(view, units, order, lambda pool: pool.index in pools_in_use):
        if node in pinned:
            chosen.add(node)
            continue
        counts[signature] += 1
        if counts[signature] <= (free_units if useful else 1):
            chosen.add(node)
    return chosen


def node_signatures(
    snapshot: Snapshot, usage: Usage, units: Sequence[PlacementUnit], use: Callable[[Pool], object]
) -> dict[str, object]:
    """node -> its signature for the units of a batch: equal for nodes where each of them fares alike. Nodes where no
    unit may be are left out. ``use``: what the placement policy looks at of a pool's use."""
    signatures = _node_signatures(_DeviceKeys.of(usage, units), units, snapshot.nodes, use)
    return {node: signature for node, signature, _ in signatures}


def _node_signatures(
    view: _DeviceKeys, units: Sequence[PlacementUnit], order: Iterable[str], use: Callable[[Pool], object]
) -> Iterator[tuple[str, object, bool]]:
    """(node, signature, whether it has candidates of its own). ``use``: what to tell of the use of a pool."""
    snapshot = view.usage.snapshot
    network_pools = (pool for pool in snapshot.pools_by_node.get(None, ()) if pool.index in view.pools)
    network = [d for pool in network_pools for d in pool.devices if d.index in view.masks]
    network_values = {value for device in network for name in view.attributes for value in device.values(name)}
    reaches = [*dict.fromkeys(device.reach for device in network if device.reach is not None)]
    requests = (request for unit in units for request in unit.requests)
    barred = [*dict.fromkeys(request.candidates.barred for request in requests if request.candidates.barred)]
    with_candidates = {snapshot.pools[index].node for index in view.pools}
    for node in order:
        useful = node in with_candidates
        if not useful and not network:
            continue
        renamed: dict[object, int] = {}
        pools = snapshot.pools_by_node.get(node, ()) if useful else ()
        own = tuple(_pool_key(view, pool, renamed, network_values, use(pool)) for pool in pools)
        yield node, (own, tuple(node in some for some in (*reaches, *barred))), useful


def _pool_key(
    view: _DeviceKeys, pool: Pool, renamed: dict[object, int], kept_values: set[object], use: object
) -> object:
    """What a pool looks like, but for the names of its values. Equal values on a node have equal names there."""

    def rename(name: str, value: object) -> object:
        return value if value in kept_values else ("own", renamed.setdefault((name, value), len(renamed)))

    members = []
    for device in pool.devices:
        if device.index in view.masks:
            values = tuple(
                tuple(rename(name, value) for value in _sorted_values(device.values(name))) for name in view.attributes
            )
            members.append((view.state(device), values))
    usage = view.usage
    free = tuple((name, usage.free_pool_blocks(pool.index, name)) for name in sorted(pool.resources))
    groups = tuple(sorted(map(repr, usage.groups.get(pool.index, ()))))
    return tuple(members), free, groups, use


def _sorted_values(values: frozenset[object]) -> Iterable[object]:
    return sorted(values, key=repr) if len(values) > 1 else values
