"""The devices that nodes see, numbered, and their form in the solver's snapshot.

Order of devices: pools, slices and devices as upstream goes through them; it is the last word on which device is taken.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from devalloc_solver.dialects.resource_k8s import feature_gates as gate
from devalloc_solver.dialects.resource_k8s.duplicate_devices import (
    counter_in_view,
    find_duplicates,
    marker_resource,
    merge_duplicate,
)
from devalloc_solver.dialects.resource_k8s.node_selectors import ClusterNode, NodeAccess, is_reachable
from devalloc_solver.dialects.resource_k8s.pools import PoolId, PoolStatus, ResourcePool
from devalloc_solver.dialects.resource_k8s.slices import CounterConsumption, DeviceAttribute, ResourceSlice, SliceDevice
from devalloc_solver.dialects.resource_k8s.usage import DeviceId, DeviceUsage
from devalloc_solver.problem import snapshot as core
from devalloc_solver.problem.allocations import AllocatedDevice

Draws = tuple[tuple[str, int], ...]
"""(counter, nano units)"""


@dataclass(frozen=True, slots=True, eq=False)
class PublishedDevice:
    """A device in its pool and slice; ``index`` is its number in the snapshot."""

    index: int
    pool: ResourcePool
    slice: ResourceSlice
    device: SliceDevice
    is_shareable: bool
    nodes: frozenset[str]
    """the nodes of the call that reach it; a device without any counts as far as it draws counters"""

    @property
    def id(self) -> DeviceId:
        return self.pool.driver, self.pool.name, self.device.name

    @property
    def title(self) -> str:
        return "/".join(self.id)

    @property
    def binds(self) -> bool:
        """Whether a claim that gets it is bound to a node that the device does not name."""
        return self.device.binds_to_node or (len(self.nodes) > 1 and self.reach.node_name is not None)

    @property
    def reach(self) -> NodeAccess:
        """Which nodes reach it: said by the device or by its slice."""
        return self.device if self.slice.spec.per_device else self.slice.spec


@dataclass(frozen=True, slots=True, eq=False)
class PoolView:
    """A pool, and the nodes that see it so."""

    pool: ResourcePool
    nodes: tuple[ClusterNode, ...]


def list_published_devices(
    views: Sequence[PoolView], usage: DeviceUsage | None, gates: frozenset[str]
) -> list[PublishedDevice]:
    """All devices that some node reaches, and of the others those that may hold counters: the ones in use.

    ``usage`` None: what is in use is not known yet.
    """
    offers: list[PublishedDevice] = []
    first_index: dict[DeviceId, int] = {}
    sharing = gate.CONSUMABLE_CAPACITY in gates
    for view in views:
        pool = view.pool
        reach, nodes = None, frozenset[str]()
        for resource_slice, device in _devices(pool):
            own_reach = device if resource_slice.spec.per_device else resource_slice.spec
            if own_reach is not reach:  # devices of one slice are mostly reached alike
                reach, nodes = own_reach, frozenset(node.name for node in view.nodes if is_reachable(node, own_reach))
            device_id = pool.driver, pool.name, device.name
            used = usage is None or usage.is_used(device_id)
            if nodes or (device.consumes and used):
                offer = PublishedDevice(
                    len(offers), pool, resource_slice, device, sharing and device.allow_multiple, nodes
                )
                first = first_index.setdefault(device_id, offer.index)
                merged = None if first == offer.index else merge_duplicate(offers[first], offer)
                if merged is None:
                    offers.append(offer)
                else:
                    offers[first] = merged
    return offers


def _devices(pool: ResourcePool) -> Iterator[tuple[ResourceSlice, SliceDevice]]:
    return ((owner, device) for owner in (*pool.slices, *pool.hidden) for device in owner.devices)


T = TypeVar("T")


def find_qualified(offer: PublishedDevice, named: Mapping[str, T], name: str) -> T | None:
    """What a device has under a full name; a name without domain is under the driver's."""
    value = named.get(name)
    if value is None:
        domain, slash, short = name.partition("/")
        if slash and domain == offer.pool.driver:
            value = named.get(short)
    return value


def find_attribute(offer: PublishedDevice, name: str) -> DeviceAttribute | None:
    """An attribute by its full name."""
    return find_qualified(offer, offer.device.attributes, name)


