"""What the explainers of both dialects share: a fleet, who holds what, and what is found out about a unit (S19)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from devalloc.api.reasons import IMPOSSIBLE_VERDICT, Reason
from devalloc_solver.explain.blocking_claims import BlockingClaimFinder
from devalloc_solver.explain.feasibility import FeasibilityChecker, FeasibilityQuestion
from devalloc_solver.explain.relaxations import Relaxation, fewest_relaxations
from devalloc_solver.problem.allocations import Allocation, Key
from devalloc_solver.problem.demand import PlacementUnit, Request
from devalloc_solver.problem.placement import Placement
from devalloc_solver.problem.snapshot import Snapshot

NOT_PROVEN = "a smaller set may suffice; the search for it was cut short"

RelaxationTier = tuple[Reason, Sequence[Relaxation]]
"""Relaxations that are tried together, and the reason if they suffice."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What is found out about a unit, or about one of its claims; it holds for their equals."""

    reason: Reason
    text: str
    """what stands in the way, in words"""
    edits: tuple[Relaxation, ...] = ()
    """none can be left out"""
    claims: tuple[Key, ...] = ()
    """whose release makes room once the edits are made"""

    @property
    def is_impossible(self) -> bool:
        """Whether it would not fit an empty fleet either."""
        return self.reason.verdict == IMPOSSIBLE_VERDICT

    def is_about(self, key: Key) -> bool:
        """Whether a member of the group is in the way, and it is this one."""
        return any(e.kind == "member" and (e.entry["namespace"], e.entry["name"]) == key for e in self.edits)


@dataclass(slots=True)
class Explainer:
    """Explains the units that a solution left out, each by solving it again under better circumstances."""

    snapshot: Snapshot
    holdings: Sequence[Allocation]
    """held before this batch"""
    placements: Sequence[Placement]
    """given in this batch"""
    ends: float | None
    """monotonic time after which nothing is solved any more"""
    in_use: tuple[Allocation, ...] = field(init=False)
    """all that is held now: ``holdings``, then what was given"""
    by_kind: dict[object, Finding] = field(init=False, default_factory=dict)
    """kind of a unit -> what is found out about it, which holds for all its equals"""
    priorities: Mapping[Key, int] = field(init=False)
    """of the claims that hold anything"""
    _finder: FeasibilityChecker | None = field(init=False, default=None)
    _releases: BlockingClaimFinder | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.in_use = (*self.holdings, *(placement.holding() for placement in self.placements))
        self.priorities = {holding.claim: holding.priority for holding in self.in_use}

    def reads(self, request: Request) -> frozenset[str] | None:
        """The attributes that the expressions of a request read; None: any."""

    @property
    def finder(self) -> FeasibilityChecker:
        if self._finder is None:
            self._finder = FeasibilityChecker(self.snapshot, self.reads, self.ends)
        return self._finder

    @property
    def releases(self) -> BlockingClaimFinder:
        if self._releases is None:
            given = frozenset(placement.demand.key for placement in self.placements)
            self._releases = BlockingClaimFinder(self.snapshot, self.in_use, given)
        return self._releases

    def question(self, unit: PlacementUnit, held: tuple[Allocation, ...]) -> FeasibilityQuestion:
        return FeasibilityQuestion(self.snapshot, unit, held)

    def blockers(self, finding: Finding) -> list[dict[str, Any]]:
        """What is in the way, as JSON."""
        claims = (
            {"kind": "claim", "namespace": key[0], "name": key[1], "priority": self.priorities[key]}
            for key in finding.claims
        )
        return [*(dict(edit.entry) for edit in finding.edits), *claims]


def first_sufficient(
    question: FeasibilityQuestion, tiers: Iterable[RelaxationTier], finder: FeasibilityChecker
) -> tuple[Reason, list[Relaxation]] | None:
    """The reason and the fewest relaxations of the first tier that makes the unit fit; None when no tier does."""
    for reason, edits in tiers:
        needed = fewest_relaxations(question, edits, finder)
        if needed is not None:
            return reason, needed
    return None


def unmatched_details(unit: PlacementUnit) -> list[int]:
    """Details for which no device passes class, type and constraints."""
    details = (detail for demand in unit.demands for detail in demand.details)
    return [detail[0].detail for detail in details if not any(request.candidates.accepted for request in detail)]
