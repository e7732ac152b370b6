"""Solve DeviceClaims, step by step: read manifests, take a snapshot, find candidates, search, check, explain."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from devalloc.api.claim import DeviceClaim
from devalloc.api.device_class import DeviceClass
from devalloc.api.fields import ApiModel
from devalloc.api.pool import DevicePool
from devalloc.api.problems import Problem
from devalloc.api.reasons import Reason
from devalloc_solver.answer_types import SolutionDict
from devalloc_solver.cel.budget import SEARCH_CUT_SHORT, OutOfTime, SearchCutShort
from devalloc_solver.check import CelResults, check, check_cel_check
from devalloc_solver.deadline import end_time, quick_search_end
from devalloc_solver.dialects.api_groups import as_manifest_list, foreign_manifests, is_resource_k8s
from devalloc_solver.dialects.device_claims.answers import allocated_answer, placed_answer
from devalloc_solver.dialects.device_claims.candidates import CandidateFinder
from devalloc_solver.dialects.device_claims.demands import build_units
from devalloc_solver.dialects.device_claims.explainer import DeviceClaimExplainer
from devalloc_solver.dialects.device_claims.manifests import ProblemInput, read_documents, read_objects
from devalloc_solver.dialects.units import RejectedClaim, timeout_rejection
from devalloc_solver.errors import AnswerRefused as AnswerRefused
from devalloc_solver.explain.explainer import FleetTotals
from devalloc_solver.gc_pause import gc_paused
from devalloc_solver.pipeline import admission
from devalloc_solver.pipeline.decomposition import unproven_names
from devalloc_solver.pipeline.strategy import SearchOutcome, add_rejected_claims, explain_in_time, search_parts
from devalloc_solver.problem.allocations import (
    Allocation,
    Key,
    LostDevice,
    ghosts_of,
    read_allocations,
    recover_allocation,
)
from devalloc_solver.problem.answer import ClaimAnswer, Solution, loss_problems
from devalloc_solver.problem.demand import PlacementUnit
from devalloc_solver.problem.ghosts import snapshot_with_ghosts
from devalloc_solver.problem.overuse import device_title, overuse_of_allocations, overuse_problems
from devalloc_solver.problem.placement_policy import check_policy
from devalloc_solver.problem.snapshot import Snapshot, take_snapshot

MAX_CACHED = 128
"""Different requests whose candidates are kept; with more, the next solve starts afresh."""
MAX_VERDICTS = 200_000
"""Expressions and verdicts of them that are kept; with more, those asked for first are forgotten."""
VERDICTS_PER_DEVICE = 4
"""In a large fleet so many for each device: several expressions may take more than one call each, and be evaluated in
turns."""
_DISPUTED_PASSES = 4
"""How often it is solved again without claims whose expressions two evaluators judge differently. The last time all
that wait in their namespaces are left out: no tenant can let others wait for ever."""


@gc_paused()
def solve_manifests(
    documents: Iterable[Mapping[str, Any]],
    *,
    placement: str = "pack",
    deadline: float | None = None,
    cel_check: str = "refuse",
) -> SolutionDict:
    """Allocate the pending claims among manifests: pools, classes, claims, configuration objects, ResourceQuotas.

    A claim that exceeds a quota of its namespace gets nothing (``QuotaExceeded``), as with `devalloc up`.

    If the manifests are of resource.k8s.io and contain no DeviceClaim, ResourceClaims are allocated;
    ``dra.solve_manifests`` does the same, and declares the type of that answer.

    Invalid content raises no exception: ``problems`` reports it, and an invalid claim has ``allocated: false``.

    Args:
        documents: manifests as JSON-like dicts, in any order.
        placement: ``pack`` (default) or ``spread`` (S17, goal 5).
        deadline: seconds after which the best answer so far is returned; 0 takes the first answer, None sets no limit.
            A claim whose expressions take too long gets the reason ``SearchLimit``, and the others are solved. The
            check of the answer takes additional time, well below a second.
        cel_check: what to do if the two evaluators of expressions disagree about a DeviceClaim. ``refuse`` (default):
            it gets nothing (``CheckFailed``). ``warn``: it gets its devices, and ``problems`` reports the disagreement.

    Returns:
        ``{"claims": [...], "objective": {"levels": [...]}, "optimal": bool, "seconds": float, "problems": [...]}``
        with claims ordered by namespace and name (settled L2).

    Raises:
        ValueError: for an unknown ``placement`` or ``cel_check``, or ``documents`` that are one manifest or text.
        ValueError, TypeError: for a ``deadline`` that is not a number of seconds.
    """
    started = time.monotonic()
    documents = as_manifest_list(documents)
    if is_resource_k8s(documents):
        from devalloc_solver.pipeline import resource_k8s  # with its CEL runtime

        return cast(SolutionDict, resource_k8s.solve_manifests(documents, placement=placement, deadline=deadline))
    if any(admission.is_admission_object(document) for document in documents if isinstance(document, Mapping)):
        apart = admission.sort_documents(documents)

        def solve_some(some: list[dict[str, Any]]) -> dict[str, Any]:
            left = None if deadline is None else max(0.0, deadline - (time.monotonic() - started))
            return _solve_without_quotas(
                [*map(apart.written, some), *apart.rest], placement, left, time.monotonic(), cel_check
            )

        end_time(deadline, started)  # raises for one that is none
        return cast(SolutionDict, admission.solve_admitted(apart.readable, solve_some, unread=apart.rest))
    return cast(SolutionDict, _solve_without_quotas(documents, placement, deadline, started, cel_check))


def _solve_without_quotas(
    documents: Sequence[Mapping[str, Any]], placement: str, deadline: float | None, started: float, cel_check: str
) -> dict[str, Any]:
    """The answer without regard to ResourceQuotas."""
    solution = solve_input(read_documents(documents), placement, deadline, started, cel_check=cel_check)
    problems = sorted((*solution.problems, *foreign_manifests(documents)), key=_problem_order)
    return replace(solution, problems=tuple(problems)).to_dict()


@gc_paused()
def solve(
    pools: Iterable[DevicePool],
    classes: Iterable[DeviceClass],
    claims: Iterable[DeviceClaim],
    configs: Iterable[ApiModel | Mapping[str, Any]] = (),
    *,
    placement: str = "pack",
    deadline: float | None = None,
    cel_check: str = "refuse",
) -> Solution:
    """Allocate the pending claims among typed objects, as ``solve_manifests`` does among manifests.

    Raises TypeError for an object of another type.
    """
    started = time.monotonic()
    problem_input = read_objects(pools, classes, claims, configs)
    return solve_input(problem_input, placement, deadline, started, cel_check=cel_check)


@dataclass(frozen=True, slots=True)
class PreparedProblem:
    """Everything known before the search begins."""

    problem_input: ProblemInput
    snapshot: Snapshot
    eligibility: CandidateFinder
    allocations: tuple[Allocation, ...]
    lost: Mapping[Key, Sequence[LostDevice]]
    units: tuple[PlacementUnit, ...]
    refused: tuple[RejectedClaim, ...]
    problems: tuple[Problem, ...]


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
    problem_input: ProblemInput,
    standing: SolveCache | None = None,
    *,
    ends: float | None = None,
    started: float | None = None,
    is_quick: bool = False,
) -> PreparedProblem:
    """All stages before the search. ``standing`` is what the caller keeps from one solve to the next.

    ``ends``: the monotonic time at which the call has to answer that began at ``started``. ``is_quick``: see
    ``Allowance.begin``.
    """
    snapshot, problems, eligibility = (standing or SolveCache()).take(problem_input)
    allocated = [claim for claim in problem_input.claims if claim.is_allocated]
    invalid = [(one.node, one.status.allocations) for one in problem_input.refused if one.status is not None]
    if ghosts := ghosts_of(snapshot, allocated, invalid, problem_input.classes):
        snapshot = snapshot_with_ghosts(snapshot, ghosts)
        eligibility = eligibility.for_others(snapshot, problem_input.classes, problem_input.invalid_classes)
    eligibility.begin(ends, started, is_quick=is_quick)
    allocations, lost, unclear = read_allocations(snapshot, allocated, problem_input.classes)
    for one in problem_input.refused:
        if one.status is not None:
            allocation, missing = recover_allocation(snapshot, one.key, one.node, one.status.allocations)
            allocations.append(allocation)
            lost[one.key] = [*lost.get(one.key, ()), *missing]
    overused = overuse_problems(
        overuse_of_allocations(snapshot, allocations), "DeviceClaim", partial(device_title, snapshot)
    )
    units, refused = build_units(problem_input, eligibility)
    gone = loss_problems(lost, "DeviceClaim", "status.allocations")
    broken = list(_invalid_class_problems(problem_input, eligibility))
    eligibility.allowance.begin_search()
    orphans = [problem for claim in allocated for problem in _missing_class_problems(claim, problem_input)]
    return PreparedProblem(
        problem_input,
        snapshot,
        eligibility,
        tuple(sorted(allocations, key=lambda h: h.claim)),
        lost,
        tuple(units),
        (*problem_input.refused, *refused),
        tuple(
            sorted(
                (*problem_input.problems, *problems, *unclear, *broken, *gone, *orphans, *overused), key=_problem_order
            )
        ),
    )


def _problem_order(problem: Problem) -> tuple[str, ...]:
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
            yield Problem(error, path="spec.constraints", kind="DeviceClass", name=name)


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


def solve_input(
    problem_input: ProblemInput,
    placement: str,
    deadline: float | None,
    started: float,
    standing: SolveCache | None = None,
    *,
    is_quick: bool = False,
    cel_check: str = "refuse",
) -> Solution:
    """The answers to the claims of a problem input; see ``solve_manifests``.

    ``started``: monotonic time from which ``deadline`` and ``seconds`` count. ``standing``: see ``prepare``.
    ``is_quick``: see ``search_parts``; then the search has ``deadline`` for itself.

    Raises ValueError or TypeError for a ``placement`` or ``deadline`` that is none, AnswerRefused for a bug of the
    solver.
    """
    check_policy(placement)
    check_cel_check(cel_check)
    remaining, disagreements = problem_input, dict[str, None]()
    for turn in range(_DISPUTED_PASSES):
        solution, verdicts = _solve_once(remaining, placement, deadline, started, standing, is_quick=is_quick)
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
    pending = [claim for claim in problem_input.claims if not claim.is_allocated and not claim.is_deleting]
    return replace(
        solution,
        claims=answers,
        levels=tuple(add_rejected_claims(solution.levels, [claim.priority for claim in pending])),
        problems=(*solution.problems, *(Problem(message, severity="warning") for message in disagreements)),
        seconds=time.monotonic() - started,
    )


def _solve_once(
    problem_input: ProblemInput,
    placement: str,
    deadline: float | None,
    started: float,
    standing: SolveCache | None,
    *,
    is_quick: bool,
) -> tuple[Solution, CelResults]:
    """The answers, and what the check's evaluator says of them (S6). Its levels are those of claims that were searched
    for. Raises AnswerRefused."""
    ends, began, cpu_began = end_time(deadline, started), time.monotonic(), time.thread_time()
    prepared = prepare(problem_input, standing, ends=ends, started=started, is_quick=is_quick)
    if is_quick:
        ends = quick_search_end(deadline, began, cpu_began)
        prepared.eligibility.allowance.prolong(ends)
    outcome = search_parts(
        prepared.snapshot, prepared.allocations, prepared.units, placement=placement, ends=ends, is_quick=is_quick
    )
    optimal = all(level.is_proven for level in outcome.levels if level.goal == "satisfied")
    answers = _answer_all(prepared, outcome, ends, is_quick=is_quick)
    verdicts = _verify_answers(prepared, answers)
    solution = Solution(
        claims=tuple(answers),
        levels=tuple(outcome.levels),
        optimal=optimal,
        seconds=time.monotonic() - started,
        problems=prepared.problems,
        unproven=(*unproven_names(outcome.unproven),),
    )
    return solution, verdicts


def _answer_all(
    prepared: PreparedProblem, outcome: SearchOutcome, ends: float | None, *, is_quick: bool
) -> list[ClaimAnswer]:
    problem_input, placements = prepared.problem_input, outcome.placements
    answers = [placed_answer(p, prepared.snapshot, problem_input) for p in placements]
    answers += [
        allocated_answer(
            claim, prepared.snapshot, prepared.lost.get(claim.key, ()), problem_input.warnings.get(claim.key, ())
        )
        for claim in problem_input.claims
        if claim.is_allocated
    ]
    answers += [refused.answer() for refused in prepared.refused]
    unsatisfied, later = outcome.unsatisfied(prepared.units, is_quick=is_quick)
    too_late = SearchCutShort(SEARCH_CUT_SHORT)

    def late(unit: PlacementUnit) -> list[ClaimAnswer]:
        return [timeout_rejection(demand.claim, too_late).answer() for demand in unit.demands]

    answers += [answer for unit in later for answer in late(unit)]
    if unsatisfied:
        doubtful = {key for part in outcome.doubtful for key in part.keys}
        explainer = DeviceClaimExplainer(
            *(prepared.snapshot, prepared.allocations, placements, ends, prepared.eligibility, problem_input.warnings),
            fleet=FleetTotals(invalid_pools=problem_input.invalid_pools),
        )

        def explain(unit: PlacementUnit) -> list[ClaimAnswer]:
            explainer.is_proven = unit.demands[0].key not in doubtful
            return explainer.explain(unit)

        # Parts that took all of their time come last: the reasons of the others are soon found.
        in_order = sorted(unsatisfied, key=lambda unit: unit.demands[0].key in doubtful)
        answers += explain_in_time(outcome, in_order, ends, explain, late)
    return sorted(answers, key=lambda a: a.key)


def _verify_answers(prepared: PreparedProblem, answers: Sequence[ClaimAnswer]) -> CelResults:
    """The verdicts of the check's evaluator. Raises AnswerRefused."""
    problem_input, results = prepared.problem_input, CelResults()
    violations = check(
        problem_input.pools,
        problem_input.classes.values(),
        problem_input.claims,
        [answer.to_dict() for answer in answers],
        verdicts=results,
        left_out=problem_input.refused,
    )
    if violations:
        raise AnswerRefused("the check refuses this answer (please report it): " + "; ".join(violations[:10]))
    return results


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
            refused.append(RejectedClaim(claim.key, Reason.CHECK_FAILED, "; ".join(about[:3]), claim.group))
    return replace(problem_input, claims=tuple(staying), refused=tuple(refused))


def _disputed_unit(claim: DeviceClaim, *, by_namespace: bool) -> tuple[str, ...]:
    """What gets nothing together."""
    if by_namespace:
        return (claim.namespace,)
    return (*claim.key, "claim") if claim.group is None else (claim.namespace, claim.group, "group")
