"""Devices that several nodes publish under one name: they are one device, held by one claim at a time.

Driver, pool and name identify a device in the whole cluster. A driver that names its pools alike on every node
publishes one device several times; each node sees its own, and a claim that takes one has taken all. The core
treats them as devices of one pool that draw on a resource with a capacity of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from devalloc.api.problems import Problem
from devalloc_solver.dialects.resource_k8s.node_selectors import REACH
from devalloc_solver.dialects.resource_k8s.usage import DeviceId

if TYPE_CHECKING:
    from devalloc_solver.dialects.resource_k8s.published_devices import PublishedDevice

_MARK = "the name "
"""How the resources begin that twins draw; no counter has a space in its name."""
_VIEW = "\0"
"""What is before the number of a pool among those of one name that are one; no counter has it in its name."""
SHOWN = 3


def find_duplicates(offers: Iterable[PublishedDevice]) -> dict[DeviceId, list[PublishedDevice]]:
    """The devices that are there more than once."""
    first: dict[DeviceId, PublishedDevice] = {}
    twins: dict[DeviceId, list[PublishedDevice]] = {}
    for offer in offers:
        name = offer.id
        if (earlier := first.setdefault(name, offer)) is not offer:
            twins.setdefault(name, [earlier]).append(offer)
    return twins


def marker_resource(name: str) -> str:
    """The resource that all devices of a name draw."""
    return f"{_MARK}{name}"


def is_counter(resource: str) -> bool:
    """Whether a resource of a pool is a counter that its slices have."""
    return not resource.startswith(_MARK)


def counter_in_view(counter: str, number: int) -> str:
    """A counter of the pool of that number among those of one name, which nodes see differently."""
    return f"{counter}{_VIEW}{number}" if number else counter


def counter_name(resource: str) -> str:
    """The counter that a resource of a pool stands for, as the slices call it."""
    return resource.partition(_VIEW)[0]


def merge_duplicate(one: PublishedDevice, other: PublishedDevice) -> PublishedDevice | None:
    """Two of a name as one device that the nodes of both reach; None where their nodes see different devices.

    Only what is taken in shares needs it: shares of one are shares of the other.
    """
    if not one.is_shareable or one.device.consumes or one.nodes & other.nodes:
        return None
    if None in (one.reach.node_name, other.reach.node_name) or one.slice.spec.skip_node_operations:
        return None
    if other.slice.spec.skip_node_operations or one.pool.state is not other.pool.state:
        return None
    same = all(
        getattr(one.device, field.name) == getattr(other.device, field.name)
        for field in fields(one.device)
        if field.name not in REACH
    )
    return replace(one, nodes=one.nodes | other.nodes) if same else None


def duplicate_problems(offers: Sequence[PublishedDevice]) -> Iterator[Problem]:
    """One warning for each pool with devices that are published more than once."""
    pools: dict[tuple[str, str], dict[str, set[str]]] = {}
    for (driver, pool, device), same in _published_by_several(offers).items():
        pools.setdefault((driver, pool), {})[device] = same
    for (driver, pool), devices in sorted(pools.items()):
        name = min(devices)
        nodes = sorted(devices[name])
        shown = ", ".join(nodes[:SHOWN]) + (f" and {len(nodes) - SHOWN} more" if len(nodes) > SHOWN else "")
        more = "" if len(devices) == 1 else f" and {len(devices) - 1} more of the pool"
        message = (
            f"device {driver}/{pool}/{name}{more} is published by the nodes {shown}: driver, pool and name "
            "identify a device, so only one claim at a time can have it; give each node's pool its own name"
        )
        yield Problem(message, kind="ResourceSlice", severity="warning")


def _published_by_several(offers: Iterable[PublishedDevice]) -> Mapping[DeviceId, set[str]]:
    """The devices that several nodes have for their own, and these nodes."""
    same = [(offer,) for offer in offers if len(offer.nodes) > 1] + [*map(tuple, find_duplicates(offers).values())]
    nodes_by_id: dict[DeviceId, set[str]] = {}
    for offer in (offer for some in same for offer in some):
        if offer.reach.node_name is not None and offer.pool.is_complete:
            nodes_by_id.setdefault(offer.id, set()).update(offer.nodes)
    return {name: nodes for name, nodes in nodes_by_id.items() if len(nodes) > 1}
