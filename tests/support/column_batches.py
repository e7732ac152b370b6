"""Solve batches by column generation whatever their size, and compare with the exact model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from devalloc_solver.check import check
from devalloc_solver.columns import allocate_batch
from devalloc_solver.dialects.device_claims.answers import allocated_answer, placed_answer
from devalloc_solver.dialects.device_claims.manifest_records import read_documents
from devalloc_solver.dialects.device_claims.problem import DeviceClaimProblem, prepare
from devalloc_solver.exact.goal_search import GoalSearch
from devalloc_solver.exact.goals import optimize_goals
from devalloc_solver.exact.model import build_model
from devalloc_solver.problem.placement import GoalLevel, Placement
from devalloc_solver.problem.placement_policy import PACK, PlacementPolicy

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Batch:
    """The answer to a batch."""

    prepared: DeviceClaimProblem
    placements: list[Placement]
    levels: list[GoalLevel]

    @property
    def satisfied(self) -> list[int]:
        """Per priority, highest first."""
        return [level.value for level in self.levels if level.goal == "satisfied"]

    @property
    def bounds(self) -> list[int]:
        return [level.bound for level in self.levels if level.goal == "satisfied"]

    @property
    def placed(self) -> set[str]:
        return {placement.demand.key[1] for placement in self.placements}

    def violations(self) -> list[str]:
        """What the independent check has to say; claims that are left out need no reason here."""
        problem_input, snapshot = self.prepared.dialect.problem_input, self.prepared.snapshot
        answers = [placed_answer(p, snapshot, problem_input).to_dict() for p in self.placements]
        answers += [allocated_answer(c, snapshot, ()).to_dict() for c in problem_input.claims if c.is_allocated]
        answered = {(answer["namespace"], answer["name"]) for answer in answers}
        answers += [_left_out(*claim.key) for claim in problem_input.claims if claim.key not in answered]
        left_out = [refused for refused in problem_input.refused if refused.key not in answered]
        return check(
            problem_input.pools, problem_input.classes.values(), problem_input.claims, answers, left_out=left_out
        )


def by_columns(documents: Sequence[Manifest], *, policy: PlacementPolicy = PACK, ends: float | None = None) -> Batch:
    """Solve a batch of any size as a large one is solved."""
    prepared = prepare(read_documents(documents))
    outcome = allocate_batch(prepared.snapshot, prepared.allocations, prepared.units, policy=policy, ends=ends)
    return Batch(prepared, *outcome)


def exact_counts(prepared: DeviceClaimProblem) -> list[int] | None:
    """The most claims of each priority, highest first, by the exact model; None where it cannot prove them."""
    model = build_model(prepared.snapshot, prepared.allocations, prepared.units)
    search = GoalSearch(model)
    counts = []
    for priority in sorted({d.claim.priority for unit in prepared.units for d in unit.demands}, reverse=True):
        sizes = [sum(d.claim.priority == priority for d in unit.demands) for unit in prepared.units]
        terms = [(size, literal) for size, literal in zip(sizes, model.satisfied, strict=True) if size]
        value, bound = search.maximize(terms, best=sum(sizes))
        if value != bound:
            return None
        counts.append(value)
    return counts


def exact_levels(prepared: DeviceClaimProblem) -> list[GoalLevel]:
    """What the exact model reaches, goal by goal."""
    model = build_model(prepared.snapshot, prepared.allocations, prepared.units)
    return optimize_goals(model, policy=PACK, ends=None)[1]


def _left_out(namespace: str, name: str) -> Manifest:
    return {
        "namespace": namespace,
        "name": name,
        "allocated": False,
        "node": None,
        "allocations": [],
        "reason": "Unsatisfiable",
        "message": "left out",
        "warnings": [],
    }
