"""The problem of DeviceClaims, before it is solved: the snapshot, who holds what, candidates; and its answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from devalloc.api.claim import DeviceClaim
from devalloc.api.owner_names import is_object
from devalloc.api.problems import Problem
from devalloc_solver.cel.budget import OutOfTime
from devalloc_solver.check import CelResults, check
from devalloc_solver.deadline import NO_DEADLINE, Call
from devalloc_solver.dialects.device_claims.answers import allocated_answer, placed_answer
from devalloc_solver.dialects.device_claims.candidates import CandidateFinder
from devalloc_solver.dialects.device_claims.demands import build_units
from devalloc_solver.dialects.device_claims.explainer import DeviceClaimExplainer
from devalloc_solver.dialects.device_claims.manifests import ProblemInput
from devalloc_solver.dialects.device_claims.status import (
    find_lost,
    ghosts_of,
    held_by_invalid,
    held_devices,
    read_allocations,
)
from devalloc_solver.errors import AnswerRefused
from devalloc_solver.explain.explainer import FleetTotals
from devalloc_solver.pipeline.flow import UnsolvedProblem
from devalloc_solver.problem.allocations import Key, LostDevice
from devalloc_solver.problem.answer import ClaimAnswer, loss_problems
from devalloc_solver.problem.ghosts import snapshot_with_ghosts
from devalloc_solver.problem.overuse import device_title, overuse_of_allocations, overuse_problems
from devalloc_solver.problem.placement import Placement
from devalloc_solver.problem.snapshot import Snapshot, take_snapshot

MAX_CACHED = 128
"""Different requests whose candidates are kept; with more, the next solve starts afresh."""
MAX_VERDICTS = 200_000
"""Expressions and verdicts of them that are kept; with more, those asked for first are forgotten."""
VERDICTS_PER_DEVICE = 4
"""In a large fleet so many for each device: several expressions may take more than one call each, and be evaluated in
turns."""


@dataclass(frozen=True, slots=True)
class DeviceClaimDialect:
    """How the claims of a problem are answered."""

    problem_input: ProblemInput
    snapshot: Snapshot
    eligibility: CandidateFinder
    lost: Mapping[Key, Sequence[LostDevice]]
    verdicts: CelResults = field(default_factory=CelResults)
    """what the check's evaluator said (S6)"""

    def echo(self) -> Iterator[ClaimAnswer]:
        for claim in self.problem_input.claims:
            if claim.is_allocated:
                yield allocated_answer(claim, self.snapshot, self.lost.get(claim.key, ()))

    def write(self, placements: Sequence[Placement]) -> Iterator[ClaimAnswer]:
        return (placed_answer(placement, self.snapshot, self.problem_input) for placement in placements)

    def check(self, placements: Sequence[Placement], answers: Sequence[ClaimAnswer]) -> None:
        violations = check(
            self.problem_input.pools,
            self.problem_input.classes.values(),
            self.problem_input.claims,
            [answer.to_dict() for answer in answers],
            verdicts=self.verdicts,
            left_out=self.problem_input.refused,
        )
        if violations:
            raise AnswerRefused("the check refuses this answer (please report it): " + "; ".join(violations[:10]))

    def explainer(
        self, problem: UnsolvedProblem[Any], placements: Sequence[Placement], ends: float | None
    ) -> DeviceClaimExplainer:
        return DeviceClaimExplainer(
            *(problem.snapshot, problem.allocations, placements, ends, self.eligibility),
            fleet=FleetTotals(invalid_pools=self.problem_input.invalid_pools),
        )


DeviceClaimProblem = UnsolvedProblem[DeviceClaimDialect]


@dataclass(slots=True)
class SolveCache:
    """The last snapshot and its judge. Pools and classes are compared by identity: objects never change."""

    _pools: Sequence[object] = field(default=(), init=False)
    _classes: Sequence[object] = field(default=(), init=False)
    _snapshot: tuple[Snapshot, list[Problem]] | None = field(default=None, init=False)
    _judge: CandidateFinder | None = field(default=None, init=False)

    def take(self, problem_input: ProblemInput) -> tuple[Snapshot, list[Problem], CandidateFinder]:
        """The snapshot of a problem input, its problems, and the judge of its devices."""
        if self._snapshot is None or not _is_unchanged(self._pools, problem_input.pools):
            self._pools, self._snapshot, self._judge = problem_input.pools, take_snapshot(problem_input.pools), None
        snapshot, problems = self._snapshot
        classes = (*problem_input.classes.values(),)
        judge = self._judge
        if (
            judge is None
            or not _is_unchanged(self._classes, classes)
            or judge.invalid_classes != problem_input.invalid_classes
            or judge.cached_requests > MAX_CACHED
        ):
            judge = self._judge = CandidateFinder(snapshot, problem_input.classes, problem_input.invalid_classes)
            self._classes = classes
        judge.forget(max(MAX_VERDICTS, VERDICTS_PER_DEVICE * len(snapshot.devices)))
        return snapshot, problems, judge


