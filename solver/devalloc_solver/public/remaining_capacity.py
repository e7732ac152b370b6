"""How many more claims like a given one fit on what is free now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from devalloc.api.meta import GROUP
from devalloc.api.reasons import Reason
from devalloc_solver.cel.budget import SEARCH_CUT_SHORT, BudgetExceeded, OutOfTime, check_deadline
from devalloc_solver.check import DisputedDevices, check_cel_check
from devalloc_solver.deadline import ALLOCATE_SECONDS, Call, seconds_left
from devalloc_solver.dialects.api_groups import RESOURCE_CLAIMS, api_group_of, as_manifest_list
from devalloc_solver.dialects.device_claims.manifest_records import read_documents
from devalloc_solver.dialects.device_claims.problem import DeviceClaimProblem, prepare
from devalloc_solver.exact.goal_search import GoalSearch
from devalloc_solver.exact.model import build_model
from devalloc_solver.pipeline.admission import is_admission_object, sort_documents
from devalloc_solver.pipeline.flow import UnsolvedProblem
from devalloc_solver.pipeline.quota import copies_allowed
from devalloc_solver.pipeline.strategy import search_parts
from devalloc_solver.place import SearchTimeout
from devalloc_solver.problem.allocations import Usage
from devalloc_solver.problem.demand import Demand, PlacementUnit, Request
from devalloc_solver.problem.placement_policy import PACK
from devalloc_solver.problem.snapshot import Snapshot

RESOURCE_CLAIM, TEMPLATE = "ResourceClaim", "ResourceClaimTemplate"
MAX_PER_NODE = 4_096
"""Copies of a claim that are looked for on one node at most."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many copies of a claim fit, and whether that number is proven."""

    count: int
    proven: bool
    """whether it is certain that no more than ``count`` fit"""
    by_node: Mapping[str | None, int]
    """how many fit on each node that has room; the key None stands for nodes that share devices of the network"""
    reason: str | None = None
    """why the claim cannot be solved at all"""
    message: str | None = None


def capacity(
    documents: Iterable[Mapping[str, Any]],
    claim: Mapping[str, Any],
    *,
    deadline: float | None = ALLOCATE_SECONDS,
    cel_check: str = "refuse",
) -> Capacity:
    """Count the copies of ``claim`` that fit beside the allocated claims among ``documents``.

    ``claim`` is a DeviceClaim, a ResourceClaim, or the ResourceClaimTemplate of a pod. If the claim is allocated, its
    copies come in addition to it. Pending claims among the documents do not count. ResourceQuotas among the documents
    do: if a quota sets the limit, the reason is ``QuotaExceeded``, and no node is named.

    Args:
        deadline: seconds, or None for no limit. When they have passed, the count so far is returned, not ``proven``; if
            not even one copy was placed by then, ``reason`` is ``SearchLimit``.
        cel_check: as for ``solve_manifests``. With ``refuse``, a device does not count if the two evaluators of
            expressions disagree about it, and a claim that would be refused for that has the reason ``CheckFailed``.

    Raises:
        TypeError: ``claim`` is not a dict.
        ValueError: ``claim`` is not the manifest of a claim or template with a name, or ``documents`` are one manifest
            or text; ``deadline`` or ``cel_check`` is invalid.
    """
    call = Call(deadline)
    check_cel_check(cel_check)
    documents = as_manifest_list(documents)
    wanted = _pending(claim)
    if wanted["kind"] == RESOURCE_CLAIM:
        return _count_resource_claims(documents, wanted, call)
    others = [d for d in documents if not (isinstance(d, Mapping) and _is_pending(d))]
    return _within_quotas(_count(others, wanted, call, cel_check), others, wanted)


def _within_quotas(counted: Capacity, documents: Sequence[Any], claim: dict[str, Any]) -> Capacity:
    """At most as many as quotas allow; then without nodes, because there is room for more."""
    left = copies_allowed(sort_documents(documents).readable, claim)
    if left is None or counted.reason is not None or left[0] >= counted.count:
        return counted
    message = f"{left[1]}; there is room for {counted.count} more"
    return Capacity(left[0], True, {}, Reason.QUOTA_EXCEEDED, message)


def _count(others: Sequence[Any], wanted: dict[str, Any], call: Call, cel_check: str) -> Capacity:
    """Count the copies, without devices on which the two evaluators disagree."""
    ends, key = call.ends, _key_of(wanted)
    prepared = prepare(
        read_documents([*(d for d in others if not (isinstance(d, Mapping) and is_admission_object(d))), wanted]),
        call=call,
    )
    if cel_check == "refuse":
        try:
            disputed = _disputed_devices(prepared, ends)
        except OutOfTime as error:
            return Capacity(0, False, {}, Reason.SEARCH_LIMIT, str(error))
        if disputed and (messages := _disagreements_of_first(prepared, disputed, ends)):
            return Capacity(0, True, {}, Reason.CHECK_FAILED, "; ".join(messages[:3]))
        prepared = replace(prepared, units=tuple(_without(unit, disputed) for unit in prepared.units))
    return _count_copies(prepared, key, ends)


