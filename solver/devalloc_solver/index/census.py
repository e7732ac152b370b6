"""What there is in the whole fleet, counted by kind: brought up to date when somebody asks, from what has changed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from devalloc_solver.index.kinds import Kinds
from devalloc_solver.index.nodes import Item, NodeIndex
from devalloc_solver.index.states import NodeClass, NodeRecord, PoolState

FIRST = 3
"""Devices of each kind that are known by name: the first ones."""

Holds = tuple[tuple[int, int], ...]
"""(kind, devices) of what one claim holds, ascending"""
NETWORK = -(1 << 62)
"""The rank of the network: before all nodes."""
Node = str | None
Place = tuple[int, int, int]
"""(rank of the node, index of the device in the node's snapshot, index of its kind)"""


@dataclass(slots=True, eq=False)
class Sort:
    """Nodes of one class whose devices are held in the same way: so many claims, each with so much."""

    node: NodeClass
    tenants: tuple[Holds, ...]
    used: int
    """devices in use"""
    ranks: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Claims:
    """Claims that hold the same numbers of the same kinds."""

    keys: set[Any] = field(default_factory=set)
    _sorted: list[Any] = field(default_factory=list)
    _added: list[Any] = field(default_factory=list)
    _gone: bool = False

    def add(self, key: Any) -> None:
        if key not in self.keys:
            self.keys.add(key)
            self._added.append(key)

    def remove(self, key: Any) -> None:
        self.keys.discard(key)
        self._gone = True

    def in_order(self) -> Sequence[Any]:
        """By name."""
        if self._added or self._gone:
            self._sorted = sorted(self.keys) if self._gone else sorted(self._sorted + self._added)
            self._added, self._gone = [], False
        return self._sorted


@dataclass(slots=True)
class _Seen:
    """A node as it was when it was last looked at."""

    record: NodeRecord
    states: tuple[PoolState, ...]
    keys: tuple[Hashable, ...]
    sort: Sort | None


@dataclass(slots=True, eq=False)
class Census:
    """Counts of one index. Call ``update`` first."""

    index: NodeIndex
    holders: Mapping[Node, set[Any]]
    """node (None: the network) -> claims that hold anything there"""
    sorts: dict[tuple[int, tuple[Holds, ...]], Sort] = field(default_factory=dict)
    claims: dict[Holds, Claims] = field(default_factory=dict)
    stamp: int = 0
    """changes whenever anything does"""
    layout: int = 0
    """changes whenever pools do"""
    _began: tuple[Kinds | None, int] = (None, 0)
    """the kinds it counts, and how often changes had been forgotten when it began"""
    _nodes: dict[Node, _Seen] = field(default_factory=dict)
    _states: Counter[PoolState] = field(default_factory=Counter)
    _held: dict[Hashable, tuple[Sequence[Item], Holds]] = field(default_factory=dict)
    _sizes: tuple[int, dict[int, int]] = (-1, {})
    _firsts: tuple[int, dict[int, list[Place]]] = (-1, {})

    def update(self) -> None:
        """Look at all nodes that are not as they were."""
        index = self.index
        if self._began != (index.kinds, index.forgotten):
            self._restart()
            index.changed.update(index.records, (None,))
        if not index.changed:
            return
        self.stamp += 1
        gone: set[Hashable] = set()
        for node in index.changed:
            old = self._nodes.pop(node, None)
            if old is not None:
                gone.update(old.keys)
                self._forget(old)
            if (None if old is None else old.record) is not self._record_of(node):
                self.layout += 1
        for key in gone:
            self._let_go(key)
        for node in index.changed:
            record = self._record_of(node)
            if record is not None:
                self._nodes[node] = self._look(record)
        index.changed.clear()

    def _restart(self) -> None:
        """Kinds have other numbers now, or too much has changed to tell what."""
        self._began = self.index.kinds, self.index.forgotten
        self.layout += 1
        for counted in (self.sorts, self.claims, self._nodes, self._states, self._held):
            counted.clear()

    def _record_of(self, node: Node) -> NodeRecord | None:
        return self.index.network if node is None else self.index.records.get(node)

    def _forget(self, old: _Seen) -> None:
        for state in old.states:
            self._states[state] -= 1
            if not self._states[state]:
                del self._states[state]
        if old.sort is not None:
            old.sort.ranks.discard(old.record.rank)
            if not old.sort.ranks:
                self.sorts.pop((old.sort.node.index, old.sort.tenants), None)

    def _look(self, record: NodeRecord) -> _Seen:
        states = tuple(record.states)
        self._states.update(states)
        keys = tuple(self.holders.get(record.name, ()))
        holds = [self._hold(key) for key in keys]
        sort = None
        if record.name is not None and record.member_of is not None:
            tenants = tuple(sorted(holds))
            key = record.member_of.index, tenants
            sort = self.sorts.get(key)
            if sort is None or sort.node is not record.member_of:
                sort = self.sorts[key] = Sort(record.member_of, tenants, sum(map(len, record.uses)))
            sort.ranks.add(record.rank)
        return _Seen(record, states, keys, sort)

    # -- claims ------------------------------------------------------------------------------------------------------

    def _hold(self, key: Hashable) -> Holds:
        items = self.index.held[key]
        known = self._held.get(key)
        if known is not None and known[0] is items:
            return known[1]
        if known is not None:
            self._let_go(key)
        counted = Counter(self._kind_of(item) for item in items)
        holds = tuple(sorted(counted.items()))
        self._held[key] = items, holds
        self.claims.setdefault(holds, Claims()).add(key)
        return holds

    def _kind_of(self, item: Item) -> int:
        record = self.index.network if item[0] is None else self.index.records[item[0]]
        assert record is not None
        return record.kinds[item[1]].index

    def _let_go(self, key: Hashable) -> None:
        known = self._held.get(key)
        if known is not None and self.index.held.get(key) is not known[0]:
            del self._held[key]
            self.claims[known[1]].remove(key)
            if not self.claims[known[1]].keys:
                del self.claims[known[1]]

    # -- counts ------------------------------------------------------------------------------------------------------

    def states(self) -> Iterator[tuple[PoolState, int]]:
        """Every state of a pool, and how many pools are in it."""
        return iter(self._states.items())

    def sizes(self) -> Mapping[int, int]:
        """kind -> devices"""
        if self._sizes[0] != self.layout:
            found: dict[int, int] = defaultdict(int)
            for state, count in self._states.items():
                for kind, size in zip(state.kind.kinds, state.kind.sizes, strict=True):
                    found[kind.index] += size * count
            self._sizes = self.layout, dict(found)
        return self._sizes[1]

    def firsts(self) -> Mapping[int, Sequence[Place]]:
        """kind -> its first devices in natural order"""
        if self._firsts[0] != self.layout:
            found: dict[int, list[Place]] = {}
            for record in self.in_order():
                rank = NETWORK if record.name is None else record.rank
                for pool, start in zip(record.pools, record.starts, strict=True):
                    for kind, group in zip(pool.kinds, pool.groups, strict=True):
                        mine = found.setdefault(kind.index, [])
                        if len(mine) < FIRST:
                            mine += [(rank, start + n, kind.index) for n in group[:FIRST]]
            self._firsts = self.layout, {kind: sorted(mine)[:FIRST] for kind, mine in found.items()}
        return self._firsts[1]

    def in_order(self) -> list[NodeRecord]:
        """The network, then the nodes in natural order."""
        index = self.index
        found = sorted(index.records.values(), key=lambda record: record.rank)
        return found if index.network is None else [index.network, *found]

    def record(self, rank: int) -> NodeRecord:
        """The node of a rank, or the network."""
        found = self.index.network if rank == NETWORK else self.index.by_rank[rank]
        assert found is not None
        return found
