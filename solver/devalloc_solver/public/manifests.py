"""Solve the claims of manifests of either dialect, or of typed objects."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from devalloc.api.claim import DeviceClaim
from devalloc.api.device_class import DeviceClass
from devalloc.api.fields import ApiModel
from devalloc.api.pool import DevicePool
from devalloc_solver.answer_types import SolutionDict
from devalloc_solver.deadline import Call, end_time
from devalloc_solver.dialects.api_groups import as_manifest_list, foreign_manifests, is_resource_k8s
from devalloc_solver.dialects.device_claims.manifest_records import read_documents
from devalloc_solver.dialects.device_claims.manifests import read_objects
from devalloc_solver.dialects.device_claims.problem import problem_order
from devalloc_solver.dialects.device_claims.solve import solve_input
from devalloc_solver.gc_pause import gc_paused
from devalloc_solver.pipeline import admission
from devalloc_solver.problem.answer import Solution
from devalloc_solver.problem.placement_policy import PlacementPolicy, policy_named


@gc_paused()
def solve_manifests(
    documents: Iterable[Mapping[str, Any]],
    *,
    placement: str = "pack",
    deadline: float | None = None,
    cel_check: str = "refuse",
) -> SolutionDict:
    """Allocate the pending claims among manifests: pools, classes, claims, configuration objects, ResourceQuotas.

    A claim that exceeds a quota of its namespace gets nothing (``QuotaExceeded``), as with `devalloc up`.

    If the manifests are of resource.k8s.io and contain no DeviceClaim, ResourceClaims are allocated;
    ``dra.solve_manifests`` does the same, and declares the type of that answer.

    Invalid content raises no exception: ``problems`` reports it, and an invalid claim has ``allocated: false``.

    Args:
        documents: manifests as JSON-like dicts, in any order.
        placement: the name of one of ``problem.placement_policy.POLICIES`` (S17, goal 5); ``pack`` by default.
        deadline: seconds after which the best answer so far is returned; 0 takes the first answer, None sets no limit.
            A claim whose expressions take too long gets the reason ``SearchLimit``, and the others are solved. The
            check of the answer takes additional time, well below a second.
        cel_check: what to do if the two evaluators of expressions disagree about a DeviceClaim. ``refuse`` (default):
            it gets nothing (``CheckFailed``). ``warn``: it gets its devices, and ``problems`` reports the disagreement.

    Returns:
        ``{"claims": [...], "objective": {"levels": [...]}, "optimal": bool, "seconds": float, "problems": [...]}``
        with claims ordered by namespace and name (settled L2).

    Raises:
        ValueError: for an unknown ``placement`` or ``cel_check``, or ``documents`` that are one manifest or text.
        ValueError, TypeError: for a ``deadline`` that is not a number of seconds.
    """
    started = time.monotonic()
    documents = as_manifest_list(documents)
    policy = policy_named(placement)
    if is_resource_k8s(documents):
        from devalloc_solver.dialects.resource_k8s import solve  # with its CEL runtime

        return cast(SolutionDict, solve.solve_manifests(documents, placement=placement, deadline=deadline))
    if any(admission.is_admission_object(document) for document in documents if isinstance(document, Mapping)):
        apart = admission.sort_documents(documents)

        def solve_some(some: list[dict[str, Any]]) -> dict[str, Any]:
            left = None if deadline is None else max(0.0, deadline - (time.monotonic() - started))
            return _solve_without_quotas([*map(apart.written, some), *apart.rest], policy, Call(left), cel_check)

        end_time(deadline, started)  # raises for one that is none
        return cast(SolutionDict, admission.solve_admitted(apart.readable, solve_some, unread=apart.rest))
    return cast(SolutionDict, _solve_without_quotas(documents, policy, Call(deadline, started), cel_check))


def _solve_without_quotas(
    documents: Sequence[Mapping[str, Any]], policy: PlacementPolicy, call: Call, cel_check: str
) -> dict[str, Any]:
    """The answer without regard to ResourceQuotas."""
    solution = solve_input(read_documents(documents), policy, call, cel_check=cel_check)
    problems = sorted((*solution.problems, *foreign_manifests(documents)), key=problem_order)
    return replace(solution, problems=tuple(problems)).to_dict()


@gc_paused()
def solve(
    pools: Iterable[DevicePool],
    classes: Iterable[DeviceClass],
    claims: Iterable[DeviceClaim],
    configs: Iterable[ApiModel | Mapping[str, Any]] = (),
    *,
    placement: str = "pack",
    deadline: float | None = None,
    cel_check: str = "refuse",
) -> Solution:
    """Allocate the pending claims among typed objects, as ``solve_manifests`` does among manifests.

    Raises TypeError for an object of another type.
    """
    call, policy = Call(deadline), policy_named(placement)
    return solve_input(read_objects(pools, classes, claims, configs), policy, call, cel_check=cel_check)
