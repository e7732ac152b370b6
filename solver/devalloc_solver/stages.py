"""The line of stages: intake, snapshot, eligibility, units, the search for places, check, reasons."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from devalloc.api.claim import DeviceClaim
from devalloc.api.deviceclass import DeviceClass
from devalloc.api.fields import ApiModel
from devalloc.api.pool import DevicePool
from devalloc.api.problems import Problem
from devalloc_solver import gate
from devalloc_solver.budget import SEARCH_CUT_SHORT, OutOfTime, SearchCutShort
from devalloc_solver.check import check
from devalloc_solver.collector import quiet_collector
from devalloc_solver.deadline import end_of, quick_search_end
from devalloc_solver.demand import Unit, build_units, late
from devalloc_solver.dialects import manifests_of, speaks_kubernetes, strangers
from devalloc_solver.eligibility import Eligibility
from devalloc_solver.errors import AnswerRefused as AnswerRefused
from devalloc_solver.explain import Explainer
from devalloc_solver.holdings import Holding, Key, Lost, read_holdings, salvage
from devalloc_solver.intake import Intake, Refused, read_documents, read_objects
from devalloc_solver.overuse import device_title, overuse_in, problems_of
from devalloc_solver.parts import unproven_names
from devalloc_solver.policy import PLACEMENTS
from devalloc_solver.search import Outcome, search_parts, with_refused
from devalloc_solver.snapshot import Snapshot
from devalloc_solver.solution import ClaimAnswer, Solution, answer_allocated, answer_placement
from devalloc_solver.standing import Standing


@quiet_collector()
def solve_manifests(
    documents: Iterable[Mapping[str, Any]], *, placement: str = "pack", deadline: float | None = None
) -> dict[str, Any]:
    """Allocate the pending claims among manifests: pools, classes, claims, configuration objects, ResourceQuotas.

    A claim over a quota of its namespace gets nothing (``QuotaExceeded``), as from `devalloc up`.

    Manifests of resource.k8s.io, without any DeviceClaim, are solved in that dialect; see ``dra.solve_manifests``.

    Never raises for content: what is invalid is reported in ``problems`` and answered with ``allocated: false``.

    Args:
        documents: manifests as JSON-like dicts, in any order.
        placement: ``pack`` (default) or ``spread`` (S17, goal 5).
        deadline: seconds after which the best answer found so far is returned; 0 for the first one that is found, None
            for no limit. A claim whose expressions take too long is answered with ``SearchLimit``, and the others are
            solved. What follows the search, such as the check, comes on top: well below a second.

    Returns:
        ``{"claims": [...], "objective": {"levels": [...]}, "optimal": bool, "seconds": float, "problems": [...]}``
        with claims ordered by namespace and name (settled L2).

    Raises:
        ValueError: for an unknown ``placement``, or ``documents`` that are one manifest or text.
        ValueError, TypeError: for a ``deadline`` that is no number of seconds.
    """
    started = time.monotonic()
    documents = manifests_of(documents)
    if speaks_kubernetes(documents):
        from devalloc_solver import dra  # with its CEL runtime

        return dra.solve_manifests(documents, placement=placement, deadline=deadline)
    if any(gate.is_read(document) for document in documents if isinstance(document, Mapping)):
        apart = gate.apart(documents)

        def solve_some(some: list[dict[str, Any]]) -> dict[str, Any]:
            left = None if deadline is None else max(0.0, deadline - (time.monotonic() - started))
            return _solve_plain([*map(apart.written, some), *apart.rest], placement, left, time.monotonic())

        end_of(deadline, started)  # raises for one that is none
        return gate.answered(apart.readable, solve_some, beside=apart.rest)
    return _solve_plain(documents, placement, deadline, started)


def _solve_plain(
    documents: Sequence[Mapping[str, Any]], placement: str, deadline: float | None, started: float
) -> dict[str, Any]:
    """The answer without regard to ResourceQuotas."""
    solution = solve_intake(read_documents(documents), placement, deadline, started)
    problems = sorted((*solution.problems, *strangers(documents)), key=_order_of_problem)
    return replace(solution, problems=tuple(problems)).to_dict()


@quiet_collector()
def solve(
    pools: Iterable[DevicePool],
    classes: Iterable[DeviceClass],
    claims: Iterable[DeviceClaim],
    configs: Iterable[ApiModel | Mapping[str, Any]] = (),
    *,
    placement: str = "pack",
    deadline: float | None = None,
) -> Solution:
    """The same for typed objects; see ``solve_manifests``. Raises TypeError for an object of another type."""
    started = time.monotonic()
    return solve_intake(read_objects(pools, classes, claims, configs), placement, deadline, started)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything known before the search begins."""

    intake: Intake
    snapshot: Snapshot
    eligibility: Eligibility
    holdings: tuple[Holding, ...]
    lost: Mapping[Key, tuple[Lost, ...]]
    units: tuple[Unit, ...]
    refused: tuple[Refused, ...]
    problems: tuple[Problem, ...]


