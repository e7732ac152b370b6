"""Some nodes of a cluster, and all that several nodes may reach, as ``world`` has them all; and what is held there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from devalloc_solver import snapshot as core
from devalloc_solver.dra.candidates import Judge
from devalloc_solver.dra.documents import Key
from devalloc_solver.dra.inventory import Offer, UsedDevices, make_snapshot, snapshot_of
from devalloc_solver.dra.warm.rules import Rules, is_broken
from devalloc_solver.dra.warm.state import State
from devalloc_solver.dra.warm.traits import offer_of
from devalloc_solver.holdings import Held, Holding
from devalloc_solver.index.kinds import renumbered
from devalloc_solver.index.states import NodeRecord, PoolKind

Order = tuple[bool, str, str]
"""The place of a pool among those of a cluster: (whether it has binding conditions, driver, driver and name)"""


def binds(pool: PoolKind) -> bool:
    """Whether pools of a kind have binding conditions."""
    return any(offer_of(kind.one).device.binding_conditions for kind in pool.kinds)


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Nodes that have pools of their own, for one layout of the cluster and one set of classes."""

    snapshot: core.Snapshot
    offers: Sequence[Offer]
    judge: Judge
    places: Mapping[str | None, Sequence[int]]
    """node -> the index here of each device of its own snapshot"""
    kinds: Sequence[int]
    """the kind of each device; -1 of the commons, which are the last ones"""
    commons: UsedDevices

    @classmethod
    def of(cls, records: Sequence[NodeRecord], rules: Rules) -> Part:
        """``records`` are in natural order of their names."""
        places = {record.name: [0] * len(record.snapshot.devices) for record in records}
        found = [
            ((binds(kind), pool.driver, pool.name), n, pool)
            for n, record in enumerate(records)
            for pool, kind in zip(record.snapshot.pools, record.pools, strict=True)
            if pool.devices
        ]
        offers: list[Offer] = []
        kinds: list[int] = []
        pools: list[core.Pool] = []
        for _, number, pool in sorted(found, key=lambda one: one[:2]):
            members = []
            mine = places[records[number].name]
            for device in pool.devices:
                index, offer = len(offers), offer_of(device)
                mine[device.index] = index
                offers.append(Offer(index, offer.pool, offer.slice, offer.device, offer.is_shareable, offer.nodes))
                kinds.append(records[number].kinds[device.index].index)
                members.append(renumbered(device, index, len(pools)))
            pools.append(core.Pool(len(pools), pool.node, pool.name, pool.driver, pool.resources, tuple(members)))
        first = len(offers)
        offers += [replace(offer, index=first + n) for n, offer in enumerate(rules.commons.offers)]
        for pool in make_snapshot(offers[first:], (), None, rules.gates).pools:
            here = tuple(replace(device, pool=len(pools)) for device in pool.devices)
            pools.append(replace(pool, index=len(pools), devices=here))
        kinds += [-1] * (len(offers) - first)
        snapshot = snapshot_of(pools, tuple(str(record.name) for record in records))
        broken = {str(record.name) for record in records if any(is_broken(d.traits) for d in record.snapshot.devices)}
        return cls(snapshot, offers, rules.judge(offers, frozenset(broken)), places, kinds, UsedDevices(offers[first:]))

    def holdings(self, state: State) -> list[Holding]:
        """What claims hold here, by name of the claim. None of them holds devices of several nodes."""
        found: dict[Key, list[Held]] = {
            key: [*self.commons.items(state.tenants[key].usage)] for key in state.common_holders
        }
        for node, places in self.places.items():
            for key in state.holders.get(node, ()):
                mine = [Held(places[device], amounts) for _, device, amounts in state.index.held[key]]
                found.setdefault(key, []).extend(mine)
        return [
            Holding(key, state.tenants[key].priority, tuple(sorted(items, key=lambda held: held.device)))
            for key, items in sorted(found.items())
        ]
