"""The devices of one node for the index: attributes by their full names, and all other properties."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from devalloc.api.meta import COMPATIBILITY_GROUP, UNAVAILABLE
from devalloc.api.semver import SemVer
from devalloc_solver.cel.kubernetes import Scalar
from devalloc_solver.dialects.resource_k8s.candidates import cel_device
from devalloc_solver.dialects.resource_k8s.pools import PoolStatus, PoolView, ResourcePool
from devalloc_solver.dialects.resource_k8s.published_devices import (
    DeviceUsage,
    PublishedDevice,
    constraint_value,
    draws_of,
    full_names,
    list_published_devices,
    overdrawn_counters,
    qualified_attributes,
    resources_of,
)
from devalloc_solver.dialects.resource_k8s.slices import ClusterNode, SliceDevice
from devalloc_solver.problem import snapshot as core

RESERVED = frozenset((COMPATIBILITY_GROUP, UNAVAILABLE))
"""Attributes that mean something to the core, and nothing in this dialect: part of the traits."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceProperties:
    """Equal for devices that no claim tells apart but by name and attributes."""

    offer: PublishedDevice
    """the device itself; its index is that in the snapshot of its node"""
    is_broken: bool
    """the node has a pool that is incomplete or invalid"""
    number: int
    """of what is equal"""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceProperties) and self.number == other.number

    def __hash__(self) -> int:
        return self.number


PropertyNumbers = dict[Hashable, int]
"""What traits are made of, numbered as it is met."""


def order_attribute(name: str) -> str:
    """The attribute under which the members of a list attribute stand in their order."""
    return f"order of {name}"


def published_device(device: core.Device) -> PublishedDevice:
    traits = device.traits
    assert isinstance(traits, DeviceProperties)
    return traits.offer


def cel_value(value: Any) -> Scalar:
    """A single value of an attribute of the index as selectors see it."""
    kind, plain = value
    return SemVer(plain) if kind == "version" else plain


def local_snapshot(
    node: str, pools: Iterable[ResourcePool], gates: frozenset[str], numbers: PropertyNumbers
) -> core.Snapshot:
    """What a node has in pools of its own, in the order of the dialect."""
    seen = tuple(pools)
    offers = list_published_devices([PoolView(pool, (ClusterNode(node),)) for pool in seen], None, gates)
    over = overdrawn_counters(offers, DeviceUsage())
    is_broken = any(pool.state is not PoolStatus.COMPLETE for pool in seen)
    by_pool: dict[int, list[PublishedDevice]] = {}
    for offer in offers:
        by_pool.setdefault(id(offer.pool), []).append(offer)
    local_pools: list[core.Pool] = []
    for pool in seen:
        devices = []
        for offer in by_pool.get(id(pool), ()):
            attributes, rest = _read(offer, gates)
            key = (rest, is_broken, over.get(id(pool)))
            traits = DeviceProperties(offer, is_broken, numbers.setdefault(key, len(numbers)))
            draws = draws_of(offer, gates)
            resources = resources_of(offer)
            devices.append(
                core.Device(
                    offer.index,
                    len(local_pools),
                    offer.device.name,
                    attributes,
                    resources,
                    draws,
                    None,
                    offer.is_shareable,
                    None,
                    traits,
                )
            )
        counters = {"/".join(key): core.Resource(1, max(0, nano)) for key, nano in pool.counters.items()}
        local_pools.append(core.Pool(len(local_pools), node, pool.title, pool.driver, counters, tuple(devices)))
    return core.join_pools(local_pools, (node,))


def _read(offer: PublishedDevice, gates: frozenset[str]) -> tuple[Mapping[str, Any], Hashable]:
    """The attributes of a device that relations and selectors read, and what else there is to it."""
    device = offer.device
    names, own = full_names(tuple(device.attributes), offer.pool.driver), device.attributes.values()
    is_faulty = False
    if any(one.is_list or one.fault is not None for one in own) or not _are_usual(names):
        attributes, types = _read_unusual(offer, gates)
        is_faulty = any(attribute.fault is not None for attribute in own)
    else:
        attributes = {name: (one.kind, one.values[0]) for name, one in zip(names, own, strict=True)}
        types = _types_of(names, tuple([one.kind for one in own]))
    return attributes, (
        types,
        cel_device(offer) if is_faulty else None,
        offer.slice.spec.skip_node_operations,
        offer.pool.state,
        _own_device(device),
    )


@lru_cache(maxsize=1024)
def _are_usual(names: tuple[str, ...]) -> bool:
    """Whether attributes have a name each, and none has a meaning to the core."""
    return RESERVED.isdisjoint(names) and len({*names}) == len(names)


@lru_cache(maxsize=1024)
def _types_of(names: tuple[str, ...], kinds: tuple[str, ...]) -> frozenset[tuple[str, Hashable]]:
    return frozenset(zip(names, kinds, strict=True))


def _read_unusual(
    offer: PublishedDevice, gates: frozenset[str]
) -> tuple[dict[str, Any], frozenset[tuple[str, Hashable]]]:
    """The attributes that claims can read, and the type of each; lists, and those with a meaning to the core too."""
    attributes: dict[str, Any] = {}
    types: set[tuple[str, Hashable]] = set()
    for name, attribute in qualified_attributes(offer).items():
        if name in RESERVED:
            types.add((name, (attribute.kind, attribute.is_list, attribute.values)))
            continue
        types.add((name, (attribute.kind, True) if attribute.is_list else attribute.kind))
        value = constraint_value(attribute, gates)
        if value is not None:
            attributes[name] = value
        if attribute.is_list and attribute.values:
            attributes[order_attribute(name)] = attribute.kind, attribute.values
    return attributes, frozenset(types)


def _own_device(device: SliceDevice) -> tuple[Hashable, ...]:
    capacity = frozenset((name, c.value.nano, c.value.format, c.policy) for name, c in device.capacity.items())
    return (
        capacity,
        device.taints,
        device.binds_to_node,
        device.binding_conditions,
        device.binding_failure_conditions,
        device.allow_multiple,
        device.uses_allocatable,
        bool(device.consumes),
    )
