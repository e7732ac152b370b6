"""What claims demand: requests with their alternatives, and one unit per group of claims that share a node (S7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from devalloc.api.findings import text_fact
from devalloc.api.meta import ALLOCATED_NODE
from devalloc.api.problems import closest_match
from devalloc.api.reasons import Reason
from devalloc_solver.dialects.resource_k8s.candidates import RequestCandidates, RequestJudge
from devalloc_solver.dialects.resource_k8s.claims import DeviceConstraint, Metadata, ResourceClaim
from devalloc_solver.dialects.resource_k8s.decode import selected_node
from devalloc_solver.dialects.resource_k8s.fields import AllocationError, Amount
from devalloc_solver.dialects.resource_k8s.manifests import (
    ClusterInput,
    priority_of,
)
from devalloc_solver.pipeline import units
from devalloc_solver.pipeline.units import RejectedClaim
from devalloc_solver.problem.demand import AllocationMode, Constraint, Demand, PlacementUnit, Request

MOST_DEVICES = 32
"""Devices that one claim may get."""


@dataclass(frozen=True, slots=True)
class PendingClaim:
    """A claim as the core's stages know it: by key, priority and age."""

    key: tuple[str, str]
    priority: int
    claim: ResourceClaim
    position: int
    """among the claims of the call"""

    @property
    def metadata(self) -> Metadata:
        return self.claim.metadata

    @property
    def group(self) -> str | None:
        return self.claim.group

    @property
    def pinned_node(self) -> str | None:
        return self.claim.pinned_node


def make_demand(pending: PendingClaim, choices: Sequence[Sequence[RequestCandidates]]) -> Demand:
    """The demand of a claim; ``choices`` are those of each request, alternative by alternative."""
    claim = pending.claim
    details = tuple(
        tuple(
            make_request(number, alternative if request.is_list else None, choice)
            for alternative, choice in enumerate(choices[number])
        )
        for number, request in enumerate(claim.requests)
    )
    return Demand(
        claim=pending,
        details=details,
        match=(),
        relations=tuple(_constraint(claim, constraint) for constraint in claim.constraints),
        most=MOST_DEVICES,
        once=any(subrequest.admin for subrequest in claim.subrequests),
    )


def make_request(detail: int, alternative: int | None, choice: RequestCandidates) -> Request:
    """The request of a detail, or of an alternative of one: ``choice`` is what it asks for, and what it may take."""
    subrequest = choice.subrequest
    if subrequest.admin:
        mode = AllocationMode.ADMIN_ALL if subrequest.is_all else AllocationMode.ADMIN_COUNT
    else:
        mode = AllocationMode.EVERY if subrequest.is_all else AllocationMode.WHOLE
    count = 1 if subrequest.is_all else min(subrequest.count, MOST_DEVICES + 1)
    return Request(
        detail=detail,
        alternative=alternative,
        spec=choice,
        mode=mode,
        min_count=count,
        max_count=None if subrequest.is_all else count,
        requests={},
        limits={},
        match=(),
        candidates=choice.candidates(),
        eligible=choice.judge.eligible(subrequest),
        portions={} if subrequest.admin else {index: _portion(takes) for index, takes in choice.verdict.takes.items()},
    )


def _portion(takes: Mapping[str, Amount]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name, amount.nano) for name, amount in takes.items()))


def _constraint(claim: ResourceClaim, constraint: DeviceConstraint) -> Constraint:
    labels = (
        f"{number}.{alternative}" if request.is_list else f"{number}"  # as ``Request.label``
        for number, request in enumerate(claim.requests)
        for alternative, subrequest in enumerate(request.subrequests)
        if constraint.covers(request, subrequest)
    )
    return Constraint(constraint.attribute, constraint.distinct, frozenset(labels))


def make_unit(demands: Sequence[Demand], node: str) -> PlacementUnit:
    """All of them or none, on one node."""
    return PlacementUnit(tuple(demands), "claims" if len(demands) > 1 else None, node)


def pending_claim(claim: ResourceClaim, position: int) -> PendingClaim:
    return PendingClaim(claim.key, priority_of(claim), claim, position)


