"""Solve DeviceClaims, again without those whose expressions two evaluators judge differently (S6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from devalloc.api.claim import DeviceClaim
from devalloc.api.findings import text_fact
from devalloc.api.problems import Problem
from devalloc.api.reasons import Reason
from devalloc_solver.check import check_cel_check
from devalloc_solver.deadline import Call
from devalloc_solver.dialects.device_claims.answers import repeated
from devalloc_solver.dialects.device_claims.manifests import ProblemInput
from devalloc_solver.dialects.device_claims.problem import SolveCache, prepare, priorities_of
from devalloc_solver.pipeline.flow import solve_problem
from devalloc_solver.pipeline.strategy import add_rejected_claims
from devalloc_solver.pipeline.units import RejectedClaim
from devalloc_solver.problem.allocations import Key
from devalloc_solver.problem.answer import Solution
from devalloc_solver.problem.placement_policy import PlacementPolicy

_DISPUTED_PASSES = 4
"""How often it is solved again without claims whose expressions two evaluators judge differently. The last time all
that wait in their namespaces are left out: no tenant can let others wait for ever."""


def solve_input(
    problem_input: ProblemInput,
    policy: PlacementPolicy,
    call: Call,
    standing: SolveCache | None = None,
    *,
    cel_check: str = "refuse",
) -> Solution:
    """The answers to the claims of a problem input; see ``solve_manifests``. ``standing``: see ``prepare``.

    Raises ValueError or TypeError for a deadline that is none, AnswerRefused for a bug of the solver.
    """
    check_cel_check(cel_check)
    remaining, disagreements = problem_input, dict[str, None]()
    for turn in range(_DISPUTED_PASSES):
        problem = prepare(remaining, standing, call)
        solution, verdicts = solve_problem(problem, policy, call), problem.dialect.verdicts
        disagreements |= dict.fromkeys(verdicts.disagreements)
        if cel_check == "warn" or not verdicts.disputed:
            answers = solution.claims
            break
        # What they were given may be for others, who do not wait for them.
        remaining = _without_disputed(remaining, verdicts.disputed, by_namespace=turn == _DISPUTED_PASSES - 2)
        refused = {one.key: one for one in remaining.refused}
        answers = tuple(
            refused[each.key].answer() if each.allocated and each.key in refused else each for each in solution.claims
        )
    warnings = problem_input.warnings
    own = {claim.key: repeated(claim.spec, warnings.get(claim.key, ())) for claim in problem_input.claims}
    return replace(
        solution,
        claims=tuple(each.repeating(own.get(each.key, {})) for each in answers),
        levels=tuple(add_rejected_claims(solution.levels, priorities_of(problem_input))),
        problems=(*solution.problems, *(Problem(message, severity="warning") for message in disagreements)),
    )


def _without_disputed(
    problem_input: ProblemInput, disputed: Mapping[Key, Sequence[str]], *, by_namespace: bool
) -> ProblemInput:
    """The input in which claims whose expressions are disputed, and the others of their groups, are refused.

    ``by_namespace``: with all that wait in their namespaces, so that it ends.
    """
    claims = {claim.key: claim for claim in problem_input.claims}
    messages: dict[tuple[str, ...], list[str]] = {}
    for key, texts in disputed.items():
        messages.setdefault(_disputed_unit(claims[key], by_namespace=by_namespace), []).extend(texts)
    staying, refused = [], [*problem_input.refused]
    for claim in problem_input.claims:
        about = messages.get(_disputed_unit(claim, by_namespace=by_namespace))
        if about is None or claim.is_allocated or claim.is_deleting:
            staying.append(claim)
        else:
            refused.append(RejectedClaim(claim.key, Reason.CHECK_FAILED, tuple(map(text_fact, about[:3])), claim.group))
    return replace(problem_input, claims=tuple(staying), refused=tuple(refused))


def _disputed_unit(claim: DeviceClaim, *, by_namespace: bool) -> tuple[str, ...]:
    """What gets nothing together."""
    if by_namespace:
        return (claim.namespace,)
    return (*claim.key, "claim") if claim.group is None else (claim.namespace, claim.group, "group")
