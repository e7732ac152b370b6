"""What pending claims ask for: requests, and units of claims that are placed together on one node (S7-S11, S14-S16)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from devalloc.api.findings import Rule, RuleCode, rule
from devalloc.api.node_rules import NodeRestriction
from devalloc_solver.eligibility.facts import Eligible
from devalloc_solver.problem.allocations import Holding, Key


@dataclass(frozen=True, slots=True)
class FunnelStep:
    """One stage of the funnel: the devices that fell there."""

    rule: Rule
    devices: tuple[int, ...]
    example: str | None = None
    """Why the first of them fell, where there is more to say than the rule."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The devices that pass, each with the class that accepted it, and the funnel of those that do not."""

    accepted: Mapping[int, str | None]
    """device -> class name; classes in order of name, the first that accepts wins (S5)"""
    funnel: tuple[FunnelStep, ...]
    bars: frozenset[int] = frozenset()
    """devices of which a node must have none for the others there to be had (resource.k8s.io ``All``)"""
    barred: frozenset[str] = frozenset()
    """nodes where none of them is to be had, whatever reaches it: those that have such devices, or a broken pool"""
    left_out: frozenset[str] = frozenset()
    """drivers whose parts are not among them, because whole devices are offered (S6b)"""


def without_nodes(
    candidates: Candidates, nodes: frozenset[str], reached: Callable[[int], Collection[str] | None]
) -> Candidates:
    """The candidates that are to be had on other nodes than these. ``reached``: the nodes of a device; None: all."""
    barred = candidates.barred | nodes
    rejected = tuple(
        index
        for index in sorted(candidates.accepted)
        if (own := reached(index)) is not None and all(node in barred for node in own)
    )
    gone = frozenset(rejected)
    accepted = {index: named for index, named in candidates.accepted.items() if index not in gone}
    step = FunnelStep(rule(RuleCode.NODE_BARRED), rejected)
    funnel = (*candidates.funnel, step) if rejected else candidates.funnel
    bars = candidates.bars - gone
    return replace(candidates, accepted=accepted, funnel=funnel, bars=bars, barred=barred)


