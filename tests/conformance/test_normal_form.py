"""The exact model against exhaustive search over every answer, on tiny instances of the normal form.

DEVALLOC_FUZZ_EXAMPLES sets how many (default 80 of each kind); `make fuzz` looks at more.
"""

from __future__ import annotations

import os
from dataclasses import replace
from random import Random

import pytest

from devalloc_solver.assignment import name_devices
from devalloc_solver.demand import Unit
from devalloc_solver.goals import optimize
from devalloc_solver.model import build_model
from tests.support.normal_form import (
    Instance,
    Option,
    best_score,
    objections,
    option_of,
    overuse,
    rank,
    score,
)
from tests.support.normal_instances import random_instance

EXAMPLES = int(os.environ.get("DEVALLOC_FUZZ_EXAMPLES", "80"))
BUDGET = 4_000
"""Answers that the exhaustive search looks at; larger instances are left out."""


def disagreements(instance: Instance) -> list[str] | None:
    """What is wrong with the solver's answer; None when the instance is too large to say."""
    best = best_score(instance, BUDGET)
    if best is None:
        return None
    search, levels = optimize(
        build_model(instance.snapshot, instance.holdings, instance.units), placement="pack", ends=None
    )
    placements = {placement.demand.key: placement for placement in name_devices(search)}
    options = {}
    told: list[str] = []
    for number, unit in enumerate(instance.units):
        mine = [placements[d.key] for d in unit.demands if d.key in placements]
        if mine:
            options[number] = option = option_of(mine)
            told += _objections_anywhere(instance, unit, option)
    told += overuse(instance, options.values())
    reached = score(instance, options)
    if rank(reached) != rank(best):
        told.append(f"reached {reached}, best is {best}")
    told += [f"not proven: {level}" for level in levels if not level.is_proven]
    values = {level.goal: level.value for level in levels if level.goal != "satisfied"}
    if (values["pools"], values["devices"]) != reached[-2:]:
        told.append(f"says {values}, and has {reached[-2:]}")
    return told


def _objections_anywhere(instance: Instance, unit: Unit, option: Option) -> list[str]:
    """A unit with network devices only is told no node (S7): then some node must do."""
    nodes = [option.place] if option.place is not None or not unit.is_free else instance.snapshot.nodes or [None]
    found = [[*objections(instance, unit, replace(option, place=node))] for node in nodes]
    return min(found, key=len)


@pytest.mark.parametrize("crowded", [False, True])
def test_every_goal_is_reached_and_every_rule_kept(crowded: bool) -> None:
    wrong = {}
    judged = 0
    for seed in range(EXAMPLES):
        told = disagreements(random_instance(Random(seed), crowded=crowded))
        judged += told is not None
        if told:
            wrong[seed] = told
    assert wrong == {}
    assert judged > EXAMPLES / 2
