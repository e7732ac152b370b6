"""The exact placement against others that know: exhaustive search, the exact model, the check, and itself.

DEVALLOC_FUZZ_EXAMPLES sets how many instances of each kind; `make fuzz` looks at more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from devalloc_solver.dialects.device_claims.manifest_records import read_documents
from devalloc_solver.dialects.device_claims.problem import DeviceClaimProblem, prepare
from devalloc_solver.exact.device_naming import name_devices
from devalloc_solver.exact.goals import optimize_goals
from devalloc_solver.exact.model import build_model
from devalloc_solver.place import StepsExhausted, UnitPlacement, fits, place
from devalloc_solver.place.search_context import SearchContext, score_of
from devalloc_solver.problem.allocations import Usage
from devalloc_solver.problem.demand import PlacementUnit
from devalloc_solver.problem.placement_policy import PACK
from tests.support import random_fleets
from tests.support.examples import examples
from tests.support.hash_seeds import outputs
from tests.support.normal_form import SearchInstance, best_score, objections, option_of, rank, score
from tests.support.normal_instances import random_instance

EXAMPLES = examples(25)
BUDGET = 20_000
"""Answers that the exhaustive search looks at; larger instances are left out."""


def units(seeds: range) -> Iterator[tuple[int, DeviceClaimProblem, PlacementUnit]]:
    """The units of random fleets of manifests, each on its own."""
    for seed in seeds:
        prepared = prepare(read_documents(random_fleets.documents(Random(seed))))
        for unit in prepared.units:
            yield seed, prepared, unit


def answer(snapshot_and_holdings: DeviceClaimProblem | SearchInstance, unit: PlacementUnit) -> UnitPlacement | None:
    given = snapshot_and_holdings
    return place(given.snapshot, Usage.of(given.snapshot, given.allocations), unit)


def complaints(instance: SearchInstance) -> list[str] | None:
    """What is wrong with the placement of the only unit of an instance; None if unknown."""
    (unit,) = instance.units
    try:
        refusal = answer(instance, unit)
    except StepsExhausted:
        return None
    best = best_score(instance, BUDGET)
    if best is None:
        return None
    objections_found: list[str] = []
    options = {}
    if refusal is not None:
        option = options[0] = option_of(refusal.placements)
        free = option.place is None and unit.is_free
        nodes = (instance.snapshot.nodes or [None]) if free else [option.place]
        objections_found = min(([*objections(instance, unit, replace(option, place=node))] for node in nodes), key=len)
        if (refusal.score.pools, refusal.score.devices) != score(instance, options)[-2:]:
            objections_found.append("the score tells other numbers than the placements")
    if rank(score(instance, options)) != rank(best):
        objections_found.append(f"reached {score(instance, options)}, best is {best}")
    return objections_found


@pytest.mark.parametrize("start", [3_850, 4_984])
def test_every_rule_of_the_normal_form_is_kept_and_every_goal_reached(start: int) -> None:
    """The first instance of each start was once answered with a device too many."""
    wrong = {}
    judged = left_open = 0
    for seed in range(start, start + EXAMPLES):
        instance = random_instance(Random(seed))
        for number, unit in enumerate(instance.units):
            problems = complaints(replace(instance, units=(unit,)))
            judged += problems is not None
            left_open += problems is None
            if problems:
                wrong[seed, number] = problems
    assert wrong == {}
    assert judged > 4 * left_open


def test_the_exact_model_finds_nothing_better_in_random_fleets() -> None:
    wrong = {}
    judged = left_open = 0
    for seed, prepared, unit in units(range(EXAMPLES)):
        try:
            refusal = answer(prepared, unit)
        except StepsExhausted:
            left_open += 1
            continue
        judged += 1
        search, _ = optimize_goals(build_model(prepared.snapshot, prepared.allocations, [unit]), policy=PACK, ends=None)
        placements = name_devices(search)
        ours = None if refusal is None else refusal.score[:3]
        context = SearchContext(prepared.snapshot, Usage.of(prepared.snapshot, prepared.allocations), PACK)
        theirs = score_of(context, placements, None)[:3] if placements else None
        if ours != theirs:
            wrong[seed, unit.demands[0].key] = (ours, theirs)
    assert wrong == {}
    assert judged > 30 * left_open


def test_the_score_tells_what_the_placements_are() -> None:
    for _, prepared, unit in units(range(EXAMPLES)):
        try:
            refusal = answer(prepared, unit)
        except StepsExhausted:
            continue
        if refusal is not None:
            context = SearchContext(prepared.snapshot, Usage.of(prepared.snapshot, prepared.allocations), PACK)
            expected = score_of(context, refusal.placements, refusal.placements[0].node)
            assert (refusal.score.one_of, refusal.score.pools, refusal.score.devices) == (
                expected.one_of,
                expected.pools,
                expected.devices,
            )


def test_whether_a_unit_fits_is_whether_it_can_be_placed() -> None:
    for seed, prepared, unit in units(range(EXAMPLES)):
        usage = Usage.of(prepared.snapshot, prepared.allocations)
        try:
            placed = place(prepared.snapshot, usage, unit) is not None
            assert fits(prepared.snapshot, usage, unit) is placed, seed
        except StepsExhausted:
            continue


def test_what_was_placed_still_fits_and_what_does_not_fit_never_will_beside_more() -> None:
    """More in use never makes room; and what a placement takes is really free."""
    for _, prepared, unit in units(range(EXAMPLES)):
        usage = Usage.of(prepared.snapshot, prepared.allocations)
        others = [other for other in prepared.units if other is not unit]
        try:
            before = place(prepared.snapshot, usage, unit)
            for other in others[:1]:
                outcome = place(prepared.snapshot, usage, other)
                for placement in outcome.placements if outcome is not None else ():
                    usage.add(placement.holding())
            after = place(prepared.snapshot, usage, unit)
        except StepsExhausted:
            continue
        assert before is not None or after is None
        if before is not None and after is not None:
            assert before.score.one_of <= after.score.one_of


def test_another_hash_seed_gives_the_same_placements() -> None:
    script = (
        "from tests.conformance.test_place_properties import StepsExhausted, answer, units\n"
        "for seed, prepared, unit in units(range(20)):\n"
        "    try: found = answer(prepared, unit)\n"
        "    except StepsExhausted: continue\n"
        "    for entry in (e for p in (found.placements if found else ()) for e in p.entries):\n"
        "        print(seed, entry.request.label, entry.device.index, entry.amounts)\n"
    )
    one, other = outputs(script)
    assert one == other
    assert len(one) > 250
