"""Relaxations of a DeviceClaim: each rule of its spec that can be dropped, named by field path."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import gcd
from typing import Any

from devalloc.api.claim import COUNT, DeviceClaimDetail, RestrictedRequest
from devalloc.api.findings import Cause, claim_ref, fact
from devalloc.api.meta import GROUP_MATCH
from devalloc.api.node_rules import barred_nodes
from devalloc.api.quantity import NANO, Quantity
from devalloc.api.reasons import Reason
from devalloc_solver.dialects.device_claims.candidates import CandidateFinder
from devalloc_solver.dialects.device_claims.demands import candidates_off, make_request
from devalloc_solver.explain import supply_relaxations
from devalloc_solver.explain.feasibility import FeasibilityChecker, FeasibilityQuestion
from devalloc_solver.explain.relaxations import (
    Relaxation,
    RelaxationSet,
    RelaxationTier,
    UnitRelaxations,
    reduce_amount,
    unmatched_requests,
)
from devalloc_solver.problem.allocations import Key
from devalloc_solver.problem.demand import AllocationMode, Demand, PlacementUnit, Request
from devalloc_solver.problem.snapshot import Device, Snapshot


@dataclass(frozen=True, slots=True)
class DeviceClaimRelaxations(UnitRelaxations):
    """What a unit of DeviceClaims offers to be taken away, and what of the fleet concerns it."""

    eligibility: CandidateFinder
    held_back: Sequence[Device]
    """``supply_relaxations.withheld_devices`` of the fleet"""
    limits_of_pools: Relaxation
    """``supply_relaxations.shared_limits`` of the fleet"""
    drivers: Mapping[tuple[Key, str], frozenset[str] | None]
    """(claim, request) -> the drivers that its classes name, whatever is changed of them; None: any"""
    leaves_when_empty = True

    # -- the order -----------------------------------------------------------------------------------------------------

    def in_order(
        self, question: FeasibilityQuestion, finder: FeasibilityChecker, members: Sequence[Relaxation] = ()
    ) -> RelaxationSet:
        """All of them, for a unit that does not fit an empty fleet.

        ``members`` of the unit's group may be left out, once no rule alone will do.
        """
        if unmatched := {str(request.detail) for request in unmatched_requests(question.unit)}:
            return RelaxationSet(Reason.NO_MATCHING_DEVICES, self._without_match(question, unmatched))
        others = self._rules_and_requests(question, finder, members)
        pin = question.unit.pin
        own_node = None if pin is None else self.schedulability_edits(question.snapshot).get(pin)
        return RelaxationSet(short_reason(question.unit), others, self.pins(), self.matches(), self.shared(), own_node)

    def _rules_and_requests(
        self, question: FeasibilityQuestion, finder: FeasibilityChecker, members: Sequence[Relaxation]
    ) -> Iterator[RelaxationTier]:
        """Yield what is tried after the special tiers, in this order: limits, what is withheld, rules for nodes, other
        members of a group, amounts, shares, both, requests, then all of these.

        What to offer may take questions of its own, which are asked when it comes to them.
        """
        short = short_reason(question.unit)
        limits, withheld = self.limits(), self.withheld()
        yield Reason.INSUFFICIENT_CAPACITY, limits
        yield short, withheld
        yield from self.node_rules_by_reason()
        yield short, members
        amounts, shares, requests = self.amounts(), self.shares(question.snapshot), self.requests()
        rules = [*self.pins(), *self.node_rules(), *self.matches(), *self.shared(), *limits, *withheld]
        rules += [*amounts, *shares]
        more = [*rules, *self.constraints(), *self.classes(), *members]
        yield short, (too_much := _too_much_alone(question, amounts, finder))
        yield short, shares
        yield short, [*too_much, *shares] if shares else []
        yield short, requests if len(requests) > 1 else []
        yield short, rules
        yield short, more
        yield short, [*more, *requests]

    def _without_match(self, question: FeasibilityQuestion, unmatched: set[str]) -> Iterator[RelaxationTier]:
        """Yield what is tried if nothing matches: what is withheld, rules for nodes, then the rules of the details that
        nothing matches, then all rules."""

        def own(edits: list[Relaxation]) -> list[Relaxation]:
            return [edit for edit in edits if _detail_of_relaxation(edit) in unmatched]

        withheld, matches, constraints = self.withheld(), self.matches(), self.constraints()
        classes, requests = self.classes(), self.requests()
        requested = [*own(matches), *withheld, *own(constraints)]
        rest = [*self.pins(), *self.node_rules(), *self.shared(), *self.limits(), *self.amounts()]
        rest += self.shares(question.snapshot)
        rules = [*matches, *withheld, *constraints, *classes, *rest]
        tiers = [own(matches), own(constraints), requested, own(classes), [*requested, *own(classes)]]
        tiers += [own(requests) if len(requests) > 1 else [], rules, [*rules, *requests]]
        yield Reason.NO_MATCHING_DEVICES, withheld
        yield from self.node_rules_by_reason()
        yield from ((Reason.NO_MATCHING_DEVICES, edits) for edits in tiers)

    # -- rules of a claim ----------------------------------------------------------------------------------------------

    def matches(self) -> list[Relaxation]:
        """matchAttributes, of the spec, of the group and of each detail (S15)."""
        edits = [self._spec_match(demand, name) for demand in self.unit.demands for name in demand.match]
        shared = dict.fromkeys(name for demand in self.unit.demands for name in demand.shared)
        edits += [_drop_group_match(name) for name in shared]
        for demand, request in self.each_request():
            path = f"{path_of(request)}.matchAttributes"
            for name in dict.fromkeys(request.spec.match_attributes):
                entry = {"kind": "matchAttribute", "attribute": name, "path": path}
                change = partial(_without, field="match_attributes", name=name)
                edits.append(self.edit_request(demand, request, entry, change))
        return edits

    def limits(self) -> list[Relaxation]:
        """Limits that bind: that of count only where the count is not fixed (S9, S14)."""
        edits = []
        for demand, request in self.each_request():
            capped = request.mode in (AllocationMode.SHARE, AllocationMode.ADMIN_ALL)
            for name, limit in request.spec.limits.items():
                if capped if name == COUNT else not request.mode.is_admin:
                    path = f"{path_of(request)}.limits.{name}"
                    entry = {"kind": "limit", "resource": name, "path": path, "limit": str(limit)}
                    change = partial(_without, field="limits", name=name)
                    edits.append(self.edit_request(demand, request, entry, change))
        return edits

    def amounts(self) -> list[Relaxation]:
        """Requested amounts that could be less; narrowed to the most that fits."""
        edits = []
        for demand, request in self.each_request():
            for name, amount in request.spec.requests.items():
                if (amount.nano > NANO) if name == COUNT else not request.mode.is_admin:
                    edits.append(self._amount(demand, request, name))
        return edits

    def _amount(self, demand: Demand, request: Request, name: str) -> Relaxation:
        requested, path = request.spec.requests[name], f"{path_of(request)}.requests.{name}"

        def reduced_to(nano: int) -> Relaxation:
            most = Quantity(nano, requested.format)
            entry = {"kind": "amount", "resource": name, "path": path, "requested": str(requested), "most": str(most)}
            return self.edit_request(demand, request, entry, partial(_with_amount, name=name, amount=most))

        def granularity(question: FeasibilityQuestion) -> int:
            return NANO if name == COUNT else _amount_granularity(question, demand, request, name)

        return reduce_amount(NANO if name == COUNT else 1, requested.nano, reduced_to, granularity)

    def shares(self, snapshot: Snapshot) -> list[Relaxation]:
        """Amounts that no device for the request offers: one that shares devices gets whole ones without all of its
        amounts. What a machine asks for it cannot leave out."""
        edits = []
        for demand, request in self.each_request():
            if request.mode.is_admin or claim_ref(demand.key)["kind"] != "claim":
                continue
            offers = [snapshot.devices[index].resources for index in request.candidates.accepted]
            for name in (name for name in request.requests if not any(name in each for each in offers)):
                path, requested = f"{path_of(request)}.requests.{name}", str(request.spec.requests[name])
                is_last = request.mode is AllocationMode.SHARE and len(request.requests) == 1
                whole = {"whole": True} if is_last else {}
                entry = {"kind": "amount", "resource": name, "path": path, "requested": requested, **whole}
                edits.append(self.edit_request(demand, request, entry, partial(_without, field="requests", name=name)))
        return edits

    def constraints(self) -> list[Relaxation]:
        """Expressions of details."""
        edits = []
        for demand, request in self.each_request():
            if (expression := request.spec.constraints or "").strip():
                path = f"{path_of(request)}.constraints"
                entry = {"kind": "constraint", "path": path, "expression": expression}
                edits.append(self.edit_request(demand, request, entry, _without_constraints))
            if request.spec.value_restrictions:
                entry = {"kind": "constraint", "path": f"{path_of(request)}.constraints"}
                edit = self.edit_request(demand, request, entry, _without_restrictions)
                edits.append(replace(edit, why=(fact(Cause.OTHER_VALUE, attributes=_restricted(request)),)))
        return edits

    def classes(self) -> list[Relaxation]:
        """Class and type; a class with admin access is what makes a detail an admin one, so it stays."""
        edits = []
        for demand, request in self.each_request():
            field = "deviceClass" if request.spec.device_class else "deviceType"
            name = request.spec.device_class or request.spec.device_type
            if name and not request.mode.is_admin:
                path = f"{path_of(request)}.{field}"
                entry = {"kind": "class", "path": path, field: name}
                edits.append(self.edit_request(demand, request, entry, _of_any_class))
        return edits

    def _spec_match(self, demand: Demand, name: str) -> Relaxation:
        path = "spec.matchAttributes"
        entry = {"kind": "matchAttribute", "attribute": name, "path": path}
        return self.edit_demand(
            demand,
            entry,
            lambda other: replace(other, match=tuple(n for n in other.match if n != name), shape=None),
        )

    def request_place(self, demand: Demand, request: Request) -> tuple[str, str]:
        return str(request.detail), f"spec.claims[{request.detail}]"

    def request_entry(self, demand: Demand, request: Request) -> dict[str, Any]:
        return self.claim_entry(demand) | {"request": request.label}

    def judge_changed(
        self, demand: Demand, request: Request, change: Callable[[DeviceClaimDetail], DeviceClaimDetail]
    ) -> Request:
        pin = demand.claim.pinned_node
        changed = make_request(request.detail, request.alternative, change(request.spec), self.eligibility, pin)
        if not demand.restrictions:
            return changed
        snapshot = self.eligibility.snapshot
        barred = barred_nodes(demand.restrictions, (*snapshot.nodes, self.unit.pin))
        return replace(changed, candidates=candidates_off(barred, changed.candidates, snapshot))

    # -- the supply ----------------------------------------------------------------------------------------------------

    def withheld(self) -> list[Relaxation]:
        """Devices that are withheld and would do (S6a, S12)."""
        edit = supply_relaxations.release_withheld(self.held_back, self._meant, self._accepts)
        return [] if edit is None else [edit]

    def schedulability_edits(self, snapshot: Snapshot) -> Mapping[str, Relaxation]:
        """Nodes that get nothing new, and what makes each schedulable."""
        return supply_relaxations.make_schedulable(snapshot, self.held_back, self._accepts)

    def _accepts(self, demand: Demand, request: Request, device: Device) -> bool:
        return self.eligibility.accepts(request.spec, device, request.candidates.left_out)

    def _meant(self, unit: PlacementUnit) -> Callable[[Demand, Request, Device], bool]:
        """Whether a request of the unit, as it is changed by now, is to get a device that is withheld.

        None takes one of another driver than its classes name; and where a request is to have devices of another class,
        none takes one of other drivers than that request named: it would only fill the place of what that one takes.
        """
        pools = self.eligibility.snapshot.pools
        changed = [
            drivers
            for demand in unit.demands
            for request in demand.requests
            if (drivers := self.drivers.get((demand.key, request.label))) is not None
            and request.spec.device_class is request.spec.device_type is request.spec.driver is None
        ]
        meant = frozenset[str]().union(*changed) if changed else None

        def is_meant(demand: Demand, request: Request, device: Device) -> bool:
            driver, named = pools[device.pool].driver, self.drivers.get((demand.key, request.label))
            if (named is not None and driver not in named) or (meant is not None and driver not in meant):
                return False
            return self._accepts(demand, request, device)

        return is_meant

    def shared(self) -> list[Relaxation]:
        """Also where the candidates share nothing: other rules taken away may bring in devices that do."""
        return [self.limits_of_pools]


def _without(detail: DeviceClaimDetail, field: str, name: str) -> DeviceClaimDetail:
    """Without a name in a list or map of the detail."""
    values: list[str] | dict[str, Quantity] = getattr(detail, field)
    rest = [n for n in values if n != name]
    return detail.model_copy(update={field: {n: values[n] for n in rest} if isinstance(values, dict) else rest})


def _with_amount(detail: DeviceClaimDetail, name: str, amount: Quantity) -> DeviceClaimDetail:
    return detail.model_copy(update={"requests": {**detail.requests, name: amount}})


def _without_constraints(detail: DeviceClaimDetail) -> DeviceClaimDetail:
    return detail.model_copy(update={"constraints": None})


def _without_restrictions(detail: DeviceClaimDetail) -> DeviceClaimDetail:
    return RestrictedRequest.of(detail, (), detail.driver)


def _restricted(request: Request) -> list[str]:
    """The attributes of which a request wants a value that no user wrote."""
    return [each.attribute for each in request.spec.value_restrictions]


def _of_any_class(detail: DeviceClaimDetail) -> DeviceClaimDetail:
    return detail.model_copy(update={"device_class": None, "device_type": None})


def path_of(request: Request) -> str:
    """The request's detail in the claim's spec."""
    path = f"spec.claims[{request.detail}]"
    return path if request.alternative is None else f"{path}.oneOf[{request.alternative}]"


def _amount_granularity(question: FeasibilityQuestion, demand: Demand, request: Request, name: str) -> int:
    """Nano units of which all amounts that devices can give are multiples."""
    now = next(s for d in question.unit.demands if d.key == demand.key for s in d.requests if s.label == request.label)
    devices = (question.snapshot.devices[i] for i in now.candidates.accepted)
    return gcd(*(d.resources[name].block for d in devices if name in d.resources)) or 1


def _drop_group_match(name: str) -> Relaxation:
    """Among the members that are still to be placed: what others hold is not edited."""
    path = f"metadata.annotations[{GROUP_MATCH}]"
    entry = {"kind": "matchAttribute", "attribute": name, "path": path}

    def change(other: Demand) -> Demand:
        return replace(other, shared=tuple(n for n in other.shared if n != name))

    return Relaxation(entry, lambda question: question.with_demands(change))


def short_reason(unit: PlacementUnit) -> Reason:
    """Say whether devices are too few, or too small.

    A warm explainer asks this of a part of the fleet: a node of each kind, and some of those with the fewest claims in
    the way. It is safe to count what one node has, or whether any device matches; a total over all nodes differs from
    that of a cold solve, so it may only rule out what no node can have.
    """
    details = [detail for demand in unit.demands for detail in demand.details]
    amounts = any(request.requests for detail in details for request in detail)
    counted = any(_too_few(detail) for detail in details)
    return Reason.INSUFFICIENT_CAPACITY if amounts and not counted else Reason.NOT_ENOUGH_DEVICES


def _too_few(detail: Sequence[Request]) -> bool:
    """Counting alone shows it: fewer matching devices than needed."""
    return all(len(s.candidates.accepted) < s.min_count for s in detail if s.mode is not AllocationMode.ADMIN_ALL)


def _too_much_alone(
    question: FeasibilityQuestion, amounts: list[Relaxation], finder: FeasibilityChecker
) -> list[Relaxation]:
    """Amounts of the details that fit nowhere even on their own."""
    details = [
        (demand.key, detail[0].detail, (demand.key, demand.detail_key(detail)))
        for demand in question.unit.demands
        for detail in demand.details
    ]
    if len(details) < 2:
        return amounts
    fits: dict[object, bool] = {}
    for key, number, kind in details:
        if kind not in fits:
            fits[kind] = finder.works(_only_detail(question, key, number))
    hopeless = [(key, number) for key, number, kind in details if not fits[kind]]
    named = {(f"{namespace}/{name}", str(number)) for (namespace, name), number in hopeless}
    one = f"{question.unit.demands[0].key[0]}/{question.unit.demands[0].key[1]}"
    return [edit for edit in amounts if (edit.entry.get("claim", one), _detail_of_relaxation(edit)) in named]


def _only_detail(question: FeasibilityQuestion, key: Key, number: int) -> FeasibilityQuestion:
    """The question for one detail only."""
    return question.with_requests(
        lambda demand, request: request if (demand.key, request.detail) == (key, number) else None
    )


def _detail_of_relaxation(edit: Relaxation) -> str:
    return str(edit.entry.get("request", "")).partition(".")[0]
