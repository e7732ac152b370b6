"""What one node offers to a unit: the candidates it reaches, in groups of interchangeable devices.

What partitions of equal cards draw on are pool resources of one family, which are weighed alike.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import lcm

from devalloc_solver.place.requests import IndexedRequest, MatchConstraint, UnitRequests, indistinguishable, read_unit
from devalloc_solver.problem.allocations import Usage
from devalloc_solver.problem.allocations import pool_allows as is_allowed
from devalloc_solver.problem.demand import AllocationMode, PlacementUnit
from devalloc_solver.problem.snapshot import Device, Pool, Snapshot

Place = str | None
"""A node; None in a fleet without nodes, where there are network devices alone."""


@dataclass(frozen=True, slots=True, eq=False)
class CandidateGroup:
    """Devices of one pool that no request tells apart, in natural order."""

    number: int
    pool: int
    """position in ``NodeView.pools``"""
    devices: tuple[Device, ...]
    accepted: int
    """mask of the requests whose candidates they are"""
    takers: int
    """mask of those that may take one of them as things stand"""
    draws: tuple[tuple[str, int], ...]
    """what taking one draws on the pool: nothing when it is in use already"""
    group: object | None
    """compatibility group to keep to; None too when in use"""

    @property
    def one(self) -> Device:
        return self.devices[0]

    @property
    def size(self) -> int:
        return len(self.devices)


@dataclass(frozen=True, slots=True, eq=False)
class PoolGroups:
    """The candidate groups of some pools, and what they mean for the constraints of the unit."""

    pools: tuple[Pool, ...]
    """those with candidates, in natural order"""
    candidate_groups: tuple[CandidateGroup, ...]
    tie_values: tuple[tuple[frozenset[object], ...], ...]
    """per tie, per candidate group"""
    distinct_values: tuple[tuple[frozenset[object], ...], ...]
    masks: tuple[int, ...]
    """the distinct ``takers`` and ``accepted`` of the groups"""


@dataclass(frozen=True, slots=True, eq=False)
class NodeView:
    """A node, or no node, with all that its unit may use."""

    node: Place
    unit_requests: UnitRequests
    usage: Usage
    network: PoolGroups
    """the part that other nodes may share: the first of the pools and groups"""
    pools: tuple[Pool, ...]
    """those with candidates, in natural order"""
    candidate_groups: tuple[CandidateGroup, ...]
    tie_values: tuple[tuple[frozenset[object], ...], ...]
    """per tie, per candidate group"""
    distinct_values: tuple[tuple[frozenset[object], ...], ...]
    peer: tuple[int, ...]
    """per request: a number that is equal for requests that no candidate group tells apart"""

    def free_nano(self, candidate_group: CandidateGroup, name: str) -> int:
        """What shares may still take of one device, rounded down to blocks."""
        capacity = candidate_group.one.resources.get(name)
        return 0 if capacity is None else self.usage.free_blocks(candidate_group.one, name) * capacity.block


@dataclass(slots=True)
class UnitReader:
    """Reads units and views nodes for them. What the next question has in common with the last is read once: the same
    claims, and network devices under the same usage, which must not change meanwhile."""

    _last: UnitRequests | None = None
    _usage: Usage | None = None
    _reaches: tuple[frozenset[str], ...] = ()
    """the distinct sets of nodes that some network device is limited to"""
    _network: dict[object, PoolGroups] = field(default_factory=dict)

    def read(self, unit: PlacementUnit) -> UnitRequests:
        """Raises StepsExhausted for the rare constructs that are left to CP-SAT."""
        last = self._last
        if last is None or last.unit.demands is not unit.demands:
            last = self._last = read_unit(unit)
            self._usage = None
        elif last.unit is not unit:
            last = self._last = replace(last, unit=unit)
        return last

    def view(self, unit: PlacementUnit, snapshot: Snapshot, usage: Usage, node: Place) -> NodeView:
        """Sort the candidates that the node reaches into candidate groups. Raises StepsExhausted as ``read`` does."""
        unit_requests = self.read(unit)
        network = self._network_groups(unit_requests, snapshot, usage, node)
        own_pools = snapshot.pools_by_node.get(node, ()) if node is not None else ()
        own = group_candidates(unit_requests, own_pools, usage, node, after=network)
        together = indistinguishable((*network.masks, *own.masks), (1 << len(unit_requests.indexed_requests)) - 1)
        peer = [0] * len(unit_requests.indexed_requests)
        for position, mask in enumerate(together):
            for indexed in unit_requests.of(mask):
                peer[indexed.number] = position
        return NodeView(
            node=node,
            unit_requests=unit_requests,
            usage=usage,
            network=network,
            pools=network.pools + own.pools,
            candidate_groups=network.candidate_groups + own.candidate_groups,
            tie_values=tuple(a + b for a, b in zip(network.tie_values, own.tie_values, strict=True)),
            distinct_values=tuple(a + b for a, b in zip(network.distinct_values, own.distinct_values, strict=True)),
            peer=tuple(peer),
        )

    def _network_groups(self, unit_requests: UnitRequests, snapshot: Snapshot, usage: Usage, node: Place) -> PoolGroups:
        """Equal for nodes that reach the same network devices with the same requests."""
        pools = snapshot.pools_by_node.get(None, ())
        if self._usage is not usage:
            self._usage, self._network = usage, {}
            reaches = dict.fromkeys(device.reach for pool in pools for device in pool.devices)
            self._reaches = tuple(reach for reach in reaches if reach is not None)
        key = unit_requests.barred_from(node), tuple([node in reach for reach in self._reaches])
        if key not in self._network:
            self._network[key] = group_candidates(unit_requests, pools, usage, node)
        return self._network[key]


def group_candidates(
    unit_requests: UnitRequests, pools: Iterable[Pool], usage: Usage, node: Place, *, after: PoolGroups | None = None
) -> PoolGroups:
    """Sort the candidates of some pools into groups. ``after``: groups of other pools, for the numbers."""
    first_pool, first_group = (len(after.pools), len(after.candidate_groups)) if after else (0, 0)
    candidate_groups: list[CandidateGroup] = []
    with_candidates: list[Pool] = []
    names = unit_requests.names
    for pool in pools:
        free = free_blocks(pool, usage)
        alike: dict[object, list[Device]] = {}
        masks: dict[object, tuple[int, int]] = {}
        for device, accepted in candidates_of_pool(unit_requests, pool, node):
            takers = _requests_that_may_take(unit_requests, device, accepted, free, usage)
            key: object = (
                accepted,
                takers,
                device_state(unit_requests, device, usage),
                tuple([device.attributes.get(n) for n in names]) if names else (),
            )
            alike.setdefault(key, []).append(device)
            masks[key] = (accepted, takers)
        if alike:
            with_candidates.append(pool)
        for key, devices in alike.items():
            fresh = not usage.in_use(devices[0])
            candidate_groups.append(
                CandidateGroup(
                    number=first_group + len(candidate_groups),
                    pool=first_pool + len(with_candidates) - 1,
                    devices=tuple(devices),
                    accepted=masks[key][0],
                    takers=masks[key][1],
                    draws=devices[0].draws if fresh else (),
                    group=devices[0].compatibility if fresh else None,
                )
            )
    return PoolGroups(
        pools=tuple(with_candidates),
        candidate_groups=tuple(candidate_groups),
        tie_values=_values_of(unit_requests.ties, candidate_groups),
        distinct_values=_values_of(unit_requests.distincts, candidate_groups),
        masks=tuple(dict.fromkeys(mask for group in candidate_groups for mask in (group.takers, group.accepted))),
    )


def _values_of(
    ties: Sequence[MatchConstraint], candidate_groups: Sequence[CandidateGroup]
) -> tuple[tuple[frozenset[object], ...], ...]:
    """Per tie, per candidate group; many ties read the same attributes."""
    by_tie: dict[object, tuple[frozenset[object], ...]] = {}
    for tie in ties:
        if (tie.names, tie.listed) not in by_tie:
            by_tie[tie.names, tie.listed] = tuple(
                [tie.values(candidate_group.one) for candidate_group in candidate_groups]
            )
    return tuple([by_tie[tie.names, tie.listed] for tie in ties])


def candidates_of_pool(unit_requests: UnitRequests, pool: Pool, node: Place) -> Iterator[tuple[Device, int]]:
    """The pool's devices that some request accepts and the node reaches, with the mask of these requests."""
    barred = unit_requests.barred_from(node)
    for device in pool.devices:
        mask = 0
        for accepted, bits in unit_requests.sets:
            if device.index in accepted:
                mask |= bits
        mask &= ~barred
        if mask and (device.reach is None or node in device.reach):
            yield device, mask


