"""The fleet as the solver sees it: pools and devices interned, amounts as whole blocks.

A snapshot knows nothing of claims. Pools that are invalid together (S2) are left out and reported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform

from devalloc.api.device_records import DeviceRecord
from devalloc.api.meta import COMPATIBILITY_GROUP
from devalloc.api.pool import AttributeValue, DevicePool, ResourceCapacity, unavailability
from devalloc.api.problems import Problem
from devalloc.api.quantity import ceil_blocks, floor_blocks
from devalloc_solver.problem.ordering import natural_key

RecordT = TypeVar("RecordT")


@dataclass_transform(frozen_default=True, eq_default=False)
def immutable_record(cls: type[RecordT]) -> type[RecordT]:
    """A dataclass of which a fleet has one for each device. Type checkers refuse to write to it.

    It is not frozen at run time: to make a frozen one takes four times as long, a quarter of a snapshot.
    """
    return dataclass(slots=True, eq=False)(cls)


@dataclass(frozen=True, slots=True)
class Resource:
    """An amount in whole blocks."""

    block: int
    """Size of a block in nano units."""
    blocks: int

    @classmethod
    def of(cls, capacity: ResourceCapacity) -> Resource:
        return cls.shared(capacity.block.nano, floor_blocks(capacity.capacity, capacity.block))

    @classmethod
    @lru_cache(maxsize=4096)
    def shared(cls, block: int, blocks: int) -> Resource:
        """One object for equal amounts: a large fleet has the same ones on every node."""
        return cls(block, blocks)

    @property
    def nano(self) -> int:
        """Usable capacity: rounded down to whole blocks (S11)."""
        return self.block * self.blocks


@dataclass(frozen=True, slots=True)
class Ghost:
    """What a device in use draws beside what its pool publishes of it (``problem.ghosts``)."""

    draws: tuple[tuple[str, int], ...]
    """(pool resource, blocks)"""
    group: str | None
    """the compatibility group that it carries"""
    is_certain: bool
    """False if it is not known what it draws, so that it counts for all there is"""
    lost: tuple[tuple[str, int], ...] = ()
    """(resource, nano units) that it drew and its pool lacks now: here the pool has them, and all of its devices draw
    some"""


@immutable_record
class Device:
    """A device with its effective attributes (S3)."""

    index: int
    pool: int
    name: str
    attributes: Mapping[str, Any]
    """effective values; a list attribute is a frozenset of its members (resource.k8s.io only)"""
    resources: Mapping[str, Resource]
    draws: tuple[tuple[str, int], ...]
    """(pool resource, blocks) that allocating the device consumes (S12)."""
    undefined: str | None
    """A pool resource the device requests and its pool does not define: it can never be allocated (S12)."""
    shareable: bool = False
    """taken in portions, by several at once, and never whole (resource.k8s.io ``allowMultipleAllocations``)"""
    reach: frozenset[str] | None = None
    """of a pool without node: the nodes that reach this device; None for all"""
    traits: Hashable = None
    """the dialect's own: equal for devices that nothing tells apart but names, and what stands here"""
    source: Any = None
    """the dialect's own: what the device was made of"""
    ghost: Ghost | None = None
    """of a ghost, which bears the name of its device: it is in use, and no request is offered it"""
    unavailable: str | None = None
    """why only admin claims may have it (S6a); of DevicePools only"""
    compatibility: AttributeValue | None = None
    """the group that devices allocated together in a pool share (S12a); of DevicePools only"""

    def values(self, name: str) -> frozenset[object]:
        """The values of an attribute: none, one, or the members of a list attribute."""
        value = self.attributes.get(name)
        if isinstance(value, frozenset):
            return value
        return frozenset() if value is None else frozenset((value,))


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """A valid pool; ``node`` is None for devices that every node reaches."""

    index: int
    node: str | None
    name: str
    driver: str
    resources: Mapping[str, Resource]
    devices: tuple[Device, ...]
    comes_last: bool = False
    """whether its devices come after all others in natural order"""
    records: dict[str, DeviceRecord] = field(default_factory=dict, init=False, repr=False)
    """what claims record of its devices (``problem.ghosts``), as far as that was asked for"""
    given: dict[int, Any] = field(default_factory=dict, init=False, repr=False)
    """index of a device -> what a fleet keeps of it for all claims that get it (``placed_claims``)"""

    @property
    def order(self) -> tuple[object, ...]:
        return (self.node is not None, natural_key(self.node or ""), natural_key(self.name))


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """All valid pools and their devices, in natural order of node, pool and device names."""

    pools: tuple[Pool, ...]
    devices: tuple[Device, ...]
    nodes: tuple[str, ...]
    pools_by_node: Mapping[str | None, tuple[Pool, ...]]
    pools_by_name: Mapping[str, tuple[Pool, ...]]

    def find_pool(self, node: str, name: str) -> Pool | None:
        """The pool of that name which the node reaches."""
        return next((pool for pool in self.pools_by_name.get(name, ()) if pool.node in (node, None)), None)


_NO_RESOURCES: Mapping[str, Resource] = {}


