"""What claims demand: requests with their alternatives, and one unit per group of claims that share a node (S7)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from devalloc.api.meta import ALLOCATED_NODE, GROUP, NODE
from devalloc.api.problems import closest_match
from devalloc.api.reasons import Reason
from devalloc_solver.cel.budget import OutOfTime, evaluate_in_turns
from devalloc_solver.dialects.resource_k8s.candidates import RequestCandidates, RequestJudge
from devalloc_solver.dialects.resource_k8s.claims import DeviceConstraint, Metadata, ResourceClaim
from devalloc_solver.dialects.resource_k8s.decode import read_node_selector
from devalloc_solver.dialects.resource_k8s.fields import AllocationError, Amount, FieldError
from devalloc_solver.dialects.resource_k8s.manifests import (
    ClusterInput,
    Key,
    RejectedResourceClaim,
    pin_of,
    priority_of,
)
from devalloc_solver.problem.demand import AllocationMode, Constraint, Demand, PlacementUnit, Request
from devalloc_solver.problem.ordering import claim_order

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
    def namespace(self) -> str:
        return self.key[0]

    @property
    def metadata(self) -> Metadata:
        return self.claim.metadata


def request_label(request: int, alternative: int | None) -> str:
    """The label of a request, as the core has it."""
    return str(request) if alternative is None else f"{request}.{alternative}"


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
        portions={} if subrequest.admin else {index: _portion(takes) for index, takes in choice.verdict.takes.items()},
    )


def _portion(takes: Mapping[str, Amount]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name, amount.nano) for name, amount in takes.items()))


def _constraint(claim: ResourceClaim, constraint: DeviceConstraint) -> Constraint:
    labels = (
        request_label(number, alternative if request.is_list else None)
        for number, request in enumerate(claim.requests)
        for alternative, subrequest in enumerate(request.subrequests)
        if constraint.covers(request, subrequest)
    )
    return Constraint(constraint.attribute, constraint.distinct, frozenset(labels))


def constrained_attributes(claims: Iterable[ResourceClaim]) -> list[str]:
    """The attributes that the claims' constraints are about."""
    return sorted({constraint.attribute for claim in claims for constraint in claim.constraints})


def make_unit(demands: Sequence[Demand], node: str) -> PlacementUnit:
    """All of them or none, on one node."""
    return PlacementUnit(tuple(demands), "claims" if len(demands) > 1 else None, node)


def pending_claim(claim: ResourceClaim, position: int) -> PendingClaim:
    return PendingClaim(claim.key, priority_of(claim), claim, position)


def build_units(
    problem_input: ClusterInput, judge: RequestJudge
) -> tuple[list[PlacementUnit], list[RejectedResourceClaim]]:
    """The units worth solving, in the order claims are decided, and the claims that are not."""
    refused: list[RejectedResourceClaim] = []
    demands: list[Demand] = []
    waiting = [pending_claim(claim, i) for i, claim in enumerate(problem_input.claims) if claim.allocation is None]
    waiting.sort(key=claim_order)
    for decoded in evaluate_in_turns(
        waiting, judge.selectors.allowance, lambda one: make_claim_demand(one, problem_input, judge), timeout_rejection
    ):
        if isinstance(decoded, Demand):
            demands.append(decoded)
        else:
            refused.append(decoded)
    groups: dict[Key, list[Demand]] = defaultdict(list)
    for demand in demands:
        if (name := demand.claim.claim.annotations.get(GROUP)) is not None:
            groups[demand.claim.namespace, name].append(demand)
    units: list[PlacementUnit] = []
    for demand in demands:
        name = demand.claim.claim.annotations.get(GROUP)
        if name is None:
            units.append(single_claim_unit(demand))
        elif (members := groups.pop((demand.claim.namespace, name), None)) is not None:
            outcome = _group_unit((demand.claim.namespace, name), members, problem_input, refused)
            if isinstance(outcome, PlacementUnit):
                units.append(outcome)
            else:
                refused += outcome
    return units, refused


def timeout_rejection(one: PendingClaim, why: OutOfTime) -> RejectedResourceClaim:
    """The refusal of a claim for which the time of the call did not suffice."""
    message = f"{Reason.SEARCH_LIMIT.verdict}: {why}"
    group = one.claim.annotations.get(GROUP)
    return RejectedResourceClaim(one.key, Reason.SEARCH_LIMIT, message, group, exceeded=why.bound)


