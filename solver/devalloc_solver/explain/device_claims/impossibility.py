"""Why a unit fits no node even if nothing is in use: the first rules, in order, without which it would."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from devalloc.api.reasons import Reason
from devalloc_solver.explain.device_claims.relaxations import DeviceClaimRelaxations, detail_key
from devalloc_solver.explain.explainer import RelaxationTier, first_sufficient, unmatched_details
from devalloc_solver.explain.feasibility import FeasibilityChecker, FeasibilityQuestion
from devalloc_solver.explain.relaxations import Relaxation
from devalloc_solver.problem.allocations import Key
from devalloc_solver.problem.demand import AllocationMode, PlacementUnit, Request


def why_impossible(
    question: FeasibilityQuestion,
    offers: DeviceClaimRelaxations,
    finder: FeasibilityChecker,
    members: Sequence[Relaxation] = (),
) -> tuple[Reason, list[Relaxation]]:
    """The reason, and which rules to take away: none can be left out, and without all of them it fits.

    The question, on a fleet where nothing is held, has no answer. Raises Undecided.

    ``members`` of the unit's group may be left out, once no rule alone will do.
    """
    unmatched = unmatched_details(question.unit)
    tiers: Iterable[RelaxationTier] = _tiers(question, offers, finder, members)
    if unmatched:
        tiers = _tiers_without_match(offers, {str(number) for number in unmatched})
    sufficient = first_sufficient(question, tiers, finder)
    return sufficient or (Reason.NO_MATCHING_DEVICES if unmatched else short_reason(question.unit), [])


def short_reason(unit: PlacementUnit) -> Reason:
    """Too few devices, or too small ones?"""
    details = [detail for demand in unit.demands for detail in demand.details]
    amounts = any(request.requests for detail in details for request in detail)
    counted = any(_too_few(detail) for detail in details)
    return Reason.INSUFFICIENT_CAPACITY if amounts and not counted else Reason.NOT_ENOUGH_DEVICES


def _too_few(detail: Sequence[Request]) -> bool:
    """Counting alone shows it: fewer matching devices than needed."""
    return all(len(s.candidates.accepted) < s.least for s in detail if s.mode is not AllocationMode.ADMIN_ALL)


def _tiers(
    question: FeasibilityQuestion,
    offers: DeviceClaimRelaxations,
    finder: FeasibilityChecker,
    members: Sequence[Relaxation],
) -> Iterator[RelaxationTier]:
    """One after the other: what to offer may take questions of its own, which are asked when it comes to them."""
    short = short_reason(question.unit)
    pins, matches, limits, withheld = offers.pins(), offers.matches(), offers.limits(), offers.withheld()
    pools = offers.shared()
    yield Reason.NODE_UNAVAILABLE, pins
    yield Reason.MATCH_ATTRIBUTES_CONFLICT, matches
    yield Reason.POOL_RESOURCES_EXHAUSTED, pools
    yield Reason.MATCH_ATTRIBUTES_CONFLICT, [*matches, *pools] if matches and pools else []
    yield Reason.INSUFFICIENT_CAPACITY, limits
    yield short, withheld
    yield short, list(members)
    amounts, requests = offers.amounts(), offers.requests()
    rules = [*pins, *matches, *pools, *limits, *withheld, *amounts]
    more = [*rules, *offers.constraints(), *offers.classes(), *members]
    yield short, _too_much_alone(question, amounts, finder)
    yield short, requests if len(requests) > 1 else []
    yield short, rules
    yield short, more
    yield short, [*more, *requests]


def _too_much_alone(
    question: FeasibilityQuestion, amounts: list[Relaxation], finder: FeasibilityChecker
) -> list[Relaxation]:
    """Amounts of the details that fit nowhere even on their own."""
    details = [(demand.key, detail) for demand in question.unit.demands for detail in demand.details]
    if len(details) < 2:
        return amounts
    fits: dict[object, bool] = {}
    for key, requests in details:
        if (key, detail_key(requests)) not in fits:
            fits[key, detail_key(requests)] = finder.works(_only_detail(question, key, requests[0].detail))
    hopeless = [(key, requests[0].detail) for key, requests in details if not fits[key, detail_key(requests)]]
    named = {(f"{namespace}/{name}", str(number)) for (namespace, name), number in hopeless}
    one = f"{question.unit.demands[0].key[0]}/{question.unit.demands[0].key[1]}"
    return [edit for edit in amounts if (edit.entry.get("claim", one), _detail_of_relaxation(edit)) in named]


def _only_detail(question: FeasibilityQuestion, key: Key, number: int) -> FeasibilityQuestion:
    """The question for one detail only."""
    return question.with_requests(
        lambda demand, request: request if (demand.key, request.detail) == (key, number) else None
    )


def _tiers_without_match(offers: DeviceClaimRelaxations, unmatched: set[str]) -> list[RelaxationTier]:
    """Nothing matches: what is withheld, then the rules of the details that nothing matches, then all rules."""

    def own(edits: list[Relaxation]) -> list[Relaxation]:
        return [edit for edit in edits if _detail_of_relaxation(edit) in unmatched]

    withheld, matches, constraints = offers.withheld(), offers.matches(), offers.constraints()
    classes, requests = offers.classes(), offers.requests()
    requested = [*own(matches), *withheld, *own(constraints)]
    rest = [*offers.pins(), *offers.shared(), *offers.limits(), *offers.amounts()]
    rules = [*matches, *withheld, *constraints, *classes, *rest]
    tiers = [withheld, own(matches), own(constraints), requested, own(classes), [*requested, *own(classes)]]
    tiers += [own(requests) if len(requests) > 1 else [], rules, [*rules, *requests]]
    return [(Reason.NO_MATCHING_DEVICES, edits) for edits in tiers]


def _detail_of_relaxation(edit: Relaxation) -> str:
    return str(edit.entry.get("request", "")).partition(".")[0]
