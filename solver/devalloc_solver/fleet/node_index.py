"""The index: every node with what is in use there, kept up to date."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from devalloc.api.device_records import DeviceRecord
from devalloc.api.node_rules import NodeRestriction, is_barred
from devalloc_solver.cel.budget import Allowance
from devalloc_solver.fleet.equal_devices import (
    NODE_KINDS,
    Columns,
    EqualDevicesIndex,
    choose_group_attributes,
    columns_of_node,
    empty_snapshot,
)
from devalloc_solver.fleet.pool_states import SOLE_USE, CountedUse, NodeClass, NodeClasses, NodeRecord, PoolKind
from devalloc_solver.place import SearchDeadline
from devalloc_solver.problem.allocations import HELD_BEFORE, Key, Leave
from devalloc_solver.problem.ordering import natural_key
from devalloc_solver.problem.placement_policy import PACK, PlacementPolicy
from devalloc_solver.problem.snapshot import Pool, Snapshot

MIN_CHANGES_KEPT = 50_000
"""Changes kept at least; who is further behind starts afresh."""
SPARE_LOGGED_CLASSES = 1_000
"""Classes without nodes that are kept, beside as many as there are with nodes."""

T = TypeVar("T")
Change = tuple[int, int, int, NodeClass]
"""(number of the kind of node, of the class, rank of the node that came in front, the class)"""


class ChangeLog(Generic[T]):
    """Changes, numbered from the first ever; the oldest are forgotten."""

    def __init__(self) -> None:
        self.start = 0
        self._entries: list[T] = []

    @property
    def end(self) -> int:
        return self.start + len(self._entries)

    def add(self, change: T) -> None:
        self._entries.append(change)
        if len(self._entries) > 2 * MIN_CHANGES_KEPT:
            del self._entries[:MIN_CHANGES_KEPT]
            self.start += MIN_CHANGES_KEPT

    def since(self, position: int) -> Sequence[T]:
        return self._entries[position - self.start :]

    def restart(self) -> None:
        """Forget all changes: every reader starts afresh."""
        self.start = self.end + 1
        self._entries.clear()


NodeChangeLog = ChangeLog[str | None]
"""The nodes that have changed in any way, in order."""


class ClassChangeLog(ChangeLog[Change]):
    """The classes whose best node has changed. A reader of all changes knows for each class a rank that is not above
    that of its first node: a node that joins behind others changes nothing of this, and is left out."""

    def __init__(self) -> None:
        super().__init__()
        self._met: dict[int, NodeClass] = {}
        """those that a node has come to: all that have nodes, and some that had"""
        self._most = SPARE_LOGGED_CLASSES

    def restart(self) -> None:
        super().restart()
        self._keep({})

    def enter(self, rank: int, node: NodeClass) -> None:
        """A node came in front of a class."""
        self.add((node.kind.index, node.index, rank, node))
        self._met[node.index] = node
        if len(self._met) > self._most:
            self._keep({number: each for number, each in self._met.items() if each.ranks})

    def classes(self, current: Mapping[int, NodeClass]) -> list[NodeClass]:
        """All that have nodes, of those that are ``current`` still: the first node to join a class is a change.

        Most classes there ever were have none: nodes pass through many. Their number is not what this costs.
        """
        self._keep({n: each for n, each in self._met.items() if each.ranks and current.get(n) is each})
        return list(self._met.values())

    def _keep(self, classes: dict[int, NodeClass]) -> None:
        self._met, self._most = classes, 2 * len(classes) + SPARE_LOGGED_CLASSES


HeldAmounts = tuple[tuple[str, int], ...]
HeldItem = tuple[str | None, int, HeldAmounts | None]
"""(node, or None for the network; device in the snapshot of that node; nano units of a share, None when whole)"""

SPARE_CLASSES = 10_000
"""Classes without nodes that are remembered, beside a few for each node; when there are more, all are forgotten."""
SPARE_KINDS = 10_000
"""Kinds of devices that are remembered beside as many as are needed; when there are more, all nodes are read again."""
SPARE_RANKS = 1_000
"""Names of nodes that are gone which keep their ranks, beside one for each node."""
MAX_GAINED = 64
"""Nodes that have more free devices than before of which it is counted how many: 10 us each."""
STEP = 1 << 24
"""Room between the ranks of two nodes, for those to come."""


@dataclass(slots=True, eq=False)
class NodeIndex:
    """The devices of a fleet by node, and who holds them.

    Not thread-safe.
    """

    policy: PlacementPolicy = PACK
    kinds: EqualDevicesIndex = field(default_factory=EqualDevicesIndex)
    classes: NodeClasses = field(default_factory=NodeClasses)
    log: ClassChangeLog = field(default_factory=ClassChangeLog)
    records: dict[str, NodeRecord] = field(default_factory=dict)
    by_rank: dict[int, NodeRecord] = field(default_factory=dict)
    network: NodeRecord | None = None
    network_version: int = 1
    held: dict[Hashable, Sequence[HeldItem]] = field(default_factory=dict)
    touched: NodeChangeLog = field(default_factory=NodeChangeLog)
    gained: set[int] = field(default_factory=set)
    """kinds of devices that came, or were freed, or that share a pool with such, since this was last cleared"""
    _gained_on: set[str | None] = field(default_factory=set)
    """nodes (None: the network) of these"""
    altered: set[int] = field(default_factory=set)
    """kinds of devices of pools that came, went or are other than before, the same"""
    read: frozenset[str] = frozenset()
    """attributes that claims are known to read: they come first among those that are part of kinds"""
    edition: int = 0
    """another one once nothing that was derived of kinds, classes of nodes or claims counts any more"""
    allowance: Allowance = field(default_factory=Allowance)
    """of the call that goes on"""
    _deadline: tuple[object, SearchDeadline] = (None, SearchDeadline(None))
    """a call, and the deadline of its searches"""
    _order: list[tuple[object, int]] = field(default_factory=list)
    """(natural order of the name, rank) of every node ever met, sorted"""
    _ranks: dict[str, int] = field(default_factory=dict)
    _most_kinds: int = 0
    _most_device_kinds: int = 0

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def load(self, snapshots: Mapping[str | None, Snapshot]) -> None:
        """Enter many nodes at once, in an index that is empty."""
        columns = self._choose(snapshots)
        self._rank_all(name for name in snapshots if name is not None)
        for node in (None, *self._ranks):
            if node in snapshots:
                self._add(node, snapshots[node], columns[node])
        self._limit()

    def _choose(self, snapshots: Mapping[str | None, Snapshot]) -> Mapping[str | None, Columns]:
        """Begin kinds anew, for all nodes that there are; returns their columns."""
        columns = {node: columns_of_node(snapshot) for node, snapshot in snapshots.items()}
        nodes = [(snapshot, columns[node]) for node, snapshot in snapshots.items() if node is not None]
        self.kinds = EqualDevicesIndex(choose_group_attributes(nodes, columns.get(None, {}), self.read))
        return columns

    def record_of(self, node: str | None) -> NodeRecord | None:
        """What is known of a node, or of the network; None of what has no devices."""
        return self.network if node is None else self.records.get(node)

    def put(self, node: str | None, snapshot: Snapshot) -> None:
        """A node (None: the network) has these pools now, and they are free: call ``hold`` again for each owner."""
        before = self.network if node is None else self.records.get(node)
        self._drop(node)
        if not snapshot.pools:
            self.altered |= _changed_kinds(before, None)[0]
            return
        few = self.kinds.note(snapshot)
        self._add(node, snapshot, columns_of_node(snapshot))
        after = self.network if node is None else self.records[node]
        assert after is not None
        lost, gained = _changed_kinds(before, after)
        self.altered |= lost | gained
        self.gained |= gained
        self._note_gain(node)
        many = self.classes.node_kinds > self._most_kinds or len(self.kinds.kinds) > self._most_device_kinds
        if not few or many or len(self._ranks) > 2 * len(self.records) + SPARE_RANKS:
            self._rank_again()

    def drop(self, node: str | None) -> None:
        """The node has no pools any more."""
        self.altered |= _changed_kinds(self.network if node is None else self.records.get(node), None)[0]
        self._drop(node)

    def _drop(self, node: str | None) -> None:
        record = self.network if node is None else self.records.get(node)
        if record is None:
            return
        self.touched.add(node)
        self.kinds.leave(node, columns_of_node(record.snapshot))
        if node is None:
            self.network = None
            self._network_changed(kinds=True)
            return
        del self.records[node], self.by_rank[record.rank]
        assert record.member_of is not None
        record.member_of.ranks.discard(record.rank)
        record.member_of = None

    def _add(self, node: str | None, snapshot: Snapshot, columns: Columns) -> None:
        rank = -1 if node is None else self._rank(node)
        before = len(self.kinds.kinds)
        kinds = self.kinds.read(snapshot, columns)
        self.kinds.enter(node, columns)
        if len(self.kinds.kinds) > before:
            self.forget()
        record = self.classes.record(node, rank, snapshot, kinds)
        self.touched.add(node)
        if node is None:
            self.network = record
            self._network_changed(kinds=True)
        else:
            self.records[node] = self.by_rank[record.rank] = record
            self._place(record)

    def _rank(self, node: str) -> int:
        """Ranks are in natural order of the names, and stay with a name."""
        if node not in self._ranks:
            key = natural_key(node)
            position = bisect_left(self._order, (key, -1))
            low = self._order[position - 1][1] if position else -STEP
            high = self._order[position][1] if position < len(self._order) else low + 2 * STEP
            if high - low < 2:
                self._rank_again(node)
            else:
                self._ranks[node] = (low + high) // 2
                self._order.insert(position, (key, self._ranks[node]))
        return self._ranks[node]

    def _rank_again(self, *new: str) -> None:
        """No room is left between two ranks, or most are of nodes that are gone."""
        self._rank_all([*self.records, *new])
        self._read_again()

    def _rank_all(self, names: Iterable[str]) -> None:
        self._ranks = {name: position * STEP for position, name in enumerate(sorted(names, key=natural_key))}
        self._order = [(natural_key(name), rank) for name, rank in self._ranks.items()]

    def _read_again(self) -> None:
        """Kinds or ranks have changed throughout."""
        self.classes = NodeClasses()
        self.log.restart()  # it has the old classes, with all their devices
        old = [*self.records.values(), *([self.network] if self.network is not None else [])]
        columns = self._choose({record.name: record.snapshot for record in old})
        self.by_rank.clear()
        self.forget()
        for record in old:
            kinds = self.kinds.read(record.snapshot, columns[record.name])
            self.kinds.enter(record.name, columns[record.name])
            rank = -1 if record.name is None else self._ranks[record.name]
            fresh = self.classes.record(record.name, rank, record.snapshot, kinds)
            fresh.uses = record.uses
            self.classes.renew(fresh, {*range(len(fresh.pools))})
            if record.name is None:
                self.network = fresh
            else:
                self.records[record.name] = self.by_rank[rank] = fresh
                self._place(fresh)
        self._limit()

    def _limit(self) -> None:
        """Kinds are read again once most of them are of nodes that are gone or were other: so much is kept at most."""
        self._most_kinds = 2 * max(self.classes.node_kinds, NODE_KINDS)
        self._most_device_kinds = 2 * len(self.kinds.kinds) + SPARE_KINDS

    # -- who holds what ------------------------------------------------------------------------------------------------

    def hold(self, key: Hashable, items: Sequence[HeldItem]) -> None:
        """An owner without devices has these from now on, in addition to other owners."""
        assert key not in self.held
        self.held[key] = items
        self._count(items, 1)

    def free(self, key: Hashable, *, for_good: bool = True) -> Sequence[HeldItem]:
        """Nothing is held under this name any more; not ``for_good``: until it is held again. What was."""
        items = self.held.pop(key, ())
        if items:
            self._count(items, -1, is_gain=for_good)
        return items

    def _count(self, items: Iterable[HeldItem], sign: int, *, is_gain: bool = False) -> None:
        touched: dict[str | None, tuple[NodeRecord, set[int]]] = {}
        for name, device, amounts in items:
            entry = touched.get(name)
            if entry is None:
                owner = self.network if name is None else self.records[name]
                assert owner is not None
                entry = touched[name] = owner, set()
            record, pools = entry
            pool = record.snapshot.devices[device].pool
            pools.add(pool)
            uses = record.uses[pool]
            position = device - record.starts[pool]
            use = uses.get(position)
            if amounts is None and (use is None or (use is SOLE_USE and sign < 0)):  # as nearly always
                if use is None:
                    uses[position] = SOLE_USE
                else:
                    del uses[position]
                continue
            if use is None or use is SOLE_USE:
                use = uses[position] = CountedUse(int(use is SOLE_USE))
            use.add(amounts, sign)
            if not use.whole and not use.shares:
                del uses[position]
        for name, (record, pools) in touched.items():
            if is_gain:
                self._note_gain(name)
                for pool in pools:
                    self.gained |= record.pools[pool].numbers
            self.touched.add(name)
            self.classes.renew(record, pools)
            if name is None:
                self._network_changed(kinds=False)
            else:
                self._place(record)

    def _place(self, record: NodeRecord) -> None:
        """Move a node to the class that it is of now."""
        node = self.classes.class_of(record)
        if node is record.member_of:
            return
        rank, before, first = record.rank, record.member_of, node.first
        if before is not None:
            before.ranks.discard(rank)
        record.member_of = node
        node.enter(rank)
        if first is None or rank < first:
            self.log.enter(rank, node)
        if len(self.classes.by_index) > 4 * len(self.records) + SPARE_CLASSES:
            self.classes.forget_empty()
            self.forget()

    def _network_changed(self, *, kinds: bool) -> None:
        self.network_version += 1
        self.classes.limit_states()
        if kinds:
            self.forget()

    def _note_gain(self, node: str | None) -> None:
        if len(self._gained_on) <= MAX_GAINED:  # more are not counted, and most fleets are never asked
            self._gained_on.add(node)

    def room_gained(self) -> Sequence[Mapping[int, int]] | None:
        """Of each node that ``gained`` since this was last asked: kind -> devices that are free, with those of the
        network; None if the network did, or too many nodes."""
        nodes, self._gained_on = self._gained_on, set()
        if None in nodes or len(nodes) > MAX_GAINED:
            return None
        network = Counter[int]() if self.network is None else _free_devices(self.network)
        records = [record for name in nodes if name is not None and (record := self.records.get(name)) is not None]
        return [network + _free_devices(record) for record in records]

    # -- for searches --------------------------------------------------------------------------------------------------

    @property
    def search_deadline(self) -> SearchDeadline:
        """The deadline of this call, which all its searches share."""
        call = self.allowance.serial, self.allowance.until
        if self._deadline[0] != call:
            self._deadline = call, SearchDeadline(self.allowance.until)
        return self._deadline[1]

    def emptied(self, record: NodeRecord) -> NodeRecord:
        """The node as it would be if nothing were in use."""
        fresh = self.classes.record(record.name, record.rank, record.snapshot, record.kinds)
        fresh.member_of = self.classes.class_of(fresh)
        return fresh

    def without_pools(self, node: str | None) -> NodeRecord:
        """A node that reaches nothing but the network (S7)."""
        record = self.classes.record(node, -1, empty_snapshot(), ())
        record.member_of = self.classes.class_of(record)
        return record

    def allowed(self, restrictions: Sequence[NodeRestriction]) -> Iterator[NodeRecord]:
        """The nodes on which a claim with these rules may be, in any order."""
        names: Iterable[str] = next((named for rule, named in restrictions if rule.is_only), self.records)
        return (self.records[n] for n in names if n in self.records and not is_barred(restrictions, n))

    def forget(self) -> None:
        """What claims ask for has changed: classes, or the meaning of expressions."""
        self.edition += 1


def _free_devices(record: NodeRecord) -> Counter[int]:
    free = Counter[int]()
    for state in record.states:
        for kind, number in zip(state.kind.kinds, state.free, strict=True):
            free[kind.index] += number
    return free


def _changed_kinds(before: NodeRecord | None, after: NodeRecord | None) -> tuple[set[int], set[int]]:
    """The kinds of devices in those pools of a node that are not the same in both states of it: before, and after."""
    old, new = _pools_by_name(before), _pools_by_name(after)
    for name in old.keys() & new.keys():
        if _is_as_before(*old[name], *new[name]):
            del old[name], new[name]
    lost, gained = (set[int]().union(*[kind.numbers for kind, _ in pools.values()]) for pools in (old, new))
    return lost, gained


def _pools_by_name(record: NodeRecord | None) -> dict[tuple[str, str], tuple[PoolKind, Pool]]:
    pools = () if record is None else zip(record.pools, record.snapshot.pools, strict=True)
    return {(pool.driver, pool.name): (kind, pool) for kind, pool in pools}


def _is_as_before(old_kind: PoolKind, old: Pool, new_kind: PoolKind, new: Pool) -> bool:
    if old_kind is not new_kind:
        return False  # of other kinds of devices, or with other resources
    if old is not new:
        for one, other in zip(old.devices, new.devices, strict=True):
            if one.name != other.name or one.attributes != other.attributes:
                return False
    return True


NameT = TypeVar("NameT")


class HeldDevice(NamedTuple):
    """A device by its names, and how much of it."""

    pool: Any
    """as the dialect names pools"""
    device: str
    amounts: HeldAmounts | None
    """None when whole"""
    record: DeviceRecord | None = None
    """what the claim recorded of it"""


@dataclass(slots=True)  # not frozen, nor a tuple: either takes twice as long to make
class HeldDevices:
    """What one claim holds, whether it exists or not; without devices of admin access, which are not held (S14)."""

    priority: int
    node: str | None
    """where the pools are, if the claim says so"""
    entries: tuple[HeldDevice, ...]
    leave: Leave = HELD_BEFORE

    @property
    def pools(self) -> set[Hashable]:
        return {entry.pool for entry in self.entries}


class Holders:
    """The claims that hold anything. Of nodes and pools that no claim holds anything of, nothing is kept."""

    def __init__(self, index: NodeIndex) -> None:
        self.index = index
        self.by_claim: dict[Key, HeldDevices] = {}
        self.on_node: dict[str | None, set[Key]] = {}
        """node (None: the network) -> claims that hold any of its own devices"""
        self.scattered: set[Key] = set()
        """claims that hold devices of several nodes; the network is none"""
        self._by_pool: dict[Hashable, set[Key]] = {}
        """pool -> claims that hold any of it, but for those that have had all they hold in the index since ``grant``"""

    def enter(self, key: Key, held: HeldDevices, items: Sequence[HeldItem]) -> None:
        """A claim that holds nothing has this from now on; ``items``: what of it the index has."""
        self.by_claim[key] = held
        self.put(key, items)

    def grant(self, key: Key, held: HeldDevices, items: Sequence[HeldItem]) -> None:
        """The same of devices that are all in the index."""
        self.by_claim[key] = held
        self._hold(key, items)

    def leave(self, key: Key) -> HeldDevices | None:
        """A claim holds nothing any more; what it held."""
        held = self.by_claim.pop(key, None)
        if held is not None:
            for pool in held.pools if self._by_pool else ():
                _discard(self._by_pool, pool, key)
            self._lift(key, for_good=True)
        return held

    @contextmanager
    def no_gain_if_unchanged(self, key: Key) -> Iterator[None]:
        """Read a claim anew: if it holds the same then, nothing has become free."""
        held, gained = self.by_claim.get(key), {*self.index.gained}
        yield
        if self.by_claim.get(key) == held:
            self.index.gained = gained

    def put(self, key: Key, items: Sequence[HeldItem]) -> None:
        """These are devices of the index that a claim holds; there are none of it yet."""
        for pool in self.by_claim[key].pools:
            _add(self._by_pool, pool, key)
        self._hold(key, items)

    def _hold(self, key: Key, items: Sequence[HeldItem]) -> None:
        self.index.hold(key, items)
        if len(items) == 1:
            _add(self.on_node, items[0][0], key)
            return
        nodes = {item[0] for item in items}
        for node in nodes:
            _add(self.on_node, node, key)
        if len(nodes - {None}) > 1:
            self.scattered.add(key)

    def lift(self, key: Key) -> None:
        """Take a claim out of the index, to be put there again."""
        self._lift(key, for_good=False)

    def _lift(self, key: Key, *, for_good: bool) -> None:
        items = self.index.free(key, for_good=for_good)
        if len(items) == 1:
            _discard(self.on_node, items[0][0], key)
            return
        nodes = {item[0] for item in items}
        for node in nodes:
            _discard(self.on_node, node, key)
        if len(nodes - {None}) > 1:
            self.scattered.discard(key)

    def of_pools(self, pools: Iterable[Hashable]) -> set[Key]:
        """The claims that hold anything of these pools, except claims entered by ``grant``, which only
        ``on_nodes`` has."""
        return {key for pool in pools for key in self._by_pool.get(pool, ())}

    def on_nodes(self, nodes: Iterable[str | None]) -> set[Key]:
        """The claims that hold anything of these nodes."""
        return {key for node in nodes for key in self.on_node.get(node, ())}


def _add(keys: dict[NameT, set[Key]], name: NameT, key: Key) -> None:
    own_keys = keys.get(name)
    if own_keys is None:
        keys[name] = {key}
    else:
        own_keys.add(key)


def _discard(keys: dict[NameT, set[Key]], name: NameT, key: Key) -> None:
    own_keys = keys.get(name)
    if own_keys is not None:
        own_keys.discard(key)
        if not own_keys:
            del keys[name]