def make_claim_demand(
    one: PendingClaim, problem_input: ClusterInput, judge: RequestJudge
) -> Demand | RejectedResourceClaim:
    """The demand of a claim, or why it has none. Raises as ``RequestJudge.choose``: OutOfTime, CommonBudgetExceeded."""
    claim = one.claim
    if (refused := find_refusal(claim, problem_input)) is not None:
        return refused
    try:
        choices = [
            [judge.choose(claim, subrequest) for subrequest in request.subrequests] for request in claim.requests
        ]
    except AllocationError as error:
        reason = Reason.CLASS_INVALID if error.message.startswith("class ") else Reason.CLAIM_INVALID
        return RejectedResourceClaim(
            one.key, reason, error.message, claim.annotations.get(GROUP), exceeded=error.exceeded
        )
    return replace(make_demand(one, choices), shape=_shape(claim))


def find_refusal(claim: ResourceClaim, problem_input: ClusterInput) -> RejectedResourceClaim | None:
    """Why a claim is not solved, whatever devices there are."""
    key, group = claim.key, claim.annotations.get(GROUP)
    for subrequest in claim.subrequests:
        if subrequest.class_name in problem_input.broken_classes:
            message = f"{subrequest.path}.deviceClassName: class {subrequest.class_name!r} is invalid"
            return RejectedResourceClaim(
                key, Reason.CLASS_INVALID, f"{message}: {problem_input.broken_classes[subrequest.class_name]}", group
            )
        if subrequest.class_name not in problem_input.classes:
            message = f"{subrequest.path}.deviceClassName: class {subrequest.class_name!r} does not exist"
            near = closest_match(subrequest.class_name, [*problem_input.classes, *problem_input.broken_classes])
            message += "" if near is None else f"; did you mean {near!r}?"
            return RejectedResourceClaim(key, Reason.CLASS_NOT_FOUND, message, group)
    least = sum(
        min(1 if subrequest.is_all else subrequest.count for subrequest in request.subrequests)
        for request in claim.requests
    )
    if least > MOST_DEVICES:
        message = f"spec.devices.requests: {least} devices exceed the claim limit of {MOST_DEVICES}; split the claim"
        return RejectedResourceClaim(key, Reason.CLAIM_INVALID, message, group)
    return None


def _shape(claim: ResourceClaim) -> str:
    """Equal for claims that ask for the same."""
    requests = [[subrequest.to_key() for subrequest in request.subrequests] for request in claim.requests]
    constraints = [(one.attribute, one.distinct, sorted(one.requests)) for one in claim.constraints]
    names = [request.name for request in claim.requests]
    return repr((names, requests, constraints))


def single_claim_unit(demand: Demand) -> PlacementUnit:
    """A claim of its own. If it may get a device that binds it to a node, the result always names the node."""
    binds = any(request.spec.verdict.binds for request in demand.requests)
    return PlacementUnit((demand,), demand.claim.claim.title if binds else None, pin_of(demand.claim.claim))


def _group_unit(
    group: Key, members: list[Demand], problem_input: ClusterInput, refused: Iterable[RejectedResourceClaim]
) -> PlacementUnit | list[RejectedResourceClaim]:
    namespace, name = group

    def fail(message: str) -> list[RejectedResourceClaim]:
        return [RejectedResourceClaim(d.key, Reason.GROUP_UNSATISFIABLE, message, name) for d in members]

    failing = [
        r
        for r in (*problem_input.refused, *refused)
        if r.key[0] == namespace and r.group == name and r.allocation is None and r.reason is not Reason.DELETING
    ]
    if failing:
        first = min(failing, key=lambda r: r.key)
        text = f"{first.key[0]}/{first.key[1]} of group {name} fails: {first.reason}: {first.message}"
        return fail(f"member {text}")
    pins: dict[str, set[str]] = defaultdict(set)
    for demand in members:
        if pin := pin_of(demand.claim.claim):
            pins[pin].add(demand.key[1])
    for claim in problem_input.claims:
        is_mine = claim.allocation is not None and (claim.key[0], claim.annotations.get(GROUP)) == group
        if is_mine and (node := node_of(claim)):
            pins[node].add(claim.key[1])
    if len(pins) > 1:
        text = ", ".join(f"{node} ({', '.join(sorted(bound))})" for node, bound in sorted(pins.items()))
        return fail(f"members of group {name} are bound to different nodes: {text}; see the annotation {NODE}")
    pin, names = next(iter(pins.items()), (None, set()))
    return PlacementUnit(tuple(members), name, pin, frozenset((namespace, one) for one in names))


def node_of(claim: ResourceClaim) -> str | None:
    """The node of an allocated claim, where it has one."""
    named = claim.annotations.get(ALLOCATED_NODE)
    if named or claim.allocation is None:
        return named or None
    return selected_node(claim.allocation)


def selected_node(allocation: Mapping[str, Any]) -> str | None:
    """The only node that the selector of an allocation selects by name."""
    try:
        terms = read_node_selector(allocation.get("nodeSelector")).terms
    except FieldError:
        return None
    for line in terms[0].fields if len(terms) == 1 else ():
        if line.key == "metadata.name" and line.operator == "In":
            return line.values[0]
    return None
