"""What the pending claims of a cluster demand: one unit per group of claims that share a node (S7)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from devalloc.api.meta import ALLOCATED_NODE, GROUP, NODE
from devalloc.api.nearest import nearest
from devalloc_solver.budget import OutOfTime, in_turns
from devalloc_solver.demand import Demand, Unit
from devalloc_solver.dra.candidates import Judge
from devalloc_solver.dra.documents import Intake, Key, Refused, pin_of, priority_of
from devalloc_solver.dra.errors import AllocationError
from devalloc_solver.dra.fields import FieldError, Fields
from devalloc_solver.dra.nodes import read_selector
from devalloc_solver.dra.objects import Claim
from devalloc_solver.dra.translate import MOST_DEVICES, ClaimMeta, PendingClaim, make_demand
from devalloc_solver.naming import claim_order
from devalloc_solver.reasons import VERDICTS, Reason


def key_of(claim: Claim) -> Key:
    return claim.namespace, claim.name


def pending(claim: Claim, position: int) -> PendingClaim:
    meta = ClaimMeta(claim.name, claim.created)
    return PendingClaim(key_of(claim), priority_of(claim), meta, claim, position)


def build_units(intake: Intake, judge: Judge) -> tuple[list[Unit], list[Refused]]:
    """The units worth solving, in the order claims are decided, and the claims that are not."""
    refused: list[Refused] = []
    demands: list[Demand] = []
    waiting = [pending(claim, i) for i, claim in enumerate(intake.claims) if claim.allocation is None]
    waiting.sort(key=claim_order)
    for made in in_turns(waiting, judge.selectors.allowance, lambda one: make(one, intake, judge), late):
        if isinstance(made, Demand):
            demands.append(made)
        else:
            refused.append(made)
    groups: dict[Key, list[Demand]] = defaultdict(list)
    for demand in demands:
        if (name := demand.claim.claim.annotations.get(GROUP)) is not None:
            groups[demand.claim.namespace, name].append(demand)
    units: list[Unit] = []
    for demand in demands:
        name = demand.claim.claim.annotations.get(GROUP)
        if name is None:
            units.append(alone(demand))
        elif (members := groups.pop((demand.claim.namespace, name), None)) is not None:
            found = _together((demand.claim.namespace, name), members, intake, refused)
            if isinstance(found, Unit):
                units.append(found)
            else:
                refused += found
    return units, refused


def late(one: PendingClaim, why: OutOfTime) -> Refused:
    """The refusal of a claim for which the time of the call did not suffice."""
    message = f"{VERDICTS[Reason.SEARCH_LIMIT]}: {why}"
    group = one.claim.annotations.get(GROUP)
    return Refused(one.key, Reason.SEARCH_LIMIT, message, group, exceeded=why.bound)


def make(one: PendingClaim, intake: Intake, judge: Judge) -> Demand | Refused:
    """The demand of a claim, or why it has none. Raises OutOfTime and CommonBudgetExceeded as ``Judge.choose``."""
    claim = one.claim
    if (refused := find_refusal(claim, intake)) is not None:
        return refused
    try:
        choices = [[judge.choose(claim, ask) for ask in request.asks] for request in claim.requests]
    except AllocationError as error:
        reason = Reason.CLASS_INVALID if error.message.startswith("class ") else Reason.CLAIM_INVALID
        return Refused(one.key, reason, error.message, claim.annotations.get(GROUP), exceeded=error.exceeded)
    return replace(make_demand(one, choices), shape=_shape(claim))


def find_refusal(claim: Claim, intake: Intake) -> Refused | None:
    """Why a claim is not solved, whatever devices there are."""
    key, group = key_of(claim), claim.annotations.get(GROUP)
    for ask in (ask for request in claim.requests for ask in request.asks):
        if ask.class_name in intake.broken_classes:
            told = f"{ask.path}.deviceClassName: class {ask.class_name!r} is invalid"
            return Refused(key, Reason.CLASS_INVALID, f"{told}: {intake.broken_classes[ask.class_name]}", group)
        if ask.class_name not in intake.classes:
            told = f"{ask.path}.deviceClassName: class {ask.class_name!r} does not exist"
            near = nearest(ask.class_name, [*intake.classes, *intake.broken_classes])
            told += "" if near is None else f"; did you mean {near!r}?"
            return Refused(key, Reason.CLASS_NOT_FOUND, told, group)
    least = sum(min(1 if ask.is_all else ask.count for ask in request.asks) for request in claim.requests)
    if least > MOST_DEVICES:
        told = f"spec.devices.requests: {least} devices exceed the claim limit of {MOST_DEVICES}; split the claim"
        return Refused(key, Reason.CLAIM_INVALID, told, group)
    return None


def _shape(claim: Claim) -> str:
    """Equal for claims that ask for the same."""
    asked = [[ask.to_key() for ask in request.asks] for request in claim.requests]
    told = [(one.attribute, one.distinct, sorted(one.requests)) for one in claim.constraints]
    names = [request.name for request in claim.requests]
    return repr((names, asked, told))


def alone(demand: Demand) -> Unit:
    """A claim of its own. One that may get a device which binds it to a node is told its node in any case."""
    binds = any(slot.spec.verdict.binds for slot in demand.slots)
    return Unit((demand,), demand.claim.claim.title if binds else None, pin_of(demand.claim.claim))


def _together(group: Key, members: list[Demand], intake: Intake, refused: Iterable[Refused]) -> Unit | list[Refused]:
    namespace, name = group

    def fail(message: str) -> list[Refused]:
        return [Refused(d.key, Reason.GROUP_UNSATISFIABLE, message, name) for d in members]

    failing = [
        r
        for r in (*intake.refused, *refused)
        if r.key[0] == namespace and r.group == name and r.allocation is None and r.reason is not Reason.DELETING
    ]
    if failing:
        first = min(failing, key=lambda r: r.key)
        told = f"{first.key[0]}/{first.key[1]} of group {name} fails: {first.reason}: {first.message}"
        return fail(f"member {told}")
    pins: dict[str, set[str]] = defaultdict(set)
    for demand in members:
        if pin := pin_of(demand.claim.claim):
            pins[pin].add(demand.key[1])
    for claim in intake.claims:
        is_mine = claim.allocation is not None and (claim.namespace, claim.annotations.get(GROUP)) == group
        if is_mine and (node := node_of(claim)):
            pins[node].add(claim.name)
    if len(pins) > 1:
        told = ", ".join(f"{node} ({', '.join(sorted(bound))})" for node, bound in sorted(pins.items()))
        return fail(f"members of group {name} are bound to different nodes: {told}; see the annotation {NODE}")
    pin, names = next(iter(pins.items()), (None, set()))
    return Unit(tuple(members), name, pin, frozenset((namespace, one) for one in names))


def node_of(claim: Claim) -> str | None:
    """The node of an allocated claim, where it has one."""
    named = claim.annotations.get(ALLOCATED_NODE)
    if named or claim.allocation is None:
        return named or None
    return selected_node(claim.allocation)


def selected_node(allocation: Mapping[str, Any]) -> str | None:
    """The only node that the selector of an allocation selects by name."""
    try:
        selector = Fields(allocation, "").given("nodeSelector", read_selector) or ()
    except FieldError:
        return None
    for line in selector[0].fields if len(selector) == 1 else ():
        if line.key == "metadata.name" and line.operator == "In":
            return line.values[0]
    return None
