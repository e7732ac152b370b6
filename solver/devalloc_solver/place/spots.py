"""Pool resources by their place on a card: the first memory slice of every card, the second, and so on.

Two bounds of what is drawn on the same place of all cards. What devices must draw there is no more than is free there:
partitions that all begin at the first slice are as many as there are cards. And what they can draw there at the most
says how much of it is of no use, when a family of places is asked for all it has.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from devalloc_solver.demand import Mode
from devalloc_solver.place.asks import Ask, Asks
from devalloc_solver.place.site import Site

_DIGITS = re.compile(r"\d+")
_OTHERS = re.compile(r"\d+(?=.*\d)(?!\d)", re.DOTALL)
"""all numbers but the last"""

Draws = Mapping[str, int]
"""place or family -> nano units"""
_NOTHING: Draws = {}


@dataclass(frozen=True, slots=True, eq=False)
class Spots:
    """The places of a site that some lot draws on."""

    free: Draws
    """by place, on all cards together"""
    family: Mapping[str, str]
    """place -> its family"""
    least: Mapping[int, Draws]
    """ask -> what every device that it may take draws, by place"""
    most: Mapping[int, Draws]
    """ask -> the most that a device it may take draws, by place"""
    lightest: Mapping[int, Draws]
    """ask -> the least that a device it may take draws, by family"""

    def may_fit(self, asks: Asks, allowed: int) -> bool:
        """Whether what the allowed asks draw may be had. Of the allowed asks of a detail, any will do."""
        if not self.free:
            return True
        low: dict[str, int] = defaultdict(int)
        high: dict[str, int] = defaultdict(int)
        wanted: dict[str, int] = defaultdict(int)
        is_bounded = True
        for detail in asks.details:
            mine = [*asks.of(detail & allowed & ~asks.admin)]
            if not mine:
                continue
            is_bounded &= all(_is_exact(ask) for ask in mine)
            if not detail & allowed & asks.admin:  # looking on draws nothing
                _add_least(low, [(self.least.get(ask.number, _NOTHING), _count(ask)) for ask in mine])
                _add_least(wanted, [(self.lightest.get(ask.number, _NOTHING), _count(ask)) for ask in mine])
            some = [(self.most.get(ask.number, _NOTHING), _count(ask)) for ask in mine]
            for place in {place: None for draws, _ in some for place in draws}:
                high[place] += max(draws.get(place, 0) * count for draws, count in some)
        if any(drawn > self.free[place] for place, drawn in low.items()):
            return False
        useful: dict[str, int] = defaultdict(int)
        for place, free in self.free.items():
            useful[self.family[place]] += min(free, high[place]) if is_bounded else free
        return all(drawn <= useful[family] for family, drawn in wanted.items())


def spots_of(site: Site) -> Spots:
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
        mine = tuple((place[name], blocks * resources[name].block) for name, blocks in lot.draws)
        drawn[lot.takers & ~site.asks.admin, lot.one.shareable, mine] = None
    least: dict[int, dict[str, int]] = {}
    most: dict[int, dict[str, int]] = {}
    lightest: dict[int, dict[str, int]] = {}
    for takers, shareable, mine in drawn:
        here, weight = _summed(mine), _summed((family[one], nano) for one, nano in mine)
        for ask in site.asks.of(takers):
            # The first taker of a shareable device draws for all.
            _keep_least(least, ask.number, {} if shareable else here)
            _keep_least(lightest, ask.number, {} if shareable else weight)
            top = most.setdefault(ask.number, {})
            for one, nano in here.items():
                top[one] = max(top.get(one, 0), nano)
    return Spots(free, family, least, most, lightest)


def _summed(parts: Iterable[tuple[str, int]]) -> dict[str, int]:
    total: dict[str, int] = defaultdict(int)
    for one, nano in parts:
        total[one] += nano
    return total


def _keep_least(rows: dict[int, dict[str, int]], ask: int, drawn: Draws) -> None:
    """Of each ask what all devices so far draw at the least."""
    row = rows.setdefault(ask, {**drawn})
    if row != drawn:
        rows[ask] = {one: min(nano, drawn[one]) for one, nano in row.items() if one in drawn}


def _add_least(total: dict[str, int], some: list[tuple[Draws, int]]) -> None:
    """Add the least that any of these draws."""
    first, count = some[0]
    for one, nano in first.items():
        total[one] += min(nano * count, *(draws.get(one, 0) * times for draws, times in some[1:]), nano * count)


def _count(ask: Ask) -> int:
    """Devices that an ask has for itself."""
    return ask.slot.least if ask.slot.mode is Mode.WHOLE else 0


def _is_exact(ask: Ask) -> bool:
    """Whether it takes so many devices and no more."""
    return ask.is_counted and ask.slot.mode is Mode.WHOLE
