"""The goal values 1 to 4 of an answer (S17), recomputed from the answer alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from devalloc.api.claim import DeviceClaim
from devalloc.api.meta import parse_time
from devalloc.api.pool import DevicePool
from devalloc_solver.check.answer import Answer, MalformedAnswer, read_answer
from devalloc_solver.check.pools import KnownPools


@dataclass(frozen=True)
class PriorityLevel:
    """Goal 1 at one priority: which of its pending claims are satisfied, in membership order."""

    priority: int
    members: tuple[bool, ...]

    @property
    def satisfied(self) -> int:
        return sum(self.members)


@dataclass(frozen=True)
class GoalValues:
    """Goals 1 to 4 of S17 over the claims that are answered now; those that came in allocated stand outside (S18)."""

    levels: tuple[PriorityLevel, ...]
    """Highest priority first."""
    one_of: tuple[int, ...]
    """The chosen alternatives of the satisfied claims."""
    pools: int
    devices: int


def goal_values(pools: Iterable[DevicePool], claims: Iterable[DeviceClaim], answers: Sequence[object]) -> GoalValues:
    """The goal values of an answer that ``check`` finds right; malformed answers count as unsatisfied."""
    satisfied: dict[tuple[str, str], Answer] = {}
    for content in answers:
        try:
            answer = read_answer(content)
        except MalformedAnswer:
            continue
        if answer.allocated:
            satisfied[answer.key] = answer
    pending = sorted((claim for claim in claims if not claim.is_allocated and not claim.is_deleting), key=_order)
    members: dict[int, list[bool]] = {}
    chosen: list[int] = []
    devices: set[tuple[str, str, str]] = set()
    fleet = KnownPools(pools)
    for claim in pending:
        own = satisfied.get(claim.key)
        members.setdefault(claim.priority, []).append(own is not None)
        if own is None:
            continue
        chosen += [index for index in own.one_of or [] if index is not None]
        for grant in own.grants:
            pooled = fleet.find(own.node, grant.pool, grant.device)
            if pooled is not None:
                devices.add(pooled.key)
    return GoalValues(
        levels=tuple(PriorityLevel(priority, tuple(vector)) for priority, vector in members.items()),
        one_of=tuple(chosen),
        pools=len({device[:2] for device in devices}),
        devices=len(devices),
    )


def _order(claim: DeviceClaim) -> tuple[int, datetime, str, str]:
    """Highest priority first, then creation time with a missing one last, namespace, name (S17)."""
    created = claim.metadata.creation_timestamp
    time = datetime.max.replace(tzinfo=UTC) if created is None else parse_time(created)
    return -claim.priority, time, *claim.key