_Disputed = Mapping[tuple[str, int], list[str]]
"""(label of a request, device) -> how the evaluators disagree about it"""


def _disputed_devices(prepared: DeviceClaimProblem, ends: float | None) -> _Disputed:
    """The candidates that the check's evaluator judges differently. Raises OutOfTime."""
    problem_input, snapshot = prepared.dialect.problem_input, prepared.snapshot
    judge = DisputedDevices(problem_input.pools, problem_input.classes.values())
    disputed: dict[tuple[str, int], list[str]] = {}
    for request in (request for unit in prepared.units for demand in unit.demands for request in demand.requests):
        devices = {index: snapshot.devices[index] for index in request.candidates.accepted}
        places = {
            index: (snapshot.pools[device.pool].node, snapshot.pools[device.pool].name, device.name)
            for index, device in devices.items()
        }
        try:
            of_request = judge.find(request.spec, places, partial(check_deadline, ends))
        except BudgetExceeded:
            continue
        disputed |= {(request.label, index): messages for index, messages in of_request.items()}
    return disputed


def _disagreements_of_first(prepared: DeviceClaimProblem, disputed: _Disputed, ends: float | None) -> list[str]:
    """How the evaluators disagree about the devices that one copy would get."""
    outcome = search_parts(prepared.snapshot, prepared.allocations, prepared.units, policy=PACK, ends=ends)
    given = [(entry.request.label, entry.device.index) for placed in outcome.placements for entry in placed.entries]
    return [*dict.fromkeys(message for one in given for message in disputed.get(one, ()))]


def _without(unit: PlacementUnit, disputed: _Disputed) -> PlacementUnit:
    """The same unit, to which disputed devices are not offered."""
    if not disputed:
        return unit

    def left(_: Demand, request: Request) -> Request:
        accepted = request.candidates.accepted
        others = {index: name for index, name in accepted.items() if (request.label, index) not in disputed}
        return replace(request, candidates=replace(request.candidates, accepted=others))

    return unit.with_requests(left)


def _count_resource_claims(documents: Sequence[Any], wanted: dict[str, Any], call: Call) -> Capacity:
    """The same for claims of Kubernetes. What the claims of pods may have is for the API server to bound."""
    from devalloc_solver.dialects.resource_k8s.feature_gates import DEFAULT_GATES  # with their CEL runtime
    from devalloc_solver.dialects.resource_k8s.manifests import read_documents as read_objects
    from devalloc_solver.dialects.resource_k8s.problem import prepare as prepare_cluster

    groups = (RESOURCE_CLAIMS, "v1", "")  # Nodes are of v1
    others = [d for d in documents if api_group_of(d) in groups and not is_admission_object(d) and not _is_waiting(d)]
    problem_input = read_objects([*others, wanted], DEFAULT_GATES)
    return _count_copies(prepare_cluster(problem_input, DEFAULT_GATES, call), _key_of(wanted), call.ends)


def _is_waiting(document: Mapping[str, Any]) -> bool:
    """Whether it is a ResourceClaim without an allocation, or a template of such."""
    status = document.get("status")
    has_devices = isinstance(status, Mapping) and bool(status.get("allocation"))
    return document.get("kind") == TEMPLATE or (document.get("kind") == RESOURCE_CLAIM and not has_devices)


def _key_of(wanted: Mapping[str, Any]) -> tuple[str, str]:
    namespace = wanted["metadata"].get("namespace")
    return namespace if isinstance(namespace, str) and namespace else "default", wanted["metadata"]["name"]


def _count_copies(prepared: UnsolvedProblem[Any], key: tuple[str, str], ends: float | None) -> Capacity:
    """Count the copies of a claim, or say why there are none."""
    for refused in prepared.refused:
        if refused.key == key:
            is_certain = refused.reason != Reason.SEARCH_LIMIT
            return Capacity(0, is_certain, {}, str(refused.reason), refused.text)
    unit = next(unit for unit in prepared.units if unit.demands[0].key == key)
    devices, pools = prepared.snapshot.devices, prepared.snapshot.pools
    candidates = (devices[i] for request in unit.demands[0].requests for i in request.candidates.accepted)
    networked = any(pools[device.pool].node is None for device in candidates)
    if networked or not prepared.snapshot.nodes:
        count, proven = _max_copies(prepared, unit, ends)
        counted = Capacity(count, proven, {None: count} if count else {})
    else:
        counted = _count_by_node(prepared, unit, ends)
    if counted.count or counted.proven or seconds_left(ends) != 0:
        return counted
    return replace(counted, reason=Reason.SEARCH_LIMIT, message=SEARCH_CUT_SHORT)


