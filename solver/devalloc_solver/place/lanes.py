"""Lanes: the asks of one choice of alternatives, equal ones together, as a vector of what is still to be had.

A lane needs amounts (devices, or units of a resource) and may have budgets (a cap on devices, limits).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from devalloc_solver.demand import Mode
from devalloc_solver.place.asks import Ask, peers
from devalloc_solver.place.site import fixed_size
from devalloc_solver.place.steps import SharesMeet
from devalloc_solver.place.stock import Stock


class Kind(Enum):
    """How a lane takes devices."""

    COUNT = "count"
    """so many devices, whole or a fixed portion each"""
    TOTAL = "total"
    """whole devices until their capacities add up"""
    SHARE = "share"
    """amounts over as many devices as need be"""
    ADMIN = "admin"


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """Asks that want the same of the same devices."""

    number: int
    kind: Kind
    asks: tuple[Ask, ...]
    spots: int
    """mask of the lots it may take of"""
    first: int
    """its first need; the number of devices, but for SHARE"""
    budget: int
    """its first budget"""
    distincts: tuple[int, ...]
    demand: int | None
    """the claim, where no device may be twice in it and admin asks are about"""

    @property
    def overlaps(self) -> bool:
        """Whether its asks may have the same devices: those that look only, where nothing forbids it."""
        return self.kind is Kind.ADMIN and self.demand is None and not self.distincts

    @property
    def ask(self) -> Ask:
        """Any of them stands for all."""
        return self.asks[0]


@dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """All lanes, with their needs and budgets."""

    stock: Stock
    lanes: tuple[Lane, ...]
    needs: tuple[int, ...]
    budgets: tuple[int, ...]
    entries: Mapping[int, int]
    """claim -> the budget of its entries, where it has a cap and their number is open"""
    counts_all: bool
    """whether plain counts cost devices, too: where some are shared, looked at by admins, or counted already"""

    @property
    def constant(self) -> int:
        """Devices that every cover needs and none counts."""
        if self.counts_all:
            return 0
        plain = (lane for lane in self.lanes if lane.kind is Kind.COUNT and lane.ask.slot.mode is Mode.WHOLE)
        return sum(self.needs[lane.first] for lane in plain)


def make_lanes(stock: Stock, chosen: int, *, unsplit: bool = False) -> Lanes:
    """The lanes of a choice. ``unsplit``: every share is to be of one device. Raises SharesMeet."""
    site = stock.site
    together: dict[object, list[Ask]] = {}
    spots: dict[int, int] = {}
    kinds: dict[int, Kind] = {}
    watched = {ask.demand for ask in site.asks.of(chosen & site.asks.admin)}
    known: dict[tuple[int, int], object] = {}
    for group in peers(stock.takers, chosen):
        lots = [lot for lot in site.lots if stock.takers[lot.number] & group]
        for ask in site.asks.of(group):
            if not ask.is_fixed:
                kind = kinds[ask.number] = _kind(ask, unsplit)
                mine = lots
                if kind is Kind.COUNT and ask.slot.mode is Mode.SHARE:
                    mine = [lot for lot in lots if all(name in lot.one.resources for name in ask.slot.requests)]
                spots[ask.number] = sum([1 << lot.number for lot in mine])
    for ask in site.asks.of(chosen):
        if not ask.is_fixed:
            same = ask.kind, spots[ask.number]
            if same not in known:
                known[same] = _key(stock, ask, kinds[ask.number], spots[ask.number], watched)
            key = known[same]
            together.setdefault(ask.number if key is None else key, []).append(ask)
    needs: list[int] = []
    budgets: list[int] = []
    lanes: list[Lane] = []
    for asks in together.values():
        lane = Lane(
            number=len(lanes),
            kind=kinds[asks[0].number],
            asks=tuple(asks),
            spots=spots[asks[0].number],
            first=len(needs),
            budget=len(budgets),
            distincts=_distincts(stock, asks[0]),
            demand=asks[0].demand if _is_apart(stock, asks[0], watched) else None,
        )
        lanes.append(lane)
        needs += _needs(stock, lane)
        budgets += _budgets(lane)
    entries: dict[int, int] = {}
    for lane in lanes:
        cap = site.asks.unit.demands[lane.ask.demand].most
        if lane.kind is Kind.TOTAL and cap is not None and lane.ask.demand not in entries:
            entries[lane.ask.demand] = len(budgets)
            budgets.append(cap - _entries(stock, chosen, lane.ask.demand))
    admin = sum(lane.spots for lane in lanes if lane.kind is Kind.ADMIN)
    seen = sum(1 << number for number in stock.seen)
    split = sum(1 << lot.number for lot in site.lots if lot.one.shareable)
    counts_all = any(lane.spots & (admin | seen | split) for lane in lanes if lane.kind is not Kind.ADMIN)
    return Lanes(stock, tuple(lanes), tuple(needs), tuple(budgets), entries, counts_all)


def _entries(stock: Stock, chosen: int, demand: int) -> int:
    """The entries of a claim whose number is known."""
    asks = [ask for ask in stock.site.asks.of(chosen) if ask.demand == demand and _kind(ask) is not Kind.TOTAL]
    return sum(fixed_size(stock.site, ask) if ask.is_fixed else ask.need for ask in asks)


def _kind(ask: Ask, unsplit: bool = False) -> Kind:
    if ask.slot.mode.is_admin:
        return Kind.ADMIN
    if ask.is_counted or (unsplit and ask.slot.mode is Mode.SHARE):
        return Kind.COUNT
    return Kind.SHARE if ask.slot.mode is Mode.SHARE else Kind.TOTAL


def _is_apart(stock: Stock, ask: Ask, watched: set[int]) -> bool:
    """Whether it matters to which claim a device goes."""
    return ask.demand in watched and stock.site.asks.unit.demands[ask.demand].once


def _distincts(stock: Stock, ask: Ask) -> tuple[int, ...]:
    return tuple(index for index, tie in enumerate(stock.site.asks.distincts) if tie.asks & ask.bit)


def _key(stock: Stock, ask: Ask, kind: Kind, spots: int, watched: set[int]) -> object:
    """Equal for asks that can be served as one; None for those that cannot be served with others."""
    demand = ask.demand if _is_apart(stock, ask, watched) else None
    slot = ask.slot
    if kind is Kind.TOTAL or (kind is Kind.SHARE and slot.most is not None):
        return None
    amounts: object = tuple(sorted(slot.requests.items()))
    if kind is Kind.SHARE:
        amounts = None  # each resource is a question of its own, so different amounts simply add up
    elif shared := [lot.one.index for lot in stock.site.lots if spots >> lot.number & 1 and lot.one.shareable]:
        # A slot has a device once, so what equal slots may take of one device is a matter of how many they are.
        amounts = (slot.least, *(slot.portions.get(index) for index in shared))
        if demand is not None and kind is Kind.ADMIN:
            return None
    return kind, slot.mode, spots, amounts, _distincts(stock, ask), demand


def _needs(stock: Stock, lane: Lane) -> list[int]:
    slot = lane.ask.slot
    if lane.kind is Kind.COUNT:
        return [sum(ask.slot.least if ask.slot.mode is Mode.WHOLE else 1 for ask in lane.asks)]
    if lane.kind is Kind.ADMIN:
        counts = [ask.slot.least for ask in lane.asks]
        return [max(counts) if lane.overlaps else sum(counts)]
    if lane.kind is Kind.TOTAL:
        return [slot.least, *(slot.requests[name] for name in sorted(slot.requests))]
    if len(lane.asks) == 1:
        return [slot.requests[name] for name in sorted(slot.requests)]
    names = share_names(lane)
    blocks = {name: _common_block(stock, lane, name) for name in names}
    return [
        sum(
            -(-ask.slot.requests[name] // blocks[name]) * blocks[name] for ask in lane.asks if name in ask.slot.requests
        )
        for name in names
    ]


def share_names(lane: Lane) -> list[str]:
    """The resources that the asks of a lane want, in the order of its needs."""
    return sorted({name for ask in lane.asks for name in ask.slot.requests})


def _common_block(stock: Stock, lane: Lane, name: str) -> int:
    """With one size of block, requests rounded up to it can be split in any way over devices that have the room."""
    found = {
        lot.one.resources[name].block
        for lot in stock.site.lots
        if lane.spots >> lot.number & 1 and name in lot.one.resources
    }
    if len(found) > 1:
        raise SharesMeet("several shares over blocks of different sizes")
    return found.pop() if found else 1


def _budgets(lane: Lane) -> list[int]:
    slot = lane.ask.slot
    if lane.kind is Kind.TOTAL:
        most = [] if slot.most is None else [slot.most]
        return [*most, *(slot.limits[name] for name in sorted(slot.limits))]
    return [slot.most] if lane.kind is Kind.SHARE and slot.most is not None else []
