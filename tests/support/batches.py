"""Batches solved by columns whatever their size, and what the exact model says of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from devalloc_solver.assignment import Placement
from devalloc_solver.check import check
from devalloc_solver.columns import allocate_batch
from devalloc_solver.goals import Level, Search, optimize
from devalloc_solver.intake import read_documents
from devalloc_solver.model import build_model
from devalloc_solver.solution import answer_allocated, answer_placement
from devalloc_solver.stages import Prepared, prepare

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Batch:
    """The answer to a batch."""

    prepared: Prepared
    placements: list[Placement]
    levels: list[Level]

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
        intake, snapshot = self.prepared.intake, self.prepared.snapshot
        answers = [answer_placement(p, snapshot, intake).to_dict() for p in self.placements]
        answers += [answer_allocated(c, snapshot, (), ()).to_dict() for c in intake.claims if c.is_allocated]
        told = {(answer["namespace"], answer["name"]) for answer in answers}
        answers += [_left_out(*claim.key) for claim in intake.claims if claim.key not in told]
        left_out = [refused for refused in intake.refused if refused.key not in told]
        return check(intake.pools, intake.classes.values(), intake.claims, answers, left_out=left_out)


def by_columns(documents: Sequence[Manifest], *, placement: str = "pack", ends: float | None = None) -> Batch:
    """Solve a batch of any size as a large one is solved."""
    prepared = prepare(read_documents(documents))
    found = allocate_batch(prepared.snapshot, prepared.holdings, prepared.units, placement=placement, ends=ends)
    return Batch(prepared, *found)


def exact_counts(prepared: Prepared) -> list[int] | None:
    """The most claims of each priority, highest first, by the exact model; None where it cannot prove them."""
    model = build_model(prepared.snapshot, prepared.holdings, prepared.units)
    search = Search(model)
    counts = []
    for priority in sorted({d.claim.priority for unit in prepared.units for d in unit.demands}, reverse=True):
        sizes = [sum(d.claim.priority == priority for d in unit.demands) for unit in prepared.units]
        terms = [(size, literal) for size, literal in zip(sizes, model.satisfied, strict=True) if size]
        value, bound = search.maximize(terms, best=sum(sizes))
        if value != bound:
            return None
        counts.append(value)
    return counts


def exact_levels(prepared: Prepared) -> list[Level]:
    """What the exact model reaches, goal by goal."""
    model = build_model(prepared.snapshot, prepared.holdings, prepared.units)
    return optimize(model, placement="pack", ends=None)[1]


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