def device_state(unit_requests: UnitRequests, device: Device, usage: Usage) -> tuple[object, ...]:
    """What a device has left and what taking it would draw, as far as the unit can tell."""
    index = device.index
    names: Mapping[str, object] | tuple[str, ...] = device.resources if device.shareable else unit_requests.resources
    amounts: tuple[object, ...] = ()
    if names:
        amounts = tuple(
            (name, device.resources[name].block, device.resources[name].blocks, usage.free_nano(device, name))
            for name in names
            if name in device.resources
        )
    portions = tuple([taken.get(index) for taken, _ in unit_requests.portions]) if unit_requests.portions else ()
    if usage.in_use(device):
        return index in usage.whole, index in usage.shared, device.shareable, amounts, portions
    return device.draws, device.compatibility, device.shareable, amounts, portions


def _requests_that_may_take(
    unit_requests: UnitRequests, device: Device, accepted: int, free: Mapping[str, int], usage: Usage
) -> int:
    """The requests that may take the device as things stand. ``free``: blocks of its pool's resources."""
    watching = accepted & unit_requests.admin
    rest = accepted & ~unit_requests.admin
    index = device.index
    if not rest or index in usage.whole or device.undefined is not None:
        return watching
    in_use = index in usage.shared
    if not in_use and not pool_allows(device, free, usage):
        return watching
    if device.shareable:
        for taken, mask in unit_requests.portions:
            portion = taken.get(index)
            if portion is None or usage.portions_left(device, portion) == 0:
                rest &= ~mask
        return watching | rest & unit_requests.portioned
    if in_use:
        rest &= unit_requests.share
    if shares := rest & unit_requests.share:
        for indexed in unit_requests.of(shares):
            if not _has_share(indexed, device, usage):
                rest ^= indexed.bit
    return watching | rest