@lru_cache(maxsize=4096)
def _one_object(draws: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """Partitions of one profile draw the same on every node: in a large fleet this saves much memory."""
    return draws


def take_snapshot(pools: Iterable[DevicePool]) -> tuple[Snapshot, list[Problem]]:
    """Intern valid pools; report those that share a name on one node (S2)."""
    valid, problems = without_duplicate_pools(list(pools))
    valid.sort(
        key=lambda p: (p.spec.node_name is not None, natural_key(p.spec.node_name or ""), natural_key(p.metadata.name))
    )
    views: list[Pool] = []
    devices: list[Device] = []
    for pool in valid:
        resources = {r.name: Resource.of(r) for r in pool.spec.resources}
        blocks = {r.name: r.block for r in pool.spec.resources}
        effective = pool.spec.effective_attributes
        members: list[Device] = []
        for device in sorted(pool.spec.devices, key=lambda d: natural_key(d.name)):
            attributes = effective[device.name]
            draws = undefined = None
            if device.requests:
                undefined = next((name for name in sorted(device.requests) if name not in resources), None)
                draws = tuple(
                    [
                        (name, ceil_blocks(amount, blocks[name]))
                        for name, amount in sorted(device.requests.items())
                        if name in blocks and amount.nano > 0
                    ]
                )
            members.append(
                Device(
                    index=len(devices) + len(members),
                    pool=len(views),
                    name=device.name,
                    attributes=attributes,
                    resources={r.name: Resource.of(r) for r in device.resources} if device.resources else _NO_RESOURCES,
                    draws=_one_object(draws) if draws else (),
                    undefined=undefined,
                    unavailable=unavailability(attributes),
                    compatibility=attributes.get(COMPATIBILITY_GROUP),
                )
            )
        view = Pool(len(views), pool.spec.node_name, pool.metadata.name, pool.spec.driver, resources, tuple(members))
        views.append(view)
        problems += _undefined_draws(view)
        devices += members
    return join_pools(views), problems


def join_pools(pools: Sequence[Pool], nodes: Iterable[str] | None = None) -> Snapshot:
    """Numbered pools as a snapshot; ``nodes`` None: those that pools are of."""
    by_node: dict[str | None, tuple[Pool, ...]] = {}
    by_name: dict[str, tuple[Pool, ...]] = {}
    for pool in pools:
        by_node[pool.node] = (*by_node.get(pool.node, ()), pool)
        by_name[pool.name] = (*by_name.get(pool.name, ()), pool)
    devices = sorted([device for pool in pools for device in pool.devices], key=attrgetter("index"))
    names = [node for node in by_node if node is not None] if nodes is None else nodes
    return Snapshot(tuple(pools), tuple(devices), tuple(names), by_node, by_name)


def renumber(pools: Iterable[Pool]) -> list[Pool]:
    """Pools of any snapshots, numbered in this order, and so are their devices."""
    renumbered: list[Pool] = []
    first = 0
    for pool in pools:
        renumbered.append(numbered_from(pool, len(renumbered), first))
        first += len(pool.devices)
    return renumbered


def numbered_from(pool: Pool, number: int, first: int) -> Pool:
    """The pool under another number, and its devices numbered from ``first`` on."""
    members = tuple([with_index(device, n, number) for n, device in enumerate(pool.devices, first)])
    return Pool(number, pool.node, pool.name, pool.driver, pool.resources, members, pool.comes_last)


def with_index(device: Device, index: int, pool: int) -> Device:
    """The device under another number; ``dataclasses.replace`` takes several times as long."""
    return Device(
        index,
        pool,
        device.name,
        device.attributes,
        device.resources,
        device.draws,
        device.undefined,
        device.shareable,
        device.reach,
        device.traits,
        device.source,
        device.ghost,
        device.unavailable,
        device.compatibility,
    )


def _undefined_draws(pool: Pool) -> Iterator[Problem]:
    """Devices that request what their pool does not define can never be allocated (S12)."""
    by_resource: dict[str, list[str]] = defaultdict(list)
    for device in pool.devices:
        if device.undefined is not None:
            by_resource[device.undefined].append(device.name)
    for resource, names in by_resource.items():
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        they_request = "it requests" if len(names) == 1 else "they request"
        yield Problem(
            f"{shown} can never be allocated: {they_request} {resource!r}, which spec.resources does not define",
            path="spec.devices",
            kind="DevicePool",
            name=pool.name,
            severity="warning",
        )


def without_duplicate_pools(pools: list[DevicePool]) -> tuple[list[DevicePool], list[Problem]]:
    by_name: dict[str, list[DevicePool]] = defaultdict(list)
    for pool in pools:
        by_name[pool.metadata.name].append(pool)
    distinct: list[DevicePool] = []
    problems: list[Problem] = []
    for name, same in by_name.items():
        if len(same) == 1:
            distinct += same
            continue
        nodes = [pool.spec.node_name for pool in same]
        network = None in nodes
        for pool in same:
            if not network and nodes.count(pool.spec.node_name) == 1:
                distinct.append(pool)
                continue
            where = f"node {pool.spec.node_name}" if pool.spec.node_name else "every node"
            problems.append(
                Problem(
                    f"{len(same)} pools are named {name!r} and {where} reaches more than one of them: "
                    "all of them are ignored; rename one",
                    path="metadata.name",
                    kind="DevicePool",
                    name=name,
                )
            )
    return distinct, problems
