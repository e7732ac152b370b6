"""What a pool and a node have left, interned: equal pools in equal use are one state, equal nodes one class."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heappop, heappush
from itertools import count
from operator import itemgetter

from devalloc_solver.bounds.largest_partition import Losses, Parts, fitting_parts, losses, size_of
from devalloc_solver.fleet.equal_devices import EqualDevices
from devalloc_solver.problem.allocations import Usage, pool_allows
from devalloc_solver.problem.loads import PoolScale, scale_of
from devalloc_solver.problem.snapshot import Resource, Snapshot

ShareState = tuple[bool, tuple[tuple[str, int], ...]]
"""How a device in shares is used: whether a claim holds it whole besides, and the nano units of each resource."""


SPARE_STATES = 10_000
"""States of pools that no node is in which are remembered, beside as many as nodes may be in; when there are more, they
are forgotten."""


@dataclass(slots=True)
class CountedUse:
    """Who uses a device, added up; gone with the last user."""

    whole: int = 0
    """claims that hold it whole"""
    shares: int = 0
    amounts: dict[str, int] = field(default_factory=dict)
    """nano units in use"""

    def add(self, amounts: tuple[tuple[str, int], ...] | None, sign: int) -> None:
        if amounts is None:
            self.whole += sign
            return
        self.shares += sign
        for name, nano in amounts:
            self.amounts[name] = self.amounts.get(name, 0) + sign * nano

    @property
    def sharing(self) -> ShareState:
        """For one that is not only held whole."""
        return self.whole > 0, tuple(sorted((name, nano) for name, nano in self.amounts.items() if nano))


SOLE_USE = CountedUse(1)
"""Of a device that one claim holds whole: most that are in use. Nothing is added to it."""


@dataclass(frozen=True, eq=False)
class PoolPart:
    """Groups of a pool that draw on resources which no other group draws on, such as one card; or all that draw on
    nothing (all of these form one part)."""

    groups: tuple[int, ...]
    draws: tuple[tuple[tuple[str, int], ...], ...]
    """(resource, blocks) of a device of each group"""
    sizes: tuple[int | None, ...]
    """of the devices of each group, see ``size_of``; None where they draw on nothing or cannot be had"""
    blocks: Mapping[str, int]
    """of the resources that they draw on"""

    @cached_property
    def of_all(self) -> Callable[[Sequence[int]], tuple[int, ...]]:
        """Picks what is of these groups from a value for each group of the pool."""
        (first, *others) = self.groups
        return itemgetter(first, *others) if others else lambda values: (values[first],)


@dataclass(frozen=True, eq=False)
class PartState:
    """A part of a pool in use. Results for it do not depend on the other parts."""

    part: PoolPart
    free: tuple[int, ...]
    """devices of each group"""
    left: Mapping[str, int]
    """free blocks of each resource"""
    free_sizes: frozenset[int]
    """of the devices that are free"""

    @cached_property
    def _losses(self) -> dict[tuple[int, int], Losses]:
        return {}

    def losses(self, group: int, count: int = 1) -> Losses:
        """What is lost by giving away so many free devices of a group."""
        lost = self._losses.get((group, count))
        if lost is None:
            draws = self.part.draws[self.part.groups.index(group)]
            lost = self._losses[group, count] = losses(self._fitting_parts, self.left, [draws] * count)
        return lost

    @cached_property
    def _fitting_parts(self) -> Parts:
        groups = zip(self.part.draws, self.part.sizes, self.free, strict=True)
        sizes = {draws: size for draws, size, free in groups if free and size is not None}
        return fitting_parts(sorted([(size, draws) for draws, size in sizes.items()], reverse=True), self.left)


@dataclass(frozen=True, eq=False)
class PoolKind:
    """Pools that differ in names only: equal kinds of devices in equal order."""

    index: int
    resources: Mapping[str, Resource]
    kinds: tuple[EqualDevices, ...]
    """of each group"""
    groups: tuple[tuple[int, ...], ...]
    """positions in the pool of devices of one kind"""
    group_of: tuple[int, ...]
    """position -> group"""

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(len(group) for group in self.groups)

    def positions(self, groups: tuple[int, ...]) -> Sequence[int]:
        """Those of the devices of some groups, in order."""
        if len(groups) == 1:
            return self.groups[groups[0]]
        return sorted([position for group in groups for position in self.groups[group]])

    @cached_property
    def numbers(self) -> frozenset[int]:
        """Those of the kinds of its devices."""
        return frozenset([kind.index for kind in self.kinds])

    @cached_property
    def scale(self) -> PoolScale:
        """How much its devices are."""
        return scale_of([self.kinds[group].one.draws for group in self.group_of], self.resources)

    @cached_property
    def blocks(self) -> Mapping[str, int]:
        """Blocks of each resource."""
        return {name: resource.blocks for name, resource in self.resources.items()}

    @cached_property
    def parts(self) -> Sequence[PoolPart]:
        parts: list[tuple[set[str], list[int]]] = []
        for group, kind in enumerate(self.kinds):
            names = {name for name, _ in kind.one.draws}
            joined = [part for part in parts if part[0] == names or not names.isdisjoint(part[0])]
            parts = [part for part in parts if part not in joined]
            parts.append(
                (names.union(*(part[0] for part in joined)), [*(g for part in joined for g in part[1]), group])
            )
        return [self._part(names, tuple(groups)) for names, groups in parts]

    def _part(self, names: set[str], groups: tuple[int, ...]) -> PoolPart:
        devices = [self.kinds[group].one for group in groups]
        draws = tuple([one.draws for one in devices])
        can_be_had = [bool(one.draws) and one.undefined is None and one.unavailable is None for one in devices]
        sizes = tuple(
            [size_of(one.draws, self.blocks) if there else None for one, there in zip(devices, can_be_had, strict=True)]
        )
        return PoolPart(groups, draws, sizes, {name: self.blocks[name] for name in sorted(names & self.blocks.keys())})

    @cached_property
    def part_of(self) -> Mapping[int, int]:
        """group -> number of its part"""
        return {group: number for number, part in enumerate(self.parts) for group in part.groups}

    @cached_property
    def _part_states(self) -> dict[tuple[int, tuple[int, ...]], PartState]:
        return {}

    def part_state(self, number: int, free: tuple[int, ...]) -> PartState:
        """A part with so many free devices of each group: one object, as long as there are not too many."""
        state = self._part_states.get((number, free))
        if state is None:
            if len(self._part_states) >= SPARE_STATES:
                self._part_states.clear()
            state = self._part_states[number, free] = self._find_part_state(self.parts[number], free)
        return state

    def forget_part_states(self) -> None:
        self._part_states.clear()

    def _find_part_state(self, part: PoolPart, free: tuple[int, ...]) -> PartState:
        left = {**part.blocks}
        for group, own_free, draws in zip(part.groups, free, part.draws, strict=True):
            for name, blocks in draws if own_free < self.sizes[group] else ():
                if name in left:
                    left[name] = max(0, left[name] - blocks * (self.sizes[group] - own_free))
        sizes = frozenset([size for size, number in zip(part.sizes, free, strict=True) if number and size is not None])
        return PartState(part, free, left, sizes)


@dataclass(frozen=True, eq=False)
class PoolState:
    """A pool in use: for each group how many devices are free, and how the others are shared."""

    index: int
    kind: PoolKind
    free: tuple[int, ...]
    shared: tuple[tuple[int, ShareState], ...]
    in_use: bool

    @cached_property
    def load(self) -> int:
        """How much of it is in use, see ``Loads``."""
        scale, kinds = self.kind.scale, self.kind.kinds
        load = 0
        for group, (size, free) in enumerate(zip(self.kind.sizes, self.free, strict=True)):
            load += (size - free) * scale.whole(kinds[group].one.draws) if free < size else 0
        for group, (whole, amounts) in self.shared:
            if not whole:
                device = kinds[group].one
                load += scale.load(device, dict(amounts)) - scale.whole(device.draws)
        return load

    @property
    def capacity(self) -> int:
        """How much there is, see ``PoolScale``."""
        return self.kind.scale.capacity

    @cached_property
    def left(self) -> Mapping[str, int]:
        """Free blocks of each resource of the pool (S12)."""
        left = {**self.kind.blocks}
        if self.free != self.kind.sizes:
            for part in self.parts:
                left |= part.left
        return left

    @cached_property
    def parts(self) -> Sequence[PartState]:
        """The state of each part of the pool."""
        return [self.kind.part_state(number, part.of_all(self.free)) for number, part in enumerate(self.kind.parts)]

    @cached_property
    def sizes_differ(self) -> bool:
        """Whether free devices are of several sizes: else none is worth keeping more than another (S17, goal 5)."""
        return len(frozenset().union(*(part.free_sizes for part in self.parts))) > 1

    def partition_loss(self, group: int, count: int) -> int:
        """What is lost of the largest devices by giving away so many free ones of a group."""
        return self.parts[self.kind.part_of[group]].losses(group, count)[0] if self.sizes_differ else 0

    @cached_property
    def least_partition_loss(self) -> int | None:
        """The same for whichever free device takes the least; None when none is free."""
        kinds = zip(self.kind.kinds, self.free, strict=True)
        usable = [
            group
            for group, (kind, free) in enumerate(kinds)
            if free and kind.one.undefined is None and kind.one.unavailable is None
        ]
        return min([self.partition_loss(group, 1) for group in usable], default=None)

    @cached_property
    def excluded(self) -> tuple[bool, ...]:
        """For each group, whether its free devices cannot be had: others have what they need of the pool."""
        groups = zip(self.kind.kinds, self.kind.sizes, self.free, strict=True)
        used = {kind.one.compatibility for kind, size, free in groups if free < size} - {None}
        return tuple(not pool_allows(kind.one, self.left, used) for kind in self.kind.kinds)

    @cached_property
    def excluded_free(self) -> tuple[tuple[int, int], ...]:
        """(kind, free devices) of each group that is excluded: most pools have none, and refusals count all pools."""
        groups = zip(self.kind.kinds, self.free, self.excluded, strict=True)
        return tuple((kind.index, free) for kind, free, is_excluded in groups if is_excluded and free)

    @cached_property
    def shareable(self) -> int:
        """Devices in shares that no claim holds whole."""
        return sum(not whole for _, (whole, _) in self.shared)


@dataclass(frozen=True, eq=False)
class NodeKind:
    """Nodes whose pools are of the same kinds, in the same order."""

    index: int
    pools: tuple[PoolKind, ...]

    @cached_property
    def capacity(self) -> int:
        """Devices, see ``PoolScale``."""
        return sum(pool.scale.capacity for pool in self.pools)


@dataclass(eq=False)
class NodeClass:
    """Nodes of one kind in equal use."""

    index: int
    kind: NodeKind
    states: tuple[PoolState, ...]
    in_use: bool
    ranks: set[int] = field(default_factory=set)
    """of its nodes"""
    _ordered: list[int] = field(default_factory=list)
    """the same as a heap, some that have left included"""
    looks: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)
    """numbers of pools -> what a claim with candidates in these looks at (``ShapeSearch``)"""

    def enter(self, rank: int) -> None:
        """A node joins."""
        self.ranks.add(rank)
        if len(self._ordered) > 4 * len(self.ranks) + 16:
            self._ordered = sorted(self.ranks - {rank})
        heappush(self._ordered, rank)

    @property
    def first(self) -> int | None:
        """The lowest rank among its nodes; None if there is none."""
        ordered, ranks = self._ordered, self.ranks
        while ordered and ordered[0] not in ranks:
            heappop(ordered)
        return ordered[0] if ordered else None

    @cached_property
    def load(self) -> int:
        """How much of it is in use, see ``Loads``."""
        return sum(state.load for state in self.states)

    @property
    def capacity(self) -> int:
        """How much there is, see ``PoolScale``."""
        return self.kind.capacity


@dataclass(slots=True, eq=False)
class NodeRecord:
    """A node (or, with the name None, the network) with its devices and who uses them."""

    name: str | None
    rank: int
    snapshot: Snapshot
    kinds: tuple[EqualDevices, ...]
    pools: tuple[PoolKind, ...]
    starts: tuple[int, ...]
    """index of the first device of each pool"""
    uses: list[dict[int, CountedUse]]
    """per pool: position -> use of the devices that are not free"""
    states: list[PoolState]
    member_of: NodeClass | None = None
    version: int = 0
    """no two states of any record have the same"""
    _names: dict[tuple[str, str, bool], int] | None = None

    def find(self, pool: str, device: str, *, ghost: bool = False) -> int | None:
        """The index of a device, or of its ghost, by its names."""
        if self._names is None:
            self._names = {
                (owner.name, each.name, each.ghost is not None): each.index
                for owner in self.snapshot.pools
                for each in owner.devices
            }
        return self._names.get((pool, device, ghost))

    def usage(self, snapshot: Snapshot | None = None, offset: int = 0) -> Usage:
        """What is in use, in terms of a snapshot that has this node's devices from ``offset`` on."""
        usage = Usage(snapshot or self.snapshot)
        self.fill(usage, offset)
        return usage

    def fill(self, usage: Usage, offset: int) -> None:
        for start, uses in zip(self.starts, self.uses, strict=True):
            for position, use in uses.items():
                device = usage.snapshot.devices[offset + start + position]
                for name, blocks in device.draws:
                    usage.drawn[device.pool][name] += blocks
                if device.compatibility is not None:
                    usage.groups[device.pool].add(device.compatibility)
                if use.whole:
                    usage.whole.add(device.index)
                if use.shares:
                    usage.shared[device.index] = {name: nano for name, nano in use.amounts.items() if nano}


