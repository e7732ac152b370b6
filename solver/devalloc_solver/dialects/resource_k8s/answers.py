"""The answer to one claim of a cluster, in the form of ``solve_manifests`` (settled L2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from devalloc_solver.dialects.resource_k8s.claims import ResourceClaim
from devalloc_solver.dialects.resource_k8s.demands import selected_node
from devalloc_solver.dialects.resource_k8s.manifests import Key, RejectedResourceClaim
from devalloc_solver.problem.placement import Placement


def allocated_answer(key: Key, allocation: Mapping[str, Any], node: str | None) -> dict[str, Any]:
    """The answer for a claim that has an allocation; ``allocations`` is its AllocationResult."""
    return {
        "namespace": key[0],
        "name": key[1],
        "allocated": True,
        "node": node,
        "allocations": allocation,
        "oneOf": None,
        "reason": None,
        "message": None,
    }


def placed_answer(placement: Placement, result: Mapping[str, Any]) -> dict[str, Any]:
    """The answer for a claim that got its devices."""
    claim: ResourceClaim = placement.demand.claim.claim
    answer = allocated_answer(placement.demand.key, result, placement.node or selected_node(result))
    answer["oneOf"] = chosen_alternatives(
        claim, ((entry.request.detail, entry.request.alternative) for entry in placement.entries)
    )
    skipped = {error for request in placement.demand.requests for error in request.spec.verdict.errors}
    return answer | ({"warnings": sorted(skipped)} if skipped else {})


def chosen_alternatives(claim: ResourceClaim, requests: Iterable[tuple[int, int | None]]) -> list[int | None]:
    """The alternative chosen of each request; ``requests`` are (request, alternative) of each device."""
    chosen = dict(requests)
    return [chosen.get(number) for number in range(len(claim.requests))]


def rejected_answer(refused: RejectedResourceClaim) -> dict[str, Any]:
    """The answer for a claim that is not solved; what it holds it keeps."""
    if refused.allocation is not None:
        warnings = {"warnings": [f"{refused.reason}: {refused.message}"]}
        return allocated_answer(refused.key, dict(refused.allocation), None) | warnings
    return allocated_answer(refused.key, {}, None) | {
        "allocated": False,
        "reason": str(refused.reason),
        "message": refused.message,
        **({"exceeded": str(refused.exceeded)} if refused.exceeded else {}),
    }
