"""Who holds devices of a fleet: by claim, by pool and by node, in step with the index."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from devalloc_solver.fleet.node_index import HeldAmounts, HeldItem, NodeIndex
from devalloc_solver.problem.allocations import Key

NameT = TypeVar("NameT")


class HeldDevice(NamedTuple):
    """A device by its names, and how much of it."""

    pool: Any
    """as the dialect names pools"""
    device: str
    amounts: HeldAmounts | None
    """None when whole"""


class HeldDevices(NamedTuple):
    """What one claim holds, whether it exists or not; without devices of admin access, which are not held (S14)."""

    priority: int
    node: str | None
    """where the pools are, if the claim says so"""
    entries: tuple[HeldDevice, ...]

    @property
    def pools(self) -> set[Hashable]:
        return {entry.pool for entry in self.entries}


class Holders:
    """The claims that hold anything. Of nodes and pools that no claim holds anything of, nothing is kept."""

    def __init__(self, index: NodeIndex) -> None:
        self._index = index
        self.by_claim: dict[Key, HeldDevices] = {}
        self.on_node: dict[str | None, set[Key]] = {}
        """node (None: the network) -> claims that hold any of its own devices"""
        self.scattered: set[Key] = set()
        """claims that hold devices of several nodes"""
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
            self.lift(key)
        return held

    def put(self, key: Key, items: Sequence[HeldItem]) -> None:
        """These are devices of the index that a claim holds; there are none of it yet."""
        for pool in self.by_claim[key].pools:
            _add(self._by_pool, pool, key)
        self._hold(key, items)

    def _hold(self, key: Key, items: Sequence[HeldItem]) -> None:
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
        """The claims that hold anything of these pools, but for those that ``on_nodes`` has."""
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
