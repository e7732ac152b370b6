"""The devices of one node as the index has them: attributes by their full names, and traits, which are all the rest."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from devalloc.api.meta import COMPATIBILITY_GROUP, UNAVAILABLE
from devalloc.api.semver import SemVer
from devalloc_solver import snapshot as core
from devalloc_solver.dra.cel import Scalar
from devalloc_solver.dra.inventory import (
    Offer,
    View,
    attributes_of,
    draws_of,
    list_offers,
    overdrawn,
    relation_value,
    resources_of,
    snapshot_of,
)
from devalloc_solver.dra.objects import Device, Node
from devalloc_solver.dra.pools import Pool, State
from devalloc_solver.dra.selectors import cel_device
from devalloc_solver.dra.usage import Usage

RESERVED = frozenset((COMPATIBILITY_GROUP, UNAVAILABLE))
"""Attributes that mean something to the core, and nothing in this dialect: part of the traits."""


@dataclass(frozen=True, slots=True, eq=False)
class Traits:
    """Equal for devices that no claim tells apart but by name and attributes."""

    offer: Offer
    """the device itself; its index is that in the snapshot of its node"""
    is_broken: bool
    """the node has a pool that is incomplete or invalid"""
    number: int
    """of what is equal"""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Traits) and self.number == other.number

    def __hash__(self) -> int:
        return self.number


Numbers = dict[Hashable, int]
"""What traits are made of, numbered as it is met."""


def order_of(name: str) -> str:
    """The attribute under which the members of a list attribute stand in their order."""
    return f"order of {name}"


def offer_of(device: core.Device) -> Offer:
    traits = device.traits
    assert isinstance(traits, Traits)
    return traits.offer


def cel_value(value: Any) -> Scalar:
    """A single value of an attribute of the index as selectors see it."""
    kind, plain = value
    return SemVer(plain) if kind == "version" else plain


def local_snapshot(node: str, pools: Iterable[Pool], gates: frozenset[str], numbers: Numbers) -> core.Snapshot:
    """What a node has in pools of its own, in the order of the dialect."""
    seen = tuple(pools)
    offers = list_offers([View(pool, (Node(node),)) for pool in seen], None, gates)
    over = overdrawn(offers, Usage())
    is_broken = any(pool.state is not State.COMPLETE for pool in seen)
    by_pool: dict[int, list[Offer]] = {}
    for offer in offers:
        by_pool.setdefault(id(offer.pool), []).append(offer)
    found: list[core.Pool] = []
    for pool in seen:
        devices = []
        for offer in by_pool.get(id(pool), ()):
            attributes, rest = _read(offer, gates)
            key = (rest, is_broken, over.get(id(pool)))
            traits = Traits(offer, is_broken, numbers.setdefault(key, len(numbers)))
            draws = draws_of(offer, gates)
            resources = resources_of(offer)
            devices.append(
                core.Device(
                    offer.index,
                    len(found),
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
        found.append(core.Pool(len(found), node, pool.title, pool.driver, counters, tuple(devices)))
    return snapshot_of(found, (node,))


def _read(offer: Offer, gates: frozenset[str]) -> tuple[Mapping[str, Any], Hashable]:
    """The attributes of a device that relations and selectors read, and what else there is to it."""
    device = offer.device
    attributes: dict[str, Any] = {}
    types: dict[str, object] = {}
    for name, attribute in attributes_of(offer).items():
        value = relation_value(attribute, gates)
        if name in RESERVED:
            types[name] = attribute.kind, attribute.is_list, attribute.values
            continue
        types[name] = attribute.kind, attribute.is_list
        if value is not None:
            attributes[name] = value
        if attribute.is_list and attribute.values:
            attributes[order_of(name)] = attribute.kind, attribute.values
    is_faulty = any(attribute.fault is not None for attribute in device.attributes.values())
    return attributes, (
        frozenset(types.items()),
        cel_device(offer) if is_faulty else None,
        offer.slice.skip_node_operations,
        offer.pool.state,
        *_own(device),
    )


def _own(device: Device) -> tuple[Hashable, ...]:
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
