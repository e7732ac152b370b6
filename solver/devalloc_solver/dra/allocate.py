"""Allocate claims on one node: what kube-scheduler asks of its allocator, answered exactly (settled D1 to D5)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from devalloc.api.nearest import nearest
from devalloc.api.quantity import type_name
from devalloc_solver.assignment import Placement
from devalloc_solver.budget import Allowance, OutOfTime
from devalloc_solver.check.resource import check_results
from devalloc_solver.collector import quiet_collector
from devalloc_solver.deadline import ALLOCATE_SECONDS, end_of
from devalloc_solver.demand import Demand, Mode, Relation, Slot, Unit
from devalloc_solver.dra.candidates import Choice, Judge
from devalloc_solver.dra.decode import read_claim, read_class, read_node
from devalloc_solver.dra.errors import AllocationError, AnswerRefused
from devalloc_solver.dra.features import read_features
from devalloc_solver.dra.fields import FieldError, shown
from devalloc_solver.dra.inventory import Offer, UsedDevices, View, list_offers, make_snapshot
from devalloc_solver.dra.objects import Claim, Class, Node, holder
from devalloc_solver.dra.pools import Ignored, Pool, SliceBook, State, name_of
from devalloc_solver.dra.result import ShareIds, given_by, make_result
from devalloc_solver.dra.search import find
from devalloc_solver.dra.selectors import Selectors
from devalloc_solver.dra.translate import (
    MOST_DEVICES,
    ClaimMeta,
    PendingClaim,
    attributes_of,
    make_demand,
    make_unit,
)
from devalloc_solver.dra.usage import Usage, read_usage
from devalloc_solver.holdings import Holding
from devalloc_solver.snapshot import Device, Snapshot

Manifest = Mapping[str, Any]


@dataclass(slots=True)
class Task:
    """Everything that is known of a call before the search begins."""

    node: Node
    gates: frozenset[str]
    claims: tuple[Claim, ...]
    pools: tuple[Pool, ...]
    ignored: tuple[Ignored, ...]
    usage: Usage
    classes: Mapping[str, Class]
    offers: Sequence[Offer]
    snapshot: Snapshot
    holdings: tuple[Holding, ...]
    unit: Unit
    slices: Sequence[Manifest]
    """those that were read"""
    ends: float | None = None
    """monotonic time at which the call has to answer"""
    errors: list[str] = field(default_factory=list)
    """devices that could not be judged, in the order of claims, requests and devices"""


@quiet_collector()
def allocate(
    node: Manifest | str,
    claims: Iterable[Manifest],
    classes: Iterable[Manifest],
    slices: Iterable[Manifest],
    *,
    allocated: Manifest | None = None,
    features: Iterable[str] | None = None,
    deadline: float | None = ALLOCATE_SECONDS,
) -> list[dict[str, Any]] | None:
    """Allocate all claims on one node, or none.

    Args:
        node: a Node object, or the name of a node without labels.
        claims: ResourceClaims. One that has an allocation keeps it, and its devices are in use.
        classes: DeviceClasses.
        slices: ResourceSlices of any nodes.
        allocated: what is in use besides: ``{"devices": [...], "shares": [...], "consumedCapacity": [...]}``.
        features: feature gates that are on; None for all up to beta, and lists.
        deadline: seconds after which it is an error that nothing is known yet; None for as long as it takes.

    Returns:
        One AllocationResult per claim, in the order of the claims; None when they do not fit on the node, or when no
        claim waits.

    Raises AllocationError for input that cannot be judged. ``node_local`` when only this node is at fault.
    """
    started = time.monotonic()
    allowance = Allowance()
    allowance.begin(end_of(deadline, started), started)
    claims, classes, slices = objects(claims, "claims"), objects(classes, "classes"), objects(slices, "slices")
    try:
        task = prepare(node, claims, classes, slices, allowance, allocated=allocated, features=features)
        if task is None:
            return None
        placements = find(task.snapshot, task.holdings, task.unit, ends=task.ends)
        if placements is None:
            raise_failure(task)
            return None
    except OutOfTime as error:
        raise AllocationError(str(error), exceeded=error.bound) from None
    results = _results(task, placements)
    named = [content for content in classes if name_of(content) in task.classes]
    mine = [result for result, claim in zip(results, task.claims, strict=True) if claim.allocation is None]
    if violations := check_results(mine, node, claims, named, task.slices, allocated=allocated, features=task.gates):
        raise AnswerRefused(violations)
    return results


def prepare(
    node: Manifest | str,
    claims: Iterable[Manifest],
    classes: Iterable[Manifest],
    slices: Iterable[Manifest],
    allowance: Allowance,
    *,
    allocated: Manifest | None = None,
    features: Iterable[str] | None = None,
    selectors: Selectors | None = None,
    holders: Sequence[Usage] | None = None,
) -> Task | None:
    """All before the search; None when no claim waits.

    ``selectors``: those of a call before with the same ``features``, whose verdicts hold for the same devices.
    ``holders``: what each holder has, so that each is a holding; devices are judged as if nothing were in use then.
    Raises AllocationError and OutOfTime.
    """
    gates = read_features(features)
    target = _read_node(node)
    faults: list[Ignored] = []
    read = tuple(_read_claim(content, position, gates, faults) for position, content in enumerate(claims))
    pending = [
        PendingClaim(_key(claim, position, read), 0, ClaimMeta(claim.name, claim.created), claim, position)
        for position, claim in enumerate(read)
        if claim.allocation is None
    ]
    if not pending:
        return None
    usage = _read_usage(allocated, read)
    named = _read_classes(classes, [one.claim for one in pending])
    book = SliceBook(slices, gates)
    pools = book.pools(target)
    for one in pending:
        _refuse_broken_pools(one.claim, pools)
    offers = list_offers([View(pool, (target,)) for pool in pools], usage, gates)
    judged = usage if holders is None else Usage()
    judge = Judge(gates, offers, judged, selectors or Selectors(gates, allowance), named)
    used = UsedDevices(offers)
    choices = [[[judge.choose(one.claim, ask) for ask in r.asks] for r in one.claim.requests] for one in pending]
    for one, chosen in zip(pending, choices, strict=True):
        _refuse_too_many(one.claim, chosen)
    return Task(
        node=target,
        gates=gates,
        claims=read,
        pools=pools,
        ignored=(*book.ignored, *faults),
        usage=usage,
        classes=named,
        offers=offers,
        snapshot=make_snapshot(offers, [target.name], attributes_of(read), gates),
        holdings=tuple(
            Holding(holder_key(number), 0, used.items(one))
            for number, one in enumerate([usage] if holders is None else holders)
        ),
        unit=make_unit([make_demand(one, chosen) for one, chosen in zip(pending, choices, strict=True)], target.name),
        slices=book.seen(pools),
        ends=allowance.until,
        errors=[
            f"claim {one.claim.title}, request {choice.ask.name}: {error}"
            for one, chosen in zip(pending, choices, strict=True)
            for asks in chosen
            for choice in asks
            for error in choice.verdict.errors
        ],
    )


def holder_key(number: int) -> tuple[str, str]:
    """The claim of a holding, by the position of its holder; keys are in the order of these."""
    return "", f"{number:09}"


# -- input ---------------------------------------------------------------------------------------------------------


def objects(given: object, what: str) -> list[Manifest]:
    """What a caller gave as manifests. Raises AllocationError where it is something else."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise AllocationError(f"{what}: must be a list of objects, not {type_name(given)}")
    found = list(given)
    for number, one in enumerate(found):
        if not isinstance(one, Mapping):
            raise AllocationError(f"{what}[{number}]: must be an object, not {type_name(one)}")
    return found