def prepare(
    intake: Intake, standing: Standing | None = None, *, ends: float | None = None, started: float | None = None
) -> Prepared:
    """All stages before the search. ``standing`` is what the caller keeps from one solve to the next.

    ``ends``: the monotonic time at which the call has to answer that began at ``started``.
    """
    snapshot, problems, eligibility = (standing or Standing()).take(intake)
    eligibility.begin(ends, started)
    allocated = [claim for claim in intake.claims if claim.is_allocated]
    holdings, lost, unclear = read_holdings(snapshot, allocated, intake.classes)
    for one in intake.refused:
        if one.status is not None:
            holding, missing = salvage(snapshot, one.key, one.node, one.status.allocations)
            holdings.append(holding)
            lost += missing
    overused = problems_of(overuse_in(snapshot, holdings), "DeviceClaim", partial(device_title, snapshot))
    units, refused = build_units(intake, eligibility)
    by_claim: dict[Key, tuple[Lost, ...]] = {}
    for entry in lost:
        by_claim[entry.claim] = (*by_claim.get(entry.claim, ()), entry)
    gone = [
        Problem(
            f"DeviceLost: device {entry.pool}/{entry.device} exists no more",
            path="status.allocations",
            kind="DeviceClaim",
            namespace=entry.claim[0],
            name=entry.claim[1],
            severity="warning",
        )
        for entry in lost
    ]
    broken = list(_broken_classes(intake, eligibility))
    eligibility.allowance.begin_search()
    orphans = [problem for claim in allocated for problem in _missing_classes(claim, intake)]
    return Prepared(
        intake,
        snapshot,
        eligibility,
        tuple(sorted(holdings, key=lambda h: h.claim)),
        by_claim,
        tuple(units),
        (*intake.refused, *refused),
        tuple(
            sorted((*intake.problems, *problems, *unclear, *broken, *gone, *orphans, *overused), key=_order_of_problem)
        ),
    )


def _order_of_problem(problem: Problem) -> tuple[str, ...]:
    """By object: the same whatever the order of the input."""
    return problem.kind or "", problem.namespace or "", problem.name or "", problem.path, problem.message


def _broken_classes(intake: Intake, eligibility: Eligibility) -> Iterator[Problem]:
    """Classes with an expression that cannot be used; nothing is said of those that there is no time for."""
    for name in sorted(intake.classes):
        try:
            error = eligibility.own_error(intake.classes[name].spec.constraints)
        except OutOfTime:
            continue
        if error is not None:
            yield Problem(error, path="spec.constraints", kind="DeviceClass", name=name)


def _missing_classes(claim: DeviceClaim, intake: Intake) -> Iterator[Problem]:
    """An allocated claim keeps its devices when its class goes, and somebody should know (S18)."""
    for index, entry in enumerate(claim.spec.claims):
        for name in sorted({d.device_class for d in entry.alternatives if d.device_class} - {*intake.classes}):
            what = "is invalid" if name in intake.invalid_classes else "exists no more"
            yield Problem(
                f"class {name!r} {what}; the claim keeps its devices",
                path=f"spec.claims[{index}]",
                kind="DeviceClaim",
                namespace=claim.namespace,
                name=claim.metadata.name,
                severity="warning",
            )


