"""The answers to claims, in either dialect: what ``solve`` returns, and its JSON form (settled L2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from devalloc.api.findings import Fact
from devalloc.api.owner_names import owner_of
from devalloc.api.problems import Problem
from devalloc_solver.cel.budget import Bound
from devalloc_solver.problem.allocations import Key, LostDevice
from devalloc_solver.problem.placement import GoalLevel


@dataclass(frozen=True, slots=True)
class ClaimAnswer:
    """The answer to one claim: its devices, or the reason why it has none."""

    namespace: str
    name: str
    allocated: bool
    node: str | None = None
    allocations: Any = ()
    """DeviceAllocation manifests in spec order (S18), or the AllocationResult of a ResourceClaim"""
    one_of: tuple[int | None, ...] | None = None
    """chosen alternative per entry of spec.claims"""
    reason: str | None = None
    """a code of ``devalloc.api.reasons.Reason``"""
    message: str | None = None
    """of ``causes`` and ``blockers``, for who may see all names (``devalloc.api.findings.message_of``)"""
    verdict: str | None = None
    """how final the reason is"""
    causes: Sequence[Fact] = ()
    """what stands in the way, the most telling first"""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """to be written on the claim together with the allocation"""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """of DeviceClaims only: what ``config_entries`` and ``repeated`` in ``dialects/device_claims/answers.py`` say"""
    warnings: tuple[str, ...] = ()
    funnel: tuple[dict[str, Any], ...] = ()
    blockers: Sequence[Mapping[str, Any]] = ()
    alternatives: Sequence[Mapping[str, Any]] = ()
    """edits of which each would do instead of the blockers"""
    caveats: Sequence[str] = ()
    """what is not certain of the blockers"""
    lost: tuple[LostDevice, ...] = ()
    """allocated devices that exist no more (``DeviceLost``)"""
    missing_drivers: tuple[str, ...] = ()
    """of which no device exists, although a class of the claim wants one"""
    invalid_pools: tuple[str, ...] = ()
    """pools of these drivers that are left out, and why"""
    unreached_devices: int = 0
    """devices whose node selectors select no node, if that may be why none matches"""
    exceeded: Bound | None = None
    """what the claim's expressions exceeded, if it was refused for that"""

    @property
    def key(self) -> Key:
        return self.namespace, self.name

    def repeating(self, own: Mapping[str, Any]) -> ClaimAnswer:
        """The answer with fields that it repeats of its claim."""
        if not own:
            return self
        fields = {**self.fields, **own}
        return replace(self, warnings=(*fields.pop("warnings", ()), *self.warnings), fields=fields)

    def to_dict(self) -> dict[str, Any]:
        held = self.allocations
        shown: dict[str, Any] = {
            "namespace": self.namespace,
            "name": self.name,
            "allocated": self.allocated,
            "node": self.node,
            "allocations": dict(held) if isinstance(held, Mapping) else list(held),
            "oneOf": None if self.one_of is None else list(self.one_of),
            "reason": None if self.reason is None else str(self.reason),
            "message": self.message,
        }
        where_something_to_say = {
            "verdict": self.verdict,
            "causes": list(self.causes),
            "annotations": dict(self.annotations),
            **self.fields,
            "warnings": list(self.warnings),
            "funnel": list(self.funnel),
            "blockers": list(self.blockers),
            "alternatives": list(self.alternatives),
            "caveats": list(self.caveats),
            "lost": list(self.lost),
            "missingDrivers": list(self.missing_drivers),
            "invalidPools": list(self.invalid_pools),
            "unreachedDevices": self.unreached_devices,
            "exceeded": None if self.exceeded is None else str(self.exceeded),
        }
        return shown | {name: value for name, value in where_something_to_say.items() if value}


def held_answer(key: Key, node: str | None, held: Any, lost: Iterable[LostDevice] = (), **others: Any) -> ClaimAnswer:
    """Echo a claim that came in with devices (S18). ``held``: ``allocations`` of the answer; ``others``: more
    fields of it."""
    gone = tuple(lost)
    warnings = (*others.pop("warnings", ()), *map(loss_message, gone))
    return ClaimAnswer(*key, True, node, held, warnings=warnings, lost=gone, **others)


def loss_message(device: LostDevice) -> str:
    """Warn of a device that a claim has and that no longer exists."""
    return f"DeviceLost: device {'/'.join(device.values())} no longer exists"


def loss_problems(lost: Mapping[Key, Iterable[LostDevice]], kind: str, path: str) -> Iterator[Problem]:
    """Warn of each device that a claim has and that no longer exists."""
    for key, devices in lost.items():
        of, namespace, name = owner_of(key, kind)
        for device in devices:
            yield Problem(loss_message(device), path, kind=of, namespace=namespace, name=name, severity="warning")


@dataclass(frozen=True, slots=True)
class Solution:
    """The answers to all claims, ordered by namespace and name."""

    claims: tuple[ClaimAnswer, ...]
    levels: tuple[GoalLevel, ...]
    optimal: bool
    """the counts of goal 1 are proven, for every priority (S17)"""
    seconds: float
    problems: tuple[Problem, ...]
    """objects that were left out, and what is wrong with them"""
    unproven: tuple[str, ...] = ()
    """claims (``NAMESPACE/NAME``) that compete with each other, and the deadline came before the best answer to them
    was found or proven"""

    def __getitem__(self, key: Key) -> ClaimAnswer:
        """The answer to the claim (namespace, name). Raises KeyError."""
        return next((a for a in self.claims if a.key == key), None) or _missing(key)

    def to_dict(self, write: Callable[[ClaimAnswer], dict[str, Any]] = ClaimAnswer.to_dict) -> dict[str, Any]:
        """JSON-able content; equal for equal input in all but ``seconds``. ``write``: an answer as its dialect has
        it."""
        return {
            "claims": [*map(write, self.claims)],
            "objective": {"levels": [level.to_dict() for level in self.levels]},
            "optimal": self.optimal,
            "seconds": round(self.seconds, 6),
            "problems": [problem.to_dict() for problem in self.problems],
            **({"unproven": [*self.unproven]} if self.unproven else {}),
        }


def _missing(key: Key) -> ClaimAnswer:
    raise KeyError(key)
