"""From claims to units, for both dialects: claims on their own, groups that share a node (S7), rejected claims."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from devalloc.api.claim import DeviceClaimStatus
from devalloc.api.findings import (
    AT_LENGTH,
    Cause,
    Fact,
    Finding,
    claim_ref,
    fact,
    first_of,
    group_ref,
    message_of,
    text_fact,
)
from devalloc.api.meta import NODE
from devalloc.api.owner_names import owner_of
from devalloc.api.reasons import Reason
from devalloc_solver.cel.budget import Allowance, Bound, OutOfTime, evaluate_in_turns
from devalloc_solver.problem.allocations import Key
from devalloc_solver.problem.answer import ClaimAnswer, held_answer
from devalloc_solver.problem.demand import Demand, PlacementUnit
from devalloc_solver.problem.ordering import OrderedClaim, claim_order


@dataclass(frozen=True, slots=True)
class RejectedClaim:
    """A claim that is not solved, and why."""

    key: Key
    reason: Reason
    causes: tuple[Fact, ...]
    group: str | None = None
    status: DeviceClaimStatus | None = None
    """What a DeviceClaim holds all the same: an invalid claim keeps the devices it was given (S13)."""
    allocation: Mapping[str, Any] | None = None
    """the same of a ResourceClaim"""
    node: str | None = None
    """of what it holds"""
    blockers: tuple[dict[str, Any], ...] = ()
    """what must exist or be corrected before the claim can be solved"""
    exceeded: Bound | None = None
    """what its expressions exceeded"""

    @property
    def text(self) -> str:
        """The causes at length."""
        return message_of(Finding(self.causes, self.blockers), AT_LENGTH)

    @property
    def data(self) -> dict[str, Any]:
        """What an answer says of it, as JSON."""
        message = message_of(Finding(self.causes, self.blockers))
        return {"message": message, "verdict": self.reason.verdict, "causes": [*map(dict, self.causes)]}

    @property
    def holds_devices(self) -> bool:
        return self.status is not None or self.allocation is not None

    def answer(self) -> ClaimAnswer:
        """Answer the claim: what it holds it keeps, and says what is wrong with it (S16)."""
        if self.holds_devices:
            entries = () if self.status is None else self.status.allocations
            held = tuple(entry.to_manifest() for entry in entries) if self.allocation is None else self.allocation
            return held_answer(self.key, self.node, held, warnings=(f"{self.reason}: {self.text}",))
        return ClaimAnswer(
            *self.key,
            allocated=False,
            reason=self.reason,
            **self.data,
            blockers=self.blockers,
            exceeded=self.exceeded,
        )


class GroupMember(Protocol):
    """A claim, waiting, allocated or rejected."""

    @property
    def key(self) -> Key: ...

    @property
    def group(self) -> str | None: ...


class WaitingClaim(GroupMember, OrderedClaim, Protocol):
    """A claim to be solved."""


WaitingT = TypeVar("WaitingT", bound=WaitingClaim)
MemberT = TypeVar("MemberT", bound=GroupMember)


@dataclass(frozen=True, slots=True)
class UnitRules(Generic[WaitingT, MemberT]):
    """What a dialect says of its claims."""

    make: Callable[[WaitingT], Demand | RejectedClaim]
    """the demand of a claim that waits; may raise OutOfTime and CommonBudgetExceeded"""
    single: Callable[[Demand], PlacementUnit]
    """the unit of a claim without a group"""
    node_of: Callable[[MemberT], str | None]
    """the node of a claim that holds devices"""
    agreeing: Callable[[list[Demand], Sequence[MemberT]], list[Demand] | Fact] = lambda members, _: members
    """the members, limited to devices that agree with those that others hold; or how these differ themselves"""


def build_units(
    waiting: Iterable[WaitingT],
    allocated: Iterable[MemberT],
    rejected: Iterable[RejectedClaim],
    rules: UnitRules[WaitingT, MemberT],
    allowance: Allowance,
) -> tuple[list[PlacementUnit], list[RejectedClaim]]:
    """The units worth solving, in the order claims are decided, and the claims that are not, but for ``rejected``."""
    refused: list[RejectedClaim] = []
    pending: dict[tuple[Key, bool], list[Demand]] = defaultdict(list)
    for outcome in evaluate_in_turns(sorted(waiting, key=claim_order), allowance, rules.make, timeout_rejection):
        if isinstance(outcome, Demand):
            name = outcome.claim.group
            pending[outcome.key if name is None else (outcome.key[0], name), name is not None].append(outcome)
        else:
            refused.append(outcome)
    has_groups = any(is_group for _, is_group in pending)
    holders = _by_group(allocated) if has_groups else {}
    failing = _by_group((*rejected, *refused)) if has_groups else {}
    units: list[PlacementUnit] = []
    for (group, is_group), members in pending.items():
        if not is_group:
            units += map(rules.single, members)
            continue
        unit = _group_unit(group, members, failing.get(group, ()), holders.get(group, ()), rules)
        if isinstance(unit, PlacementUnit):
            units.append(unit)
        else:
            refused += [RejectedClaim(d.key, Reason.GROUP_UNSATISFIABLE, (unit,), group[1]) for d in members]
    return units, refused


def timeout_rejection(claim: GroupMember, why: OutOfTime) -> RejectedClaim:
    """The refusal of a claim for which the time of the call did not suffice."""
    return RejectedClaim(claim.key, Reason.SEARCH_LIMIT, (text_fact(str(why)),), claim.group, exceeded=why.bound)


def _by_group(claims: Iterable[MemberT]) -> Mapping[Key, list[MemberT]]:
    """(namespace, name) of a group -> its members"""
    groups: dict[Key, list[MemberT]] = defaultdict(list)
    for claim in claims:
        if claim.group is not None:
            groups[claim.key[0], claim.group].append(claim)
    return groups


def _group_unit(
    group: Key,
    members: list[Demand],
    rejected: Sequence[RejectedClaim],
    allocated: Sequence[MemberT],
    rules: UnitRules[Any, MemberT],
) -> PlacementUnit | Fact:
    """The unit of a group, or why none of its members can be placed."""
    _, name = group
    failing = [one for one in rejected if not one.holds_devices and one.reason is not Reason.DELETING]
    if failing:
        first = min(failing, key=lambda one: one.key)
        why: dict[str, Any] = {"reason": str(first.reason), "cause": dict(first.causes[0])}
        return fact(Cause.MEMBER_FAILS, **group_ref(name), member=claim_ref(first.key), **why)
    bound = [(demand.key, demand.claim.pinned_node) for demand in members]
    bound += [(claim.key, rules.node_of(claim)) for claim in allocated]
    # An invalid member that holds devices is not solved, and fixes the node all the same.
    bound += [(one.key, one.node) for one in rejected if one.holds_devices]
    pins: dict[str, set[Key]] = defaultdict(set)
    for key, node in bound:
        if node:
            pins[node].add(key)
    if len(pins) > 1:
        names = {node: sorted({owner_of(key).name for key in keys}) for node, keys in sorted(pins.items())}
        nodes = [{"node": node, **first_of("members", own)} for node, own in names.items()]
        return fact(Cause.MEMBERS_APART, **group_ref(name), **first_of("nodes", nodes), see=NODE)
    pin, members_there = next(iter(pins.items()), (None, set()))
    agreeing = rules.agreeing(members, allocated)
    if not isinstance(agreeing, list):
        return {**agreeing, **group_ref(name)}
    return PlacementUnit(tuple(agreeing), name, pin, frozenset(members_there))
