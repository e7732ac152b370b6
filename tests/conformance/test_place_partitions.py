"""Partitions that know their place on the card: no two are alike, and still every goal is reached in few steps.

DEVALLOC_FUZZ_EXAMPLES sets how many instances of each kind; `make fuzz` looks at more.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations
from random import Random

import pytest

from devalloc_solver.bounds.largest_partition import partition_shapes
from devalloc_solver.exact.device_naming import name_devices
from devalloc_solver.exact.goals import optimize_goals
from devalloc_solver.exact.model import build_model
from devalloc_solver.place import UnitPlacement, place
from devalloc_solver.place.component_options import order_by_counter
from devalloc_solver.problem.allocations import Usage
from devalloc_solver.problem.demand import PlacementUnit
from devalloc_solver.problem.placement_policy import PACK
from devalloc_solver.problem.snapshot import Snapshot
from tests.support.examples import examples
from tests.support.mig_cards import A100, SMALL, partition_claim, random_cards, snapshot_of
from tests.support.normal_form import SearchInstance, best_score, objections, option_of, rank, score

EXAMPLES = examples(25)
BUDGET = 20_000
"""Answers that the exhaustive search looks at; larger instances are left out."""


def answer(instance: SearchInstance, steps: int = 50_000) -> UnitPlacement | None:
    """Where the only unit goes; running out of steps is a failure here."""
    (unit,) = instance.units
    return place(instance.snapshot, Usage.of(instance.snapshot, instance.allocations), unit, steps=steps)


def test_no_answer_of_all_is_better_and_no_rule_is_broken() -> None:
    judged = 0
    for seed in range(3 * EXAMPLES):
        instance = random_cards(Random(seed), SMALL, 2)
        best = best_score(instance, BUDGET)
        if best is None:
            continue
        judged += 1
        refusal = answer(instance)
        options = {} if refusal is None else {0: option_of(refusal.placements)}
        for option in options.values():
            assert [*objections(instance, instance.units[0], option)] == [], seed
        assert rank(score(instance, options)) == rank(best), seed
    assert judged > EXAMPLES


def test_the_exact_model_finds_nothing_better() -> None:
    fit = 0
    for seed in range(EXAMPLES // 4):
        instance = random_cards(Random(seed), A100, 3)
        refusal = answer(instance)
        search, _ = optimize_goals(
            build_model(instance.snapshot, instance.allocations, instance.units), policy=PACK, ends=None
        )
        placements = name_devices(search)
        theirs = {0: option_of(placements)} if placements else {}
        ours = {} if refusal is None else {0: option_of(refusal.placements)}
        fit += refusal is not None
        assert rank(score(instance, ours)) == rank(score(instance, theirs)), seed
        if refusal is not None:
            assert [*objections(instance, instance.units[0], ours[0])] == [], seed
    assert fit > EXAMPLES // 20


@pytest.mark.parametrize("cards", [1, 2, 5, 8])
@pytest.mark.parametrize("together", [True, False])
def test_mixes_are_settled_within_a_tenth_of_the_budget(cards: int, together: bool) -> None:
    """Mixes that fill every card to the last slice, and one partition more."""
    snapshot = snapshot_of(A100, cards, together=together)
    full = {"3g": cards, "2g": cards, "1g": 2 * cards}
    for wanted, fits in ((full, True), (full | {"1g": 2 * cards + 1}, False), (full | {"1g+": 1}, False)):
        unit = PlacementUnit((partition_claim(snapshot, [[pair] for pair in wanted.items()]),), None, None)
        refusal = answer(SearchInstance(snapshot, (), (unit,)), steps=5_000)
        assert (refusal is not None) is fits, wanted


def test_the_largest_partition_that_can_be_is_left_whole() -> None:
    """On one card, against every set of partitions that serves the claim."""
    random = Random(7)
    for _ in range(EXAMPLES):
        instance = random_cards(random, SMALL, 1)
        wanted = [[(random.choice([*SMALL]), random.choice([1, 1, 2]))] for _ in range(random.choice([1, 2]))]
        unit = PlacementUnit((partition_claim(instance.snapshot, wanted),), None, None)
        refusal = answer(replace(instance, units=(unit,)))
        best = most_left(instance, Counter({profile: 0 for ((profile, _),) in wanted}), wanted)
        assert (refusal is None) == (best is None)
        if refusal is not None:
            taken = [entry.device.index for placed in refusal.placements for entry in placed.entries]
            assert left_beside(instance, taken) == best, wanted


def most_left(instance: SearchInstance, counts: Counter[str], wanted: list[list[tuple[str, int]]]) -> int | None:
    """The size of the largest partition that some answer leaves; None where there is no answer."""
    for ((profile, count),) in wanted:
        counts[profile] += count
    devices = instance.snapshot.devices
    sets = combinations(range(len(devices)), counts.total())
    serving = (s for s in sets if Counter(str(devices[i].attributes["profile"]) for i in s) == counts)
    return max((left for taken in serving if (left := left_beside(instance, [*taken])) is not None), default=None)


def left_beside(instance: SearchInstance, taken: list[int]) -> int | None:
    """The size of the largest partition that is left; None where these cannot be had together."""
    snapshot: Snapshot = instance.snapshot
    usage = Usage.of(snapshot, instance.allocations)
    (pool,) = snapshot.pools
    if any(usage.in_use(snapshot.devices[index]) for index in taken):
        return None
    free = {name: usage.free_pool_blocks(0, name) for name in pool.resources}
    for index in taken:
        for name, blocks in snapshot.devices[index].draws:
            free[name] -= blocks
    if min(free.values()) < 0:
        return None
    shapes = partition_shapes(pool, usage)
    return max((size for size, draws in shapes if all(free.get(n, b) >= b for n, b in draws)), default=0)


def test_a_card_is_gone_through_slice_by_slice() -> None:
    """A slice is finished before the one after it."""
    random = Random(1)
    for _ in range(EXAMPLES):
        touched = [frozenset(random.sample(range(6), random.choice([0, 1, 1, 2, 3]))) for _ in range(9)]
        order = order_by_counter(touched)
        assert sorted(order) == [*range(9)]
    along = [frozenset(range(start, start + size)) for size in (1, 2, 4, 8) for start in range(0, 8, size)]
    order = order_by_counter(along)
    last_seen = [max(place for place, position in enumerate(order) if m in along[position]) for m in range(8)]
    assert last_seen == sorted(last_seen)