class NodeClasses:
    """All pool kinds, pool states, node kinds and node classes met, each once."""

    def __init__(self) -> None:
        self.by_index: dict[int, NodeClass] = {}
        self._pool_kinds: dict[tuple[object, ...], PoolKind] = {}
        self._pool_states: dict[tuple[object, ...], PoolState] = {}
        self._node_kinds: dict[tuple[int, ...], NodeKind] = {}
        self._node_classes: dict[tuple[int, ...], NodeClass] = {}
        self._numbers = 0
        self._most_states = SPARE_STATES
        self._versions = count(1)

    @property
    def node_kinds(self) -> int:
        """How many have been met."""
        return len(self._node_kinds)

    def record(self, name: str | None, rank: int, snapshot: Snapshot, kinds: tuple[EqualDevices, ...]) -> NodeRecord:
        """A node of which nothing is in use."""
        pools = tuple(
            self._pool_kind(pool.resources, kinds[pool.devices[0].index : pool.devices[-1].index + 1])
            if pool.devices
            else self._pool_kind(pool.resources, ())
            for pool in snapshot.pools
        )
        starts = tuple(pool.devices[0].index if pool.devices else 0 for pool in snapshot.pools)
        uses: list[dict[int, CountedUse]] = [{} for _ in pools]
        states = [self._state(kind, {}) for kind in pools]
        return NodeRecord(name, rank, snapshot, kinds, pools, starts, uses, states, version=next(self._versions))

    def renew(self, record: NodeRecord, pools: set[int]) -> None:
        """Bring the states of pools up to date with their uses."""
        for number in pools:
            record.states[number] = self._state(record.pools[number], record.uses[number])
        record.version = next(self._versions)

    def class_of(self, record: NodeRecord) -> NodeClass:
        key = tuple([state.index for state in record.states])
        node_class = self._node_classes.get(key)
        if node_class is None:
            kind_key = tuple([kind.index for kind in record.pools])
            kind = self._node_kinds.get(kind_key)
            if kind is None:
                kind = self._node_kinds[kind_key] = NodeKind(len(self._node_kinds), record.pools)
            self._numbers += 1
            node_class = self._node_classes[key] = NodeClass(
                self._numbers, kind, tuple(record.states), any(s.in_use for s in record.states)
            )
            self.by_index[node_class.index] = node_class
        return node_class

    def forget_empty(self) -> None:
        """Drop the classes that have no node."""
        for key, each in list(self._node_classes.items()):
            if not each.ranks:
                del self._node_classes[key]
                del self.by_index[each.index]
        self._forget_states()

    def limit_states(self) -> None:
        """Drop states of pools that no node is in, once they are most: network pools pass through many."""
        if len(self._pool_states) > self._most_states:
            self._forget_states()

    def _forget_states(self) -> None:
        in_use = {state.index for each in self._node_classes.values() for state in each.states}
        self._pool_states = {key: state for key, state in self._pool_states.items() if state.index in in_use}
        self._most_states = 2 * len(self._pool_states) + SPARE_STATES
        for kind in self._pool_kinds.values():
            kind.forget_part_states()

    def _pool_kind(self, resources: Mapping[str, Resource], kinds: tuple[EqualDevices, ...]) -> PoolKind:
        amounts = frozenset((name, r.block, r.blocks) for name, r in resources.items())
        key = (amounts, *(kind.index for kind in kinds))
        pool_kind = self._pool_kinds.get(key)
        if pool_kind is None:
            number: dict[int, int] = {}
            group_of = tuple(number.setdefault(kind.index, len(number)) for kind in kinds)
            groups = tuple(
                tuple(position for position, own in enumerate(group_of) if own == group) for group in range(len(number))
            )
            of_group = tuple(kinds[group[0]] for group in groups)
            pool_kind = self._pool_kinds[key] = PoolKind(len(self._pool_kinds), resources, of_group, groups, group_of)
        return pool_kind

    def _state(self, kind: PoolKind, uses: Mapping[int, CountedUse]) -> PoolState:
        free, group_of = list(kind.sizes), kind.group_of
        shared: list[tuple[int, ShareState]] = []
        for position, use in uses.items():
            free[group_of[position]] -= 1
            if use is not SOLE_USE and use.shares:
                shared.append((group_of[position], use.sharing))
        key = (kind.index, *free, *sorted(shared)) if shared else (kind.index, *free)
        state = self._pool_states.get(key)
        if state is None:
            self._numbers += 1
            state = PoolState(self._numbers, kind, tuple(free), tuple(sorted(shared)), in_use=bool(uses))
            self._pool_states[key] = state
        return state