def _read_node(content: Manifest | str) -> Node:
    try:
        return read_node(content)
    except FieldError as error:
        raise AllocationError(f"node: {error}") from None


def _read_claim(content: Manifest, position: int, gates: frozenset[str], faults: list[Ignored]) -> Claim:
    """A claim; of one that has an allocation and cannot be read, what it holds, and a fault."""
    try:
        claim = read_claim(content, gates)
        if claim.allocation is None:
            _refuse_twins(claim)
        return claim
    except FieldError as error:
        metadata, status = content.get("metadata"), content.get("status")
        told = metadata if isinstance(metadata, Mapping) else {}
        title = "/".join(shown(told[part]) for part in ("namespace", "name") if told.get(part)) or f"#{position}"
        allocation = status.get("allocation") if isinstance(status, Mapping) else None
        if not isinstance(allocation, Mapping) or not allocation:
            raise AllocationError(f"claim {title}: {_told(content, error)}") from None
        faults.append(Ignored(f"claim {title}", f"{_told(content, error)}; what it holds counts all the same"))
        return holder(shown(told.get("namespace") or ""), shown(told.get("name") or ""), allocation)


def _refuse_twins(claim: Claim) -> None:
    """Raises FieldError for requests of one name whose devices nobody could tell apart in the result.

    Requests that ask by count are told apart by their order, as upstream's allocator leaves it.
    """
    for number, request in enumerate(claim.requests):
        same = [other for other in claim.requests if other.name == request.name]
        if len(same) > 1 and any(other.is_list or other.asks[0].is_all for other in same):
            told = f"is the name of {len(same)} requests, and not all of them ask by count; rename one"
            raise FieldError(f"spec.devices.requests[{number}].name", told)


