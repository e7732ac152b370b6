"""What remains of a node once the requests for all matching devices have been served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from devalloc_solver.place.node_view import CandidateGroup, NodeView, count_fixed, devices_of_fixed
from devalloc_solver.place.requests import IndexedRequest
from devalloc_solver.problem.demand import AllocationMode


@dataclass(slots=True, eq=False)
class RemainingSupply:
    """The lots of a site for one choice of alternatives and of values that ties agree on."""

    site: NodeView
    takers: list[int]
    """per lot: the asks that may still take of it"""
    free: list[dict[str, int]]
    """per pool: blocks of its resources"""
    groups: list[frozenset[object]]
    """per pool: compatibility groups in use"""
    drawn: set[int] = field(default_factory=set)
    """lots whose devices draw on their pool already, by a fixed ask"""
    seen: set[int] = field(default_factory=set)
    """lots whose devices count already"""
    opened: set[int] = field(default_factory=set)
    """pools that count already"""
    spent: dict[int, dict[str, int]] = field(default_factory=dict)
    """lot -> nano units that fixed asks take of each of its devices"""
    values: list[set[object]] = field(default_factory=list)
    """per distinct: values in use"""

    def draws(self, lot: CandidateGroup) -> tuple[tuple[str, int], ...]:
        return () if lot.number in self.drawn else lot.draws

    def group(self, lot: CandidateGroup) -> object | None:
        return None if lot.number in self.drawn else lot.group

    def free_nano(self, lot: CandidateGroup, name: str) -> int:
        """What is left of a resource of one device, in nano units; of what shares take, in whole blocks."""
        site = self.site
        left = site.ledger.free_nano(lot.one, name) if lot.one.shareable else site.free_nano(lot, name)
        return left - self.spent.get(lot.number, {}).get(name, 0)


def serve_fixed_requests(site: NodeView, takers: Sequence[int], chosen: int) -> RemainingSupply | None:
    """Serve the fixed asks of ``chosen``; None when one of them cannot be. ``takers`` leave out what ties forbid."""
    ledger = site.ledger
    stock = RemainingSupply(
        site,
        list(takers),
        [{name: ledger.free_pool_blocks(pool.index, name) for name in pool.resources} for pool in site.pools],
        [frozenset(ledger.groups.get(pool.index, ())) for pool in site.pools],
        values=[set() for _ in site.asks.distincts],
    )
    fixed = [ask for ask in site.asks.of(chosen) if ask.is_fixed]
    if not _within_entry_limit(site, chosen):
        return None
    owners: dict[tuple[int, int], int] = {}
    for ask in fixed:
        lots = devices_of_fixed(site, ask)
        if not lots or any(not takers[lot.number] & ask.bit for lot in lots):
            return None
        if ask.request.max_count is not None and sum(lot.size for lot in lots) > ask.request.max_count:
            return None
        if not all(_serve_request(stock, ask, lot) for lot in lots):
            return None
        if site.asks.unit.demands[ask.demand].once:
            for lot in lots:
                if not lot.one.shareable and owners.setdefault((ask.demand, lot.number), ask.number) != ask.number:
                    return None
    for (demand, number), _ in owners.items():
        for other in site.asks.of(stock.takers[number]):
            if other.demand == demand:
                stock.takers[number] &= ~other.bit
    return stock


def _within_entry_limit(site: NodeView, chosen: int) -> bool:
    """Whether no claim has more entries than it may have."""
    for number, demand in enumerate(site.asks.unit.demands):
        if demand.most is not None:
            entries = 0
            for ask in site.asks.of(chosen):
                if ask.demand == number:
                    entries += count_fixed(site, ask) if ask.is_fixed else ask.need
            if entries > demand.most:
                return False
    return True


def _serve_request(stock: RemainingSupply, ask: IndexedRequest, lot: CandidateGroup) -> bool:
    """Give all devices of a lot to a fixed ask."""
    site, number = stock.site, lot.number
    for index, tie in enumerate(site.asks.distincts):
        if tie.asks & ask.bit:
            values = site.distinct_values[index][number]
            if not values or lot.size > 1 or values & stock.values[index]:
                return False
            stock.values[index] |= values
    if ask.request.mode is AllocationMode.EVERY:
        if lot.one.shareable:
            spent = stock.spent.setdefault(number, {})
            for name, nano in ask.request.portions[lot.one.index]:
                spent[name] = spent.get(name, 0) + nano
                if stock.free_nano(lot, name) < 0:
                    return False
        elif not stock.takers[number] & ask.bit:
            return False
        else:
            stock.takers[number] &= site.asks.admin
        if not _draw_on_pool(stock, lot):
            return False
    stock.seen.add(number)
    stock.opened.add(lot.pool)
    return True


def _draw_on_pool(stock: RemainingSupply, lot: CandidateGroup) -> bool:
    """Draw on the pool for all devices of a lot, once."""
    if lot.number in stock.drawn:
        return True
    free = stock.free[lot.pool]
    for name, blocks in lot.draws:
        free[name] -= blocks * lot.size
        if free[name] < 0:
            return False
    if lot.group is not None:
        if stock.groups[lot.pool] - {lot.group}:
            return False
        stock.groups[lot.pool] |= {lot.group}
    stock.drawn.add(lot.number)
    return True
