"""Devices that several nodes publish under one name: they are one device, and one claim at a time has it.

A device is known by driver, pool and name, over the whole cluster. A driver that names its pools alike on every node
publishes one device several times; each node sees its own, and whoever takes one has taken all. The core has them as
devices of one pool that draw a resource of which there is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from devalloc.api.problems import Problem
from devalloc_solver.dra.usage import DeviceId

if TYPE_CHECKING:
    from devalloc_solver.dra.inventory import Offer

_MARK = "the name "
"""How the resources begin that twins draw; no counter has a space in its name."""
_VIEW = "\0"
"""What is before the number of a pool among those of one name that are one; no counter has it in its name."""
SHOWN = 3


def find_twins(offers: Iterable[Offer]) -> dict[DeviceId, list[Offer]]:
    """The devices that are there more than once."""
    first: dict[DeviceId, Offer] = {}
    found: dict[DeviceId, list[Offer]] = {}
    for offer in offers:
        name = offer.id
        if (known := first.setdefault(name, offer)) is not offer:
            found.setdefault(name, [known]).append(offer)
    return found


def mark(name: str) -> str:
    """The resource that all devices of a name draw."""
    return f"{_MARK}{name}"


def is_counter(resource: str) -> bool:
    """Whether a resource of a pool is a counter that its slices have."""
    return not resource.startswith(_MARK)


def viewed(counter: str, number: int) -> str:
    """A counter of the pool of that number among those of one name, which nodes see differently."""
    return f"{counter}{_VIEW}{number}" if number else counter


def counter_of(resource: str) -> str:
    """The counter that a resource of a pool stands for, as the slices call it."""
    return resource.partition(_VIEW)[0]


def joined(one: Offer, other: Offer) -> Offer | None:
    """Two of a name as one device that the nodes of both reach; None where their nodes see different devices.

    Only what is taken in shares needs it: shares of one are shares of the other.
    """
    if not one.is_shareable or one.device.consumes or one.nodes & other.nodes:
        return None
    if None in (one.reach.node_name, other.reach.node_name) or one.slice.skip_node_operations:
        return None
    if other.slice.skip_node_operations or one.pool.state is not other.pool.state:
        return None
    same = all(
        getattr(one.device, field.name) == getattr(other.device, field.name)
        for field in fields(one.device)
        if field.name != "reach"
    )
    return replace(one, nodes=one.nodes | other.nodes) if same else None


def problems_of(offers: Sequence[Offer]) -> Iterator[Problem]:
    """One warning for each pool with devices that are published more than once."""
    pools: dict[tuple[str, str], dict[str, set[str]]] = {}
    for (driver, pool, device), same in _seen_by(offers).items():
        pools.setdefault((driver, pool), {})[device] = same
    for (driver, pool), devices in sorted(pools.items()):
        name = min(devices)
        nodes = sorted(devices[name])
        shown = ", ".join(nodes[:SHOWN]) + (f" and {len(nodes) - SHOWN} more" if len(nodes) > SHOWN else "")
        more = "" if len(devices) == 1 else f" and {len(devices) - 1} more of the pool"
        told = (
            f"device {driver}/{pool}/{name}{more} is published by the nodes {shown}: a device is known by driver, pool "
            "and name, so they are one device, which one claim at a time has; give each node's pool a name of its own"
        )
        yield Problem(told, kind="ResourceSlice", severity="warning")


def _seen_by(offers: Iterable[Offer]) -> Mapping[DeviceId, set[str]]:
    """The devices that several nodes have for their own, and these nodes."""
    same = [(offer,) for offer in offers if len(offer.nodes) > 1] + [*map(tuple, find_twins(offers).values())]
    found: dict[DeviceId, set[str]] = {}
    for offer in (offer for some in same for offer in some):
        if offer.reach.node_name is not None and offer.pool.is_complete:
            found.setdefault(offer.id, set()).update(offer.nodes)
    return {name: nodes for name, nodes in found.items() if len(nodes) > 1}
