"""Solve the ResourceClaims of manifests over many nodes, for the same goals as DeviceClaims (S17)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from devalloc_solver.answer_types import ResourceSolutionDict
from devalloc_solver.deadline import Call
from devalloc_solver.dialects.api_groups import as_manifest_list
from devalloc_solver.dialects.resource_k8s.answers import answer_dict
from devalloc_solver.dialects.resource_k8s.feature_gates import read_gates
from devalloc_solver.dialects.resource_k8s.manifests import read_documents
from devalloc_solver.dialects.resource_k8s.problem import prepare
from devalloc_solver.gc_pause import gc_paused
from devalloc_solver.pipeline.flow import solve_problem
from devalloc_solver.problem.placement_policy import policy_named


@gc_paused()
def solve_manifests(
    documents: Iterable[object],
    *,
    placement: str = "pack",
    deadline: float | None = None,
    features: Iterable[str] | None = None,
) -> ResourceSolutionDict:
    """Allocate the pending ResourceClaims among manifests: ResourceSlices, DeviceClasses, ResourceClaims and Nodes.

    Invalid content raises no exception: ``problems`` reports it, and an invalid claim has ``allocated: false``. The
    annotations ``devalloc.io/group``, ``/priority`` and ``/node`` of a claim mean what they do for DeviceClaims.

    Args:
        documents: manifests as JSON-like dicts, in any order. What the API server fills in may be missing.
        placement: the name of one of ``placement_policy.POLICIES``; ``pack`` by default.
        deadline: seconds after which the best answer so far is returned; None sets no limit. A claim whose selectors
            take too long gets the reason ``SearchLimit``, and the others are solved.
        features: feature gates that are on. None means all features up to beta, and list-typed attributes.

    Returns:
        What ``devalloc_solver.solve_manifests`` returns; ``allocations`` of a claim is its AllocationResult.

    Raises:
        ValueError: for an unknown ``placement``, or ``documents`` that are one manifest or text.
    """
    call = Call(deadline)
    policy, gates = policy_named(placement), read_gates(features)
    problem = prepare(read_documents(as_manifest_list(documents), gates), gates, call)
    return cast(ResourceSolutionDict, solve_problem(problem, policy, call).to_dict(answer_dict))