def build_units(problem_input: ClusterInput, judge: RequestJudge) -> tuple[list[PlacementUnit], list[RejectedClaim]]:
    """The units worth solving, in the order claims are decided, and the claims that are not."""
    rules: units.UnitRules[PendingClaim, ResourceClaim] = units.UnitRules(
        lambda one: make_claim_demand(one, problem_input, judge), single_claim_unit, node_of
    )
    waiting = [pending_claim(claim, i) for i, claim in enumerate(problem_input.claims) if claim.allocation is None]
    allocated = (claim for claim in problem_input.claims if claim.allocation is not None)
    return units.build_units(waiting, allocated, problem_input.refused, rules, judge.selectors.allowance)


def make_claim_demand(one: PendingClaim, problem_input: ClusterInput, judge: RequestJudge) -> Demand | RejectedClaim:
    """The demand of a claim, or why it has none. Raises as ``RequestJudge.choose``: OutOfTime, CommonBudgetExceeded."""
    claim = one.claim
    if (refused := find_refusal(claim, problem_input)) is not None:
        return refused
    try:
        choices = [
            [judge.choose(claim, subrequest, claim.restrictions) for subrequest in request.subrequests]
            for request in claim.requests
        ]
    except AllocationError as error:
        reason = Reason.CLASS_INVALID if error.message.startswith("class ") else Reason.CLAIM_INVALID
        if error.exceeded is not None:
            reason = Reason.EXPRESSION_TOO_EXPENSIVE
        return RejectedClaim(one.key, reason, (text_fact(error.message),), claim.group, exceeded=error.exceeded)
    shape: object = (_shape(claim), claim.restrictions) if claim.restrictions else _shape(claim)
    return replace(make_demand(one, choices), restrictions=claim.restrictions, shape=shape)


def find_refusal(claim: ResourceClaim, problem_input: ClusterInput) -> RejectedClaim | None:
    """Why a claim is not solved, whatever devices there are."""
    key, group = claim.key, claim.group
    for subrequest in claim.subrequests:
        if subrequest.class_name in problem_input.broken_classes:
            message = f"{subrequest.path}.deviceClassName: class {subrequest.class_name!r} is invalid"
            message = f"{message}: {problem_input.broken_classes[subrequest.class_name]}; correct it"
            return RejectedClaim(key, Reason.CLASS_INVALID, (text_fact(message),), group)
        if subrequest.class_name not in problem_input.classes:
            message = f"{subrequest.path}.deviceClassName: class {subrequest.class_name!r} does not exist"
            near = closest_match(subrequest.class_name, [*problem_input.classes, *problem_input.broken_classes])
            message += "; create it, or name another" if near is None else f"; did you mean {near!r}?"
            return RejectedClaim(key, Reason.CLASS_NOT_FOUND, (text_fact(message),), group)
    least = sum(
        min(1 if subrequest.is_all else subrequest.count for subrequest in request.subrequests)
        for request in claim.requests
    )
    if least > MOST_DEVICES:
        message = f"spec.devices.requests: {least} devices exceed the claim limit of {MOST_DEVICES}; split the claim"
        return RejectedClaim(key, Reason.CLAIM_INVALID, (text_fact(message),), group)
    return None


def _shape(claim: ResourceClaim) -> str:
    """Equal for claims that ask for the same."""
    requests = [[subrequest.to_key() for subrequest in request.subrequests] for request in claim.requests]
    constraints = [(one.attribute, one.distinct, sorted(one.requests)) for one in claim.constraints]
    names = [request.name for request in claim.requests]
    return repr((names, requests, constraints))


def single_claim_unit(demand: Demand) -> PlacementUnit:
    """A claim of its own. If it may get a device that binds it to a node, or keeps off nodes, the result
    always names the node."""
    binds = bool(demand.restrictions) or any(request.spec.verdict.binds for request in demand.requests)
    return PlacementUnit((demand,), demand.claim.claim.title if binds else None, demand.claim.pinned_node)


def node_of(claim: ResourceClaim) -> str | None:
    """The node of an allocated claim, where it has one."""
    named = claim.annotations.get(ALLOCATED_NODE)
    if named or claim.allocation is None:
        return named or None
    return selected_node(claim.allocation)
