"""Who holds devices of a fleet: by claim, by pool and by node, in step with the index."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from devalloc_solver.fleet.node_index import HeldItem, NodeIndex
from devalloc_solver.problem.allocations import Key


class AllocationRecord(Protocol):
    """What one claim holds."""

    @property
    def pools(self) -> Collection[Hashable]:
        """The pools that it names, whether they exist or not."""


AllocationT = TypeVar("AllocationT", bound=AllocationRecord)
NameT = TypeVar("NameT")


class Holders(Generic[AllocationT]):
    """The claims that hold anything. Of nodes and pools that no claim holds anything of, nothing is kept."""

    def __init__(self, index: NodeIndex) -> None:
        self._index = index
        self.by_claim: dict[Key, AllocationT] = {}
        self.on_node: dict[str | None, set[Key]] = {}
        """node (None: the network) -> claims that hold any of its own devices"""
        self.scattered: set[Key] = set()
        """claims that hold devices of several nodes"""
        self._by_pool: dict[Hashable, set[Key]] = {}

    def enter(self, key: Key, allocation: AllocationT, items: Sequence[HeldItem]) -> None:
        """A claim that holds nothing has this from now on; ``items``: what of it the index has."""
        self.by_claim[key] = allocation
        for pool in allocation.pools:
            _add(self._by_pool, pool, key)
        self.put(key, items)

    def leave(self, key: Key) -> AllocationT | None:
        """A claim holds nothing any more; what it held."""
        allocation = self.by_claim.pop(key, None)
        if allocation is not None:
            for pool in allocation.pools:
                _discard(self._by_pool, pool, key)
            self.lift(key)
        return allocation

    def put(self, key: Key, items: Sequence[HeldItem]) -> None:
        """These are devices of the index that a claim holds; there are none of it yet."""
        self._index.hold(key, items)
        nodes = {item[0] for item in items}
        for node in nodes:
            _add(self.on_node, node, key)
        if len(nodes) > 1:
            self.scattered.add(key)

    def lift(self, key: Key) -> None:
        """Take a claim out of the index, to be put there again."""
        for node in {item[0] for item in self._index.held.get(key, ())}:
            _discard(self.on_node, node, key)
        self.scattered.discard(key)
        self._index.free(key)

    def of_pools(self, pools: Iterable[Hashable]) -> set[Key]:
        """The claims that hold anything of these pools."""
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
