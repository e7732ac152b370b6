"""The answers: what ``solve`` returns, and its JSON form (settled L2)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from devalloc.api.claim import DeviceAllocation, DeviceClaim, DeviceConfigReference, ResourceAllocation
from devalloc.api.device_records import write_records
from devalloc.api.meta import ALLOCATED_NODE, ALLOCATION_DETAILS, DEVICE_RECORDS
from devalloc.api.problems import Problem
from devalloc.api.quantity import Format, Quantity
from devalloc_solver.cel.budget import Bound
from devalloc_solver.dialects.device_claims.manifests import ConfigKey, ProblemInput
from devalloc_solver.dialects.units import RejectedClaim
from devalloc_solver.problem.allocations import Key, MissingDevice, node_of
from devalloc_solver.problem.ghosts import device_record
from devalloc_solver.problem.placement import GoalLevel, PlacedDevice, Placement
from devalloc_solver.problem.snapshot import Device, Pool, Snapshot

CONFIG_FIELDS = ("classConfigs", "classConfigAllocations", "claimConfigs")
"""What an answer, and the status of a claim, say of configuration objects."""


def config_entries(
    namespace: str, entries: Iterable[tuple[str | None, Sequence[DeviceConfigReference]]], problem_input: ProblemInput
) -> dict[str, Any]:
    """What an answer says of them, where there is something to say: ``classConfigs`` and ``claimConfigs``, each object
    once, in spec order; ``classConfigAllocations`` where one of the classes is not for all allocations.

    ``entries``: of each allocation the class that accepted the device, and what its detail refers to. A claim may name
    several classes, or a type that several have.
    """
    count = 0
    of_class: dict[ConfigKey, dict[int, None]] = {}  # a class may name an object twice
    of_claim: dict[ConfigKey, None] = {}
    for index, (accepted, own) in enumerate(entries):
        count += 1
        for ref in problem_input.classes[accepted].spec.configs if accepted is not None else ():
            of_class.setdefault((ref.api_version, ref.kind, ref.namespace, ref.name), {})[index] = None
        for own_ref in own:
            of_claim[own_ref.api_version, own_ref.kind, namespace, own_ref.name] = None
    is_partial = any(len(indexes) < count for indexes in of_class.values())
    sections: dict[str, Any] = {
        "classConfigs": [deepcopy(problem_input.configs[key]) for key in of_class],
        "classConfigAllocations": [list(indexes) for indexes in of_class.values()] if is_partial else [],
        "claimConfigs": [deepcopy(problem_input.configs[key]) for key in of_claim],
    }
    return {name: section for name, section in sections.items() if section}


@dataclass(frozen=True, slots=True)
class ClaimAnswer:
    """The answer to one claim: its devices, or the reason why it has none."""

    namespace: str
    name: str
    allocated: bool
    node: str | None = None
    allocations: tuple[dict[str, Any], ...] = ()
    """DeviceAllocation manifests in spec order (S18)"""
    one_of: tuple[int | None, ...] | None = None
    """chosen alternative per entry of spec.claims"""
    reason: str | None = None
    """a code of ``devalloc.api.reasons.Reason``"""
    message: str | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    """to be written on the claim together with the allocation"""
    configs: Mapping[str, Any] = field(default_factory=dict)
    """what ``devalloc_solver.dialects.device_claims.answers.config_entries`` says"""
    warnings: tuple[str, ...] = ()
    funnel: tuple[dict[str, Any], ...] = ()
    blockers: tuple[dict[str, Any], ...] = ()
    lost: tuple[dict[str, str], ...] = ()
    """allocated devices that exist no more (``DeviceLost``)"""
    missing_drivers: tuple[str, ...] = ()
    """of which no device exists, although a class of the claim wants one"""
    invalid_pools: tuple[str, ...] = ()
    """pools of these drivers that are left out, and why"""
    exceeded: Bound | None = None
    """what the claim's expressions exceeded, if it was refused for that"""

    @property
    def key(self) -> Key:
        return self.namespace, self.name

    def to_dict(self) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "namespace": self.namespace,
            "name": self.name,
            "allocated": self.allocated,
            "node": self.node,
            "allocations": list(self.allocations),
            "oneOf": None if self.one_of is None else list(self.one_of),
            "reason": None if self.reason is None else str(self.reason),
            "message": self.message,
        }
        where_something_to_say = {
            "annotations": dict(self.annotations),
            **self.configs,
            "warnings": list(self.warnings),
            "funnel": list(self.funnel),
            "blockers": list(self.blockers),
            "lost": list(self.lost),
            "missingDrivers": list(self.missing_drivers),
            "invalidPools": list(self.invalid_pools),
            "exceeded": None if self.exceeded is None else str(self.exceeded),
        }
        return shown | {name: value for name, value in where_something_to_say.items() if value}


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

    def to_dict(self) -> dict[str, Any]:
        """JSON-able content; equal for equal input in all but ``seconds``."""
        return {
            "claims": [answer.to_dict() for answer in self.claims],
            "objective": {"levels": [level.to_dict() for level in self.levels]},
            "optimal": self.optimal,
            "seconds": round(self.seconds, 6),
            "problems": [problem.to_dict() for problem in self.problems],
            **({"unproven": [*self.unproven]} if self.unproven else {}),
        }


