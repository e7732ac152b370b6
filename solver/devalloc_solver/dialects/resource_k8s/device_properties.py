"""Published devices as the core has them: attributes by their full names, and for an index all other properties."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from typing import Any

from devalloc_solver.dialects.resource_k8s.published_devices import (
    DeviceId,
    Draws,
    PublishedDevice,
    constraint_value,
    counter_in_view,
    counters_with_lost,
    draws_of,
    find_duplicates,
    full_names,
    ghost_of,
    joined_pools,
    marker_resource,
    qualified_attributes,
    resources_of,
)
from devalloc_solver.dialects.resource_k8s.selectors import cel_device, order_attribute
from devalloc_solver.dialects.resource_k8s.slices import UnusualAttribute
from devalloc_solver.problem import snapshot as core


@dataclass(frozen=True, slots=True, eq=False)
class DeviceProperties:
    """The same object for devices that no claim tells apart but by name and attributes."""

    is_broken: bool
    """the node has a pool that is incomplete or invalid"""


MetProperties = dict[Hashable, DeviceProperties]
"""DeviceProperties by their content."""


@dataclass(slots=True)
class DeviceReader:
    """Makes devices of the core of those that slices publish."""

    gates: frozenset[str]
    are_compared: bool = True
    """whether relations are about attributes, or an index reads them; else the devices have none"""
    met: MetProperties | None = None
    """only for an index: of devices that no claim tells apart, which share their traits"""
    overdrawn: Mapping[int, str] = field(default_factory=dict)
    """pools with a counter of which they draw more than there is, whatever is in use; see ``overdrawn_counters``"""
    is_broken: bool = False
    """whether the node of all these has a pool that is incomplete or invalid"""
    _capacities: dict[int, Hashable] = field(default_factory=dict)

    def device(self, offer: PublishedDevice, pool: int, draws: Draws | None, *, is_local: bool) -> core.Device:
        """``draws``: None for its own."""
        attributes, types = _read_attributes(offer, self.gates) if self.are_compared else ({}, None)
        return core.Device(
            offer.index,
            pool,
            offer.device.name,
            attributes,
            resources_of(offer),
            draws_of(offer, self.gates) if draws is None else draws,
            None,
            offer.is_shareable,
            None if is_local and not offer.is_ghost else offer.nodes,
            None if self.met is None else self._traits(offer, types, self.met),
            offer,
            ghost_of(offer, self.gates),
        )

    def _traits(self, offer: PublishedDevice, types: Hashable, met: MetProperties) -> DeviceProperties:
        of_pool = offer.pool.state.value, self.is_broken, self.overdrawn.get(id(offer.pool))
        key = (of_pool, types, _read_properties(offer, self._capacities))
        traits = met.get(key)
        if traits is None:
            traits = met[key] = DeviceProperties(self.is_broken)
        return traits


def make_snapshot(
    offers: Sequence[PublishedDevice], nodes: Iterable[str], reader: DeviceReader, node: str | None = None
) -> core.Snapshot:
    """The core's view of these nodes and the devices. ``node``: the one that has all of them for its own.

    Otherwise a pool of which all slices are of one node is that node's; another says device by device which nodes
    reach it. Pools of one name that have devices of one name are one pool.
    """
    pools: list[core.Pool] = []
    twins = find_duplicates(offers) if node is None else {}
    common = {name[:2] for name in twins}
    for members in joined_pools(offers, common):
        pool = members[0].pool
        where, draws = node, dict[int, Draws]()
        if pool.id in common:
            resources, draws = _merge_duplicates(members, twins, reader.gates)
        else:
            resources = counters_with_lost(pool, members)
            there = [offer for offer in members if not offer.is_ghost] or members
            nodes_of = {offer.nodes for offer in there}
            names = {offer.slice.spec.node_name for offer in there}
            if node is None and len(names) == 1 and nodes_of == {frozenset(names)} and not pool.is_of_network:
                where = names.pop()
        devices = tuple(
            reader.device(offer, len(pools), draws.get(offer.index), is_local=where is not None) for offer in members
        )
        pools.append(
            core.Pool(
                len(pools), where, pool.title, pool.driver, resources, devices, comes_last=pool.has_binding_conditions
            )
        )
    return core.join_pools(pools, nodes)


def _merge_duplicates(
    members: Sequence[PublishedDevice], twins: Mapping[DeviceId, Sequence[PublishedDevice]], gates: frozenset[str]
) -> tuple[dict[str, core.Resource], dict[int, Draws]]:
    """The resources of pools that are one, and what their devices draw: a device also what its twins would."""
    numbers = {pool: number for number, pool in enumerate(dict.fromkeys(offer.pool for offer in members))}
    resources = {
        counter_in_view(name, number): resource
        for pool, number in numbers.items()
        for name, resource in counters_with_lost(pool, [one for one in members if one.pool is pool]).items()
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


def _read_attributes(offer: PublishedDevice, gates: frozenset[str]) -> tuple[Mapping[str, Any], Hashable]:
    """The attributes of a device that relations and selectors read, and the types of all."""
    own = offer.device.attributes
    if UnusualAttribute not in map(type, own.values()):
        names, types = _names_and_types(tuple(own), offer.pool.driver, tuple(map(_FIRST, own.values())))
        if types is not None:
            return dict(zip(names, own.values(), strict=True)), types
    unusual, others = _read_unusual(offer, gates)
    return unusual, (others, cel_device(offer) if offer.device.has_fault else None)


_FIRST = itemgetter(0)


@lru_cache(maxsize=1024)
def _names_and_types(
    own_names: tuple[str, ...], driver: str, kinds: tuple[str, ...]
) -> tuple[tuple[str, ...], frozenset[tuple[str, str]] | None]:
    """The full names of attributes, and their types; None if two have one name."""
    names = full_names(own_names, driver)
    return names, frozenset(zip(names, kinds, strict=True)) if len({*names}) == len(names) else None


def _read_unusual(
    offer: PublishedDevice, gates: frozenset[str]
) -> tuple[dict[str, Any], frozenset[tuple[str, Hashable]]]:
    """The attributes that claims can read, and the type of each; lists too."""
    attributes: dict[str, Any] = {}
    types: set[tuple[str, Hashable]] = set()
    for name, attribute in qualified_attributes(offer).items():
        value = constraint_value(attribute, gates)
        if value is not None:
            attributes[name] = value
        if not isinstance(attribute, UnusualAttribute):
            types.add((name, attribute[0]))
            continue
        types.add((name, (attribute.kind, attribute.is_list)))
        if attribute.is_list and attribute.values:
            attributes[order_attribute(name)] = attribute.typed
    return attributes, frozenset(types)


def _read_properties(offer: PublishedDevice, capacities: dict[int, Hashable]) -> tuple[Hashable, ...]:
    """All else that claims can tell of a device. ``capacities``: those of the node that were read, by id."""
    device = offer.device
    capacity = capacities.get(id(device.capacity))
    if capacity is None:
        amounts = ((name, c.value.nano, c.value.format, c.policy) for name, c in device.capacity.items())
        capacity = capacities[id(device.capacity)] = frozenset(amounts)
    return (
        offer.slice.spec.skip_node_operations,
        capacity,
        device.taints,
        device.binds_to_node,
        device.binding_conditions,
        device.binding_failure_conditions,
        device.allow_multiple,
        device.uses_allocatable,
        bool(device.consumes),
    )
