"""The answer for a claim that has its place, as ``solve_manifests`` has it; and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from devalloc.api.claim import DeviceClaim, DeviceClaimStatus
from devalloc.api.meta import ALLOCATED_NODE, ALLOCATION_DETAILS
from devalloc.api.quantity import Quantity
from devalloc_solver.index.seams import Given, Spot
from devalloc_solver.intake import Intake


def accept(claim: DeviceClaim, spot: Spot, intake: Intake, warnings: Sequence[str]) -> dict[str, Any]:
    """The dict of one allocated claim (settled L2)."""
    details = claim.spec.claims
    chosen: dict[int, int | None] = {given.slot.detail: given.slot.alternative for given in spot.given}
    answer: dict[str, Any] = {
        "namespace": claim.namespace,
        "name": claim.metadata.name,
        "allocated": True,
        "node": spot.node,
        "allocations": [_allocation(claim, given) for given in spot.given],
        "oneOf": [chosen.get(index) for index in range(len(details))],
        "reason": None,
        "message": None,
        "annotations": {ALLOCATION_DETAILS: json.dumps([given.slot.label for given in spot.given])},
    }
    if spot.node is not None:
        answer["annotations"][ALLOCATED_NODE] = spot.node
    of_class, of_claim = _configs(claim, spot, intake)
    if of_class:
        answer["classConfigs"] = list(of_class)
    if of_claim:
        answer["claimConfigs"] = list(of_claim)
    if warnings:
        answer["warnings"] = list(warnings)
    return answer


def with_status(claim: DeviceClaim, answer: Mapping[str, Any]) -> DeviceClaim:
    """The claim as it is once its answer is written on it."""
    content = {
        "allocations": answer["allocations"],
        "classConfigs": answer.get("classConfigs", []),
        "claimConfigs": answer.get("claimConfigs", []),
    }
    status = DeviceClaimStatus.model_validate(content, by_alias=True, by_name=False)
    annotations = {**claim.metadata.annotations, **answer["annotations"]}
    metadata = claim.metadata.model_copy(update={"annotations": annotations})
    return claim.model_copy(update={"status": status, "metadata": metadata})


def _allocation(claim: DeviceClaim, given: Given) -> dict[str, Any]:
    found: dict[str, Any] = {"devicePoolName": given.pool.name, "deviceName": given.device.name}
    if given.amounts:
        # The slot may be that of an equal claim, which wrote its amounts in another way.
        requests = claim.spec.claims[given.slot.detail].alternatives[given.slot.alternative or 0].requests
        found["allocations"] = [
            {"name": name, "allocation": str(Quantity(nano, requests[name].format))} for name, nano in given.amounts
        ]
    return found


def _configs(
    claim: DeviceClaim, spot: Spot, intake: Intake
) -> tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]]]:
    """Copies of what the classes of the devices and the chosen details refer to, each once, in spec order."""
    of_class, of_claim = {}, {}
    for given in spot.given:
        refs = intake.classes[given.accepted].spec.configs if given.accepted is not None else ()
        for ref in refs:
            key = (ref.api_version, ref.kind, ref.namespace, ref.name)
            of_class[key] = intake.configs[key]
        for own in given.slot.spec.configs:
            key = (own.api_version, own.kind, claim.namespace, own.name)
            of_claim[key] = intake.configs[key]
    return tuple(of_class.values()), tuple(of_claim.values())