def qualified_attributes(offer: PublishedDevice) -> dict[str, DeviceAttribute]:
    """All attributes by their full names; where a device has a short name besides, the full one counts."""
    attributes = offer.device.attributes
    qualified = dict(zip(full_names(tuple(attributes), offer.pool.driver), attributes.values(), strict=True))
    if len(qualified) < len(attributes):
        qualified |= {name: attribute for name, attribute in attributes.items() if "/" in name}
    return qualified


@lru_cache(maxsize=1024)
def full_names(names: tuple[str, ...], driver: str) -> tuple[str, ...]:
    """Names of attributes with the driver's domain where they have none; many devices have the same."""
    return tuple(name if "/" in name else f"{driver}/{name}" for name in names)


def constraint_value(attribute: DeviceAttribute | None, gates: frozenset[str]) -> object | None:
    """The value of an attribute as relations compare it: with its type; a frozenset for a list; None without one.

    While lists are switched off, a list is no value.
    """
    if attribute is None or not attribute.values or (attribute.is_list and gate.LIST_ATTRIBUTES not in gates):
        return None
    if not attribute.is_list:
        return attribute.kind, attribute.values[0]
    return frozenset((attribute.kind, value) for value in attribute.values)


def make_snapshot(
    offers: Sequence[PublishedDevice], nodes: Iterable[str], attributes: Collection[str] | None, gates: frozenset[str]
) -> core.Snapshot:
    """The core's view of these nodes and the devices, with the attributes that relations are about; None for all.

    A pool of which all devices are of one node is that node's; another says device by device which nodes reach it.
    Pools of one name that have devices of one name are one pool.
    """
    pools: list[core.Pool] = []
    twins = find_duplicates(offers)
    common = {name[:2] for name in twins}
    for members in _joined_pools(offers, common):
        pool = members[0].pool
        where, draws = None, dict[int, Draws]()
        if pool.id in common:
            resources, draws = _merge_duplicates(members, twins, gates)
        else:
            resources = {"/".join(key): core.Resource(1, max(0, nano)) for key, nano in pool.counters.items()}
            nodes_of = {offer.nodes for offer in members}
            names = {offer.reach.node_name for offer in members}
            where = names.pop() if len(names) == 1 and nodes_of == {frozenset(names)} else None
        devices = tuple(
            _to_snapshot_device(offer, len(pools), attributes, gates, draws.get(offer.index), local=where is not None)
            for offer in members
        )
        pools.append(core.Pool(len(pools), where, pool.title, pool.driver, resources, devices))
    return core.join_pools(pools, nodes)


def _merge_duplicates(
    members: Sequence[PublishedDevice], twins: Mapping[DeviceId, Sequence[PublishedDevice]], gates: frozenset[str]
) -> tuple[dict[str, core.Resource], dict[int, Draws]]:
    """The resources of pools that are one, and what their devices draw: a device also what its twins would."""
    numbers = {pool: number for number, pool in enumerate(dict.fromkeys(offer.pool for offer in members))}
    resources = {
        counter_in_view("/".join(key), number): core.Resource(1, max(0, nano))
        for pool, number in numbers.items()
        for key, nano in pool.counters.items()
    }
    draws: dict[int, Draws] = {}
    for offer in members:
        same = twins.get(offer.id, (offer,))
        drawn = {counter_in_view(name, numbers[one.pool]): nano for one in same for name, nano in draws_of(one, gates)}
        if len(same) > 1:
            drawn[marker_resource(offer.device.name)] = 1
            resources[marker_resource(offer.device.name)] = core.Resource(1, 1)
        draws[offer.index] = tuple(sorted(drawn.items()))
    return resources, draws


def _to_snapshot_device(
    offer: PublishedDevice,
    pool: int,
    attributes: Collection[str] | None,
    gates: frozenset[str],
    draws: Draws | None,
    *,
    local: bool,
) -> core.Device:
    by_name = (
        qualified_attributes(offer)
        if attributes is None
        else {name: find_attribute(offer, name) for name in attributes}
    )
    values = {name: constraint_value(attribute, gates) for name, attribute in by_name.items()}
    return core.Device(
        index=offer.index,
        pool=pool,
        name=offer.device.name,
        attributes={name: value for name, value in values.items() if value is not None},
        resources=resources_of(offer),
        draws=draws_of(offer, gates) if draws is None else draws,
        undefined=None,
        shareable=offer.is_shareable,
        reach=None if local else offer.nodes,
    )