def _told(content: Manifest, error: FieldError) -> str:
    """An error with the name of the request it is about, where it is about one."""
    try:
        requests = content["spec"]["devices"]["requests"]
        number = int(error.path.removeprefix("spec.devices.requests[").partition("]")[0])
        return f"request {shown(requests[number]['name'])}: {error}"
    except (KeyError, IndexError, TypeError, ValueError):
        return str(error)


def _read_usage(allocated: Manifest | None, claims: Sequence[Claim]) -> Usage:
    try:
        return read_usage(allocated, claims)
    except FieldError as error:
        raise AllocationError(f"{error}") from None


def _key(claim: Claim, position: int, claims: Sequence[Claim]) -> tuple[str, str]:
    """A claim's name, which claims of one call may share (D1)."""
    first = next(i for i, other in enumerate(claims) if (other.namespace, other.name) == (claim.namespace, claim.name))
    return claim.namespace, claim.name if first == position else f"{claim.name}#{position}"


def _read_classes(classes: Iterable[Manifest], claims: Sequence[Claim]) -> dict[str, Class]:
    """The classes that claims name. Raises AllocationError for one that does not exist or cannot be read."""
    known = {name_of(content): content for content in classes}
    found: dict[str, Class] = {}
    for claim in claims:
        for ask in (ask for request in claim.requests for ask in request.asks):
            name = ask.class_name
            if name not in known:
                near = nearest(name, known)
                raise AllocationError(
                    f"claim {claim.title}, request {ask.name}: {ask.path}.deviceClassName: "
                    f"could not retrieve device class {name}: it does not exist; create it, or name another"
                    + ("" if near is None else f"; did you mean {near!r}?")
                )
            if name not in found:
                try:
                    found[name] = read_class(known[name])
                except FieldError as error:
                    raise AllocationError(f"class {name}: {error}") from None
    return found


# -- refusals ------------------------------------------------------------------------------------------------------


def _refuse_broken_pools(claim: Claim, pools: Sequence[Pool]) -> None:
    """``All`` cannot be told while any pool of the node is incomplete or invalid."""
    for ask in (ask for request in claim.requests for ask in request.asks if ask.is_all):
        for pool in pools:
            if pool.state is not State.COMPLETE:
                state = "being updated" if pool.state is State.INCOMPLETE else "invalid"
                raise AllocationError(
                    f"claim {claim.title}, request {ask.name}: {ask.path}.allocationMode: asks for all devices, but "
                    f"resource pool {pool.title} is currently {state}: {pool.why}; wait for its driver, or ask by count"
                )


def _refuse_too_many(claim: Claim, choices: Sequence[Sequence[Choice]]) -> None:
    """A claim that cannot be met with 32 devices, whichever alternatives are taken (D4)."""
    total = 0
    for request, asks in zip(claim.requests, choices, strict=True):
        least = min(choice.size for choice in asks)
        if total + least > MOST_DEVICES:
            raise AllocationError(
                f"claim {claim.title}, request {request.name}: adding {least} devices exceeds the claim limit of "
                f"{MOST_DEVICES}, with {total} already accounted for; split the claim"
            )
        total += least


