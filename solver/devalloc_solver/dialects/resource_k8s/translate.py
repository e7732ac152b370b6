"""Translate ResourceClaims to the solver's demands: requests with their alternatives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from devalloc_solver.dialects.resource_k8s.candidates import RequestCandidates
from devalloc_solver.dialects.resource_k8s.claims import DeviceConstraint, ResourceClaim
from devalloc_solver.dialects.resource_k8s.quantities import Amount
from devalloc_solver.problem.demand import AllocationMode, Constraint, Demand, PlacementUnit, Request

MOST_DEVICES = 32
"""Devices that one claim may get."""


@dataclass(frozen=True, slots=True)
class ClaimMeta:
    """What the order of claims reads of an object's metadata."""

    name: str
    creation_timestamp: str | None


@dataclass(frozen=True, slots=True)
class PendingClaim:
    """A claim as the core's stages know it: by key, priority and age."""

    key: tuple[str, str]
    priority: int
    metadata: ClaimMeta
    claim: ResourceClaim
    position: int
    """among the claims of the call"""

    @property
    def namespace(self) -> str:
        return self.key[0]


def request_label(request: int, alternative: int | None) -> str:
    """The label of a request, as the core has it."""
    return str(request) if alternative is None else f"{request}.{alternative}"


def make_demand(pending: PendingClaim, choices: Sequence[Sequence[RequestCandidates]]) -> Demand:
    """The demand of a claim; ``choices`` are those of each request, alternative by alternative."""
    claim = pending.claim
    details = tuple(
        tuple(
            _request(number, alternative if request.is_list else None, choice)
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
        once=any(ask.admin for request in claim.requests for ask in request.asks),
    )


def _request(detail: int, alternative: int | None, choice: RequestCandidates) -> Request:
    ask = choice.ask
    if ask.admin:
        mode = AllocationMode.ADMIN_ALL if ask.is_all else AllocationMode.ADMIN_COUNT
    else:
        mode = AllocationMode.EVERY if ask.is_all else AllocationMode.WHOLE
    count = 1 if ask.is_all else min(ask.count, MOST_DEVICES + 1)
    return Request(
        detail=detail,
        alternative=alternative,
        spec=choice,
        mode=mode,
        least=count,
        most=None if ask.is_all else count,
        requests={},
        limits={},
        match=(),
        candidates=choice.candidates(),
        portions={} if ask.admin else {index: _portion(takes) for index, takes in choice.verdict.takes.items()},
    )


def _portion(takes: Mapping[str, Amount]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name, amount.nano) for name, amount in takes.items()))


def _constraint(claim: ResourceClaim, constraint: DeviceConstraint) -> Constraint:
    labels = (
        request_label(number, alternative if request.is_list else None)
        for number, request in enumerate(claim.requests)
        for alternative, ask in enumerate(request.asks)
        if constraint.covers(request, ask)
    )
    return Constraint(constraint.attribute, constraint.distinct, frozenset(labels))


def constrained_attributes(claims: Iterable[ResourceClaim]) -> list[str]:
    """The attributes that the claims' constraints are about."""
    return sorted({constraint.attribute for claim in claims for constraint in claim.constraints})


def make_unit(demands: Sequence[Demand], node: str) -> PlacementUnit:
    """All of them or none, on one node."""
    return PlacementUnit(tuple(demands), "claims" if len(demands) > 1 else None, node)