def _is_unchanged(old: Sequence[object], new: Sequence[object]) -> bool:
    return len(old) == len(new) and all(a is b for a, b in zip(old, new, strict=True))


def prepare(
    problem_input: ProblemInput, standing: SolveCache | None = None, call: Call = NO_DEADLINE
) -> DeviceClaimProblem:
    """All stages before the search. ``standing`` is what the caller keeps from one solve to the next."""
    snapshot, problems, eligibility = (standing or SolveCache()).take(problem_input)
    allocated = [claim for claim in problem_input.claims if claim.is_allocated]
    invalid = [claim for claim in problem_input.refused if claim.status is not None]
    holders = [(claim.key, held_devices(claim, problem_input.classes)) for claim in allocated]
    holders += [(claim.key, held_by_invalid(claim)) for claim in invalid]
    if ghosts := ghosts_of(snapshot, ((held.node, entry) for _, held in holders for entry in held.entries)):
        snapshot = snapshot_with_ghosts(snapshot, ghosts)
        eligibility = eligibility.for_others(snapshot, problem_input.classes, problem_input.invalid_classes)
    eligibility.begin(call.ends, call.started, is_quick=call.is_quick)
    allocations, (lost, unclear) = read_allocations(snapshot, holders), find_lost(snapshot, [*allocated, *invalid])
    overused = overuse_problems(
        overuse_of_allocations(snapshot, allocations), "DeviceClaim", partial(device_title, snapshot)
    )
    units, refused = build_units(problem_input, eligibility)
    gone = loss_problems(lost, "DeviceClaim", "status.allocations")
    broken = list(_invalid_class_problems(problem_input, eligibility))
    eligibility.judge.allowance.begin_search()
    own = (claim for claim in allocated if is_object(claim.key))  # what else holds devices has the requests of a claim
    orphans = [problem for claim in own for problem in _missing_class_problems(claim, problem_input)]
    all_problems = (*problem_input.problems, *problems, *unclear, *broken, *gone, *orphans, *overused)
    return UnsolvedProblem(
        snapshot,
        tuple(sorted(allocations, key=lambda h: h.owner)),
        tuple(units),
        (*problem_input.refused, *refused),
        priorities_of(problem_input),
        tuple(sorted(all_problems, key=problem_order)),
        eligibility.judge.allowance,
        DeviceClaimDialect(problem_input, snapshot, eligibility, lost),
    )


def priorities_of(problem_input: ProblemInput) -> tuple[int, ...]:
    """List those of all claims that wait."""
    return tuple(one.priority for one in problem_input.claims if not one.is_allocated and not one.is_deleting)


def problem_order(problem: Problem) -> tuple[str, ...]:
    """By object: the same whatever the order of the input."""
    return problem.kind or "", problem.namespace or "", problem.name or "", problem.path, problem.message


def _invalid_class_problems(problem_input: ProblemInput, eligibility: CandidateFinder) -> Iterator[Problem]:
    """Classes with an expression that cannot be used; nothing is said of those that there is no time for."""
    for name in sorted(problem_input.classes):
        try:
            error = eligibility.own_error(problem_input.classes[name].spec.constraints)
        except OutOfTime:
            continue
        if error is not None:
            yield Problem(error.message, path="spec.constraints", kind="DeviceClass", name=name)


def _missing_class_problems(claim: DeviceClaim, problem_input: ProblemInput) -> Iterator[Problem]:
    """An allocated claim keeps its devices when its class is deleted; report that (S18)."""
    for index, entry in enumerate(claim.spec.claims):
        for name in sorted({d.device_class for d in entry.alternatives if d.device_class} - {*problem_input.classes}):
            what = "is invalid" if name in problem_input.invalid_classes else "was deleted"
            yield Problem(
                f"class {name!r} {what}; the claim keeps its devices",
                path=f"spec.claims[{index}]",
                kind="DeviceClaim",
                namespace=claim.namespace,
                name=claim.metadata.name,
                severity="warning",
            )
