"""A subset of a cluster as a problem of its own: some nodes, all shared devices, and what is allocated there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from devalloc_solver.dialects.resource_k8s.candidates import RequestJudge
from devalloc_solver.dialects.resource_k8s.manifests import Key
from devalloc_solver.dialects.resource_k8s.published_devices import (
    DevicesInUse,
    PublishedDevice,
    make_snapshot,
)
from devalloc_solver.fleet.pool_states import NodeRecord, PoolKind
from devalloc_solver.fleet.resource_k8s.device_properties import published_device
from devalloc_solver.fleet.resource_k8s.rules import ResourceClaimRules, is_broken
from devalloc_solver.fleet.resource_k8s.state import ClusterState, usage_of
from devalloc_solver.problem.allocations import AllocatedDevice, Allocation
from devalloc_solver.problem.snapshot import Snapshot, join_pools, renumber

PoolOrder = tuple[bool, str, str]
"""The place of a pool among those of a cluster: (whether it has binding conditions, driver, driver and name)"""


def has_binding_conditions(pool: PoolKind) -> bool:
    """Whether pools of a kind have binding conditions."""
    return any(published_device(kind.one).device.binding_conditions for kind in pool.kinds)


@dataclass(frozen=True, slots=True, eq=False)
class ClusterSubset:
    """Nodes that have pools of their own, for one layout of the cluster and one set of classes."""

    snapshot: Snapshot
    offers: Sequence[PublishedDevice]
    judge: RequestJudge
    places: Mapping[str | None, Sequence[int]]
    """node -> the index here of each device of its own snapshot"""
    kinds: Sequence[int]
    """the kind of each device; -1 of the commons, which are the last ones"""
    shared_devices: DevicesInUse

    @classmethod
    def of(cls, records: Sequence[NodeRecord], rules: ResourceClaimRules) -> ClusterSubset:
        """``records`` are in natural order of their names."""
        places = {record.name: [0] * len(record.snapshot.devices) for record in records}
        numbered = [
            ((has_binding_conditions(kind), pool.driver, pool.name), n, pool)
            for n, record in enumerate(records)
            for pool, kind in zip(record.snapshot.pools, record.pools, strict=True)
            if pool.devices
        ]
        numbered.sort(key=lambda one: one[:2])
        pools = renumber(pool for _, _, pool in numbered)
        offers: list[PublishedDevice] = []
        kinds: list[int] = []
        for _, number, pool in numbered:
            own_places, own_kinds = places[records[number].name], records[number].kinds
            for device in pool.devices:
                offer = published_device(device)
                own_places[device.index] = len(offers)
                kinds.append(own_kinds[device.index].index)
                offers.append(
                    PublishedDevice(len(offers), offer.pool, offer.slice, offer.device, offer.is_shareable, offer.nodes)
                )
        first = len(offers)
        offers += [replace(offer, index=first + n) for n, offer in enumerate(rules.shared_devices.offers)]
        for pool in make_snapshot(offers[first:], (), None, rules.gates).pools:
            here = tuple(replace(device, pool=len(pools)) for device in pool.devices)
            pools.append(replace(pool, index=len(pools), devices=here))
        kinds += [-1] * (len(offers) - first)
        snapshot = join_pools(pools, [str(record.name) for record in records])
        broken = {str(record.name) for record in records if any(is_broken(d.traits) for d in record.snapshot.devices)}
        return cls(
            snapshot, offers, rules.judge(offers, frozenset(broken)), places, kinds, DevicesInUse(offers[first:])
        )

    def allocations(self, state: ClusterState) -> list[Allocation]:
        """What claims hold here, by name of the claim. None of them holds devices of several nodes."""
        by_claim: dict[Key, list[AllocatedDevice]] = {
            key: [*self.shared_devices.items(usage_of(state.allocations[key]))] for key in state.common_holders
        }
        for node, places in self.places.items():
            for key in state.holders.on_node.get(node, ()):
                local = [AllocatedDevice(places[device], amounts) for _, device, amounts in state.index.held[key]]
                by_claim.setdefault(key, []).extend(local)
        return [
            Allocation(key, state.allocations[key].priority, tuple(sorted(items, key=lambda held: held.device)))
            for key, items in sorted(by_claim.items())
        ]
