"""The answers to DeviceClaims: allocations, annotations and configuration (settled L2)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any

from devalloc.api.claim import DeviceAllocation, DeviceClaim, DeviceClaimSpec, DeviceConfigReference, ResourceAllocation
from devalloc.api.device_records import write_records
from devalloc.api.meta import ALLOCATED_NODE, ALLOCATION_DETAILS, DEVICE_RECORDS
from devalloc.api.quantity import Format, Quantity
from devalloc_solver.dialects.device_claims.manifests import ConfigKey, ProblemInput
from devalloc_solver.dialects.device_claims.status import node_of
from devalloc_solver.problem.allocations import LostDevice
from devalloc_solver.problem.answer import ClaimAnswer, held_answer
from devalloc_solver.problem.ghosts import device_record
from devalloc_solver.problem.placement import PlacedDevice, Placement
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


def repeated(spec: DeviceClaimSpec, warnings: Sequence[str]) -> dict[str, Any]:
    """What an answer repeats of its claim, whatever else it says: each answer to a DeviceClaim passes here."""
    return {"warnings": [*warnings]} if warnings else {}


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
        fields=config_entries(
            claim.namespace,
            ((e.request.candidates.accepted[e.device.index], e.request.spec.configs) for e in placement.entries),
            problem_input,
        ),
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


def allocated_answer(claim: DeviceClaim, snapshot: Snapshot, lost: Iterable[LostDevice]) -> ClaimAnswer:
    """The echo of a claim that came in allocated (S18)."""
    assert claim.status is not None
    details = claim.allocation_details() or []
    chosen = {index: alternative for index, alternative in details if alternative is not None}
    return held_answer(
        claim.key,
        node_of(claim, snapshot),
        tuple(a.to_manifest() for a in claim.status.allocations),
        lost,
        one_of=tuple(chosen.get(index) for index in range(len(claim.spec.claims))),
        fields={
            "classConfigs": claim.status.class_configs,
            "classConfigAllocations": claim.status.class_config_allocations,
            "claimConfigs": claim.status.claim_configs,
        },
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
