"""The exact placement against others that know: exhaustive search, the exact model, the check, and itself.

DEVALLOC_FUZZ_EXAMPLES sets how many instances of each kind; `make fuzz` looks at more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from devalloc_solver.assignment import name_devices
from devalloc_solver.demand import Unit
from devalloc_solver.goals import optimize
from devalloc_solver.holdings import Ledger
from devalloc_solver.intake import read_documents
from devalloc_solver.model import build_model
from devalloc_solver.place import Found, OutOfSteps, fits, place
from devalloc_solver.place.ground import Ground
from devalloc_solver.place.score import score_of
from devalloc_solver.stages import Prepared, prepare
from tests.support import random_fleets
from tests.support.hash_seeds import outputs
from tests.support.normal_form import (
    Instance,
    best_score,
    objections,
    option_of,
    rank,
    score,
)
from tests.support.normal_instances import random_instance

EXAMPLES = int(os.environ.get("DEVALLOC_FUZZ_EXAMPLES", "50"))
BUDGET = 20_000
"""Answers that the exhaustive search looks at; larger instances are left out."""


def units(seeds: range) -> Iterator[tuple[int, Prepared, Unit]]:
    """The units of random fleets of manifests, each on its own."""
    for seed in seeds:
        prepared = prepare(read_documents(random_fleets.documents(Random(seed))))
        for unit in prepared.units:
            yield seed, prepared, unit


def answer(snapshot_and_holdings: Prepared | Instance, unit: Unit) -> Found | None:
    given = snapshot_and_holdings
    return place(given.snapshot, Ledger.of(given.snapshot, given.holdings), unit)


def complaints(instance: Instance) -> list[str] | None:
    """What is wrong with the placement of the only unit of an instance; None where nobody knows."""
    (unit,) = instance.units
    try:
        found = answer(instance, unit)
    except OutOfSteps:
        return None
    best = best_score(instance, BUDGET)
    if best is None:
        return None
    told: list[str] = []
    options = {}
    if found is not None:
        option = options[0] = option_of(found.placements)
        free = option.place is None and unit.is_free
        nodes = (instance.snapshot.nodes or [None]) if free else [option.place]
        told = min(([*objections(instance, unit, replace(option, place=node))] for node in nodes), key=len)
        if (found.score.pools, found.score.devices) != score(instance, options)[-2:]:
            told.append("the score tells other numbers than the placements")
    if rank(score(instance, options)) != rank(best):
        told.append(f"reached {score(instance, options)}, best is {best}")
    return told


@pytest.mark.parametrize("start", [3_850, 4_984])
def test_every_rule_of_the_normal_form_is_kept_and_every_goal_reached(start: int) -> None:
    """The first instance of each start was once answered with a device too many."""
    wrong = {}
    judged = left_open = 0
    for seed in range(start, start + EXAMPLES):
        instance = random_instance(Random(seed))
        for number, unit in enumerate(instance.units):
            told = complaints(replace(instance, units=(unit,)))
            judged += told is not None
            left_open += told is None
            if told:
                wrong[seed, number] = told
    assert wrong == {}
    assert judged > 4 * left_open


def test_the_exact_model_finds_nothing_better_in_random_fleets() -> None:
    wrong = {}
    judged = left_open = 0
    for seed, prepared, unit in units(range(EXAMPLES)):
        try:
            found = answer(prepared, unit)
        except OutOfSteps:
            left_open += 1
            continue
        judged += 1
        search, _ = optimize(build_model(prepared.snapshot, prepared.holdings, [unit]), placement="pack", ends=None)
        placements = name_devices(search)
        mine = None if found is None else replace(found.score, policy=())
        ground = Ground(prepared.snapshot, Ledger.of(prepared.snapshot, prepared.holdings), "pack")
        theirs = replace(score_of(ground, placements, None), policy=()) if placements else None
        if mine != theirs:
            wrong[seed, unit.demands[0].key] = (mine, theirs)
    assert wrong == {}
    assert judged > 30 * left_open


def test_the_score_tells_what_the_placements_are() -> None:
    for _, prepared, unit in units(range(EXAMPLES)):
        try:
            found = answer(prepared, unit)
        except OutOfSteps:
            continue
        if found is not None:
            ground = Ground(prepared.snapshot, Ledger.of(prepared.snapshot, prepared.holdings), "pack")
            told = score_of(ground, found.placements, found.placements[0].node)
            assert (found.score.one_of, found.score.pools, found.score.devices) == (
                told.one_of,
                told.pools,
                told.devices,
            )


def test_whether_a_unit_fits_is_whether_it_can_be_placed() -> None:
    for seed, prepared, unit in units(range(EXAMPLES)):
        ledger = Ledger.of(prepared.snapshot, prepared.holdings)
        try:
            placed = place(prepared.snapshot, ledger, unit) is not None
            assert fits(prepared.snapshot, ledger, unit) is placed, seed
        except OutOfSteps:
            continue


def test_what_was_placed_still_fits_and_what_does_not_fit_never_will_beside_more() -> None:
    """More in use never makes room; and what a placement takes is really free."""
    for _, prepared, unit in units(range(EXAMPLES)):
        ledger = Ledger.of(prepared.snapshot, prepared.holdings)
        others = [other for other in prepared.units if other is not unit]
        try:
            before = place(prepared.snapshot, ledger, unit)
            for other in others[:1]:
                found = place(prepared.snapshot, ledger, other)
                for placement in found.placements if found is not None else ():
                    ledger.add(placement.holding())
            after = place(prepared.snapshot, ledger, unit)
        except OutOfSteps:
            continue
        assert before is not None or after is None
        if before is not None and after is not None:
            assert before.score.one_of <= after.score.one_of


def test_another_hash_seed_gives_the_same_placements() -> None:
    script = (
        "from tests.conformance.test_place_properties import OutOfSteps, answer, units\n"
        "for seed, prepared, unit in units(range(40)):\n"
        "    try: found = answer(prepared, unit)\n"
        "    except OutOfSteps: continue\n"
        "    for entry in (e for p in (found.placements if found else ()) for e in p.entries):\n"
        "        print(seed, entry.slot.label, entry.device.index, entry.amounts)\n"
    )
    one, other = outputs(script)
    assert one == other
    assert len(one) > 500