def _missing(key: Key) -> ClaimAnswer:
    raise KeyError(key)


def placed_answer(placement: Placement, snapshot: Snapshot, problem_input: ProblemInput) -> ClaimAnswer:
    """The answer for a claim that got its devices."""
    claim = placement.demand.claim
    chosen: dict[int, int | None] = {}
    for entry in placement.entries:
        chosen[entry.request.detail] = entry.request.alternative
    annotations = {ALLOCATION_DETAILS: json.dumps([entry.request.label for entry in placement.entries])}
    if placement.node is not None:
        annotations[ALLOCATED_NODE] = placement.node
    given = ((snapshot.pools[e.device.pool], e.device) for e in placement.entries if not e.request.mode.is_admin)
    if (records := records_of(given)) is not None:
        annotations[DEVICE_RECORDS] = records
    return ClaimAnswer(
        namespace=claim.namespace,
        name=claim.metadata.name,
        allocated=True,
        node=placement.node,
        allocations=tuple(_allocation(entry, snapshot) for entry in placement.entries),
        one_of=tuple(chosen.get(index) for index in range(len(claim.spec.claims))),
        annotations=annotations,
        configs=config_entries(
            claim.namespace,
            ((e.request.candidates.accepted[e.device.index], e.request.spec.configs) for e in placement.entries),
            problem_input,
        ),
        warnings=problem_input.warnings.get(claim.key, ()),
    )


def records_of(devices: Iterable[tuple[Pool, Device]]) -> str | None:
    """The annotation that records what devices drew, for as long as a claim has them (S18). Of a pool whose devices
    share nothing, there is nothing to record."""
    records = {
        (pool.name, device.name): device_record(pool, device)
        for pool, device in devices
        if pool.resources or device.compatibility is not None
    }
    return write_records(records) if records else None


def allocated_answer(
    claim: DeviceClaim, snapshot: Snapshot, lost: Iterable[MissingDevice], warnings: tuple[str, ...]
) -> ClaimAnswer:
    """The echo of a claim that came in allocated (S18)."""
    assert claim.status is not None
    details = claim.allocation_details() or []
    chosen = {index: alternative for index, alternative in details if alternative is not None}
    gone = tuple({"devicePoolName": entry.pool, "deviceName": entry.device} for entry in lost)
    losses = tuple(f"DeviceLost: device {e['devicePoolName']}/{e['deviceName']} no longer exists" for e in gone)
    return ClaimAnswer(
        namespace=claim.namespace,
        name=claim.metadata.name,
        allocated=True,
        node=node_of(claim, snapshot),
        allocations=tuple(a.to_manifest() for a in claim.status.allocations),
        one_of=tuple(chosen.get(index) for index in range(len(claim.spec.claims))),
        configs={
            "classConfigs": claim.status.class_configs,
            "classConfigAllocations": claim.status.class_config_allocations,
            "claimConfigs": claim.status.claim_configs,
        },
        warnings=warnings + losses,
        lost=gone,
    )


def rejected_answer(refused: RejectedClaim) -> ClaimAnswer:
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


def _allocation(entry: PlacedDevice, snapshot: Snapshot) -> dict[str, Any]:
    allocation = DeviceAllocation(
        device_pool_name=snapshot.pools[entry.device.pool].name,
        device_name=entry.device.name,
        allocations=[
            ResourceAllocation(name=name, allocation=Quantity(nano, _format(entry, name)))
            for name, nano in entry.amounts
        ],
    )
    manifest = allocation.to_manifest()
    if not entry.amounts:
        del manifest["allocations"]
    return manifest


def _format(entry: PlacedDevice, name: str) -> Format:
    """Amounts are written the way the claim wrote its request."""
    written: Format = entry.request.spec.requests[name].format
    return written
