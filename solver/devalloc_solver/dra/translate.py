"""From claims of resource.k8s.io to the core's demands: requests become details, subrequests their slots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from devalloc_solver.demand import Demand, Mode, Relation, Slot, Unit
from devalloc_solver.dra.amounts import Amount
from devalloc_solver.dra.candidates import Choice
from devalloc_solver.dra.objects import Claim, Constraint

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
    claim: Claim
    position: int
    """among the claims of the call"""

    @property
    def namespace(self) -> str:
        return self.key[0]


def label(request: int, alternative: int | None) -> str:
    """The label of a slot, as the core has it."""
    return str(request) if alternative is None else f"{request}.{alternative}"


def make_demand(pending: PendingClaim, choices: Sequence[Sequence[Choice]]) -> Demand:
    """The demand of a claim; ``choices`` are those of each request, alternative by alternative."""
    claim = pending.claim
    details = tuple(
        tuple(
            _slot(number, alternative if request.is_list else None, choice)
            for alternative, choice in enumerate(choices[number])
        )
        for number, request in enumerate(claim.requests)
    )
    return Demand(
        claim=pending,
        details=details,
        match=(),
        relations=tuple(_relation(claim, constraint) for constraint in claim.constraints),
        most=MOST_DEVICES,
        once=any(ask.admin for request in claim.requests for ask in request.asks),
    )


def _slot(detail: int, alternative: int | None, choice: Choice) -> Slot:
    ask = choice.ask
    if ask.admin:
        mode = Mode.ADMIN_ALL if ask.is_all else Mode.ADMIN_COUNT
    else:
        mode = Mode.EVERY if ask.is_all else Mode.WHOLE
    count = 1 if ask.is_all else min(ask.count, MOST_DEVICES + 1)
    return Slot(
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


def _relation(claim: Claim, constraint: Constraint) -> Relation:
    labels = (
        label(number, alternative if request.is_list else None)
        for number, request in enumerate(claim.requests)
        for alternative, ask in enumerate(request.asks)
        if constraint.covers(request, ask)
    )
    return Relation(constraint.attribute, constraint.distinct, frozenset(labels))


def attributes_of(claims: Iterable[Claim]) -> list[str]:
    """The attributes that the claims' constraints are about."""
    return sorted({constraint.attribute for claim in claims for constraint in claim.constraints})


def make_unit(demands: Sequence[Demand], node: str) -> Unit:
    """All of them or none, on one node."""
    return Unit(tuple(demands), "claims" if len(demands) > 1 else None, node)