class AllocationMode(Enum):
    """How a request takes devices."""

    WHOLE = "whole"
    """so many devices; those in ``portions`` a fixed portion each, the others whole"""
    SHARE = "share"
    """amounts, split over devices as need be"""
    EVERY = "every"
    """every candidate that the node reaches, at least one; no other claim may hold any (resource.k8s.io ``All``)"""
    ADMIN_COUNT = "admin count"
    ADMIN_ALL = "admin all"

    def __init__(self, text: str) -> None:
        self.is_admin = text.startswith("admin")
        """whether it looks at devices only, which others may have (S14)"""
        self.is_counted = text in ("whole", "admin count")
        """whether it takes so many devices"""

    __hash__ = object.__hash__  # each is there once, and the one that enums have takes long


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the devices of several requests of one claim must have in common, or must not (resource.k8s.io constraints).

    Every device taken for a chosen request of ``labels`` has the attribute. A match: one value is on all of them.
    Distinct: no value is on two of them, and no device is taken twice. A list attribute has each of its members as a
    value.
    """

    attribute: str
    distinct: bool
    labels: frozenset[str]
    """labels of the requests"""


def relation_holds(values: Sequence[frozenset[Any] | None], *, distinct: bool) -> bool:
    """Whether devices, each taken once, have a value in common, or no value twice. ``values``: those of each device."""
    there = [own for own in values if own]
    if len(there) < len(values):
        return False
    if distinct:
        return len(frozenset().union(*there)) == sum(map(len, there))
    return not there or bool(frozenset.intersection(*there))


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One alternative of one detail of a claim. Amounts are in nano units, without ``count``."""

    detail: int
    alternative: int | None
    """index into oneOf, or None where the detail stands alone"""
    spec: Any
    """the dialect's own object, which only that dialect reads (a DeviceClaimDetail here)"""
    mode: AllocationMode
    min_count: int
    """fewest devices"""
    max_count: int | None
    """most devices, or None for no cap"""
    requests: Mapping[str, int]
    limits: Mapping[str, int]
    match: tuple[str, ...]
    candidates: Candidates
    eligible: Eligible
    """what decides by expressions whether a device is a candidate"""
    portions: Mapping[int, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    """candidate that is ``shareable`` -> what a portion takes of it; a request takes at most one portion of it, several
    requests may take one each"""

    @property
    def label(self) -> str:
        """The index into spec.claims as the annotation has it (S18)."""
        return str(self.detail) if self.alternative is None else f"{self.detail}.{self.alternative}"

    @property
    def takes_whole(self) -> bool:
        """Whether it takes whole devices, which no other claim has."""
        return self.mode is AllocationMode.WHOLE and not self.portions

    @property
    def fewest(self) -> int:
        """Devices without which it cannot be filled."""
        return self.min_count if self.mode.is_counted else 1

    def least_share(self, resource: str) -> int:
        """Nano units of a resource that it takes in shares, at the least."""
        return max(0, self.requests.get(resource, 0)) if self.mode is AllocationMode.SHARE else 0

    @property
    def asks(self) -> tuple[object, ...]:
        """All that decides which of its candidates it takes: requests in which it differs are never taken as equal."""
        requests = tuple(sorted(self.requests.items())) if self.requests else ()
        limits = tuple(sorted(self.limits.items())) if self.limits else ()
        return self.mode, self.min_count, self.max_count, self.match, requests, limits


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """A pending claim: for each detail the requests of which exactly one is filled."""

    claim: Any
    """the dialect's own object, which the stages between know by its key, priority and age only"""
    details: tuple[tuple[Request, ...], ...]
    match: tuple[str, ...]
    shared: tuple[str, ...] = ()
    """attributes with one value over all demands of the unit that name them here"""
    relations: tuple[Constraint, ...] = ()
    most: int | None = None
    """most entries over all details (32 in resource.k8s.io)"""
    once: bool = False
    """no device twice in the claim unless it is shareable, admin details included (resource.k8s.io)"""
    shape: object | None = None
    """equal for claims that ask for the same, whatever their names; None if that is not certain"""
    restrictions: tuple[NodeRestriction, ...] = ()
    """rules by which it keeps off nodes: its requests have no candidates there"""

    @property
    def key(self) -> Key:
        """(namespace, name) of the claim."""
        key: Key = self.claim.key
        return key

    @property
    def asks(self) -> tuple[object, ...]:
        """All that it asks for besides its requests: see ``Request.asks``."""
        relations = tuple((one.attribute, one.distinct, *sorted(one.labels)) for one in self.relations)
        return self.match, self.shared, relations, self.most, self.once

    def request_key(self, request: Request) -> tuple[object, ...]:
        """Return what is equal for requests of the claim that ask for the same of the same devices."""
        relations = enumerate(self.relations)
        return (
            id(request.candidates.accepted),
            request.asks,
            id(request.portions) if request.portions else None,
            tuple(number for number, one in relations if request.label in one.labels) if self.relations else (),
        )

    def detail_key(self, detail: Sequence[Request]) -> tuple[object, ...]:
        """Return what is equal for details of the claim of which one is as good as the other."""
        return tuple(map(self.request_key, detail))

    @property
    def requests(self) -> Iterator[Request]:
        """All alternatives of all details, in the order of the spec."""
        return (request for detail in self.details for request in detail)


def in_plain_terms(demand: Demand, is_listed: Callable[[str], bool]) -> Demand:
    """The demand with constraints over all requests, or over one, as match attributes, which are quicker to place.

    Every search does so, or claims would get other devices by one than by another.

    Args:
        is_listed: whether an attribute has a list of values on some device; such constraints stay as they are.
    """
    if not demand.relations:
        return demand
    every = {request.label for request in demand.requests}
    match: list[str] = []
    own: dict[int, list[str]] = {}
    relations: list[Constraint] = []
    for relation in demand.relations:
        labels = [{request.label for request in requests} for requests in demand.details]
        covered = [number for number, some in enumerate(labels) if some & relation.labels]
        if relation.distinct or is_listed(relation.attribute):
            relations.append(relation)
        elif relation.labels == every:
            match.append(relation.attribute)
        elif len(covered) == 1 and relation.labels == labels[covered[0]]:
            own.setdefault(covered[0], []).append(relation.attribute)
        else:
            relations.append(relation)
    details = tuple(
        tuple(replace(request, match=(*request.match, *own[number])) for request in requests)
        if number in own
        else requests
        for number, requests in enumerate(demand.details)
    )
    return replace(demand, details=details, match=(*demand.match, *match), relations=tuple(relations))


@dataclass(frozen=True, slots=True, eq=False)
class PlacementUnit:
    """Demands that are satisfied all or none and share a node: a group, or a claim on its own."""

    demands: tuple[Demand, ...]
    group: str | None
    pin: str | None
    """the only node allowed, whether pools have it or not"""
    pinned_by: frozenset[Key] = frozenset()
    """members of a group, those that hold devices included, of which each binds it to that node"""
    takes: frozenset[Key] | None = None
    """owners that may leave for it; None: any that may leave"""

    @property
    def requests(self) -> Iterator[Request]:
        """All alternatives of all details of all demands."""
        return (request for demand in self.demands for request in demand.requests)

    def with_requests(
        self, change: Callable[[Demand, Request], Request | None], only: Key | None = None
    ) -> PlacementUnit:
        """The same with every request changed, or those of one claim; what stays the same is the same object.

        A request that becomes None goes, as does a detail without any. Shapes stay: what is equal must change alike.
        """

        def changed(demand: Demand) -> Demand:
            if only not in (None, demand.key):
                return demand
            details = []
            for detail in demand.details:
                requests = tuple([new for request in detail if (new := change(demand, request)) is not None])
                if requests:
                    details.append(detail if requests == detail else requests)
            return demand if details == [*demand.details] else replace(demand, details=tuple(details))

        demands = tuple(map(changed, self.demands))
        return self if demands == self.demands else replace(self, demands=demands)

    @property
    def bound_by(self) -> tuple[Key, ...]:
        """Members of the group that hold devices, on the node that the others must go to."""
        return tuple(sorted(self.pinned_by - {demand.key for demand in self.demands}))

    def without(self, keys: Set[Key]) -> PlacementUnit:
        """The group once members have left it, and its pin with them where no other member has one."""
        pinned_by = self.pinned_by - keys
        pin = self.pin if pinned_by or not self.pinned_by else None
        return replace(self, demands=tuple(d for d in self.demands if d.key not in keys), pin=pin, pinned_by=pinned_by)

    def may_take(self, holding: Holding) -> bool:
        """Whether the owner of a holding may leave for it."""
        return holding.leave is not None and (self.takes is None or holding.owner in self.takes)

    @property
    def kind(self) -> object | None:
        """Equal for units that differ in name and age only; None for groups."""
        if self.group is not None:
            return None
        demand = self.demands[0]
        return None if demand.shape is None else (demand.claim.priority, self.pin, self.takes, demand.shape)

    @property
    def is_free(self) -> bool:
        """Told no node when all its devices turn out to be network devices (S7)."""
        return self.group is None and self.pin is None
