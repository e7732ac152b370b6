"""The requests of a unit, read once for all nodes: each is a bit of a mask, with the constraints between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from devalloc_solver.place.step_budget import StepsExhausted
from devalloc_solver.problem.demand import AllocationMode, Demand, PlacementUnit, Request
from devalloc_solver.problem.snapshot import Device

Portion = tuple[tuple[str, int], ...]
"""(resource, nano units)"""

_NOTHING: frozenset[object] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class IndexedRequest:
    """One request of the unit: one alternative of one detail of one claim."""

    number: int
    demand: int
    detail: int
    """position in ``UnitRequests.details``, which counts over all claims"""
    request: Request
    bit: int
    """1 << number"""
    kind: int
    """equal for requests of one claim that ask for the same"""

    @property
    def is_fixed(self) -> bool:
        """Whether the node alone says which devices it gets."""
        return self.request.mode in (AllocationMode.EVERY, AllocationMode.ADMIN_ALL)

    @property
    def is_counted(self) -> bool:
        """Whether it wants so many devices whatever their size: no more than the least ever helps."""
        request = self.request
        if request.mode is AllocationMode.WHOLE:
            return not request.requests and not request.limits
        return request.mode is AllocationMode.SHARE and request.max_count == 1

    @property
    def is_single(self) -> bool:
        """Whether it gets one device only."""
        request = self.request
        return self.need == 1 and (
            self.is_counted or request.mode is AllocationMode.ADMIN_COUNT or request.max_count == 1
        )

    @property
    def need(self) -> int:
        """The fewest devices that it must have for itself."""
        return self.request.fewest

    def portion_of(self, device: Device) -> Portion:
        """What one take of a device consumes: of shares, whole blocks; nothing of a device that is taken whole."""
        request = self.request
        if request.mode is AllocationMode.SHARE:
            blocks = {name: device.resources[name].block for name in request.requests}
            return tuple((n, -(-nano // blocks[n]) * blocks[n]) for n, nano in sorted(request.requests.items()))
        return request.portions.get(device.index, ())


@dataclass(frozen=True, slots=True)
class MatchConstraint:
    """Devices of several requests that agree on attributes, or (in ``UnitRequests.distincts``) differ in one."""

    names: tuple[str, ...]
    request_mask: int
    """mask"""
    listed: bool
    """a list attribute has each of its members as a value"""

    def values(self, device: Device) -> frozenset[object]:
        """The values that devices may agree on; none where an attribute is missing (S15)."""
        if self.listed:
            return device.values(self.names[0])
        attributes = device.attributes
        if any(name not in attributes for name in self.names):
            return _NOTHING
        return frozenset((tuple(attributes[name] for name in self.names),))


@dataclass(frozen=True, slots=True, eq=False)
class UnitRequests:
    """The unit as the search sees it."""

    unit: PlacementUnit
    indexed_requests: tuple[IndexedRequest, ...]
    details: tuple[int, ...]
    """per detail, claims in order: the mask of its alternatives; they have consecutive bits"""
    ties: tuple[MatchConstraint, ...]
    distincts: tuple[MatchConstraint, ...]
    sets: tuple[tuple[Mapping[int, str | None], int], ...]
    """(accepted devices, mask of the requests that accept them)"""
    barred: tuple[tuple[frozenset[str], int], ...]
    """(nodes, mask of the requests that can have nothing there)"""
    portions: tuple[tuple[Mapping[int, Portion], int], ...]
    """(what a portion takes of each device, mask of the requests that take it)"""
    portioned: int
    """mask of the requests that take portions of some device"""
    resources: tuple[str, ...]
    """names that some request or limit has"""
    admin: int
    share: int
    least: tuple[int, ...]
    """per request: devices that no other request has; shares may be of one device"""
    alone: int
    """mask of the requests that have no alternative and look at nothing, those for every device aside"""

    def least_of(self, mask: int) -> int:
        """Devices that the requests of a mask must have for themselves, all together."""
        return sum([self.least[indexed.number] for indexed in self.of(mask)])

    @property
    def names(self) -> tuple[str, ...]:
        """The attributes that ties read."""
        return tuple(dict.fromkeys(name for tie in (*self.ties, *self.distincts) for name in tie.names))

    def barred_from(self, node: str | None) -> int:
        """The mask of the requests that can have nothing on a node."""
        barred = 0
        for nodes, mask in self.barred:
            if node in nodes:
                barred |= mask
        return barred

    def of(self, mask: int) -> Iterator[IndexedRequest]:
        """The requests of a mask, in order."""
        while mask:
            low = mask & -mask
            yield self.indexed_requests[low.bit_length() - 1]
            mask ^= low


def read_unit(unit: PlacementUnit) -> UnitRequests:
    """Raises StepsExhausted for the rare constructs that are left to CP-SAT."""
    indexed_requests: list[IndexedRequest] = []
    details: list[int] = []
    kinds: dict[object, int] = {}
    for number, demand in enumerate(unit.demands):
        for alternatives in demand.details:
            mask = 0
            for request in alternatives:
                kind = kinds.setdefault((number, demand.request_key(request)), len(kinds))
                indexed_requests.append(
                    IndexedRequest(
                        len(indexed_requests), number, len(details), request, 1 << len(indexed_requests), kind
                    )
                )
                mask |= indexed_requests[-1].bit
            details.append(mask)
    for indexed in indexed_requests:
        _reject_unsupported(indexed, unit.demands[indexed.demand])
    ties, distincts = _constraints(unit, indexed_requests)
    sets: dict[int, tuple[Mapping[int, str | None], int]] = {}
    portions: dict[int, tuple[Mapping[int, Portion], int]] = {}
    for indexed in indexed_requests:
        accepted = indexed.request.candidates.accepted
        sets[id(accepted)] = (accepted, sets.get(id(accepted), (accepted, 0))[1] | indexed.bit)
        if (taken := indexed.request.portions) and not indexed.request.mode.is_admin:
            portions[id(taken)] = (taken, portions.get(id(taken), (taken, 0))[1] | indexed.bit)
    amounts = [indexed.request for indexed in indexed_requests if not indexed.request.mode.is_admin]
    open_to_all = (AllocationMode.WHOLE, AllocationMode.SHARE)
    return UnitRequests(
        unit=unit,
        indexed_requests=tuple(indexed_requests),
        details=tuple(details),
        ties=ties,
        distincts=distincts,
        sets=tuple(sets.values()),
        barred=tuple(
            (indexed.request.candidates.barred, indexed.bit)
            for indexed in indexed_requests
            if indexed.request.candidates.barred
        ),
        portions=tuple(portions.values()),
        portioned=sum(indexed.bit for indexed in indexed_requests if indexed.request.portions),
        resources=tuple(sorted({n for s in amounts for n in (*s.requests, *s.limits)})),
        admin=sum(indexed.bit for indexed in indexed_requests if indexed.request.mode.is_admin),
        share=sum(indexed.bit for indexed in indexed_requests if indexed.request.mode is AllocationMode.SHARE),
        least=tuple(
            [
                indexed.request.min_count if indexed.request.mode is AllocationMode.WHOLE else 0
                for indexed in indexed_requests
            ]
        ),
        alone=sum(
            [
                indexed.bit
                for indexed in indexed_requests
                if details[indexed.detail] == indexed.bit and indexed.request.mode in open_to_all
            ]
        ),
    )


def indistinguishable(masks: Iterable[int], every: int) -> list[int]:
    """The requests of a mask, those together that none of the ``masks`` tells apart."""
    groups = [every] if every else []
    for mask in dict.fromkeys(masks):
        split = []
        for group in groups:
            inside = group & mask
            if inside and inside != group:
                split.append(inside)
                split.append(group ^ inside)
            else:
                split.append(group)
        groups = split
    return groups


def _reject_unsupported(indexed: IndexedRequest, demand: Demand) -> None:
    if demand.most is not None and indexed.request.mode is AllocationMode.SHARE:
        raise StepsExhausted("a cap on the entries of a claim with shares")


def _constraints(
    unit: PlacementUnit, indexed_requests: Sequence[IndexedRequest]
) -> tuple[tuple[MatchConstraint, ...], tuple[MatchConstraint, ...]]:
    """(what must agree, what must differ)"""
    ties: list[MatchConstraint] = []
    distincts: list[MatchConstraint] = []
    for number, demand in enumerate(unit.demands):
        own_requests = [indexed for indexed in indexed_requests if indexed.demand == number]
        if demand.match:
            ties.append(MatchConstraint(demand.match, sum(indexed.bit for indexed in own_requests), listed=False))
        for relation in demand.relations:
            mask = sum(indexed.bit for indexed in own_requests if indexed.request.label in relation.labels)
            if mask:
                (distincts if relation.distinct else ties).append(
                    MatchConstraint((relation.attribute,), mask, listed=True)
                )
        ties += [
            MatchConstraint(indexed.request.match, indexed.bit, listed=False)
            for indexed in own_requests
            if indexed.request.match
        ]
    for name in dict.fromkeys(name for demand in unit.demands for name in demand.shared):
        mask = sum(indexed.bit for indexed in indexed_requests if name in unit.demands[indexed.demand].shared)
        ties.append(MatchConstraint((name,), mask, listed=False))
    return tuple(ties), tuple(distincts)
