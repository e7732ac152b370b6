"""The devices of a node, or of several, for the index: attributes by their full names, and all other properties."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import itemgetter
from typing import Any

from devalloc_solver.dialects.resource_k8s.pools import PoolStatus, PoolView, ResourcePool
from devalloc_solver.dialects.resource_k8s.published_devices import (
    NOTHING_RECORDED,
    DeviceUsage,
    PublishedDevice,
    RecordedUse,
    constraint_value,
    counters_with_lost,
    draws_of,
    full_names,
    ghost_of,
    list_published_devices,
    make_snapshot,
    overdrawn_counters,
    qualified_attributes,
    resources_of,
)
from devalloc_solver.dialects.resource_k8s.selectors import cel_device, order_attribute
from devalloc_solver.dialects.resource_k8s.slices import ClusterNode, UnusualAttribute
from devalloc_solver.problem import snapshot as core


@dataclass(frozen=True, slots=True, eq=False)
class DeviceProperties:
    """The same object for devices that no claim tells apart but by name and attributes."""

    is_broken: bool
    """the node has a pool that is incomplete or invalid"""


MetProperties = dict[Hashable, DeviceProperties]
"""DeviceProperties by their content."""


def local_snapshot(
    node: str,
    pools: Iterable[ResourcePool],
    gates: frozenset[str],
    met: MetProperties,
    recorded: RecordedUse = NOTHING_RECORDED,
) -> core.Snapshot:
    """What a node has in pools of its own, in the order of the dialect, and what claims recorded of it."""
    seen = tuple(pools)
    offers = list_published_devices([PoolView(pool, (ClusterNode(node),)) for pool in seen], None, gates, recorded)
    reader = _DeviceReader(gates, met, offers, any(pool.state is not PoolStatus.COMPLETE for pool in seen))
    by_pool: dict[int, list[PublishedDevice]] = {}
    for offer in offers:
        by_pool.setdefault(id(offer.pool), []).append(offer)
    local_pools: list[core.Pool] = []
    for pool in seen:
        own, number = by_pool.get(id(pool), ()), len(local_pools)
        devices = [
            reader.device(offer, number, draws_of(offer, gates), frozenset() if offer.is_ghost else None)
            for offer in own
        ]
        resources = counters_with_lost(pool, own)
        local_pools.append(core.Pool(number, node, pool.title, pool.driver, resources, tuple(devices)))
    return core.join_pools(local_pools, (node,))


def network_snapshot(
    views: Sequence[PoolView],
    usage: DeviceUsage,
    gates: frozenset[str],
    met: MetProperties,
    recorded: RecordedUse = NOTHING_RECORDED,
) -> core.Snapshot:
    """The devices of pools that are not of one node, in the order of the dialect: each says which nodes reach it.

    ``usage``: what is in use of them, with what claims recorded of it.
    """
    offers = list_published_devices(views, usage, gates, recorded)
    reader = _DeviceReader(gates, met, offers, False)
    pools = []
    for pool in make_snapshot(offers, (), (), gates).pools:
        devices = [reader.device(offers[one.index], one.pool, one.draws, one.reach) for one in pool.devices]
        pools.append(replace(pool, devices=tuple(devices)))
    return core.join_pools(pools, ())


class _DeviceReader:
    """Makes devices of the index of those that slices publish. Those that no claim tells apart share their traits."""

    def __init__(
        self, gates: frozenset[str], met: MetProperties, offers: Sequence[PublishedDevice], is_broken: bool
    ) -> None:
        """``is_broken``: whether the node of all these has a pool that is incomplete or invalid."""
        self._gates, self._met, self._is_broken = gates, met, is_broken
        self._over = overdrawn_counters(offers, DeviceUsage())
        self._capacities: dict[int, Hashable] = {}

    def device(
        self, offer: PublishedDevice, pool: int, draws: tuple[tuple[str, int], ...], reach: frozenset[str] | None
    ) -> core.Device:
        of_pool = offer.pool.state.value, self._is_broken, self._over.get(id(offer.pool))
        attributes, types = _read_attributes(offer, self._gates)
        key = (of_pool, types, _read_properties(offer, self._capacities))
        traits = self._met.get(key)
        if traits is None:
            traits = self._met[key] = DeviceProperties(self._is_broken)
        return core.Device(
            offer.index,
            pool,
            offer.device.name,
            attributes,
            resources_of(offer),
            draws,
            None,
            offer.is_shareable,
            reach,
            traits,
            offer,
            ghost_of(offer, self._gates) if offer.is_ghost else None,
        )


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
