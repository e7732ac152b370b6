"""Units of a batch that are placed one after the other: unlike nodes are enough to find the best one."""

from __future__ import annotations

from operator import attrgetter
from random import Random

import pytest

from benchmarks.batches import BatchCase
from devalloc_solver.dialects.device_claims.manifest_records import read_documents
from devalloc_solver.dialects.device_claims.problem import DeviceClaimProblem, prepare
from devalloc_solver.place import StepsExhausted, UnitPlacement, place
from devalloc_solver.place.node_order import BatchNodes, batch_nodes
from devalloc_solver.place.search_context import SearchContext
from devalloc_solver.problem.allocations import Usage
from devalloc_solver.problem.demand import PlacementUnit
from devalloc_solver.problem.placement_policy import PACK, POLICIES, PlacementPolicy
from tests.support import random_fleets


def assert_nodes_suffice(ready: DeviceClaimProblem, policy: PlacementPolicy) -> None:
    """Each unit of a batch goes where it would go if every node was looked at."""
    usage = Usage.of(ready.snapshot, ready.allocations)
    batch = batch_nodes(SearchContext(ready.snapshot, usage, policy), ready.units)

    def best(unit: PlacementUnit, nodes: BatchNodes | None) -> UnitPlacement | None:
        try:
            return place(ready.snapshot, usage, unit, policy=policy, batch=nodes)
        except StepsExhausted:
            return None

    for unit in ready.units:
        everywhere, among = best(unit, None), best(unit, batch)
        assert (everywhere is None) == (among is None)
        if everywhere is None or among is None:
            continue
        assert among.score <= everywhere.score  # the sample for the policy reaches further among fewer nodes
        assert among.score.one_of == everywhere.score.one_of
        assert (among.score.pools, among.score.devices) == (everywhere.score.pools, everywhere.score.devices)
        for one in among.placements:
            usage.add(one.holding())
            batch.use(one.node)


@pytest.mark.parametrize("kind", ["mixed", "half full", "unlike", "groups", "partitions", "shares"])
@pytest.mark.parametrize("policy", POLICIES, ids=attrgetter("name"))
def test_nodes_of_a_batch_suffice(kind: str, policy: PlacementPolicy) -> None:
    assert_nodes_suffice(prepare(read_documents(BatchCase(kind, 12, 30).documents())), policy)


@pytest.mark.parametrize("seed", range(80))
def test_nodes_of_a_random_fleet_suffice(seed: int) -> None:
    ready = prepare(read_documents(random_fleets.documents(Random(seed))))
    assert_nodes_suffice(ready, POLICIES[seed % 2])


def test_of_nodes_that_are_alike_the_first_unused_one_stands_for_all() -> None:
    ready = prepare(read_documents(BatchCase("equal", 12, 4).documents()))
    context = SearchContext(ready.snapshot, Usage.of(ready.snapshot, ready.allocations), PACK)
    batch = batch_nodes(context, ready.units)
    first = batch.nodes(ready.units[0])
    assert len(first) < 12
    batch.use(first[0])
    after = batch.nodes(ready.units[0])
    assert set(first) < set(after)
    batch.note_full(ready.units[0], [first[0]])
    assert first[0] not in batch.nodes(ready.units[0])
