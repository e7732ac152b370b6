"""What remains of a node once the requests for all matching devices have been served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from devalloc_solver.place.node_view import CandidateGroup, NodeView, count_fixed, devices_of_fixed
from devalloc_solver.place.requests import IndexedRequest
from devalloc_solver.problem.demand import AllocationMode


@dataclass(slots=True, eq=False)
class RemainingSupply:
    """The candidate groups of a node for one choice of alternatives and of values that ties agree on."""

    node_view: NodeView
    takers: list[int]
    """per candidate group: the requests that may still take of it"""
    free: list[dict[str, int]]
    """per pool: blocks of its resources"""
    groups: list[frozenset[object]]
    """per pool: compatibility groups in use"""
    drawn: set[int] = field(default_factory=set)
    """candidate groups whose devices draw on their pool already, by a fixed request"""
    seen: set[int] = field(default_factory=set)
    """candidate groups whose devices count already"""
    opened: set[int] = field(default_factory=set)
    """pools that count already"""
    spent: dict[int, dict[str, int]] = field(default_factory=dict)
    """candidate group -> nano units that fixed requests take of each of its devices"""
    values: list[set[object]] = field(default_factory=list)
    """per distinct: values in use"""

    def draws(self, candidate_group: CandidateGroup) -> tuple[tuple[str, int], ...]:
        return () if candidate_group.number in self.drawn else candidate_group.draws

    def group(self, candidate_group: CandidateGroup) -> object | None:
        return None if candidate_group.number in self.drawn else candidate_group.group

    def free_nano(self, candidate_group: CandidateGroup, name: str) -> int:
        """What is left of a resource of one device, in nano units; of what shares take, in whole blocks."""
        node_view = self.node_view
        left = (
            node_view.usage.free_nano(candidate_group.one, name)
            if candidate_group.one.shareable
            else node_view.free_nano(candidate_group, name)
        )
        return left - self.spent.get(candidate_group.number, {}).get(name, 0)


def serve_fixed_requests(node_view: NodeView, takers: Sequence[int], chosen: int) -> RemainingSupply | None:
    """Serve the fixed requests of ``chosen``; None when one cannot be. ``takers`` leave out what ties forbid."""
    usage = node_view.usage
    stock = RemainingSupply(
        node_view,
        list(takers),
        [{name: usage.free_pool_blocks(pool.index, name) for name in pool.resources} for pool in node_view.pools],
        [frozenset(usage.groups.get(pool.index, ())) for pool in node_view.pools],
        values=[set() for _ in node_view.unit_requests.distincts],
    )
    fixed = [indexed for indexed in node_view.unit_requests.of(chosen) if indexed.is_fixed]
    if not _within_entry_limit(node_view, chosen):
        return None
    owners: dict[tuple[int, int], int] = {}
    for indexed in fixed:
        candidate_groups = devices_of_fixed(node_view, indexed)
        if not candidate_groups or any(
            not takers[candidate_group.number] & indexed.bit for candidate_group in candidate_groups
        ):
            return None
        if (
            indexed.request.max_count is not None
            and sum(candidate_group.size for candidate_group in candidate_groups) > indexed.request.max_count
        ):
            return None
        if not all(_serve_request(stock, indexed, candidate_group) for candidate_group in candidate_groups):
            return None
        if node_view.unit_requests.unit.demands[indexed.demand].once:
            for candidate_group in candidate_groups:
                if (
                    not candidate_group.one.shareable
                    and owners.setdefault((indexed.demand, candidate_group.number), indexed.number) != indexed.number
                ):
                    return None
    for (demand, number), _ in owners.items():
        for other in node_view.unit_requests.of(stock.takers[number]):
            if other.demand == demand:
                stock.takers[number] &= ~other.bit
    return stock


def _within_entry_limit(node_view: NodeView, chosen: int) -> bool:
    """Whether no claim has more entries than it may have."""
    for number, demand in enumerate(node_view.unit_requests.unit.demands):
        if demand.most is not None:
            entries = 0
            for indexed in node_view.unit_requests.of(chosen):
                if indexed.demand == number:
                    entries += count_fixed(node_view, indexed) if indexed.is_fixed else indexed.need
            if entries > demand.most:
                return False
    return True


def _serve_request(stock: RemainingSupply, indexed: IndexedRequest, candidate_group: CandidateGroup) -> bool:
    """Give all devices of a candidate group to a fixed request."""
    node_view, number = stock.node_view, candidate_group.number
    for index, tie in enumerate(node_view.unit_requests.distincts):
        if tie.request_mask & indexed.bit:
            values = node_view.distinct_values[index][number]
            if not values or candidate_group.size > 1 or values & stock.values[index]:
                return False
            stock.values[index] |= values
    if indexed.request.mode is AllocationMode.EVERY:
        if candidate_group.one.shareable:
            spent = stock.spent.setdefault(number, {})
            for name, nano in indexed.request.portions[candidate_group.one.index]:
                spent[name] = spent.get(name, 0) + nano
                if stock.free_nano(candidate_group, name) < 0:
                    return False
        elif not stock.takers[number] & indexed.bit:
            return False
        else:
            stock.takers[number] &= node_view.unit_requests.admin
        if not _draw_on_pool(stock, candidate_group):
            return False
    stock.seen.add(number)
    stock.opened.add(candidate_group.pool)
    return True


def _draw_on_pool(stock: RemainingSupply, candidate_group: CandidateGroup) -> bool:
    """Draw on the pool for all devices of a candidate group, once."""
    if candidate_group.number in stock.drawn:
        return True
    free = stock.free[candidate_group.pool]
    for name, blocks in candidate_group.draws:
        free[name] -= blocks * candidate_group.size
        if free[name] < 0:
            return False
    if candidate_group.group is not None:
        if stock.groups[candidate_group.pool] - {candidate_group.group}:
            return False
        stock.groups[candidate_group.pool] |= {candidate_group.group}
    stock.drawn.add(candidate_group.number)
    return True
