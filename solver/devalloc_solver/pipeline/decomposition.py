"""Decompose a batch into subproblems: units that compete for nothing are solved separately (S17).

There are two ways to split a batch, because the goals of S17 do not all look at the same things:

``split_by_pool``. Parts have no pool in common, so goals 1 to 4 are sums and vectors over the parts: the best answers
of the parts are the best answer of the batch. Only goal 5 looks at nodes, which parts may share: each part is solved on
top of those before it.

``split_by_device``, finer: parts may use other devices of the same pool. Who is satisfied and by which alternatives
(goals 1 and 2) depends on nothing that two parts share, so this is still exact. Goal 3 is not: a pool counts once
however many claims use it, so two claims that each have a choice of pools must choose together to use the fewest. Goal
4 comes after goal 3. Only claims that would wait for a hard search are split this way.

Two units compete for devices if both may use the same device; if they may use devices that draw on the same resource of
a pool (S12; counters and devices that several nodes publish are such resources); or if they may use a pool that has
compatibility groups (S12a). Members of a group are one unit. ``admission`` applies quotas before the solver.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from devalloc_solver.problem.allocations import Holding, Key
from devalloc_solver.problem.demand import Candidates, Demand, PlacementUnit, Request
from devalloc_solver.problem.ordering import claim_order
from devalloc_solver.problem.snapshot import Device, Snapshot


@dataclass(frozen=True, slots=True)
class Subproblem:
    """Units that compete with each other, directly or through others, and with no unit of another part."""

    units: tuple[PlacementUnit, ...]
    """in the order of the batch"""
    pools: frozenset[int]
    """all that they may use"""
    devices: frozenset[int] | None = None
    """the devices of these pools whose use matters to the units; None for all"""

    @property
    def keys(self) -> tuple[Key, ...]:
        """The claims."""
        return tuple(demand.key for unit in self.units for demand in unit.demands)


@dataclass(frozen=True, slots=True)
class SubproblemSummary:
    """A part by the names of its claims, for those who know no snapshot."""

    units: tuple[tuple[Key, ...], ...]
    """claims that are satisfied together or not at all"""
    priorities: Mapping[Key, int]
    fingerprint: str
    """equal for parts whose answer is the same; see ``_Fingerprints``"""


def summarize_subproblems(
    snapshot: Snapshot, allocations: Sequence[Holding], units: Sequence[PlacementUnit]
) -> list[SubproblemSummary]:
    """The parts of a batch by device."""
    fingerprints = _Fingerprints(snapshot, allocations)
    return [_summarize(part, fingerprints) for part in split_by_device(snapshot, units)]


def summarize_units(
    snapshot: Snapshot, allocations: Sequence[Holding], units: Sequence[PlacementUnit]
) -> list[SubproblemSummary]:
    """Each unit as the part that it is in a batch without the others."""
    fingerprints, contested = _Fingerprints(snapshot, allocations), _ContestedThings(snapshot)
    reach = _UsableThings(snapshot, contested.of)
    summaries: list[SubproblemSummary] = []
    for unit in units:
        requests = unit.requests
        things = frozenset(thing for request in requests for group in reach.of(request, unit.pin) for thing in group)
        pools = frozenset(snapshot.devices[thing].pool for thing in things)
        in_use = {item.device for number in fingerprints.holders(pools) for item in allocations[number].items}
        matter = (index for index in in_use if not things.isdisjoint(contested.of(snapshot.devices[index])))
        summaries.append(_summarize(Subproblem((unit,), pools, frozenset(matter)), fingerprints))
    return summaries


def _summarize(part: Subproblem, fingerprints: _Fingerprints) -> SubproblemSummary:
    return SubproblemSummary(
        tuple(tuple(demand.key for demand in unit.demands) for unit in part.units),
        {demand.key: demand.claim.priority for unit in part.units for demand in unit.demands},
        fingerprints.of(part),
    )


def unproven_names(parts: Iterable[Subproblem]) -> list[str]:
    """``NAMESPACE/NAME`` of the claims of parts, as answers have them."""
    return sorted("/".join(key) for part in parts for key in part.keys)


def split_by_pool(snapshot: Snapshot, units: Sequence[PlacementUnit]) -> list[Subproblem]:
    """The parts of a batch that have no pool in common, those that are easier to solve first. Units that may use no
    pool at all are one part, and each that requests nothing is one."""
    if len(units) == 1:  # most batches are one claim
        return [Subproblem(tuple(units), frozenset(_pools(snapshot, units[0])))]
    sets = _DisjointSets()
    members = _units_by_root(units, sets, _UsableThings(snapshot, lambda device: (device.pool,)))
    pools: dict[int | None, list[int]] = defaultdict(list)
    for pool in sets.parents:
        pools[sets.root(pool)].append(pool)
    parts = [Subproblem(tuple(same), frozenset(pools.get(root, ()))) for root, same in members.items()]
    return _smallest_first(parts)


def _pools(snapshot: Snapshot, unit: PlacementUnit) -> set[int]:
    """The pools of devices that a unit may use."""
    accepted = (request.candidates.accepted for request in unit.requests)
    pools = {snapshot.devices[index].pool for indexes in accepted for index in indexes}
    return pools if unit.pin is None else {pool for pool in pools if snapshot.pools[pool].node in (unit.pin, None)}


def split_by_device(snapshot: Snapshot, units: Sequence[PlacementUnit]) -> list[Subproblem]:
    """The same for parts that compete for no device."""
    sets, contested = _DisjointSets(), _ContestedThings(snapshot)
    members = _units_by_root(units, sets, _UsableThings(snapshot, contested.of))
    pools: dict[int | None, set[int]] = defaultdict(set)
    for device in sets.parents:
        pools[sets.root(device)].add(snapshot.devices[device].pool)
    matter: dict[int | None, list[int]] = defaultdict(list)
    for pool in set[int]().union(*pools.values()):
        for each in snapshot.pools[pool].devices:
            for root in {sets.root(other) for other in contested.of(each) if other in sets.parents}:
                matter[root].append(each.index)
    parts = [
        Subproblem(tuple(same), frozenset(pools.get(root, ())), frozenset(matter.get(root, ())))
        for root, same in members.items()
    ]
    return _smallest_first(parts)


def _units_by_root(
    units: Sequence[PlacementUnit], sets: _DisjointSets, reach: _UsableThings
) -> dict[int | None, list[PlacementUnit]]:
    """The units of each part, by the root of what they may use; None for those that may use nothing, and a negative
    number for each that requests nothing."""
    first: list[int | None] = []
    """of each unit something that it may use"""
    for unit in units:
        start: int | None = None
        for request in unit.requests:
            for reached in reach.of(request, unit.pin):
                start = reached[0] if start is None else start
                sets.join(start, reached)
        first.append(start)
    members: dict[int | None, list[PlacementUnit]] = defaultdict(list)
    for number, (unit, start) in enumerate(zip(units, first, strict=True)):
        if start is not None:
            members[sets.root(start)].append(unit)
        else:
            requests_any = any(demand.details for demand in unit.demands)
            members[None if requests_any else -1 - number].append(unit)
    return members


def join_subproblems(parts: Sequence[Subproblem]) -> Subproblem:
    """One part of several."""
    units = tuple(unit for part in parts for unit in part.units)
    return Subproblem(units, frozenset[int]().union(*(part.pools for part in parts)))


def _smallest_first(parts: Iterable[Subproblem]) -> list[Subproblem]:
    """Sort by units; equal ones stay in the order of their first unit. What there is to decide grows with the pools,
    too, but a warm fleet has not all that are alike, and claims get the same devices only if the order is the same."""
    return sorted(parts, key=lambda part: len(part.units))


@dataclass(slots=True)
class _ContestedThings:
    """What a unit competes for that may use a device: numbers of devices, this one and one for each thing that it
    shares with other devices of its pool."""

    snapshot: Snapshot
    first: dict[tuple[int, str | None], int] = field(default_factory=dict)
    """(pool, resource) -> the first device that was seen to draw on it; the same for compatibility groups, as None"""
    grouped: dict[int, bool] = field(default_factory=dict)
    """pool -> whether it has compatibility groups"""

    def of(self, device: Device) -> tuple[int, ...]:
        pool = device.pool
        if pool not in self.grouped:
            self.grouped[pool] = any(one.compatibility is not None for one in self.snapshot.pools[pool].devices)
        shared: list[str | None] = [name for name, _ in device.draws]
        if self.grouped[pool]:
            shared.append(None)
        return (device.index, *(self.first.setdefault((pool, name), device.index) for name in shared))


@dataclass(slots=True)
class _UsableThings:
    """What requests may use; requests with the same candidates are looked at once."""

    snapshot: Snapshot
    things: Callable[[Device], Iterable[int]]
    """what a unit uses or competes for that may take a device"""
    by_node: dict[int, Mapping[str | None, tuple[int, ...]]] = field(default_factory=dict)
    everywhere: dict[int, tuple[int, ...]] = field(default_factory=dict)
    alive: list[object] = field(default_factory=list)
    """what the identities are of"""

    def of(self, request: Request, pin: str | None) -> Iterable[tuple[int, ...]]:
        """Groups of things, none of them empty; from the node ``pin`` only, where there is one."""
        key = id(request.candidates)
        if key not in self.by_node:
            self.alive.append(request.candidates)
            reached: dict[str | None, dict[int, None]] = defaultdict(dict)
            for index in request.candidates.accepted:
                device = self.snapshot.devices[index]
                reached[self.snapshot.pools[device.pool].node].update(dict.fromkeys(self.things(device)))
            self.by_node[key] = {node: tuple(things) for node, things in reached.items()}
            self.everywhere[key] = tuple(thing for things in reached.values() for thing in things)
        if pin is None:
            return [self.everywhere[key]] if self.everywhere[key] else []
        nodes = self.by_node[key]
        return [nodes[node] for node in (pin, None) if node in nodes]


@dataclass(slots=True)
class _DisjointSets:
    """Numbers that hang together (union-find)."""

    parents: dict[int, int] = field(default_factory=dict)
    joined: set[tuple[int, int]] = field(default_factory=set)
    """(a number, identity of a tuple of numbers) that are one set already"""

    def root(self, number: int) -> int:
        while (parent := self.parents[number]) != number:
            self.parents[number] = self.parents[parent]
            number = parent
        return number

    def join(self, start: int, numbers: tuple[int, ...]) -> None:
        if (start, id(numbers)) in self.joined:
            return
        self.joined.add((start, id(numbers)))
        root = self.root(start) if start in self.parents else self.parents.setdefault(start, start)
        for number in numbers:
            self.parents[self.root(number) if number in self.parents else number] = root


# -- what the answer of a part depends on ------------------------------------------------------------------------------


class _Fingerprints:
    """Of the parts by device of one batch. What parts or claims have in common, such as a pool or the devices that many
    claims accept, is read once.

    The fingerprint is equal for a part whose answer can be no other than before: its claims ask for the same, of pools
    that offer the same, and the same claims hold the same of the devices that matter. Names count, and what else an
    answer or a reason is made of; nothing does that claims only carry along.
    """

    def __init__(self, snapshot: Snapshot, allocations: Sequence[Holding]) -> None:
        self._snapshot = snapshot
        self._allocations = allocations
        self._by_pool: dict[int, list[int]] = defaultdict(list)
        """pool -> numbers of the allocations that have a device of it"""
        for number, allocation in enumerate(allocations):
            for pool in {snapshot.devices[item.device].pool for item in allocation.items}:
                self._by_pool[pool].append(number)
        self._of_pools: dict[int, bytes] = {}
        self._of_candidates: dict[int, bytes] = {}
        """by the identity of what requests hold, which the units keep alive"""

    def of(self, part: Subproblem) -> str:
        digest = hashlib.sha256()
        for unit in part.units:
            digest.update(repr((unit.group, unit.pin, sorted(unit.pinned_by))).encode())
            for demand in unit.demands:
                digest.update(repr(self._of_demand(demand)).encode())
        for pool in sorted(part.pools):
            digest.update(self._of_pool(pool))
        for number in self.holders(part.pools):
            allocation = self._allocations[number]
            if items := [item for item in allocation.items if self._matters(part, item.device)]:
                named = [(_device_name(self._snapshot, item.device), item.amounts) for item in items]
                digest.update(repr((allocation.owner, allocation.priority, named)).encode())
        return digest.hexdigest()

    def holders(self, pools: Iterable[int]) -> list[int]:
        """The numbers of the allocations that have devices of these pools."""
        return sorted({number for pool in pools for number in self._by_pool.get(pool, ())})

    def _matters(self, part: Subproblem, device: int) -> bool:
        if part.devices is not None:
            return device in part.devices
        return self._snapshot.devices[device].pool in part.pools

    def _of_pool(self, index: int) -> bytes:
        if index not in self._of_pools:
            pool = self._snapshot.pools[index]
            devices = [_of_device(device) for device in pool.devices]
            resources = sorted(pool.resources.items())
            self._of_pools[index] = _digest((pool.node, pool.driver, pool.name, resources, devices))
        return self._of_pools[index]

    def _of_demand(self, demand: Demand) -> object:
        requests = [
            (
                request.label,
                request.asks,
                self._of_request(request.candidates),
                [(_device_name(self._snapshot, index), portion) for index, portion in sorted(request.portions.items())],
            )
            for request in demand.requests
        ]
        return claim_order(demand.claim), demand.asks, requests

    def _of_request(self, candidates: Candidates) -> bytes:
        key = id(candidates)
        if key not in self._of_candidates:
            bars = [_device_name(self._snapshot, index) for index in sorted(candidates.bars)]
            accepted = [
                (_device_name(self._snapshot, index), named) for index, named in sorted(candidates.accepted.items())
            ]
            self._of_candidates[key] = _digest((sorted(candidates.barred), bars, accepted))
        return self._of_candidates[key]


def _digest(content: object) -> bytes:
    return hashlib.sha256(repr(content).encode()).digest()


def _of_device(device: Device) -> object:
    attributes = sorted((name, type(value).__name__, _stable_text(value)) for name, value in device.attributes.items())
    reach = None if device.reach is None else sorted(device.reach)
    return device.name, attributes, sorted(device.resources.items()), device.draws, device.shareable, reach


def _stable_text(value: object) -> str:
    return repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value)


def _device_name(snapshot: Snapshot, index: int) -> tuple[str | None, str, str]:
    device = snapshot.devices[index]
    pool = snapshot.pools[device.pool]
    return pool.node, pool.name, device.name