def solve_intake(
    intake: Intake,
    placement: str,
    deadline: float | None,
    started: float,
    standing: Standing | None = None,
    *,
    is_quick: bool = False,
) -> Solution:
    """The answers to the claims of an intake; see ``solve_manifests``.

    ``started``: monotonic time from which ``deadline`` and ``seconds`` count. ``standing``: see ``prepare``.
    ``is_quick``: see ``search_parts``; then the search has ``deadline`` for itself.

    Raises ValueError or TypeError for a ``placement`` or ``deadline`` that is none, AnswerRefused for a bug of the
    solver.
    """
    if placement not in PLACEMENTS:
        raise ValueError(f"placement must be one of {', '.join(PLACEMENTS)}, not {placement!r}")
    ends, began, cpu_began = end_of(deadline, started), time.monotonic(), time.thread_time()
    prepared = prepare(intake, standing, ends=ends, started=started)
    if is_quick:
        ends = quick_search_end(deadline, began, cpu_began)
        prepared.eligibility.allowance.prolong(ends)
    outcome = search_parts(
        prepared.snapshot, prepared.holdings, prepared.units, placement=placement, ends=ends, is_quick=is_quick
    )
    pending = [claim for claim in intake.claims if not claim.is_allocated and not claim.is_deleting]
    levels = with_refused(outcome.levels, [claim.priority for claim in pending])
    optimal = all(level.is_proven for level in levels if level.goal == "satisfied")
    answers = _answer_all(prepared, outcome, ends, is_quick=is_quick)
    _refuse_wrong(prepared, answers)
    return Solution(
        claims=tuple(answers),
        levels=tuple(levels),
        optimal=optimal,
        seconds=time.monotonic() - started,
        problems=prepared.problems,
        unproven=(*unproven_names(outcome.unproven),),
    )


def _answer_all(prepared: Prepared, outcome: Outcome, ends: float | None, *, is_quick: bool) -> list[ClaimAnswer]:
    intake, placements = prepared.intake, outcome.placements
    answers = [answer_placement(p, prepared.snapshot, intake) for p in placements]
    answers += [
        answer_allocated(claim, prepared.snapshot, prepared.lost.get(claim.key, ()), intake.warnings.get(claim.key, ()))
        for claim in intake.claims
        if claim.is_allocated
    ]
    answers += [answer_refused(refused) for refused in prepared.refused]
    placed = {p.demand.key for p in placements}
    if is_quick:  # no time goes into the reasons of claims that are answered later
        later = [demand for part in outcome.unproven for unit in part.units for demand in unit.demands]
        later = [demand for demand in later if demand.key not in placed]
        answers += [answer_refused(late(demand.claim, SearchCutShort(SEARCH_CUT_SHORT))) for demand in later]
        placed |= {demand.key for demand in later}
    left_out = [unit for unit in prepared.units if unit.demands[0].key not in placed]
    if left_out:
        doubtful = {key for part in outcome.doubtful for key in part.keys}
        explainer = Explainer(prepared.snapshot, prepared.holdings, placements, ends, prepared.eligibility, intake)
        # Parts that took all of their time come last: the reasons of the others are soon found.
        for unit in sorted(left_out, key=lambda unit: unit.demands[0].key in doubtful):
            explainer.is_proven = unit.demands[0].key not in doubtful
            answers += explainer.explain(unit, intake.warnings)
    return sorted(answers, key=lambda a: a.key)


def answer_refused(refused: Refused) -> ClaimAnswer:
    """The answer for a claim that is not solved: what it holds it keeps, and says what is wrong with it (S16)."""
    held = refused.status is not None
    return ClaimAnswer(
        namespace=refused.key[0],
        name=refused.key[1],
        allocated=held,
        node=refused.node if held else None,
        allocations=tuple(a.to_manifest() for a in refused.status.allocations) if refused.status else (),
        reason=None if held else refused.reason,
        message=None if held else refused.message,
        warnings=(f"{refused.reason}: {refused.message}",) if held else (),
        blockers=() if held else refused.blockers,
        exceeded=None if held else refused.exceeded,
    )


def _refuse_wrong(prepared: Prepared, answers: Sequence[ClaimAnswer]) -> None:
    intake = prepared.intake
    violations = check(
        intake.pools,
        intake.classes.values(),
        intake.claims,
        [answer.to_dict() for answer in answers],
        left_out=intake.refused,
    )
    if violations:
        raise AnswerRefused("the check refuses this answer (please report it): " + "; ".join(violations[:10]))
