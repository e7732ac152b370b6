"""The answer to one claim of a cluster, in the form of ``solve_manifests`` (settled L2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from devalloc_solver.assignment import Placement
from devalloc_solver.dra.demands import selected_node
from devalloc_solver.dra.documents import Key, Refused
from devalloc_solver.dra.objects import Claim


def answer_of(key: Key, allocation: Mapping[str, Any], node: str | None) -> dict[str, Any]:
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
    claim: Claim = placement.demand.claim.claim
    answer = answer_of(placement.demand.key, result, placement.node or selected_node(result))
    answer["oneOf"] = chosen_by(claim, ((entry.slot.detail, entry.slot.alternative) for entry in placement.entries))
    skipped = {error for slot in placement.demand.slots for error in slot.spec.verdict.errors}
    return answer | ({"warnings": sorted(skipped)} if skipped else {})


def chosen_by(claim: Claim, slots: Iterable[tuple[int, int | None]]) -> list[int | None]:
    """The alternative chosen of each request; ``slots`` are (request, alternative) of each device."""
    chosen = dict(slots)
    return [chosen.get(number) for number in range(len(claim.requests))]


def refusal_answer(refused: Refused) -> dict[str, Any]:
    """The answer for a claim that is not solved; what it holds it keeps."""
    if refused.allocation is not None:
        told = {"warnings": [f"{refused.reason}: {refused.message}"]}
        return answer_of(refused.key, dict(refused.allocation), None) | told
    return answer_of(refused.key, {}, None) | {
        "allocated": False,
        "reason": str(refused.reason),
        "message": refused.message,
        **({"exceeded": str(refused.exceeded)} if refused.exceeded else {}),
    }