def _joined_pools(offers: Sequence[PublishedDevice], common: Collection[PoolId]) -> Iterable[list[PublishedDevice]]:
    """The devices of each pool; those of pools of these names are together."""
    pools: dict[object, list[PublishedDevice]] = {}
    for offer in offers:
        pools.setdefault(offer.pool.id if offer.pool.id in common else id(offer.pool), []).append(offer)
    return pools.values()


def _by_pool(offers: Sequence[PublishedDevice]) -> Iterator[tuple[ResourcePool, list[PublishedDevice]]]:
    pools: dict[int, list[PublishedDevice]] = {}
    for offer in offers:
        pools.setdefault(id(offer.pool), []).append(offer)
    return ((members[0].pool, members) for members in pools.values())


def resources_of(offer: PublishedDevice) -> dict[str, core.Resource]:
    """What shares take of a device; one that is taken whole needs none."""
    if not offer.is_shareable:
        return {}
    return {name: core.Resource(1, max(0, capacity.value.nano)) for name, capacity in offer.device.capacity.items()}


def draws_of(offer: PublishedDevice, gates: frozenset[str]) -> Draws:
    """What taking a device draws of the counters of its pool."""
    counts = offer.device.consumes and offer.pool.state is PoolStatus.COMPLETE and gate.PARTITIONABLE_DEVICES in gates
    return _draws(offer.device.consumes) if counts else ()


@lru_cache(maxsize=4096)
def _draws(consumes: tuple[CounterConsumption, ...]) -> Draws:
    total: dict[str, int] = {}
    for use in consumes:
        for name, counter in use.counters.items():
            key = f"{use.counter_set}/{name}"
            total[key] = total.get(key, 0) + counter.value.nano
    return tuple((name, nano) for name, nano in sorted(total.items()) if nano > 0)


class DevicesInUse:
    """Says what is in use of some devices, in terms of the snapshot."""

    def __init__(self, offers: Iterable[PublishedDevice]) -> None:
        self._by_id: dict[DeviceId, list[PublishedDevice]] = {}
        for offer in offers:
            self._by_id.setdefault(offer.id, []).append(offer)

    def items(self, usage: DeviceUsage) -> tuple[AllocatedDevice, ...]:
        """What of a usage is in use of them; the rest is of devices that are not there."""
        in_use: list[AllocatedDevice] = []
        for device in {**dict.fromkeys(usage.whole), **usage.shared}:
            same = self._by_id.get(device, ())
            # Of twins that draw counters one is enough: it draws what all of them would.
            for offer in same[:1] if any(one.device.consumes for one in same) else same:
                # Shares of a device that nodes see differently cannot be added up.
                in_use.append(AllocatedDevice(offer.index, amounts_in_use(offer, usage) if len(same) == 1 else None))
        return tuple(sorted(in_use, key=lambda held: held.device))


def amounts_in_use(offer: PublishedDevice, usage: DeviceUsage) -> tuple[tuple[str, int], ...] | None:
    """The nano units in use of a device that is in use; None when it is held whole."""
    if offer.id in usage.whole or not offer.is_shareable:
        return None
    return tuple(sorted(usage.shared[offer.id].items()))


def overdrawn_counters(offers: Sequence[PublishedDevice], usage: DeviceUsage) -> dict[int, str]:
    """Pools (by id of the object) with a counter of which more is in use than there is, and which counter that is."""
    worst_counters: dict[int, str] = {}
    for pool, members in _by_pool([offer for offer in offers if offer.pool.counters]):
        left = {"/".join(key): nano for key, nano in pool.counters.items()}
        for offer in members:
            if pool.state is PoolStatus.COMPLETE and usage.is_used(offer.id):
                for name, nano in _draws(offer.device.consumes):
                    left[name] = left.get(name, nano) - nano
        worst = next((name for name in sorted(left) if left[name] < 0), None)
        if worst is not None:
            worst_counters[id(pool)] = worst
    return worst_counters
