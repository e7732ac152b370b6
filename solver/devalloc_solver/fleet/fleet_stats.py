"""Statistics of the whole fleet, counted by kind of device and brought up to date on demand.

Numbers that follow from classes of nodes are computed each time: there are few classes. Numbers that need a look at
each claim or node are computed when they are first used, and cached.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge, nsmallest
from itertools import islice
from typing import Any, NamedTuple

from devalloc_solver.explain.funnel import MAX_USERS, SHOWN
from devalloc_solver.fleet.equal_devices import EqualDevices, EqualDevicesIndex
from devalloc_solver.fleet.node_index import HeldItem, NodeIndex
from devalloc_solver.fleet.pool_states import NodeClass, NodeRecord, PoolKind, PoolState
from devalloc_solver.problem.allocations import Key
from devalloc_solver.problem.demand import AllocationMode, Request

MAX_COUNTED = 10_000
"""Ways to hold devices that are remembered; when there are more, all are forgotten."""

HeldKinds = tuple[tuple[int, int], ...]
"""(kind, devices) of what one claim holds, ascending"""
NETWORK = -(1 << 62)
"""The rank of the network: before all nodes."""
Node = str | None
PoolOrder = Callable[[PoolKind], bool]
"""Whether the pools of a kind come last, in a dialect that orders pools by driver and name, whatever their node"""


PoolPlace = tuple[str, str, int, int]
"""(driver and name, if pools are in the order of these; rank of the node; index of the first device)"""


class DevicePosition(NamedTuple):
    """One device; smaller is earlier."""

    pool: tuple[object, ...]
    """the place of its pool among all others; () where pools are in the order of their nodes"""
    rank: int
    """of its node"""
    device: int
    """its index in the snapshot of its node"""


@dataclass(slots=True, eq=False)
class UsageClass:
    """Nodes of one class whose devices are held in the same way: so many claims, each with so much."""

    node: NodeClass
    tenants: tuple[HeldKinds, ...]
    ranks: set[int] = field(default_factory=set)


@dataclass(slots=True)
class EqualClaims:
    """Claims that hold the same numbers of the same kinds."""

    keys: set[Any] = field(default_factory=set)
    _first: list[Any] | None = None
    """the first by name, in order; all of them, where they are fewer than MAX_USERS"""

    def add(self, key: Any) -> None:
        if key in self.keys:
            return
        if self._first is not None and (len(self._first) == len(self.keys) or key < self._first[-1]):
            insort(self._first, key)
            del self._first[2 * MAX_USERS :]
        self.keys.add(key)

    def remove(self, key: Any) -> None:
        self.keys.discard(key)
        if self._first is not None and key in self._first:
            self._first.remove(key)
            if len(self._first) < min(MAX_USERS, len(self.keys)):
                self._first = None

    def first(self) -> Sequence[Any]:
        """The first MAX_USERS by name."""
        if self._first is None:
            self._first = nsmallest(2 * MAX_USERS, self.keys)
        return self._first[:MAX_USERS]


@dataclass(slots=True, eq=False)
class FleetStats:
    """Counts of one index. Call ``update`` first."""

    index: NodeIndex
    holders: Mapping[Node, set[Any]]
    """node (None: the network) -> claims that hold anything there"""
    is_last: PoolOrder | None = None
    """None: pools are in the order of their nodes"""
    stamp: int = 0
    """changes whenever anything does"""
    layout: int = 0
    """changes whenever pools do"""
    _began: EqualDevicesIndex | None = None
    """the kinds it counts"""
    _read: int = 0
    """how much it has read of the log of nodes that change"""
    _records: dict[Node, NodeRecord] = field(default_factory=dict)
    """nodes as they were at the last update"""
    _unread: set[Node] = field(default_factory=set)
    """nodes whose claims are not as they were when these were counted"""
    _unsorted: set[Node] = field(default_factory=set)
    """nodes that may be of another sort by now"""
    _keys: dict[Node, tuple[Hashable, ...]] = field(default_factory=dict)
    _held: dict[Hashable, tuple[Sequence[HeldItem], HeldKinds]] = field(default_factory=dict)
    _counted: dict[tuple[int, ...], HeldKinds] = field(default_factory=dict)
    """kinds of devices -> how many of each"""
    _claims: dict[HeldKinds, EqualClaims] = field(default_factory=dict)
    _sort_of: dict[Node, tuple[UsageClass, int]] = field(default_factory=dict)
    """node -> its sort, and the rank under which it is there"""
    _sorts: dict[int, dict[tuple[HeldKinds, ...], UsageClass]] = field(default_factory=dict)
    """class of nodes -> claims there -> nodes"""
    _classes: tuple[int, list[tuple[NodeClass, int]]] = (-1, [])
    _states: tuple[int, Counter[PoolState]] = (-1, Counter())
    _used: dict[int, int] = field(default_factory=dict)
    """class of nodes -> devices in use"""
    _examples: tuple[int, dict[int, tuple[int, int]]] = (-1, {})
    _sizes: tuple[int, dict[int, int]] = (-1, {})
    _firsts: tuple[int, dict[int, list[DevicePosition]]] = (-1, {})
    _pools: tuple[int, Mapping[PoolKind, Sequence[PoolPlace]]] = (-1, {})
    _last: tuple[int, dict[PoolKind, bool]] = (-1, {})
    _ranks: tuple[int, list[int]] = (-1, [])

    def update(self) -> None:
        """Take note of all nodes that are not as they were."""
        index = self.index
        if self._began is not index.kinds or self._read < index.touched.start:
            self._restart()
        elif self._read < index.touched.end:
            changed = dict.fromkeys(index.touched.since(self._read))
            for node in changed:
                record = self.index.record_of(node)
                if self._records.get(node) is not record:
                    self.layout += 1
                    if record is None:
                        del self._records[node]
                    else:
                        self._records[node] = record
            self._unread.update(changed)
            self._unsorted.update(changed)
        else:
            return
        self.stamp += 1
        self._read = index.touched.end

    def _restart(self) -> None:
        """Kinds have other numbers now, or too much has changed to tell what."""
        self._began = self.index.kinds
        self.layout += 1
        for counted in (self._keys, self._held, self._claims, self._sort_of, self._sorts, self._used):
            counted.clear()
        self._records = {None: self.index.network} if self.index.network is not None else {}
        self._records.update(self.index.records)
        self._unread = {*self._records}
        self._unsorted = {*self._records}

    # -- claims --------------------------------------------------------------------------------------------------------

    def claims(self) -> Mapping[HeldKinds, EqualClaims]:
        """All claims that hold anything, by what they hold."""
        if self._unread:
            gone: set[Hashable] = set()
            for node in self._unread:
                gone.update(self._keys.pop(node, ()))
            for key in gone:
                self._let_go(key)
            for node in self._unread:
                keys = tuple(self.holders.get(node, ()))
                if keys:
                    self._keys[node] = keys
                    for key in keys:
                        self._hold(key)
            self._unread.clear()
        return self._claims

    def _hold(self, key: Hashable) -> None:
        items = self.index.held[key]
        previous = self._held.get(key)
        if previous is not None:
            if previous[0] is items:
                return
            self._let_go(key)
        numbers = tuple(self._kinds_of(items))
        holds = self._counted.get(numbers)
        if holds is None:
            if len(self._counted) >= MAX_COUNTED:
                self._counted.clear()
            holds = self._counted[numbers] = tuple(sorted(Counter(numbers).items()))
        self._held[key] = items, holds
        claims = self._claims.get(holds)
        if claims is None:
            claims = self._claims[holds] = EqualClaims()
        claims.add(key)

    def _kinds_of(self, items: Iterable[HeldItem]) -> list[int]:
        node: Node = ""
        record = None
        kinds = []
        for name, device, _ in items:
            if record is None or name != node:
                node, record = name, self.index.record_of(name)
                assert record is not None
            kinds.append(record.kinds[device].index)
        return kinds

    def _let_go(self, key: Hashable) -> None:
        previous = self._held.get(key)
        if previous is not None and self.index.held.get(key) is not previous[0]:
            del self._held[key]
            self._claims[previous[1]].remove(key)
            if not self._claims[previous[1]].keys:
                del self._claims[previous[1]]

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def classes(self) -> Sequence[tuple[NodeClass, int]]:
        """Every class that has nodes, with the lowest rank among them."""
        if self._classes[0] != self.stamp:
            there = self.index.log.classes(self.index.classes.by_index)
            with_nodes = [(node, first) for node in there if (first := node.first) is not None]
            self._classes = self.stamp, with_nodes
        return self._classes[1]

    def examples(self) -> Mapping[int, tuple[int, int]]:
        """kind of node -> the ranks of the first one, and of the first of those with the fewest devices in use"""
        if self._examples[0] != self.stamp:
            first_of: dict[int, int] = {}
            emptiest: dict[int, tuple[int, int]] = {}
            previous, self._used = self._used, {}
            for node, first in self.classes():
                kind = node.kind.index
                used = previous.get(node.index)
                self._used[node.index] = used = _used(node) if used is None else used
                first_of[kind] = min(first, first_of.get(kind, first))
                emptiest[kind] = min((used, first), emptiest.get(kind, (used, first)))
            self._examples = self.stamp, {kind: (first_of[kind], rank) for kind, (_, rank) in emptiest.items()}
        return self._examples[1]

    def sorts_of(self, node: NodeClass) -> Iterable[UsageClass]:
        """The nodes of a class."""
        if self._unsorted:
            self.claims()
            for name in self._unsorted:
                self._sort(name)
            self._unsorted.clear()
        return self._sorts.get(node.index, {}).values()

    def _sort(self, name: Node) -> None:
        old = self._sort_of.pop(name, None)
        if old is not None:
            sort, rank = old
            sort.ranks.discard(rank)
            if not sort.ranks:
                del self._sorts[sort.node.index][sort.tenants]
                if not self._sorts[sort.node.index]:
                    del self._sorts[sort.node.index]
        record = self._records.get(name)
        if name is None or record is None or record.member_of is None:
            return
        tenants = tuple(sorted([self._held[key][1] for key in self._keys.get(name, ())]))
        by_tenants = self._sorts.setdefault(record.member_of.index, {})
        new_sort = by_tenants.get(tenants)
        if new_sort is None:
            new_sort = by_tenants[tenants] = UsageClass(record.member_of, tenants)
        new_sort.ranks.add(record.rank)
        self._sort_of[name] = new_sort, record.rank

    # -- counts --------------------------------------------------------------------------------------------------------

    @property
    def kinds(self) -> EqualDevicesIndex:
        """All kinds there are, and some that there were."""
        return self.index.kinds

    def states(self) -> Iterable[tuple[PoolState, int]]:
        """Every state of a pool, and how many pools are in it."""
        if self._states[0] != self.stamp:
            counts: Counter[PoolState] = Counter(() if self.index.network is None else self.index.network.states)
            for node, _ in self.classes():
                for state in node.states:
                    counts[state] += len(node.ranks)
            self._states = self.stamp, counts
        return self._states[1].items()

    def used(self, kinds: Collection[int]) -> int:
        """Devices of these kinds that are in use, whole or in part."""
        total = 0
        for state, count in self.states():
            if state.in_use:
                groups = zip(state.kind.kinds, state.kind.sizes, state.free, strict=True)
                total += count * sum([size - free for kind, size, free in groups if kind.index in kinds])
        return total

    def excluded(self, kinds: Collection[int]) -> int:
        """Free devices of these kinds that cannot be had, because others have what they need of the pool."""
        states = [(state, count) for state, count in self.states() if state.excluded_free]
        return sum(count * free for state, count in states for kind, free in state.excluded_free if kind in kinds)

    def taken(self, request: Request, kinds: Collection[int]) -> int:
        """Devices of these kinds of which a request can have nothing now."""
        taken = self.used(kinds)
        if taken and request.mode is AllocationMode.SHARE:
            shared = ((state, count) for state, count in self.states() if state.shared)
            taken -= sum(count * _devices_with_room(request, state, kinds) for state, count in shared)
        return taken

    def holders_for(self, request: Request, kinds: Collection[int]) -> tuple[tuple[Key, int], ...]:
        """Who holds those: the first MAX_USERS of those who hold most, and as many nameless ones as there are more."""
        if request.mode is AllocationMode.SHARE:
            return self._holders_of_shared(request, kinds)
        by_count: dict[int, list[Sequence[Any]]] = defaultdict(list)
        users = 0
        for holds, claims in self.claims().items():
            count = sum(number for kind, number in holds if kind in kinds)
            if count:
                by_count[count].append(claims.first())
                users += len(claims.keys)
        ranked = ((key, count) for count in sorted(by_count, reverse=True) for key in merge(*by_count[count]))
        listed = (*islice(ranked, MAX_USERS),)
        return (*listed, *((_UNNAMED,) * (users - len(listed))))

    def _holders_of_shared(self, request: Request, kinds: Collection[int]) -> tuple[tuple[Key, int], ...]:
        taken: dict[tuple[Node, int], bool] = {}
        users: Counter[Any] = Counter()
        for key, items in self.index.held.items():
            for node, device, _ in items:
                record = self.node(node)
                if record.kinds[device].index in kinds:
                    if (node, device) not in taken:
                        taken[node, device] = not _has_room(request, record, device)
                    users[key] += taken[node, device]
        return ranked_users(users)

    def sizes(self) -> Mapping[int, int]:
        """kind -> devices, of those that some node reaches; ghosts are none"""
        if self._sizes[0] != self.layout:
            sizes: dict[int, int] = defaultdict(int)
            for state, count in self.states():
                for kind, size in zip(state.kind.kinds, state.kind.sizes, strict=True):
                    is_there = kind.one.ghost is None and kind.one.reach != _NOWHERE
                    sizes[kind.index] += size * count if is_there else 0
            self._sizes = self.layout, dict(sizes)
        return self._sizes[1]

    def firsts(self) -> Mapping[int, Sequence[DevicePosition]]:
        """kind -> its first SHOWN devices"""
        if self._firsts[0] != self.layout:
            by_kind: dict[int, list[DevicePosition]] = defaultdict(list)
            pools = self._by_kind(self._first_of_each()) if self.is_last is None else self._all_pools()
            for pool, places in pools.items():
                for place in self._first(places):
                    for kind, group in zip(pool.kinds, pool.groups, strict=True):
                        by_kind[kind.index] += self._positions(pool, place, group[:SHOWN])
            self._firsts = self.layout, {kind: nsmallest(SHOWN, positions) for kind, positions in by_kind.items()}
        return self._firsts[1]

    def first_of(self, kind: EqualDevices, apart: Collection[tuple[Node, int]]) -> Sequence[DevicePosition]:
        """The first SHOWN devices of a kind, without some: (node, device in its snapshot)."""
        firsts = self.firsts()[kind.index]
        if all((self.record(first.rank).name, first.device) not in apart for first in firsts):
            return firsts
        near = {rank_of(record): record for record in (self.node(node) for node, _ in apart)}
        if self.is_last is None:  # the first nodes that have any are enough
            nodes = (record for record in self.in_order() if kind in record.kinds and rank_of(record) not in near)
            far = self._by_kind(islice(nodes, SHOWN))
        else:
            far = self._all_pools()
        pools = [
            (pool, self._first(place for place in own if place[2] not in near))
            for pool, own in far.items()
            if kind in pool.kinds
        ]
        pools += [(pool, own) for pool, own in self._by_kind(near.values()).items() if kind in pool.kinds]
        others = (
            position
            for pool, places in pools
            for place in places
            for position in self._positions(pool, place, pool.groups[pool.kinds.index(kind)])
            if (self.record(position.rank).name, position.device) not in apart
        )
        return nsmallest(SHOWN, others)

    def _first(self, places: Iterable[PoolPlace]) -> Iterable[PoolPlace]:
        """The first SHOWN pools; ``places`` are in the natural order of their nodes."""
        return islice(places, SHOWN) if self.is_last is None else nsmallest(SHOWN, places)

    def _positions(self, pool: PoolKind, place: PoolPlace, group: Iterable[int]) -> Iterator[DevicePosition]:
        driver, name, rank, start = place
        own = () if self.is_last is None else (self._comes_last(pool), driver, name)
        return (DevicePosition(own, rank, start + number) for number in group)

    def _comes_last(self, pool: PoolKind) -> bool:
        if self._last[0] != self.layout:
            self._last = self.layout, {}
        last = self._last[1].get(pool)
        if last is None:
            last = self._last[1][pool] = self.is_last is not None and self.is_last(pool)
        return last

    def _all_pools(self) -> Mapping[PoolKind, Sequence[PoolPlace]]:
        if self._pools[0] != self.layout:
            self._pools = self.layout, self._by_kind(self.in_order())
        return self._pools[1]

    def _by_kind(self, records: Iterable[NodeRecord]) -> Mapping[PoolKind, Sequence[PoolPlace]]:
        """The pools of some nodes."""
        pools: dict[PoolKind, list[PoolPlace]] = defaultdict(list)
        for record in records:
            rank = rank_of(record)
            for pool, start, own in zip(record.pools, record.starts, record.snapshot.pools, strict=True):
                pools[pool].append((own.driver, own.name, rank, start))
        if self.is_last is None:
            return {pool: [("", "", *place[2:]) for place in places] for pool, places in pools.items()}
        return pools

    def pools(self, records: Iterable[NodeRecord]) -> Iterable[tuple[NodeRecord, int]]:
        """The pools of some nodes in order, each as its number on its node; the nodes come in natural order."""
        pools = ((record, number) for record in records for number in range(len(record.pools)))
        if self.is_last is None:
            return pools

        def place(pool: tuple[NodeRecord, int]) -> tuple[bool, str, str]:
            record, number = pool
            own = record.snapshot.pools[number]
            return self._comes_last(record.pools[number]), own.driver, own.name

        return sorted(pools, key=place)

    def position(self, record: NodeRecord, pool: int, device: int) -> DevicePosition:
        """Of a device of a pool of a node."""
        own = record.snapshot.pools[pool]
        place = own.driver, own.name, rank_of(record), 0
        return next(self._positions(record.pools[pool], place, (device,)))

    def _first_of_each(self) -> Iterator[NodeRecord]:
        """The network and the first SHOWN nodes of each kind, in natural order: each has all kinds of devices."""
        left: Counter[int] = Counter()
        for node, _ in self.classes():
            left[node.kind.index] = min(SHOWN, left[node.kind.index] + len(node.ranks))
        missing = left.total()
        for record in self.in_order():
            if record.member_of is None:
                yield record
            elif left[record.member_of.kind.index]:
                left[record.member_of.kind.index] -= 1
                missing -= 1
                yield record
            if not missing:
                return

    def in_order(self) -> Iterator[NodeRecord]:
        """The network, then the nodes in natural order."""
        if self._ranks[0] != self.layout:
            self._ranks = self.layout, sorted(self.index.by_rank)
        if self.index.network is not None:
            yield self.index.network
        for rank in self._ranks[1]:
            yield self.index.by_rank[rank]

    def record(self, rank: int) -> NodeRecord:
        """The node of a rank, or the network."""
        record = self.index.network if rank == NETWORK else self.index.by_rank[rank]
        assert record is not None
        return record

    def node(self, name: Node) -> NodeRecord:
        """The node of a name, or the network."""
        record = self.index.network if name is None else self.index.records[name]
        assert record is not None
        return record


def rank_of(record: NodeRecord) -> int:
    """The place of a node among all; the network is before them."""
    return NETWORK if record.name is None else record.rank


def ranked_users(users: Mapping[Key, int]) -> tuple[tuple[Key, int], ...]:
    """Those who hold any devices, who holds most first."""
    return tuple(sorted(((key, count) for key, count in users.items() if count), key=lambda item: (-item[1], item[0])))


_UNNAMED: tuple[Key, int] = (("", ""), 0)
_NOWHERE: frozenset[str] = frozenset()


def _devices_with_room(request: Request, state: PoolState, kinds: Collection[int]) -> int:
    """Devices of these kinds that are in use, and have something left for a request that shares."""
    own = ((state.kind.kinds[group], use) for group, use in state.shared)
    return sum(
        not whole and has_room_left(request, kind, dict(amounts))
        for kind, (whole, amounts) in own
        if kind.index in kinds
    )


def _has_room(request: Request, record: NodeRecord, device: int) -> bool:
    pool = record.snapshot.devices[device].pool
    use = record.uses[pool][device - record.starts[pool]]
    return not use.whole and has_room_left(request, record.kinds[device], use.amounts)


def has_room_left(request: Request, kind: EqualDevices, used: Mapping[str, int]) -> bool:
    """Whether a device of which so many nano units are used has any left of what a request asks for."""
    resources = ((kind.one.resources.get(name), used.get(name, 0)) for name in request.requests)
    return any(r is not None and (r.nano - nano) // r.block > 0 for r, nano in resources)


def _used(node: NodeClass) -> int:
    """Devices of a node of the class that are in use."""
    return sum(sum(state.kind.sizes) - sum(state.free) for state in node.states) if node.in_use else 0
