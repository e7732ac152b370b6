"""Places on cards: what counting refutes is refuted rightly, and it refutes what the places make impossible.

DEVALLOC_FUZZ_EXAMPLES sets how many instances of each kind.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from devalloc_solver.place import place
from devalloc_solver.place.counting_bounds import make_slice_bounds
from devalloc_solver.place.node_view import NodeView, UnitReader
from devalloc_solver.problem.allocations import Usage
from devalloc_solver.problem.demand import AllocationMode, PlacementUnit
from tests.support.examples import examples
from tests.support.mig_cards import A100, SMALL, partition_claim, random_cards, snapshot_of
from tests.support.normal_form import SearchInstance, best_score

EXAMPLES = examples(40)
BUDGET = 20_000
"""Answers that the exhaustive search looks at; larger instances are left out."""


def site_of(instance: SearchInstance) -> NodeView:
    """The only node, as the only unit sees it."""
    (unit,) = instance.units
    return UnitReader().view(unit, instance.snapshot, Usage.of(instance.snapshot, instance.allocations), "n1")


def may_fit(instance: SearchInstance) -> bool:
    node_view = site_of(instance)
    return make_slice_bounds(node_view).may_fit(
        node_view.unit_requests, (1 << len(node_view.unit_requests.indexed_requests)) - 1
    )


def cards(wanted: dict[str, int], count: int, *, together: bool) -> SearchInstance:
    snapshot = snapshot_of(A100, count, together=together)
    demand = partition_claim(snapshot, [[pair] for pair in wanted.items()])
    return SearchInstance(snapshot, (), (PlacementUnit((demand,), None, None),))


def test_nothing_that_fits_is_refuted() -> None:
    """Against every answer there is; and some of what does not fit is refuted without one."""
    fit = refuted = 0
    for seed in range(3 * EXAMPLES):
        instance = random_cards(Random(seed), SMALL, 2)
        if best_score(instance, BUDGET) is None:
            continue
        node_view = site_of(instance)
        fits = place(instance.snapshot, node_view.usage, instance.units[0]) is not None
        fit += fits
        refuted += not may_fit(instance)
        assert may_fit(instance) or not fits, seed
    assert fit > EXAMPLES // 4
    assert refuted > EXAMPLES // 20


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_partitions_that_all_begin_at_the_first_slice_are_as_many_as_there_are_cards(
    count: int, together: bool
) -> None:
    """By the sum of what they draw, more would fit."""
    assert may_fit(cards({"4g": count - count // 2, "7g": count // 2}, count, together=together))
    assert not may_fit(cards({"4g": count - count // 2 + 1, "7g": count // 2}, count, together=together))


@pytest.mark.parametrize("together", [True, False])
def test_slices_that_no_partition_asked_for_can_have_are_of_no_use(together: bool) -> None:
    """1g and 2g leave the eighth slice alone: with more compute slices, seven of memory remain."""
    for count in (7, 8):
        instance = cards({"1g": count}, 1, together=together)
        (pool,) = instance.snapshot.pools
        more = {name: replace(r, blocks=8) if "compute" in name else r for name, r in pool.resources.items()}
        pools = (replace(pool, resources=more),)
        snapshot = replace(instance.snapshot, pools=pools, pools_by_node={"n1": pools})
        assert may_fit(replace(instance, snapshot=snapshot)) is (count == 7)


def test_of_alternatives_the_one_that_draws_least_counts() -> None:
    snapshot = snapshot_of(A100, 1, together=True)
    for other, fits in (("1g", True), ("4g", False)):
        unit = PlacementUnit((partition_claim(snapshot, [[("4g", 1)], [("7g", 1), (other, 1)]]),), None, None)
        assert may_fit(SearchInstance(snapshot, (), (unit,))) is fits


def test_an_alternative_that_only_looks_draws_nothing() -> None:
    snapshot = snapshot_of(A100, 1, together=True)
    demand = partition_claim(snapshot, [[("7g", 1)], [("4g", 1), ("1g", 1)]])
    whole, (taking, looking) = demand.details
    for mode, fits in ((AllocationMode.WHOLE, False), (AllocationMode.ADMIN_COUNT, True)):
        details = (whole, (taking, replace(looking, mode=mode)))
        unit = PlacementUnit((replace(demand, details=details),), None, None)
        assert may_fit(SearchInstance(snapshot, (), (unit,))) is fits