def _count_by_node(prepared: UnsolvedProblem[Any], unit: PlacementUnit, ends: float | None) -> Capacity:
    """Nodes share nothing, so their parts add up; nodes that look alike are counted once."""
    nodes: Sequence[str] = prepared.snapshot.nodes if unit.pin is None else [unit.pin]
    usage = Usage.of(prepared.snapshot, prepared.allocations)
    by_signature: dict[object, tuple[int, bool]] = {}
    by_node: dict[str | None, int] = {}
    all_proven = True
    for node in nodes:
        if seconds_left(ends) == 0:
            all_proven = False
            break
        signature = _node_key(prepared.snapshot, usage, unit.demands[0], node)
        if signature not in by_signature:
            by_signature[signature] = _max_copies(prepared, replace(unit, pin=node), ends)
        count, proven = by_signature[signature]
        all_proven &= proven
        if count:
            by_node[node] = count
    return Capacity(sum(by_node.values()), all_proven, by_node)


def _max_copies(prepared: UnsolvedProblem[Any], unit: PlacementUnit, ends: float | None) -> tuple[int, bool]:
    """Count the copies that fit at once, by trying larger numbers, and say whether the number is proven."""
    copies, most = 8, 0
    while True:
        try:
            model = build_model(prepared.snapshot, prepared.allocations, [unit] * copies, ends=ends)
        except SearchTimeout:
            return most, False
        value, bound = GoalSearch(model, ends).maximize([(1, literal) for literal in model.satisfied], best=copies)
        most = max(most, value)
        if value < copies or copies >= MAX_PER_NODE:
            return most, value == bound and value < copies
        copies *= 4


def _node_key(snapshot: Snapshot, usage: Usage, demand: Demand, node: str) -> object:
    """What the claim sees of a node: equal for nodes that have room for equally many."""
    match = sorted({name for request in demand.requests for name in request.match} | set(demand.match))
    values: dict[object, int] = {}
    seen: list[object] = []
    for pool in snapshot.pools_by_node.get(node, ()):
        groups: dict[object, int] = {}
        members = []
        for device in pool.devices:
            members.append(
                (
                    tuple(device.index in request.candidates.accepted for request in demand.requests),
                    tuple(request.portions.get(device.index) for request in demand.requests),
                    tuple(device.values(relation.attribute) for relation in demand.relations),
                    tuple(values.setdefault((n, device.attributes.get(n)), len(values)) for n in match),
                    device.draws,
                    groups.setdefault(device.compatibility, len(groups)),
                    device.index in usage.whole,
                    device.index in usage.shared,
                    tuple(
                        (device.resources[n].block, device.resources[n].blocks, usage.free_blocks(device, n))
                        for n in sorted(device.resources)
                    ),
                )
            )
        free = tuple(usage.free_pool_blocks(pool.index, name) for name in sorted(pool.resources))
        held = tuple(sorted(groups.setdefault(g, len(groups)) for g in usage.groups.get(pool.index, ())))
        seen.append((tuple(members), free, held))
    return tuple(seen)


def _pending(claim: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(claim, Mapping):
        raise TypeError(f"capacity needs a DeviceClaim manifest as a dict, not {type(claim).__name__}")
    if claim.get("kind") == TEMPLATE:
        from devalloc_solver.dialects.resource_k8s.templates import claim_of_template

        claim = claim_of_template(claim)
    metadata = claim.get("metadata")
    is_claim = claim.get("kind") in ("DeviceClaim", RESOURCE_CLAIM)
    if not is_claim or not isinstance(metadata, Mapping) or not _is_named(metadata):
        raise ValueError("capacity needs a manifest with a name: a DeviceClaim, ResourceClaim or ResourceClaimTemplate")
    own_metadata = {k: v for k, v in metadata.items() if k != "deletionTimestamp"}
    marks = metadata.get("annotations")
    if isinstance(marks, Mapping):  # any others are for the reader to refuse
        own_metadata["annotations"] = {k: v for k, v in marks.items() if k != GROUP}
    own_metadata["name"] = "capacity-of-" + metadata["name"][:200]  # beside the claim of that name, if there is one
    return {k: v for k, v in claim.items() if k != "status"} | {"metadata": own_metadata}


def _is_named(metadata: Mapping[str, Any]) -> bool:
    return isinstance(metadata.get("name"), str) and metadata["name"] != ""


def _is_pending(document: Mapping[str, Any]) -> bool:
    status = document.get("status")
    return document.get("kind") == "DeviceClaim" and not (isinstance(status, Mapping) and status.get("allocations"))
