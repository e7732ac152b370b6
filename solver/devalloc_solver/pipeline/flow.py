"""The flow of a solve, whatever the dialect: search, answer, explain, check. Begin reading here."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from devalloc.api.problems import Problem
from devalloc_solver.cel.budget import SEARCH_CUT_SHORT, Allowance, SearchCutShort
from devalloc_solver.deadline import GRACE_SECONDS, Call
from devalloc_solver.explain.explainer import Explainer
from devalloc_solver.pipeline.decomposition import unproven_names
from devalloc_solver.pipeline.strategy import SearchOutcome, add_rejected_claims, search_parts
from devalloc_solver.pipeline.units import RejectedClaim, timeout_rejection
from devalloc_solver.problem.allocations import Holding
from devalloc_solver.problem.answer import ClaimAnswer, Solution
from devalloc_solver.problem.demand import PlacementUnit
from devalloc_solver.problem.placement import Placement
from devalloc_solver.problem.placement_policy import PlacementPolicy
from devalloc_solver.problem.snapshot import Snapshot


class Dialect(Protocol):
    """What only the dialect of a problem knows: how its claims are answered."""

    def echo(self) -> Iterable[ClaimAnswer]:
        """Answer the claims that came in with devices."""

    def write(self, placements: Sequence[Placement]) -> Iterable[ClaimAnswer]:
        """Answer claims that got these devices."""

    def check(self, placements: Sequence[Placement], answers: Sequence[ClaimAnswer]) -> None:
        """Judge answers independently. Raises errors.AnswerRefused."""

    def explainer(
        self, problem: UnsolvedProblem[Any], placements: Sequence[Placement], ends: float | None
    ) -> Explainer:
        """Make who explains why a unit is not among the placements, until the monotonic time ``ends``."""


DialectT = TypeVar("DialectT", bound=Dialect)


@dataclass(frozen=True, slots=True)
class UnsolvedProblem(Generic[DialectT]):
    """Everything known before the search begins."""

    snapshot: Snapshot
    allocations: tuple[Holding, ...]
    units: tuple[PlacementUnit, ...]
    refused: tuple[RejectedClaim, ...]
    priorities: tuple[int, ...]
    """of all claims that wait"""
    problems: tuple[Problem, ...]
    allowance: Allowance
    """of the expressions"""
    dialect: DialectT


def solve_problem(problem: UnsolvedProblem[DialectT], policy: PlacementPolicy, call: Call) -> Solution:
    """Answer all claims of a problem. Raises errors.AnswerRefused for a bug of the solver."""
    ends = call.search_end()
    if call.is_quick:
        problem.allowance.prolong(ends)
    outcome = search_parts(
        *(problem.snapshot, problem.allocations, problem.units), policy=policy, ends=ends, is_quick=call.is_quick
    )
    levels, placements = add_rejected_claims(outcome.levels, problem.priorities), outcome.placements
    answers = [*problem.dialect.write(placements), *problem.dialect.echo()]
    answers += [refused.answer() for refused in problem.refused]
    answers += explain_left_out(problem, outcome, ends, is_quick=call.is_quick)
    answers.sort(key=lambda answer: answer.key)
    problem.dialect.check(placements, answers)
    return Solution(
        claims=tuple(answers),
        levels=tuple(levels),
        optimal=all(level.is_proven for level in levels if level.goal == "satisfied"),
        seconds=time.monotonic() - call.started,
        problems=problem.problems,
        unproven=(*unproven_names(outcome.unproven),),
    )


def explain_left_out(
    problem: UnsolvedProblem[DialectT], outcome: SearchOutcome, ends: float | None, *, is_quick: bool
) -> Iterator[ClaimAnswer]:
    """Answer the units that were left out.

    Once the time for that is over too, those whose parts had no time to be searched to the end get just that reason.
    """
    unsatisfied, later = outcome.unsatisfied(problem.units, is_quick=is_quick)
    for unit in later:
        yield from _late(unit)
    if not unsatisfied:
        return
    doubtful, unproven = ({key for part in some for key in part.keys} for some in (outcome.doubtful, outcome.unproven))
    explainer = problem.dialect.explainer(problem, outcome.placements, ends)
    until = None if ends is None else max(ends, time.monotonic()) + GRACE_SECONDS
    # Parts that took all of their time come last: the reasons of the others are soon found.
    for unit in sorted(unsatisfied, key=lambda unit: unit.demands[0].key in doubtful):
        key = unit.demands[0].key
        if key in unproven and until is not None and time.monotonic() > until:
            yield from _late(unit)
        else:
            explainer.is_proven = key not in doubtful
            yield from explainer.explain(unit)


def _late(unit: PlacementUnit) -> Iterator[ClaimAnswer]:
    too_late = SearchCutShort(SEARCH_CUT_SHORT)
    return (timeout_rejection(demand.claim, too_late).answer() for demand in unit.demands)
