"""The exact model against exhaustive search over every answer, on tiny instances of the normal form.

DEVALLOC_FUZZ_EXAMPLES sets how many (default 40 of each kind); `make fuzz` looks at more.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from devalloc_solver.exact.device_naming import name_devices
from devalloc_solver.exact.goals import optimize_goals
from devalloc_solver.exact.model import build_model
from devalloc_solver.problem.demand import PlacementUnit
from devalloc_solver.problem.placement_policy import PACK
from tests.support.examples import examples
from tests.support.normal_form import Option, SearchInstance, best_score, objections, option_of, overuse, rank, score
from tests.support.normal_instances import random_instance

EXAMPLES = examples(40)
BUDGET = 4_000
"""Answers that the exhaustive search looks at; larger instances are left out."""


def disagreements(instance: SearchInstance) -> list[str] | None:
    """What is wrong with the solver's answer; None when the instance is too large to say."""
    best = best_score(instance, BUDGET)
    if best is None:
        return None
    search, levels = optimize_goals(
        build_model(instance.snapshot, instance.allocations, instance.units), policy=PACK, ends=None
    )
    placements = {placement.demand.key: placement for placement in name_devices(search)}
    options = {}
    complaints: list[str] = []
    for number, unit in enumerate(instance.units):
        own = [placements[d.key] for d in unit.demands if d.key in placements]
        if own:
            options[number] = option = option_of(own)
            complaints += _objections_anywhere(instance, unit, option)
    complaints += overuse(instance, options.values())
    reached = score(instance, options)
    if rank(reached) != rank(best):
        complaints.append(f"reached {reached}, best is {best}")
    complaints += [f"not proven: {level}" for level in levels if not level.is_proven]
    values = {level.goal: level.value for level in levels if level.goal != "satisfied"}
    if (values["pools"], values["devices"]) != reached[-2:]:
        complaints.append(f"says {values}, and has {reached[-2:]}")
    return complaints


def _objections_anywhere(instance: SearchInstance, unit: PlacementUnit, option: Option) -> list[str]:
    """A unit with network devices only has no node in its answer (S7): then some node must do."""
    nodes = [option.place] if option.place is not None or not unit.is_free else instance.snapshot.nodes or [None]
    by_node = [[*objections(instance, unit, replace(option, place=node))] for node in nodes]
    return min(by_node, key=len)


@pytest.mark.parametrize("crowded", [False, True])
def test_every_goal_is_reached_and_every_rule_kept(crowded: bool) -> None:
    wrong = {}
    judged = 0
    for seed in range(EXAMPLES):
        complaints = disagreements(random_instance(Random(seed), crowded=crowded))
        judged += complaints is not None
        if complaints:
            wrong[seed] = complaints
    assert wrong == {}
    assert judged > EXAMPLES / 2
