"""The first devices of each kind, in the order in which a cluster numbers its devices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import NamedTuple

from devalloc_solver.dra.funnel import SHOWN
from devalloc_solver.dra.inventory import Offer
from devalloc_solver.dra.warm.part import Order, binds
from devalloc_solver.dra.warm.traits import offer_of
from devalloc_solver.index.states import NodeRecord, PoolKind


class First(NamedTuple):
    """One device; smaller is earlier."""

    order: Order
    rank: int
    """of its node; among the commons its number"""
    device: int
    """its index in the snapshot of its node"""
    common: Offer | None = None
    """the device itself where it is one of the commons"""


def common(number: int, offer: Offer) -> First:
    """One of the commons, which are in order among themselves."""
    pool = offer.pool
    return First((pool.has_binding_conditions, pool.driver, pool.title), number, 0, offer)


def devices_of(record: NodeRecord) -> Iterator[First]:
    """The devices of a node that are in pools of its own."""
    for pool, own in zip(record.pools, record.snapshot.pools, strict=True):
        order = binds(pool), own.driver, own.name
        for device in own.devices:
            yield First(order, record.rank, device.index)


@dataclass(slots=True, eq=False)
class Firsts:
    """Finds them anew when pools have changed."""

    _first: Mapping[int, Sequence[First]] = field(default_factory=dict)
    _records: Mapping[int, NodeRecord] = field(default_factory=dict)
    _pools: Mapping[PoolKind, Sequence[tuple[str, str, int, int]]] = field(default_factory=dict)
    """(driver, name, rank of the node, index of the first device)"""

    def update(self, records: Mapping[int, NodeRecord]) -> None:
        """``records``: all nodes by rank."""
        self._records = records
        pools: dict[PoolKind, list[tuple[str, str, int, int]]] = defaultdict(list)
        for rank, record in records.items():
            for pool, start, own in zip(record.pools, record.starts, record.snapshot.pools, strict=True):
                pools[pool].append((own.driver, own.name, rank, start))
        self._pools = pools
        found: dict[int, list[First]] = defaultdict(list)
        for pool, places in pools.items():
            for first, kind in _devices(pool, nsmallest(SHOWN, places)):
                found[kind].append(first)
        self._first = {kind: nsmallest(SHOWN, mine) for kind, mine in found.items()}

    def of(self, kinds: Iterable[int]) -> Sequence[First]:
        """The first SHOWN devices of these kinds."""
        return nsmallest(SHOWN, (first for kind in kinds for first in self._first.get(kind, ())))

    def beside(self, kind: int, ranks: Collection[int]) -> Sequence[First]:
        """The first SHOWN devices of a kind that are not on these nodes."""
        known = self._first.get(kind, ())
        if all(first.rank not in ranks for first in known):
            return known
        found: list[First] = []
        for pool, places in self._pools.items():
            if any(one.index == kind for one in pool.kinds):
                others = nsmallest(SHOWN, (place for place in places if place[2] not in ranks))
                found += [first for first, index in _devices(pool, others) if index == kind]
        return nsmallest(SHOWN, found)

    def offer(self, first: First) -> Offer:
        if first.common is not None:
            return first.common
        return offer_of(self._records[first.rank].snapshot.devices[first.device])


def _devices(pool: PoolKind, places: Iterable[tuple[str, str, int, int]]) -> Iterator[tuple[First, int]]:
    """(device, its kind): the first SHOWN of each kind in pools of one kind."""
    last = binds(pool)
    for driver, name, rank, start in places:
        for kind, group in zip(pool.kinds, pool.groups, strict=True):
            for number in group[:SHOWN]:
                yield First((last, driver, name), rank, start + number), kind.index
