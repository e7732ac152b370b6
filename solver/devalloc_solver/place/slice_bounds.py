"""Bounds per slice of a card: total demand on a slice cannot exceed the free capacity of that slice.

Two bounds per slice position of all cards. The demand that must fall on a position cannot exceed its free capacity:
there are at most as many partitions that begin at the first slice as cards. And the most that devices can draw on a
position bounds how much of it stays unused if requests need a whole family of slices.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from devalloc_solver.place.node_view import NodeView
from devalloc_solver.place.requests import UnitRequests

_DIGITS = re.compile(r"\d+")
_OTHERS = re.compile(r"\d+(?=.*\d)(?!\d)", re.DOTALL)
"""all numbers but the last"""

Draws = Mapping[str, int]
"""place or family -> nano units"""
_NOTHING: Draws = {}


@dataclass(frozen=True, slots=True, eq=False)
class SliceBounds:
    """The places of a site that some lot draws on."""

    free: Draws
    """by place, on all cards together"""
    family: Mapping[str, str]
    """place -> its family"""
    peers: Sequence[int]
    """see ``NodeView.peers``"""
    peer: Sequence[int]
    """ask -> its peers"""
    least: Mapping[int, Draws]
    """peers -> what every device that they may take draws, by place"""
    most: Mapping[int, Draws]
    """peers -> the most that a device they may take draws, by place"""
    lightest: Mapping[int, Draws]
    """peers -> the least that a device they may take draws, by family"""

    def may_fit(self, asks: UnitRequests, allowed: int) -> bool:
        """Whether what the allowed asks draw may be had. Of the allowed asks of a detail, any will do."""
        if not self.free:
            return True
        low: dict[str, int] = defaultdict(int)
        high: dict[str, int] = defaultdict(int)
        wanted: dict[str, int] = defaultdict(int)
        is_bounded = not allowed & ~asks.exact & ~asks.admin
        for detail in asks.details if allowed & ~asks.alone else ():
            open_asks = detail & allowed & ~asks.admin & ~asks.alone
            if not open_asks:
                continue
            watching = bool(detail & allowed & asks.admin)
            some = [(self.peer[ask.number], asks.least[ask.number]) for ask in asks.of(open_asks)]
            if not watching:  # looking on draws nothing
                _add_minimum(low, [(self.least.get(peer, _NOTHING), count) for peer, count in some])
                _add_minimum(wanted, [(self.lightest.get(peer, _NOTHING), count) for peer, count in some])
            drawn = [(self.most.get(peer, _NOTHING), count) for peer, count in some]
            for place in {place: None for draws, _ in drawn for place in draws}:
                high[place] += max(draws.get(place, 0) * count for draws, count in drawn)
        for peer, together in enumerate(self.peers):
            count = asks.least_of(together & allowed & asks.alone)
            if not count:
                continue
            for total, draws in ((low, self.least), (wanted, self.lightest), (high, self.most)):
                for place, nano in draws.get(peer, _NOTHING).items():
                    total[place] += nano * count
        if any(nano > self.free[place] for place, nano in low.items()):
            return False
        useful: dict[str, int] = defaultdict(int)
        for place, free in self.free.items():
            useful[self.family[place]] += min(free, high[place]) if is_bounded else free
        return all(nano <= useful[family] for family, nano in wanted.items())


def make_slice_bounds(site: NodeView) -> SliceBounds:
    """The places of a site."""
    names = {name for lot in site.lots for name, _ in lot.draws}
    place = {name: _OTHERS.sub("#", name) for name in names}
    free: dict[str, int] = defaultdict(int)
    for pool in site.pools:
        for name, resource in pool.resources.items():
            if name in names:
                free[place[name]] += site.ledger.free_pool_blocks(pool.index, name) * resource.block
    family = {one: _DIGITS.sub("#", one) for one in free}
    drawn: dict[tuple[int, bool, tuple[tuple[str, int], ...]], None] = {}
    """(takers, whether several may take it, what it draws by place) of the lots, equal ones once"""
    for lot in site.lots:
        resources = site.pools[lot.pool].resources
        draws = tuple((place[name], blocks * resources[name].block) for name, blocks in lot.draws)
        drawn[lot.takers & ~site.asks.admin, lot.one.shareable, draws] = None
    least: dict[int, dict[str, int]] = {}
    most: dict[int, dict[str, int]] = {}
    lightest: dict[int, dict[str, int]] = {}
    for takers, shareable, draws in drawn:
        here, weight = _sum_draws(draws), _sum_draws((family[one], nano) for one, nano in draws)
        for peer, asks in enumerate(site.peers):
            if not asks & takers:
                continue
            # The first taker of a shareable device draws for all.
            _keep_minimum(least, peer, {} if shareable else here)
            _keep_minimum(lightest, peer, {} if shareable else weight)
            top = most.setdefault(peer, {})
            for one, nano in here.items():
                top[one] = max(top.get(one, 0), nano)
    return SliceBounds(free, family, site.peers, site.peer, least, most, lightest)


def _sum_draws(parts: Iterable[tuple[str, int]]) -> dict[str, int]:
    total: dict[str, int] = defaultdict(int)
    for one, nano in parts:
        total[one] += nano
    return total


def _keep_minimum(rows: dict[int, dict[str, int]], peer: int, drawn: Draws) -> None:
    """Of all peers what all devices so far draw at the least."""
    row = rows.setdefault(peer, {**drawn})
    if row != drawn:
        rows[peer] = {one: min(nano, drawn[one]) for one, nano in row.items() if one in drawn}


def _add_minimum(total: dict[str, int], some: list[tuple[Draws, int]]) -> None:
    """Add the least that any of these draws."""
    first, count = some[0]
    for one, nano in first.items():
        total[one] += min(nano * count, *(draws.get(one, 0) * times for draws, times in some[1:]), nano * count)
