"""Reasons take the word of the search for what does not fit."""

from __future__ import annotations

from random import Random

from devalloc_solver.dialects.device_claims.explainer import DeviceClaimExplainer
from devalloc_solver.dialects.device_claims.manifest_records import read_documents
from devalloc_solver.dialects.device_claims.problem import prepare
from devalloc_solver.pipeline.strategy import search_parts
from devalloc_solver.problem.placement_policy import PACK
from tests.support import random_fleets
from tests.support.examples import examples

SEEDS = range(examples(24, 0.15))


def test_reasons_are_the_same_whether_or_not_they_ask_again_what_the_search_has_proven() -> None:
    explained = 0
    for seed in SEEDS:
        problem_input = read_documents(random_fleets.documents(Random(seed)))
        ready = prepare(problem_input)
        outcome = search_parts(ready.snapshot, ready.allocations, ready.units, policy=PACK, ends=None)
        placements, levels = outcome.placements, outcome.levels
        assert all(level.is_proven for level in levels if level.goal == "satisfied")
        placed = {placement.demand.key for placement in placements}
        left_out = [unit for unit in ready.units if unit.demands[0].key not in placed]
        answers = []
        for is_proven in (False, True):
            explainer = DeviceClaimExplainer(
                ready.snapshot,
                ready.allocations,
                placements,
                None,
                ready.dialect.eligibility,
            )
            explainer.is_proven = is_proven
            answers.append([explainer.explain(unit) for unit in left_out])
        assert answers[0] == answers[1]
        explained += len(left_out)
    assert explained > len(SEEDS) / 3