# -- when nothing fits ---------------------------------------------------------------------------------------------


def raise_failure(task: Task) -> None:
    """Raise the error that is the answer when nothing fits; return when there simply is too little.

    Raises OutOfTime when the time does not suffice to find that out.
    """
    for claim, message in _conflicts(task):
        raise AllocationError(f"claim {claim.title}, {message}")
    if task.errors:
        raise AllocationError(task.errors[0])
    broken = [pool for pool in task.pools if pool.state is State.INVALID]
    if broken:
        told = "; ".join(f"{pool.title}: {pool.why}" for pool in broken)
        raise AllocationError(f"invalid resource pools were encountered: {told}; correct its slices", node_local=True)


def _conflicts(task: Task) -> Iterator[tuple[Claim, str]]:
    """Requests for all devices that a constraint forbids: it makes no sense to ask so.

    What comes before the request fits, and then either its devices cannot be together under a constraint, or all
    would fit without the constraints on the request.
    """
    for position, demand in enumerate(task.unit.demands):
        before = task.unit.demands[:position]
        for detail, slots in enumerate(demand.details):
            for slot in slots:
                covering = [r for r in demand.relations if slot.label in r.labels]
                if slot.mode not in (Mode.EVERY, Mode.ADMIN_ALL) or not covering or not slot.candidates.accepted:
                    continue
                broken = [
                    r for r in covering if not _holds(r, [task.snapshot.devices[i] for i in slot.spec.verdict.accepted])
                ]
                if not _is_reached(task, before, demand, detail):
                    continue
                if not broken and not _is_in_the_way(task, before, _upto(demand, detail, slot), covering):
                    continue
                ask = slot.spec.ask
                names = " and ".join(sorted({r.attribute for r in broken or covering}))
                yield (
                    demand.claim.claim,
                    f"request {ask.name}: {ask.path}: cannot add all devices because a claim constraint would not be "
                    f"satisfied ({names}); narrow the request with a selector, or drop the constraint",
                )


def _holds(relation: Relation, devices: Sequence[Device]) -> bool:
    """Whether a relation holds among devices that are taken once each."""
    values = [device.values(relation.attribute) for device in devices]
    if not all(values):
        return False
    if relation.distinct:
        return sum(map(len, values)) == len(frozenset().union(*values))
    return not values or bool(frozenset.intersection(*values))


def _is_reached(task: Task, before: Sequence[Demand], demand: Demand, detail: int) -> bool:
    """Whether what comes before a request fits: otherwise that is what is missing."""
    return _fits(task, (*before, replace(demand, details=demand.details[:detail])))


def _is_in_the_way(task: Task, before: Sequence[Demand], start: Demand, relations: Sequence[Relation]) -> bool:
    """Whether requests would fit without these relations, and do not with them."""
    free = replace(start, relations=tuple(r for r in start.relations if r not in relations))
    return not _fits(task, (*before, start)) and _fits(task, (*before, free))


def _upto(demand: Demand, detail: int, slot: Slot) -> Demand:
    return replace(demand, details=(*demand.details[:detail], (slot,)))


def _fits(task: Task, demands: Sequence[Demand]) -> bool:
    waiting = [demand for demand in demands if demand.details]
    unit = make_unit(waiting, task.node.name)
    return not waiting or find(task.snapshot, task.holdings, unit, ends=task.ends) is not None


# -- output --------------------------------------------------------------------------------------------------------


def _results(task: Task, placements: Sequence[Placement]) -> list[dict[str, Any]]:
    """One result per claim of the call; a claim that came with an allocation keeps it."""
    found: dict[int, dict[str, Any]] = {}
    shares = ShareIds(task.usage.share_ids)
    for placement in sorted(placements, key=lambda p: p.demand.claim.position):
        pending: PendingClaim = placement.demand.claim
        found[pending.position] = make_result(
            pending.claim,
            given_by(placement.entries, task.offers),
            task.classes,
            task.node.name,
            task.gates,
            shares,
        )
    return [found[i] if i in found else dict(claim.allocation or {}) for i, claim in enumerate(task.claims)]
