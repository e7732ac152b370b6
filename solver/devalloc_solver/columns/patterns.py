"""All minimal sets of devices that satisfy a choice of alternatives on a node, counted by cell.

All rules that bind the devices of one claim live here (S8 to S10, S15): counts, totals and limits of resources,
attributes that match or differ; and that a group is satisfied as one. What binds different claims together,
free devices and counters, belongs to the state (``state_network``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from devalloc_solver.columns.claim_kinds import AlternativeChoice
from devalloc_solver.columns.node_geometry import DeviceCell, Geometry, NodeTemplate, NodeTemplates
from devalloc_solver.place import SearchDeadline
from devalloc_solver.problem.demand import Demand, Request, relation_holds

MAX_PATTERNS = 1_000
"""Patterns that one way may have on one geometry."""

MAX_TRIED = 20_000
"""Choices for one request that are followed in finding them: about half a second, whatever is asked for."""

STEPS_PER_CHOICE = 3
"""Steps to follow one choice: the choice, the request after it, and each value that its devices may match in. A choice
that is not followed costs as much."""

Take = tuple[tuple[int, int], ...]
"""(cell, devices), for one request"""


@dataclass(frozen=True, slots=True)
class LocalRequest:
    """A request as a geometry sees it."""

    colors: tuple[int, ...]
    least: int
    most: int
    match: tuple[int, ...]
    """attributes"""
    requests: tuple[tuple[int, int], ...]
    """(resource, nano units)"""
    limits: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class LocalClaim:
    """What a way says of one claim, as a geometry sees it."""

    requests: tuple[LocalRequest, ...]
    match: tuple[int, ...]
    relations: tuple[tuple[int, bool, tuple[int, ...]], ...]
    """(attribute, whether values must differ, requests)"""
    most: int | None
    """devices over all requests"""


@dataclass(frozen=True, slots=True)
class LocalChoice:
    """A way as a geometry sees it: equal for all ways that can do the same there."""

    claims: tuple[LocalClaim, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """One set of devices that satisfies a way."""

    counts: tuple[int, ...]
    """cell -> devices"""
    takes: tuple[Take, ...]
    """the same, request by request, for all claims"""


@dataclass(slots=True, eq=False)
class Localizer:
    """Ways as the geometry of one template sees them. What several ways have in common is worked out once."""

    template: NodeTemplate
    node_templates: NodeTemplates
    _attributes: dict[str, int] = field(init=False)
    _resources: dict[str, int] = field(init=False)
    _colors: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """number of a candidate set -> the colors of its devices"""
    _requests: dict[int, LocalRequest | None] = field(default_factory=dict)
    """by identity"""

    def __post_init__(self) -> None:
        self._attributes = {name: number for number, name in enumerate(self.node_templates.attributes)}
        self._resources = {name: number for number, name in enumerate(self.node_templates.resources)}

    def localize(self, way: AlternativeChoice) -> LocalChoice | None:
        """The way as the geometry sees it; None where a request has no candidates there."""
        claims: list[LocalClaim] = []
        for demand, chosen in way.claims:
            claim = self._claim(demand, chosen)
            if claim is None:
                return None
            claims.append(claim)
        return LocalChoice(tuple(claims))

    def _claim(self, demand: Demand, chosen: Sequence[Request]) -> LocalClaim | None:
        requests: list[LocalRequest] = []
        for request in chosen:
            local = self._request(request)
            if local is None:
                return None
            requests.append(local)
        relations = tuple(
            (self._attributes[relation.attribute], relation.distinct, numbers)
            for relation in demand.relations
            if (numbers := tuple(n for n, request in enumerate(chosen) if request.label in relation.labels))
        )
        match = tuple(sorted(self._attributes[name] for name in demand.match))
        return LocalClaim(tuple(requests), match, relations, demand.most)

    def _request(self, request: Request) -> LocalRequest | None:
        if id(request) not in self._requests:
            colors = self._colors_of(self.node_templates.sets[id(request.candidates)])
            self._requests[id(request)] = None
            if colors:
                self._requests[id(request)] = LocalRequest(
                    colors,
                    request.min_count,
                    request.min_count if request.max_count is None else request.max_count,
                    tuple(sorted(self._attributes[name] for name in request.match)),
                    tuple(sorted((self._resources[name], amount) for name, amount in request.requests.items())),
                    tuple(sorted((self._resources[name], amount) for name, amount in request.limits.items())),
                )
        return self._requests[id(request)]

    def _colors_of(self, number: int) -> tuple[int, ...]:
        if number not in self._colors:
            members = self.node_templates.members
            self._colors[number] = tuple(
                c for c, signature in enumerate(self.template.signatures) if number in members[signature]
            )
        return self._colors[number]


def find_patterns(
    geometry: Geometry, way: LocalChoice, *, most_tried: int | None = None, deadline: SearchDeadline | None = None
) -> list[Pattern] | None:
    """All smallest patterns of a way; None when there are too many to handle, or they take too long to find.

    Args:
        most_tried: choices, instead of MOST_TRIED.
        deadline: when to stop.

    Raises SearchTimeout.
    """
    if not _may_fit(geometry.cells, way):
        return []
    by_counts: dict[tuple[int, ...], Pattern] = {}
    most = STEPS_PER_CHOICE * (MAX_TRIED if most_tried is None else most_tried)
    filler = _PatternSearch(geometry, [cell.size for cell in geometry.cells], most, deadline)
    try:
        for takes in filler.fill_all(way.claims):
            counts = [0] * len(geometry.cells)
            for cell, count in (part for take in takes for part in take):
                counts[cell] += count
            if _groups_hold(geometry.cells, counts) and _counters_hold(geometry, counts):
                by_counts.setdefault(tuple(counts), Pattern(tuple(counts), tuple(takes)))
                if len(by_counts) > MAX_PATTERNS:
                    return None
    except _TooManyPatterns:
        return None
    return _minimal_patterns(list(by_counts.values()))


def _may_fit(cells: Sequence[DeviceCell], way: LocalChoice) -> bool:
    """Whether there are enough devices for the requests that may have no others."""
    requests = [request for claim in way.claims for request in claim.requests]
    return all(
        sum(request.least for request in requests if {*request.colors} <= {*colors})
        <= sum(cell.size for cell in cells if cell.color in colors)
        for colors in dict.fromkeys(request.colors for request in requests)
    )


class _TooManyPatterns(Exception):
    """More choices than may be tried."""


@dataclass(slots=True, eq=False)
class _PatternSearch:
    """Chooses devices for request after request, and for claim after claim.

    What is left decides what can follow, not who took the rest: where it has been the same before, the patterns
    that follow are known.
    """

    geometry: Geometry
    left: list[int]
    """cell -> devices; changed on the way, and as before in the end"""
    most: int
    """looks"""
    deadline: SearchDeadline | None
    looks: int = 0
    _seen: set[object] = field(default_factory=set)

    def fill_all(self, claims: Sequence[LocalClaim]) -> Iterator[list[Take]]:
        """The takes of all requests of these claims, but for such as come to devices that were found before."""
        if self._is_known(len(claims), ()):
            return
        if not claims:
            yield []
            return
        first, rest = claims[0], claims[1:]
        for match in _match_values(self.geometry.cells, _eligible(self.geometry, first), first.match):
            for takes in self._fill(first, len(claims), match, []):
                if _constraints_hold(self.geometry.cells, first, takes):
                    for more in self.fill_all(rest):
                        yield [*takes, *more]

    def _fill(
        self, claim: LocalClaim, waiting: int, match: tuple[frozenset[int] | None, ...] | None, takes: list[Take]
    ) -> Iterator[list[Take]]:
        """The same for the other requests of a claim, which is the last but so many, at one choice of match values."""
        number = len(takes)
        bound = tuple(takes[n] for _, _, requests in claim.relations for n in requests if n < number)
        total = None if claim.most is None else sum(count for take in takes for _, count in take)
        if self._is_known(waiting, (number, match, bound, total)):
            return
        if number == len(claim.requests):
            yield list(takes)
            return
        request, cells, left = claim.requests[number], self.geometry.cells, self.left
        members = [
            c
            for c, cell in enumerate(cells)
            if cell.color in request.colors
            and (match is None or tuple(cell.values[a] for a in claim.match) == match)
            and all(cell.values[a] is not None for a in (*request.match, *claim.match))
        ]
        self._look(1 + len(cells) // 100)  # a step through all cells takes as long
        by_value: dict[tuple[frozenset[int] | None, ...], list[int]] = {} if request.match else {(): []}
        for c in members:
            by_value.setdefault(tuple(cells[c].values[a] for a in request.match), []).append(c)
        for own in by_value.values():
            self._look(1)
            for take in self._takes(request, own):
                for c, count in take:
                    left[c] -= count
                takes.append(take)
                yield from self._fill(claim, waiting, match, takes)
                takes.pop()
                for c, count in take:
                    left[c] += count

    def _takes(self, request: LocalRequest, own: Sequence[int]) -> Iterator[Take]:
        """Devices for one request: as few as satisfy it, however many that is in each mixture."""
        left = self.left
        is_amount = bool(request.requests or request.limits)
        most = min(request.most, sum(left[c] for c in own)) if is_amount else request.least
        for total in range(request.least, most + 1):
            for take in _distributions(own, left, total):
                self._look(1)
                if not is_amount or _amounts_hold(self.geometry, request, take):
                    yield take

    def _look(self, looks: int) -> None:
        self.looks += looks
        if self.looks > self.most:
            raise _TooManyPatterns
        if self.deadline is not None:
            self.deadline.spend(looks)

    def _is_known(self, waiting: int, more: tuple[object, ...]) -> bool:
        key = waiting, more, tuple(self.left)
        if key in self._seen:
            return True
        self._seen.add(key)
        return False


def _eligible(geometry: Geometry, way: LocalClaim) -> list[int]:
    colors = {color for request in way.requests for color in request.colors}
    return [c for c, cell in enumerate(geometry.cells) if cell.color in colors]


def _match_values(
    cells: Sequence[DeviceCell], members: Sequence[int], attributes: Sequence[int]
) -> list[tuple[frozenset[int] | None, ...] | None]:
    """The combinations of values that devices which match can have; [None] where nothing must match."""
    if not attributes:
        return [None]
    return list(dict.fromkeys(tuple(cells[c].values[a] for a in attributes) for c in members))


def _distributions(own: Sequence[int], left: Sequence[int], total: int) -> Iterator[Take]:
    """All ways to take so many devices of some cells; without recursion, for there may be thousands of cells."""
    if total == 0:
        yield ()
        return
    after = [*accumulate((left[c] for c in reversed(own)), initial=0)][::-1]  # devices of this cell and those after it
    if after[0] < total:
        return
    counts: list[int] = []
    needs, choices = [total], [_counts(left[own[0]], total, after[1])]
    while choices:
        del counts[len(choices) - 1 :]
        count = next(choices[-1], None)
        if count is None:
            choices.pop()
            needs.pop()
            continue
        counts.append(count)
        need = needs[-1] - count
        if need == 0:
            yield tuple((c, count) for c, count in zip(own, counts, strict=False) if count)
            continue
        number = len(counts)
        needs.append(need)
        choices.append(_counts(left[own[number]], need, after[number + 1]))


def _counts(size: int, need: int, after: int) -> Iterator[int]:
    """How many of a cell may be taken, most first: the cells after it must have the rest."""
    return iter(range(min(size, need), max(0, need - after) - 1, -1))


def _amounts_hold(geometry: Geometry, request: LocalRequest, take: Take) -> bool:
    """Totals of full capacities (S10)."""

    def total(resource: int) -> int:
        return sum(count * geometry.amounts[geometry.cells[c].color][resource] for c, count in take)

    return all(total(r) >= amount for r, amount in request.requests) and all(
        total(r) <= most for r, most in request.limits
    )


def _counters_hold(geometry: Geometry, counts: Sequence[int]) -> bool:
    """Whether the counters suffice if nothing else is in use. A card that is taken whole is recognised by one of its
    counters, so a pattern must not exceed another one."""
    drawn = [0] * len(geometry.counters)
    for cell, count in zip(geometry.cells, counts, strict=True):
        for counter, units in cell.draws:
            drawn[counter] += count * units
    return all(used <= most for used, most in zip(drawn, geometry.counters, strict=True))


def _groups_hold(cells: Sequence[DeviceCell], counts: Sequence[int]) -> bool:
    """Groups that exclude each other (S12a)."""
    groups: dict[int, int] = {}
    active = [cell.group for cell, count in zip(cells, counts, strict=True) if count and cell.group is not None]
    return all(groups.setdefault(domain, group) == group for domain, group in active)


def _constraints_hold(cells: Sequence[DeviceCell], way: LocalClaim, takes: Sequence[Take]) -> bool:
    """Relations, and the limit over all requests."""
    if way.most is not None and sum(count for take in takes for _, count in take) > way.most:
        return False
    return all(
        relation_holds(
            [cells[c].values[attribute] for n in requests for c, count in takes[n] for _ in range(count)],
            distinct=distinct,
        )
        for attribute, distinct, requests in way.relations
    )


def _minimal_patterns(patterns: list[Pattern]) -> list[Pattern]:
    """Without patterns that take more than another one does. Those of one size need no look."""
    sizes = {sum(pattern.counts) for pattern in patterns}
    if len(sizes) < 2:
        return patterns
    smallest: list[Pattern] = []
    for pattern in sorted(patterns, key=lambda p: sum(p.counts)):
        if not any(all(a <= b for a, b in zip(other.counts, pattern.counts, strict=True)) for other in smallest):
            smallest.append(pattern)
    return smallest
