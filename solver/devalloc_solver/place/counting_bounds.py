"""Counting bounds: find without a search what cannot fit on a node.

This is a relaxation: any alternative of an open detail will do, devices differ only by the requests that may take them,
and only the sum of pool resources counts. A refutation is a proof; what passes must be searched.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import reduce
from operator import or_

from devalloc_solver.place.node_view import CandidateGroup, NodeView, device_state, resource_families
from devalloc_solver.place.requests import IndexedRequest, indistinguishable
from devalloc_solver.problem.demand import AllocationMode


def can_serve_all(demand_entries: Sequence[tuple[int, int]], sizes: Sequence[int]) -> bool:
    """``demand_entries`` are (mask of the classes they may take of, devices wanted); every device goes to one."""
    wanted = 0
    for candidate_mask, need in demand_entries:
        wanted += need
        if need > sum(size for position, size in enumerate(sizes) if candidate_mask >> position & 1):
            return False
    if wanted > sum(sizes):
        return False
    if len(demand_entries) < 2:
        return True
    free = list(sizes)
    given = [[0] * len(sizes) for _ in demand_entries]
    for number, (_, need) in enumerate(demand_entries):
        while need:
            moved = _augment(demand_entries, free, given, number, need)
            if not moved:
                return False
            need -= moved
    return True


def _augment(
    demand_entries: Sequence[tuple[int, int]], free: list[int], given: list[list[int]], number: int, need: int
) -> int:
    """Serve up to ``need`` more devices to an entry along one path, moving others aside; how many, 0 for none."""
    came: dict[int, tuple[int, int] | None] = {number: None}
    """demand entry -> (demand entry it makes room for, class it gives up)"""
    queue = [number]
    looked = 0
    """classes whose entries are in the queue"""
    for entry in queue:
        candidate_mask = demand_entries[entry][0] & ~looked
        for position, left in enumerate(free if candidate_mask else ()):
            if not candidate_mask >> position & 1:
                continue
            if left:
                return _move_along(came, free, given, entry, position, min(need, left))
            looked |= 1 << position
            for other in range(len(demand_entries)):
                if other not in came and given[other][position]:
                    came[other] = (entry, position)
                    queue.append(other)
    return 0


def _move_along(
    came: dict[int, tuple[int, int] | None],
    free: list[int],
    given: list[list[int]],
    entry: int,
    position: int,
    room: int,
) -> int:
    """Move devices along the path that ends at a free class."""
    path: list[tuple[int, int, int | None]] = []
    here: int | None = entry
    while here is not None:
        step = came[here]
        path.append((here, position, None if step is None else step[1]))
        if step is not None:
            room = min(room, given[here][step[1]])
            position = step[1]
            here = step[0]
        else:
            here = None
    free[path[0][1]] -= room
    for who, takes, gives in path:
        given[who][takes] += room
        if gives is not None:
            given[who][gives] -= room
    return room


_UNBOUNDED = 1 << 30
"""Takes of devices that are taken in portions: not bounded here."""


class CountingBounds:
    """The bounds of one node."""

    def __init__(self, node_view: NodeView) -> None:
        self.node_view = node_view
        self.takers = [candidate_group.takers for candidate_group in node_view.candidate_groups]
        self.families = resource_families(node_view)
        self.ties = [self._tie_values(number) for number in range(len(node_view.unit_requests.ties))]
        self._kinds: list[object] | None = None
        self._pools: dict[int, int] = {}

    @property
    def kinds(self) -> list[object]:
        """Per candidate group what distinguishes it, but for the attributes that ties read."""
        if self._kinds is None:
            unit_requests, usage = self.node_view.unit_requests, self.node_view.usage
            self._kinds = [
                (candidate_group.pool, device_state(unit_requests, candidate_group.one, usage))
                for candidate_group in self.node_view.candidate_groups
            ]
        return self._kinds

    def viable(self) -> int:
        """The requests that could be served on their own, as far as counts tell."""
        unit_requests = self.node_view.unit_requests
        cached: dict[tuple[int, int], bool] = {}
        viable = 0
        for indexed in unit_requests.indexed_requests:
            key = indexed.kind, self.node_view.peer[indexed.number]
            if key not in cached:
                cached[key] = self._is_viable(indexed)
            if cached[key]:
                viable |= indexed.bit
        for tie, values in zip(unit_requests.ties, self.ties, strict=True):
            viable &= ~tie.request_mask | reduce(or_, (mask for mask, _ in values))
        return viable

    def may_choose(self, allowed: int) -> bool:
        """Whether some choice among the allowed requests may fit, as things stand."""
        unit_requests = self.node_view.unit_requests
        if not self.may_fit(allowed, self.takers):
            return False
        for tie, values in zip(unit_requests.ties, self.ties, strict=True):
            spans = sum(1 for detail in unit_requests.details if detail & tie.request_mask) > 1
            if not any(self._may_agree(allowed & (mask | ~tie.request_mask), takers, spans) for mask, takers in values):
                return False
        return True

    def _may_agree(self, allowed: int, takers: Sequence[int], spans: bool) -> bool:
        """Whether a choice may fit on one value of a tie; a tie of one detail only says what that may choose."""
        return all(detail & allowed for detail in self.node_view.unit_requests.details) and (
            not spans or self.may_fit(allowed, takers)
        )

    def may_fit(self, allowed: int, takers: Sequence[int]) -> bool:
        """The same where ``takers`` (per candidate group) says who may take what. Details without an allowed request
        are left aside."""
        unit_requests = self.node_view.unit_requests
        positions: dict[int, int] = {}
        sizes: list[int] = []
        lightest: list[list[int]] = []
        """per class of candidate groups: what a device weighs at the least, by family"""
        for candidate_group, mask in zip(self.node_view.candidate_groups, takers, strict=True):
            if not (mask := mask & allowed & ~unit_requests.admin):
                continue
            weights = [
                0 if candidate_group.one.shareable else family.weights[candidate_group.number]
                for family in self.families
            ]
            position = positions.setdefault(mask, len(sizes))
            if position == len(sizes):
                sizes.append(0)
                lightest.append(weights)
            sizes[position] += _UNBOUNDED if candidate_group.one.shareable else candidate_group.size
            lightest[position] = [*map(min, lightest[position], weights)]
        needs_by_mask: dict[int, int] = defaultdict(int)
        totals = [0] * len(self.families)
        classes_of: dict[int, int] = {}
        """request -> the classes that it may take of"""
        light: dict[int, Sequence[int]] = {}
        """request -> what the lightest device weighs, by family"""
        for group in indistinguishable(positions, allowed & ~unit_requests.admin):
            members = [position for mask, position in positions.items() if mask & group]
            reached = sum([1 << position for position in members])
            weighs = [min([lightest[p][number] for p in members], default=0) for number in range(len(totals))]
            if alone := group & unit_requests.alone:
                if not reached:
                    return False
                count = unit_requests.least_of(alone)
                needs_by_mask[reached] += count
                totals = [total + count * weight for total, weight in zip(totals, weighs, strict=True)]
            for indexed in unit_requests.of(group & ~unit_requests.alone):
                classes_of[indexed.number], light[indexed.number] = reached, weighs
        for detail in unit_requests.details if allowed & ~unit_requests.alone else ():
            choice = detail & allowed & ~unit_requests.alone
            if not choice or choice & unit_requests.admin:
                continue
            some = [*unit_requests.of(choice)]
            reached = reduce(or_, [classes_of[indexed.number] for indexed in some])
            if not reached:
                return False
            needs_by_mask[reached] += min([self._exclusive(indexed, takers) for indexed in some])
            for number in range(len(totals)):
                totals[number] += min(
                    [unit_requests.least[indexed.number] * light[indexed.number][number] for indexed in some]
                )
        if any(total > family.total for total, family in zip(totals, self.families, strict=True)):
            return False
        return can_serve_all(list(needs_by_mask.items()), sizes)

    def _exclusive(self, indexed: IndexedRequest, takers: Sequence[int]) -> int:
        """Devices that a request must have for itself."""
        if indexed.request.mode is not AllocationMode.EVERY:
            return self.node_view.unit_requests.least[indexed.number]
        return sum(
            candidate_group.size
            for candidate_group in self.node_view.candidate_groups
            if takers[candidate_group.number] & indexed.bit and not candidate_group.one.shareable
        )

    def _is_viable(self, indexed: IndexedRequest) -> bool:
        candidate_groups = [
            candidate_group
            for candidate_group in self.node_view.candidate_groups
            if candidate_group.takers & indexed.bit
        ]
        request = indexed.request
        if not candidate_groups:
            return False
        if request.mode.is_counted:
            if sum(candidate_group.size for candidate_group in candidate_groups) < request.min_count:
                return False
            most = request.max_count
            return request.mode is not AllocationMode.WHOLE or all(
                _max_amount(candidate_groups, n, most) >= a for n, a in request.requests.items()
            )
        if request.mode is AllocationMode.SHARE:
            free = self.node_view.free_nano
            return all(
                sum(free(candidate_group, name) * candidate_group.size for candidate_group in candidate_groups) >= a
                for name, a in request.requests.items()
            )
        return request.mode is not AllocationMode.EVERY or all(
            candidate_group.takers & indexed.bit
            for candidate_group in self.node_view.candidate_groups
            if candidate_group.accepted & indexed.bit
        )

    # -- ties ----------------------------------------------------------------------------------------------------------

    def _tie_values(self, number: int) -> list[tuple[int, list[int]]]:
        """Per value of a tie: the requests that have enough devices with it, and who may take what then.

        The latter per candidate group. Values that the bounds cannot tell apart once only, and first "no value", which
        leaves all requests of the tie out.
        """
        node_view = self.node_view
        tie = node_view.unit_requests.ties[number]
        candidate_groups: dict[object, list[int]] = defaultdict(list)
        for candidate_group in node_view.candidate_groups:
            for value in node_view.tie_values[number][candidate_group.number]:
                candidate_groups[value].append(candidate_group.number)
        outside = [mask & ~tie.request_mask for mask in self.takers]
        by_signature: dict[object, tuple[int, list[int]]] = {None: (0, outside)}
        for numbers in candidate_groups.values():
            if not any(self.takers[position] & tie.request_mask for position in numbers):
                continue  # as good as no value
            signature: dict[object, int] = defaultdict(int)
            for position in numbers:
                candidate_group = node_view.candidate_groups[position]
                weights = tuple([family.weights[position] for family in self.families])
                signature[candidate_group.takers, candidate_group.one.shareable, weights] += candidate_group.size
            key = frozenset(signature.items())
            if key in by_signature:
                continue
            sizes: dict[int, int] = defaultdict(int)
            takers = list(outside)
            for position in numbers:
                candidate_group = node_view.candidate_groups[position]
                takers[position] = candidate_group.takers
                for indexed in node_view.unit_requests.of(candidate_group.takers & tie.request_mask):
                    sizes[indexed.number] += candidate_group.size
            mask = sum(1 << n for n, size in sizes.items() if size >= node_view.unit_requests.indexed_requests[n].need)
            by_signature[key] = mask, takers
        return [*by_signature.values()]

    def is_constant(self, chosen: int) -> bool:
        """Whether a choice needs equally many devices, however it is served."""
        unit_requests = self.node_view.unit_requests
        plain = all(
            indexed.is_counted and indexed.request.mode is AllocationMode.WHOLE for indexed in unit_requests.of(chosen)
        )
        return plain and not any(
            candidate_group.one.shareable and candidate_group.takers & chosen
            for candidate_group in self.node_view.candidate_groups
        )

    # -- pools ---------------------------------------------------------------------------------------------------------

    def fewest_pools(self, chosen: int) -> int:
        """A lower bound of the pools that a choice uses."""
        if chosen not in self._pools:
            self._pools[chosen] = self._fewest_pools(chosen)
        return self._pools[chosen]

    def _fewest_pools(self, chosen: int) -> int:
        needs: dict[tuple[tuple[int, int], ...], int] = {}
        sizes: dict[int, tuple[tuple[int, int], ...]] = {}
        for indexed in self.node_view.unit_requests.of(chosen):
            peer = self.node_view.peer[indexed.number]
            if peer not in sizes:
                sizes[peer] = self._sizes(indexed)
            key = sizes[peer]
            if indexed.is_fixed:
                needs[(*key, (-1, indexed.number))] = 0
            elif indexed.request.mode is AllocationMode.WHOLE:
                needs[key] = needs.get(key, 0) + indexed.request.min_count
            else:
                needs[key] = max(needs.get(key, 0), indexed.need)
        parts = []
        for key, need in needs.items():
            pools = frozenset(pool for pool, _ in key if pool >= 0)
            count = len(pools) if not need else 0
            for size in sorted((size for pool, size in key if pool >= 0), reverse=True):
                if need > 0:
                    need, count = need - size, count + 1
            parts.append((count, pools))
        total, used = 0, frozenset[int]()
        for count, pools in sorted(parts, key=lambda part: (-part[0], len(part[1]))):
            if not pools & used:
                total, used = total + count, used | pools
        return total

    def _sizes(self, indexed: IndexedRequest) -> tuple[tuple[int, int], ...]:
        """(pool, devices that a request may take of it)"""
        sizes: dict[int, int] = defaultdict(int)
        for candidate_group in self.node_view.candidate_groups:
            if candidate_group.takers & indexed.bit:
                sizes[candidate_group.pool] += _UNBOUNDED if candidate_group.one.shareable else candidate_group.size
        return tuple(sorted(sizes.items()))


def _max_amount(candidate_groups: Sequence[CandidateGroup], name: str, most: int | None) -> int:
    """The most that so many devices have of a resource."""
    amounts = sorted(
        (
            candidate_group.one.resources[name].nano
            for candidate_group in candidate_groups
            for _ in candidate_group.devices
            if name in candidate_group.one.resources
        ),
        reverse=True,
    )
    return sum(amounts[:most])
