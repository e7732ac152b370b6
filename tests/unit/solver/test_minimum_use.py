"""What satisfied claims take at least: never more than an answer takes, and close to it where counting is enough."""

from __future__ import annotations

from random import Random

import pytest

from benchmarks.batches import BatchCase
from devalloc_solver.bounds.minimum_use import MinimumUse, satisfied_counts, satisfied_details
from devalloc_solver.dialects.device_claims.manifest_records import read_documents
from devalloc_solver.dialects.device_claims.problem import DeviceClaimProblem, prepare
from devalloc_solver.place.greedy import place_compactly
from devalloc_solver.problem.allocations import Usage
from devalloc_solver.problem.placement import Placement
from devalloc_solver.problem.placement_policy import PACK
from tests.support import random_fleets

KINDS = ("mixed", "half full", "equal", "unlike", "groups", "oneOf", "partitions", "shares")


def prepared_batch(kind: str, nodes: int, claims: int) -> DeviceClaimProblem:
    return prepare(read_documents(BatchCase(kind, nodes, claims).documents()))


def placed_one_by_one(ready: DeviceClaimProblem) -> list[Placement]:
    return place_compactly(ready.snapshot, ready.allocations, ready.units, policy=PACK, ends=None)


def minimum_of(ready: DeviceClaimProblem, placements: list[Placement]) -> tuple[int, int]:
    filled = {(one.demand.key, entry.request.label): entry.request for one in placements for entry in one.entries}
    usage = Usage.of(ready.snapshot, ready.allocations)
    details = satisfied_details([((request,), 1) for request in filled.values()])
    least = MinimumUse(ready.snapshot, usage, ready.units, details)
    return least.pools(), least.devices()


def taken_by(placements: list[Placement]) -> tuple[int, int]:
    devices = {entry.device.index: entry.device.pool for one in placements for entry in one.entries}
    return len({*devices.values()}), len(devices)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("nodes", "claims"), [(12, 12), (3, 20)])
def test_no_answer_takes_less(kind: str, nodes: int, claims: int) -> None:
    ready = prepared_batch(kind, nodes, claims)
    placements = placed_one_by_one(ready)
    pools, devices = taken_by(placements)
    least_pools, least_devices = minimum_of(ready, placements)
    assert least_pools <= pools
    assert least_devices <= devices


@pytest.mark.parametrize("seed", range(60))
def test_no_answer_to_a_random_fleet_takes_less(seed: int) -> None:
    ready = prepare(read_documents(random_fleets.documents(Random(seed))))
    placements = placed_one_by_one(ready)
    pools, devices = taken_by(placements)
    least_pools, least_devices = minimum_of(ready, placements)
    assert least_pools <= pools
    assert least_devices <= devices


def test_a_node_of_eight_devices_has_room_for_two_claims_of_three() -> None:
    ready = prepared_batch("equal", 10, 10)
    counts = satisfied_counts(ready.units, {0: 10})
    least = MinimumUse(ready.snapshot, Usage.of(ready.snapshot, ready.allocations), ready.units, counts)
    assert (least.pools(), least.devices()) == (5, 30)


def test_shares_need_as_many_devices_as_have_their_amounts() -> None:
    ready = prepared_batch("shares", 12, 12)
    placements = placed_one_by_one(ready)
    gib = 2**30 * 10**9
    amounts = sum(
        request.requests["memory"]
        for request in {(p.demand.key, e.request.label): e.request for p in placements for e in p.entries}.values()
    )
    pools, devices = minimum_of(ready, placements)
    assert devices == -(-amounts // (80 * gib))
    assert pools == -(-amounts // (320 * gib))


def test_claims_that_are_only_counted_take_what_the_smallest_take() -> None:
    ready = prepared_batch("mixed", 12, 12)
    usage = Usage.of(ready.snapshot, ready.allocations)
    priorities = {unit.demands[0].claim.priority for unit in ready.units}
    none = MinimumUse(ready.snapshot, usage, ready.units, satisfied_counts(ready.units, dict.fromkeys(priorities, 0)))
    one = MinimumUse(ready.snapshot, usage, ready.units, satisfied_counts(ready.units, dict.fromkeys(priorities, 1)))
    assert (none.pools(), none.devices()) == (0, 0)
    assert one.pools() >= 1
    assert one.devices() >= len(priorities)
