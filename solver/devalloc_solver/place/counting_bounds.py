"""Counting bounds: find without a search what cannot fit on a node.

This is a relaxation: any alternative of an open detail will do, devices differ only by the requests that may take them,
and only the sum of pool resources counts. A refutation is a proof; what passes must be searched.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from devalloc_solver.bounds.transport import can_serve_all
from devalloc_solver.place.node_view import CandidateGroup, NodeView, device_state
from devalloc_solver.place.requests import IndexedRequest, UnitRequests, indistinguishable
from devalloc_solver.place.resource_families import resource_families
from devalloc_solver.problem.demand import AllocationMode

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


_UNBOUNDED = 1 << 30
"""Takes of devices that are taken in portions: not bounded here."""


class CountingBounds:
    """The bounds of one node."""

    def __init__(self, site: NodeView) -> None:
        self.site = site
        self.takers = [lot.takers for lot in site.lots]
        self.families = resource_families(site)
        self.spots = make_slice_bounds(site)
        self.ties = [self._tie_values(number) for number in range(len(site.asks.ties))]
        self.distincts = [_value_masks(values) for values in site.distinct_values]
        """per distinct, per lot: the values as bits"""
        self._kinds: list[object] | None = None
        self._pools: dict[int, int] = {}

    @property
    def kinds(self) -> list[object]:
        """Per lot what distinguishes it, but for the attributes that ties read."""
        if self._kinds is None:
            asks, ledger = self.site.asks, self.site.ledger
            self._kinds = [(lot.pool, device_state(asks, lot.one, ledger)) for lot in self.site.lots]
        return self._kinds

    def viable(self) -> int:
        """The asks that could be served on their own, as far as counts tell."""
        asks = self.site.asks
        cached: dict[tuple[int, int], bool] = {}
        viable = 0
        for ask in asks.asks:
            key = ask.kind, self.site.peer[ask.number]
            if key not in cached:
                cached[key] = self._is_viable(ask)
            if cached[key]:
                viable |= ask.bit
        for tie, values in zip(asks.ties, self.ties, strict=True):
            viable &= ~tie.asks | reduce(or_, (mask for mask, _ in values))
        return viable

    def may_choose(self, allowed: int) -> bool:
        """Whether some choice among the allowed asks may fit, as things stand."""
        asks = self.site.asks
        if not self.may_fit(allowed, self.takers) or not self.spots.may_fit(asks, allowed):
            return False
        for tie, values in zip(asks.ties, self.ties, strict=True):
            spans = sum(1 for detail in asks.details if detail & tie.asks) > 1
            if not any(self._may_agree(allowed & (mask | ~tie.asks), takers, spans) for mask, takers in values):
                return False
        return True

    def _may_agree(self, allowed: int, takers: Sequence[int], spans: bool) -> bool:
        """Whether a choice may fit on one value of a tie; a tie of one detail only says what that may choose."""
        return all(detail & allowed for detail in self.site.asks.details) and (
            not spans or self.may_fit(allowed, takers)
        )

    def may_fit(self, allowed: int, takers: Sequence[int]) -> bool:
        """The same where ``takers`` (per lot) says who may take what. Details without an allowed ask are left aside."""
        asks = self.site.asks
        positions: dict[int, int] = {}
        sizes: list[int] = []
        lightest: list[list[int]] = []
        """per class of lots: what a device weighs at the least, by family"""
        for lot, mask in zip(self.site.lots, takers, strict=True):
            if not (mask := mask & allowed & ~asks.admin):
                continue
            weights = [0 if lot.one.shareable else family.weights[lot.number] for family in self.families]
            position = positions.setdefault(mask, len(sizes))
            if position == len(sizes):
                sizes.append(0)
                lightest.append(weights)
            sizes[position] += _UNBOUNDED if lot.one.shareable else lot.size
            lightest[position] = [*map(min, lightest[position], weights)]
        lanes: dict[int, int] = defaultdict(int)
        totals = [0] * len(self.families)
        spots: dict[int, int] = {}
        """ask -> the classes that it may take of"""
        light: dict[int, Sequence[int]] = {}
        """ask -> what the lightest device weighs, by family"""
        for group in indistinguishable(positions, allowed & ~asks.admin):
            members = [position for mask, position in positions.items() if mask & group]
            reached = sum([1 << position for position in members])
            weighs = [min([lightest[p][number] for p in members], default=0) for number in range(len(totals))]
            if alone := group & asks.alone:
                if not reached:
                    return False
                count = asks.least_of(alone)
                lanes[reached] += count
                totals = [total + count * weight for total, weight in zip(totals, weighs, strict=True)]
            for ask in asks.of(group & ~asks.alone):
                spots[ask.number], light[ask.number] = reached, weighs
        for detail in asks.details if allowed & ~asks.alone else ():
            choice = detail & allowed & ~asks.alone
            if not choice or choice & asks.admin:
                continue
            some = [*asks.of(choice)]
            reached = reduce(or_, [spots[ask.number] for ask in some])
            if not reached:
                return False
            lanes[reached] += min([self._exclusive(ask, takers) for ask in some])
            for number in range(len(totals)):
                totals[number] += min([asks.least[ask.number] * light[ask.number][number] for ask in some])
        if any(total > family.total for total, family in zip(totals, self.families, strict=True)):
            return False
        return can_serve_all(list(lanes.items()), sizes) and self._may_differ(allowed, takers)

    def _may_differ(self, allowed: int, takers: Sequence[int]) -> bool:
        """Whether there are values enough where devices must differ: each takes one for itself at the least."""
        asks = self.site.asks
        for tie, values in zip(asks.distincts, self.distincts, strict=True):
            lanes: dict[int, int] = defaultdict(int)
            for detail in asks.details:
                open_asks = detail & allowed
                if open_asks and not open_asks & ~tie.asks:
                    reached = (mask for mask, lot in zip(values, takers, strict=True) if lot & open_asks)
                    lanes[reduce(or_, reached, 0)] += min(ask.need for ask in asks.of(open_asks))
            if lanes and not can_serve_all(list(lanes.items()), [1] * max(values, default=0).bit_length()):
                return False
        return True

    def _exclusive(self, ask: IndexedRequest, takers: Sequence[int]) -> int:
        """Devices that an ask must have for itself."""
        if ask.request.mode is not AllocationMode.EVERY:
            return self.site.asks.least[ask.number]
        return sum(lot.size for lot in self.site.lots if takers[lot.number] & ask.bit and not lot.one.shareable)

    def _is_viable(self, ask: IndexedRequest) -> bool:
        lots = [lot for lot in self.site.lots if lot.takers & ask.bit]
        request = ask.request
        if not lots:
            return False
        if request.mode is AllocationMode.WHOLE or request.mode is AllocationMode.ADMIN_COUNT:
            if sum(lot.size for lot in lots) < request.min_count:
                return False
            most = request.max_count
            return request.mode is not AllocationMode.WHOLE or all(
                _max_amount(lots, n, most) >= a for n, a in request.requests.items()
            )
        if request.mode is AllocationMode.SHARE:
            free = self.site.free_nano
            return all(sum(free(lot, name) * lot.size for lot in lots) >= a for name, a in request.requests.items())
        return request.mode is not AllocationMode.EVERY or all(
            lot.takers & ask.bit for lot in self.site.lots if lot.accepted & ask.bit
        )

    # -- ties ----------------------------------------------------------------------------------------------------------

    def _tie_values(self, number: int) -> list[tuple[int, list[int]]]:
        """Per value of a tie: the asks that have enough devices with it, and who may take what then (per lot).

        Values that the bounds cannot tell apart once only, and first "no value", which leaves all asks of the tie out.
        """
        site = self.site
        tie = site.asks.ties[number]
        lots: dict[object, list[int]] = defaultdict(list)
        for lot in site.lots:
            for value in site.tie_values[number][lot.number]:
                lots[value].append(lot.number)
        outside = [mask & ~tie.asks for mask in self.takers]
        by_look: dict[object, tuple[int, list[int]]] = {None: (0, outside)}
        for numbers in lots.values():
            if not any(self.takers[position] & tie.asks for position in numbers):
                continue  # as good as no value
            sizes: dict[int, int] = defaultdict(int)
            takers = list(outside)
            look: dict[object, int] = defaultdict(int)
            for position in numbers:
                lot = site.lots[position]
                takers[position] = lot.takers
                weights = tuple(family.weights[position] for family in self.families)
                look[lot.takers, lot.one.shareable, weights] += lot.size
                for ask in site.asks.of(lot.takers & tie.asks):
                    sizes[ask.number] += lot.size
            mask = sum(1 << n for n, size in sizes.items() if size >= site.asks.asks[n].need)
            by_look.setdefault(frozenset(look.items()), (mask, takers))
        return [*by_look.values()]

    def is_constant(self, chosen: int) -> bool:
        """Whether a choice needs equally many devices, however it is served."""
        asks = self.site.asks
        plain = all(ask.is_counted and ask.request.mode is AllocationMode.WHOLE for ask in asks.of(chosen))
        return plain and not any(lot.one.shareable and lot.takers & chosen for lot in self.site.lots)

    # -- pools ---------------------------------------------------------------------------------------------------------

    def fewest_pools(self, chosen: int) -> int:
        """A lower bound of the pools that a choice uses."""
        if chosen not in self._pools:
            self._pools[chosen] = self._fewest_pools(chosen)
        return self._pools[chosen]

    def _fewest_pools(self, chosen: int) -> int:
        needs: dict[tuple[tuple[int, int], ...], int] = {}
        sizes: dict[int, tuple[tuple[int, int], ...]] = {}
        for ask in self.site.asks.of(chosen):
            peer = self.site.peer[ask.number]
            if peer not in sizes:
                sizes[peer] = self._sizes(ask)
            key = sizes[peer]
            if ask.is_fixed:
                needs[(*key, (-1, ask.number))] = 0
            elif ask.request.mode is AllocationMode.WHOLE:
                needs[key] = needs.get(key, 0) + ask.request.min_count
            else:
                needs[key] = max(needs.get(key, 0), ask.need)
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

    def _sizes(self, ask: IndexedRequest) -> tuple[tuple[int, int], ...]:
        """(pool, devices that an ask may take of it)"""
        sizes: dict[int, int] = defaultdict(int)
        for lot in self.site.lots:
            if lot.takers & ask.bit:
                sizes[lot.pool] += _UNBOUNDED if lot.one.shareable else lot.size
        return tuple(sorted(sizes.items()))


def _value_masks(values: Sequence[frozenset[object]]) -> list[int]:
    bits: dict[object, int] = {}
    return [sum(bits.setdefault(value, 1 << len(bits)) for value in value_set) for value_set in values]


def _max_amount(lots: Sequence[CandidateGroup], name: str, most: int | None) -> int:
    """The most that so many devices have of a resource."""
    amounts = sorted(
        (lot.one.resources[name].nano for lot in lots for _ in lot.devices if name in lot.one.resources), reverse=True
    )
    return sum(amounts[:most])
