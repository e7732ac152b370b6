"""What pending DeviceClaims request: units of the problem, and claims that are refused before the search (S5-S16)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from devalloc.api.claim import COUNT, DeviceClaim, DeviceClaimDetail
from devalloc.api.findings import BEING_DELETED, Cause, Fact, RuleCode, fact, rule, text_fact
from devalloc.api.meta import GROUP_MATCH
from devalloc.api.node_rules import barred_nodes
from devalloc.api.problems import closest_match
from devalloc.api.reasons import Reason
from devalloc_solver.cel.budget import (
    OUT_OF_TIME,
    Bound,
    OutOfTime,
)
from devalloc_solver.dialects.device_claims.candidates import CandidateFinder
from devalloc_solver.dialects.device_claims.manifests import ProblemInput
from devalloc_solver.dialects.device_claims.status import DevicesByName, node_of
from devalloc_solver.pipeline import units
from devalloc_solver.pipeline.units import RejectedClaim
from devalloc_solver.problem.demand import (
    AllocationMode,
    Candidates,
    Demand,
    FunnelStep,
    PlacementUnit,
    Request,
    without_nodes,
)
from devalloc_solver.problem.snapshot import Device, Snapshot


def build_units(
    problem_input: ProblemInput, eligibility: CandidateFinder
) -> tuple[list[PlacementUnit], list[RejectedClaim]]:
    """The units worth solving, in the order claims are decided, and the claims that are not."""
    snapshot = eligibility.snapshot
    by_rules: dict[object, dict[tuple[int, bool], Candidates]] = defaultdict(dict)

    @cache
    def bound_to() -> frozenset[str | None]:
        """Nodes to which a claim or its group may be bound, also those without pools."""
        nodes = {node for claim in problem_input.claims for node in (claim.allocated_node, claim.pinned_node)}
        return frozenset((*nodes, *(claim.node for claim in problem_input.refused)))

    def make(claim: DeviceClaim) -> Demand | RejectedClaim:
        refusal = find_refusal(claim, problem_input, eligibility)
        if refusal is not None or not claim.restrictions:
            return refusal or make_demand(claim, eligibility)
        nodes = bound_to().union(snapshot.nodes)
        return off_barred_nodes(make_demand(claim, eligibility), nodes, snapshot, by_rules[claim.restrictions])

    rules: units.UnitRules[DeviceClaim, DeviceClaim] = units.UnitRules(
        make,
        lambda demand: PlacementUnit((demand,), None, demand.claim.pinned_node),
        partial(node_of, snapshot=snapshot),
        partial(_with_agreeing_candidates, snapshot=snapshot),
    )
    waiting = (claim for claim in problem_input.claims if not claim.is_allocated)
    allocated = (claim for claim in problem_input.claims if claim.is_allocated)
    return units.build_units(waiting, allocated, problem_input.refused, rules, eligibility.judge.allowance)


def _with_agreeing_candidates(
    members: list[Demand], allocated: Sequence[DeviceClaim], snapshot: Snapshot
) -> list[Demand] | Fact:
    """The members, left with the devices that agree with what other members hold already, or why these do not."""
    for name in dict.fromkeys(name for demand in members for name in demand.shared):
        held = [device for claim in allocated if name in claim.group_match for device in _devices_of(claim, snapshot)]
        values = {device.attributes.get(name) for device in held}
        if len(values) > 1 or None in values:
            return fact(Cause.HELD_DIFFER, attribute=name, see=f"the annotation {GROUP_MATCH}")
        cache: dict[tuple[int, bool], Candidates] = {}
        for value in values:
            fit = _devices_with_value(name, value, snapshot)
            left = partial(_restricted_to, name=name, fit=fit, snapshot=snapshot)
            members = [_with_candidates(d, left, cache) if name in d.shared else d for d in members]
    return members


def off_barred_nodes(
    demand: Demand, nodes: Iterable[str | None], snapshot: Snapshot, cache: dict[tuple[int, bool], Candidates]
) -> Demand:
    """The demand, left with what is on those of the nodes where it may be. ``cache``: of its rules."""
    rules = demand.claim.restrictions
    barred = barred_nodes(rules, nodes)
    left = _with_candidates(demand, lambda each: candidates_off(barred, each.candidates, snapshot), cache)
    return replace(left, restrictions=rules, shape=None if demand.shape is None else (demand.shape, rules))


def candidates_off(barred: frozenset[str], candidates: Candidates, snapshot: Snapshot) -> Candidates:
    """Those candidates of a snapshot that are to be had on other nodes than these."""
    homes = [None if pool.node is None else (pool.node,) for pool in snapshot.pools]
    return without_nodes(candidates, barred, lambda index: homes[snapshot.devices[index].pool])


def _devices_of(claim: DeviceClaim, snapshot: Snapshot) -> Iterator[Device]:
    """Those of its devices that are still there."""
    node, look_up = node_of(claim, snapshot), DevicesByName(snapshot)
    for entry in claim.status.allocations if claim.status is not None else ():
        for pool in snapshot.pools_by_name.get(entry.device_pool_name, ()):
            if pool.node in (node, None):
                yield from (d for d in look_up.devices_of(pool, entry.device_name) if d.ghost is None)


def _devices_with_value(name: str, value: object, snapshot: Snapshot) -> frozenset[int]:
    """Devices with that very value: one of another type is another one (S3)."""
    values = ((device.index, device.attributes.get(name)) for device in snapshot.devices)
    return frozenset(index for index, own in values if type(own) is type(value) and own == value)


def _with_candidates(
    demand: Demand, only: Callable[[Request], Candidates], cache: dict[tuple[int, bool], Candidates]
) -> Demand:
    """``cache``: requests of equal candidates keep the same ones, which the search counts on."""

    def left(request: Request) -> Request:
        key = id(request.candidates), request.mode is AllocationMode.ADMIN_ALL
        if key not in cache:
            cache[key] = only(request)
        return replace(request, candidates=cache[key])

    return replace(demand, details=tuple(tuple(map(left, detail)) for detail in demand.details))


def _restricted_to(request: Request, name: str, fit: frozenset[int], snapshot: Snapshot) -> Candidates:
    """Those of its candidates that fit. One that gets all there are gets none where one of them does not."""
    candidates = request.candidates
    rejected = tuple(sorted(candidates.accepted.keys() - fit))
    if not rejected:
        return candidates
    accepted = {index: named for index, named in candidates.accepted.items() if index in fit}
    barred = candidates.barred
    if request.mode is AllocationMode.ADMIN_ALL:
        nodes = {snapshot.pools[snapshot.devices[index].pool].node for index in rejected}
        accepted = {} if None in nodes else accepted
        barred |= {node for node in nodes if node is not None}
    step = FunnelStep(rule(RuleCode.GROUP_DIFFERS, attribute=name), rejected)
    return replace(candidates, accepted=accepted, barred=barred, funnel=(*candidates.funnel, step))


def find_refusal(claim: DeviceClaim, problem_input: ProblemInput, eligibility: CandidateFinder) -> RejectedClaim | None:
    """Why a claim is not solved, whatever is free (S5, S6, S16); None for one that is.

    A fleet remembers it for claims of the same spec and namespace: of a claim that is not being deleted it reads
    nothing else, and of the fleet only classes, configuration objects and expressions.

    Raises OutOfTime, with the path of the expression.
    """
    if claim.is_deleting:
        return RejectedClaim(claim.key, Reason.DELETING, (text_fact(BEING_DELETED),), group=claim.group)
    all_faults: list[_SpecError] = []
    for path, detail in _detail_paths(claim):
        all_faults += _detail_refusals(path, detail, claim, problem_input, eligibility)
    for reason in (
        Reason.CLAIM_INVALID,
        Reason.CLASS_INVALID,
        Reason.EXPRESSION_TOO_EXPENSIVE,
        Reason.CLASS_NOT_FOUND,
        Reason.CONFIG_NOT_FOUND,
    ):
        faults = [fault for fault in all_faults if fault[0] is reason]
        if faults:
            causes = tuple(text_fact(message) for _, message, _ in faults)
            blockers = tuple(entry for _, _, entry in faults)
            return RejectedClaim(
                claim.key, reason, causes, claim.group, blockers=blockers, exceeded=_exceeded(claim, eligibility)
            )
    return None


def _exceeded(claim: DeviceClaim, eligibility: CandidateFinder) -> Bound | None:
    """What expressions of a claim and of its classes exceeded."""
    for _, detail in _detail_paths(claim):
        named = eligibility.classes.get(detail.device_class or "")
        for expression in (detail.constraints, named.spec.constraints if named is not None else None):
            if (bound := eligibility.exceeded(expression)) is not None:
                return bound
    return None


_SpecError = tuple[Reason, str, dict[str, Any]]
"""(reason, message, the blocker's entry in the answer)"""


def _detail_paths(claim: DeviceClaim) -> Iterator[tuple[str, DeviceClaimDetail]]:
    for index, entry in enumerate(claim.spec.claims):
        if not entry.one_of:
            yield f"spec.claims[{index}]", entry
        for number, alternative in enumerate(entry.one_of):
            yield f"spec.claims[{index}].oneOf[{number}]", alternative


def _detail_refusals(
    path: str, detail: DeviceClaimDetail, claim: DeviceClaim, problem_input: ProblemInput, eligibility: CandidateFinder
) -> Iterator[_SpecError]:
    """Find what is wrong with the expression, the class and the configuration objects that a request names."""
    try:
        error = eligibility.expression_error(detail.constraints)
    except OutOfTime:
        raise OutOfTime(f"{path}.constraints: {OUT_OF_TIME}") from None
    if error is not None:
        entry = {"kind": "constraint", "path": f"{path}.constraints", "expression": detail.constraints}
        reason = Reason.EXPRESSION_TOO_EXPENSIVE if error.exceeded is not None else Reason.CLAIM_INVALID
        yield reason, f"{path}.constraints: {error.message}", entry
    name = detail.device_class
    named = {"kind": "class", "path": f"{path}.deviceClass", "deviceClass": name}
    if name and name not in problem_input.classes and name not in problem_input.invalid_classes:
        near = closest_match(name, (*problem_input.classes, *problem_input.invalid_classes))
        message = f"{path}.deviceClass: class {name!r} does not exist"
        if near is None:
            yield Reason.CLASS_NOT_FOUND, f"{message}; create it, or name another", named
        else:
            yield Reason.CLASS_NOT_FOUND, f"{message}; did you mean {near!r}?", {**named, "didYouMean": near}
    elif name and (why := eligibility.class_error(name)) is not None:
        of_class = eligibility.classes.get(name)
        if of_class is not None and eligibility.exceeded(of_class.spec.constraints) is not None:
            yield Reason.EXPRESSION_TOO_EXPENSIVE, f"{path}.deviceClass: class {name!r}: {why}", named
        else:
            yield Reason.CLASS_INVALID, f"{path}.deviceClass: class {name!r} is invalid: {why}; correct it", named
    else:
        for device_class in eligibility.classes_of(detail) or ():
            for ref in device_class.spec.configs:
                if (ref.api_version, ref.kind, ref.namespace, ref.name) not in problem_input.configs:
                    message = f"class {device_class.metadata.name!r} refers to {ref.kind} {ref.namespace}/{ref.name}"
                    entry = _missing_config(path, ref, ref.namespace, problem_input)
                    yield (
                        Reason.CONFIG_NOT_FOUND,
                        f"{path}: {message}, which does not exist{_did_you_mean(entry)}",
                        entry,
                    )
    for index, own in enumerate(detail.configs):
        if (own.api_version, own.kind, claim.namespace, own.name) not in problem_input.configs:
            message = f"{own.kind} {claim.namespace}/{own.name}"
            entry = _missing_config(f"{path}.configs[{index}]", own, claim.namespace, problem_input)
            yield (
                Reason.CONFIG_NOT_FOUND,
                f"{path}.configs[{index}]: {message} does not exist{_did_you_mean(entry)}",
                entry,
            )


def _missing_config(path: str, ref: Any, namespace: str, problem_input: ProblemInput) -> dict[str, Any]:
    """The blocker for an object that does not exist, with the nearest name that does."""
    entry = {"kind": "config", "path": path, "apiVersion": ref.api_version, "configKind": ref.kind}
    entry |= {"namespace": namespace, "name": ref.name}
    same = (ref.api_version, ref.kind, namespace)
    near = closest_match(ref.name, [key[3] for key in problem_input.configs if key[:3] == same])
    return entry if near is None else {**entry, "didYouMean": near}


def _did_you_mean(entry: dict[str, Any]) -> str:
    return f"; did you mean {entry['didYouMean']!r}?" if "didYouMean" in entry else "; create it"


def make_demand(claim: DeviceClaim, eligibility: CandidateFinder) -> Demand:
    """What a claim demands that nothing refuses."""
    details = []
    for index, entry in enumerate(claim.spec.claims):
        numbers: list[int | None] = [*range(len(entry.one_of))] if entry.one_of else [None]
        requests = zip(numbers, entry.alternatives, strict=True)
        pin = claim.pinned_node
        details.append(tuple(make_request(index, number, detail, eligibility, pin) for number, detail in requests))
    match = tuple(dict.fromkeys(claim.spec.match_attributes))
    shape: object | None = None if claim.group_match else claim.spec.shape
    left_out = [request.candidates.left_out for requests in details for request in requests]
    if shape is not None and any(left_out):  # it depends on the node that the claim is bound to
        shape = shape, tuple(left_out)
    return Demand(claim, tuple(details), match, claim.group_match, shape=shape)


def make_request(
    index: int, alternative: int | None, detail: DeviceClaimDetail, eligibility: CandidateFinder, pin: str | None
) -> Request:
    """The request of a detail: ``index`` is its index in spec.claims, ``alternative`` that in oneOf (S8-S10, S14).

    ``pin``: see ``CandidateFinder.candidates``.
    """
    count = detail.requests.get(COUNT)
    limit = detail.limits.get(COUNT)
    others = {name: amount.nano for name, amount in detail.requests.items() if name != COUNT}
    whole = count is not None or not others
    if eligibility.is_admin(detail):
        mode = AllocationMode.ADMIN_ALL if count is None else AllocationMode.ADMIN_COUNT
    else:
        mode = AllocationMode.WHOLE if whole else AllocationMode.SHARE
    least = (count.as_integer() or 1) if count is not None else 1
    most = limit.as_integer() if limit is not None else None
    if mode is AllocationMode.ADMIN_COUNT or (mode is AllocationMode.WHOLE and most is None):
        most = least  # an admin detail gets exactly its count, whatever its limit (S14)
    return Request(
        detail=index,
        alternative=alternative,
        spec=detail,
        mode=mode,
        min_count=least,
        max_count=most,
        requests={} if mode.is_admin else others,
        limits={} if mode.is_admin else {n: a.nano for n, a in detail.limits.items() if n != COUNT},
        match=tuple(dict.fromkeys(detail.match_attributes)),
        candidates=eligibility.candidates(detail, pin),
        eligible=eligibility.eligible(detail),
    )
