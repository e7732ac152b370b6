"""What claims hold of the nodes of a fleet, kept up to date while pools and claims come and go."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain
from typing import Any, ClassVar

from devalloc_solver.fleet.node_index import HeldAmounts, HeldDevice, HeldDevices, HeldItem, Holders, NodeIndex
from devalloc_solver.fleet.place_finder import PlaceFinder
from devalloc_solver.fleet.pool_states import NodeRecord
from devalloc_solver.problem.allocations import Key
from devalloc_solver.problem.ghosts import is_as_recorded
from devalloc_solver.problem.placement_policy import PlacementPolicy
from devalloc_solver.problem.snapshot import Device, Snapshot

Name = tuple[str, str, str]
"""(kind, namespace, name); the namespace is "" for kinds that have none"""
Node = str | None
"""None: the network"""
NO_KEYS: Set[Key] = frozenset()
NO_POOLS: Set[object] = frozenset()


class FleetState(ABC):
    """The objects of a fleet, its index, and what claims hold of it.

    A claim holds devices by name (``HeldDevices``), whether pools publish them or not. The index has those that are
    there, and ghosts for what is in use beyond that: a pool is read with what claims hold of it, and again when that
    makes it another one. What names mean, and how pools are read, the dialect says.
    """

    claim_kind: ClassVar[str]

    def __init__(self, objects: Iterable[tuple[Name, Any]], policy: PlacementPolicy) -> None:
        """Take note of objects, as the dialect has read them."""
        self.objects: dict[Name, list[Any]] = {}
        """several of one name are kept as such, for they make each other invalid (S2, S4a)"""
        for name, one in objects:
            self.objects.setdefault(name, []).append(one)
        self.policy = policy
        self.index = NodeIndex(policy, read=self._read_by_classes())
        self.holders, self.places = Holders(self.index), PlaceFinder(self.index)
        self.allocations: Mapping[Key, HeldDevices] = self.holders.by_claim
        """what claims hold"""
        self.edition = 0
        """changes so far by which something may be wrong that was not"""
        self._use_matters: set[Node] = set()
        """nodes of which some device is there, or is as it is, only as long as it is in use"""

    def of_kind(self, kind: str) -> Iterator[Any]:
        return chain.from_iterable([same for name, same in self.objects.items() if name[0] == kind])

    def source(self, key: Key) -> Any:
        """The object of a claim that holds devices: another one once it holds others."""
        return self.objects[self.claim_kind, *key][0]

    def _read_by_classes(self) -> frozenset[str]:
        """The attributes that claims are known to read."""
        return frozenset()

    # -- what the dialects differ in -----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def rules(self) -> Any:
        """What classes say now. The index is up to date once this was asked for."""

    @abstractmethod
    def remove(self, name: Name) -> bool:
        """An object is gone; False when there was none."""

    @abstractmethod
    def _nodes_of(self, held: HeldDevices, entry: HeldDevice) -> Sequence[Node]:
        """Where a device that a claim holds is, or may be; nothing where its pool is not there."""

    @abstractmethod
    def _find(self, node: Node, record: NodeRecord, entry: HeldDevice) -> Sequence[tuple[int, HeldAmounts | None]]:
        """The devices of a node that an entry stands for, its ghosts among them, and how much it has of each."""

    @abstractmethod
    def _read_node_pools(self, node: Node, held: Sequence[HeldDevice], changed: Set[object]) -> Snapshot | None:
        """The pools of a node, with what claims hold of them beyond what these publish; None without any.

        ``changed``: the pools that are other than they were.
        """

    def _is_only_in_use(self, device: Device) -> bool:
        """Whether a device is there, or draws what it does, only as long as it is in use."""
        return device.ghost is not None

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def load_nodes(self, nodes: Sequence[Node]) -> dict[Node, Snapshot]:
        """Enter all nodes at once, of which nothing is held yet; returns their pools."""
        read = {node: self._read_node_pools(node, (), NO_POOLS) for node in nodes}
        snapshots = {node: snapshot for node, snapshot in read.items() if snapshot is not None and snapshot.pools}
        self.index.load(snapshots)
        self._note_use(snapshots)
        return snapshots

    def _put_again(self, nodes: Set[Node], keys: Set[Key] = NO_KEYS, changed: Set[object] = NO_POOLS) -> None:
        """Enter nodes as they are now, and what claims hold of them: these claims, and those that the index knows."""
        keys = keys | self.holders.on_nodes(nodes)
        for key in keys:
            self.holders.lift(key)
        held: dict[Node, list[HeldDevice]] = {node: [] for node in nodes}
        for key in keys:
            allocation = self.allocations[key]
            for entry in allocation.entries:
                for node in self._nodes_of(allocation, entry):
                    if node in held:
                        held[node].append(entry)
        for node in sorted(nodes, key=lambda n: n or ""):
            snapshot = self._read_node_pools(node, held[node], changed)
            if snapshot is None:
                self.index.drop(node)
                self._use_matters.discard(node)
            else:
                self.index.put(node, snapshot)
                self._note_use({node: snapshot})
        for key in sorted(keys):
            self.holders.put(key, [*self._items(self.allocations[key])])

    def _note_use(self, snapshots: Mapping[Node, Snapshot]) -> None:
        for node, snapshot in snapshots.items():
            if any(map(self._is_only_in_use, snapshot.devices)):
                self._use_matters.add(node)
            else:
                self._use_matters.discard(node)

    # -- claims --------------------------------------------------------------------------------------------------------

    def _hold(self, key: Key, held: HeldDevices) -> None:
        """A claim that holds nothing has this from now on."""
        nodes = self._nodes_to_renew(held)
        self.holders.enter(key, held, () if nodes else [*self._items(held)])
        if nodes:
            self._renew(nodes, {key})

    def _let_go(self, key: Key) -> HeldDevices | None:
        """A claim holds nothing any more, and what was there only because of it is gone; what it held."""
        nodes: set[Node] = set()
        if self._use_matters:
            for node, device, _ in self.index.held.get(key, ()):
                record = self.index.record_of(node)
                if record is not None and self._is_only_in_use(record.snapshot.devices[device]):
                    nodes.add(node)
        held = self.holders.leave(key)
        if nodes:
            self._renew(nodes)
        return held

    def _renew(self, nodes: Set[Node], keys: Set[Key] = NO_KEYS) -> None:
        """Enter nodes again of which something else is in use, with these claims besides."""
        self._put_again(nodes, keys)

    def _items(self, held: HeldDevices) -> Iterator[HeldItem]:
        """What of it is in the index."""
        for entry in held.entries:
            for node in self._nodes_of(held, entry):
                if (record := self.index.record_of(node)) is not None:
                    for device, amounts in self._find(node, record, entry):
                        yield node, device, amounts

    def _nodes_to_renew(self, held: HeldDevices) -> set[Node]:
        """Where the index lacks something of what a claim has, or may lack it."""
        nodes = set()
        for entry in held.entries:
            for node in self._nodes_of(held, entry):
                if (record := self.index.record_of(node)) is None:
                    continue
                index = record.find(self._pool_name(entry), entry.device)
                if index is None or (entry.record is not None and not _is_as_recorded(record, index, entry)):
                    nodes.add(node)
        return nodes

    def _pool_name(self, entry: HeldDevice) -> str:
        """What the index calls the pool of an entry."""
        name: str = entry.pool
        return name


def _is_as_recorded(record: NodeRecord, index: int, entry: HeldDevice) -> bool:
    device = record.snapshot.devices[index]
    assert entry.record is not None
    return is_as_recorded(record.snapshot.pools[device.pool], device, entry.record)