def free_blocks(pool: Pool, usage: Usage) -> dict[str, int]:
    """Blocks of a pool's resources that are free."""
    return {name: usage.free_pool_blocks(pool.index, name) for name in pool.resources}


def pool_allows(device: Device, free: Mapping[str, int], usage: Usage) -> bool:
    """Pool resources and compatibility groups (S12, S12a), for a device that is not in use. ``free``: of its pool."""
    return is_allowed(device, free, usage.groups.get(device.pool))


def _has_share(indexed: IndexedRequest, device: Device, usage: Usage) -> bool:
    """Whether a share may take something of the device; all of it where it must be a single device."""
    for name, nano in indexed.request.requests.items():
        free = usage.free_blocks(device, name)
        if indexed.request.max_count != 1:
            if free:
                return True
        elif not free or free * device.resources[name].block < nano:
            return False
    return indexed.request.max_count == 1


def count_fixed(node_view: NodeView, indexed: IndexedRequest) -> int:
    """How many devices an ask for every device gets."""
    return sum(candidate_group.size for candidate_group in devices_of_fixed(node_view, indexed))


def devices_of_fixed(node_view: NodeView, indexed: IndexedRequest) -> list[CandidateGroup]:
    """All that an ask for every device gets."""
    assert indexed.request.mode in (AllocationMode.EVERY, AllocationMode.ADMIN_ALL)
    return [candidate_group for candidate_group in node_view.candidate_groups if candidate_group.accepted & indexed.bit]


_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class ResourceFamily:
    """Integer weights: fractions with one denominator."""

    weights: tuple[int, ...]
    """per candidate group, of one device"""
    total: int
    """of all that is free"""


def resource_families(node_view: NodeView) -> list[ResourceFamily]:
    """The families that some candidate group draws on."""
    named = _FamilyNames()
    capacities: dict[str, set[int]] = defaultdict(set)
    for candidate_group in node_view.candidate_groups:
        for name, _ in candidate_group.draws:
            capacities[named[name]].add(node_view.pools[candidate_group.pool].resources[name].blocks)
    drawn = []
    for family, sizes in capacities.items():
        unit = lcm(*(size for size in sizes if size))
        shares: list[dict[str, int]] = []
        total = 0
        for pool in node_view.pools:
            # Skip resources that no candidate draws on: their sizes would only make the common unit larger.
            own_blocks = {n: r.blocks for n, r in pool.resources.items() if r.blocks in sizes and named[n] == family}
            shares.append({name: unit // blocks for name, blocks in own_blocks.items() if blocks})
            total += sum(s * node_view.usage.free_pool_blocks(pool.index, name) for name, s in shares[-1].items())
        weights = tuple(
            sum(blocks * shares[candidate_group.pool].get(name, 0) for name, blocks in candidate_group.draws)
            for candidate_group in node_view.candidate_groups
        )
        drawn.append(ResourceFamily(weights, total))
    return drawn


class _FamilyNames(dict[str, str]):
    """resource -> its family"""

    def __missing__(self, name: str) -> str:
        family = self[name] = _DIGITS.sub("#", name)
        return family
