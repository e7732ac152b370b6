"""Equal requests of one choice of alternatives together, as a vector of what is still needed.

A lane needs amounts (devices, or units of a resource) and may have budgets (a cap on devices, limits).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from devalloc_solver.place.node_view import count_fixed
from devalloc_solver.place.remaining import RemainingSupply
from devalloc_solver.place.requests import IndexedRequest, indistinguishable
from devalloc_solver.place.step_budget import SharesInterfere
from devalloc_solver.problem.demand import AllocationMode


class TakeKind(Enum):
    """How a lane takes devices."""

    COUNT = "count"
    """so many devices, whole or a fixed portion each"""
    TOTAL = "total"
    """whole devices until their capacities add up"""
    SHARE = "share"
    """amounts over as many devices as need be"""
    ADMIN = "admin"


@dataclass(frozen=True, slots=True, eq=False)
class DemandEntry:
    """Asks that want the same of the same devices."""

    number: int
    kind: TakeKind
    asks: tuple[IndexedRequest, ...]
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
        return self.kind is TakeKind.ADMIN and self.demand is None and not self.distincts

    @property
    def ask(self) -> IndexedRequest:
        """Any of them stands for all."""
        return self.asks[0]


@dataclass(frozen=True, slots=True, eq=False)
class DemandVector:
    """All lanes, with their needs and budgets."""

    stock: RemainingSupply
    lanes: tuple[DemandEntry, ...]
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
        plain = (
            lane for lane in self.lanes if lane.kind is TakeKind.COUNT and lane.ask.request.mode is AllocationMode.WHOLE
        )
        return sum(self.needs[lane.first] for lane in plain)


def make_demand_vector(stock: RemainingSupply, chosen: int, *, unsplit: bool = False) -> DemandVector:
    """The lanes of a choice. ``unsplit``: every share is to be of one device. Raises SharesMeet."""
    site = stock.site
    together: dict[object, list[IndexedRequest]] = {}
    spots: dict[int, int] = {}
    kinds: dict[int, TakeKind] = {}
    watched = {ask.demand for ask in site.asks.of(chosen & site.asks.admin)}
    keys: dict[tuple[int, int], object] = {}
    for group in indistinguishable(stock.takers, chosen):
        lots = [lot for lot in site.lots if stock.takers[lot.number] & group]
        for ask in site.asks.of(group):
            if not ask.is_fixed:
                kind = kinds[ask.number] = _kind(ask, unsplit)
                own_lots = lots
                if kind is TakeKind.COUNT and ask.request.mode is AllocationMode.SHARE:
                    own_lots = [lot for lot in lots if all(name in lot.one.resources for name in ask.request.requests)]
                spots[ask.number] = sum([1 << lot.number for lot in own_lots])
    for ask in site.asks.of(chosen):
        if not ask.is_fixed:
            same = ask.kind, spots[ask.number]
            if same not in keys:
                keys[same] = _entry_key(stock, ask, kinds[ask.number], spots[ask.number], watched)
            key = keys[same]
            together.setdefault(ask.number if key is None else key, []).append(ask)
    needs: list[int] = []
    budgets: list[int] = []
    lanes: list[DemandEntry] = []
    for asks in together.values():
        lane = DemandEntry(
            number=len(lanes),
            kind=kinds[asks[0].number],
            asks=tuple(asks),
            spots=spots[asks[0].number],
            first=len(needs),
            budget=len(budgets),
            distincts=_distincts(stock, asks[0]),
            demand=asks[0].demand if _must_stay_apart(stock, asks[0], watched) else None,
        )
        lanes.append(lane)
        needs += _needs(stock, lane)
        budgets += _budgets(lane)
    entries: dict[int, int] = {}
    for lane in lanes:
        cap = site.asks.unit.demands[lane.ask.demand].most
        if lane.kind is TakeKind.TOTAL and cap is not None and lane.ask.demand not in entries:
            entries[lane.ask.demand] = len(budgets)
            budgets.append(cap - _entries(stock, chosen, lane.ask.demand))
    admin = sum(lane.spots for lane in lanes if lane.kind is TakeKind.ADMIN)
    seen = sum(1 << number for number in stock.seen)
    split = sum(1 << lot.number for lot in site.lots if lot.one.shareable)
    counts_all = any(lane.spots & (admin | seen | split) for lane in lanes if lane.kind is not TakeKind.ADMIN)
    return DemandVector(stock, tuple(lanes), tuple(needs), tuple(budgets), entries, counts_all)


def _entries(stock: RemainingSupply, chosen: int, demand: int) -> int:
    """The entries of a claim whose number is known."""
    asks = [ask for ask in stock.site.asks.of(chosen) if ask.demand == demand and _kind(ask) is not TakeKind.TOTAL]
    return sum(count_fixed(stock.site, ask) if ask.is_fixed else ask.need for ask in asks)


def _kind(ask: IndexedRequest, unsplit: bool = False) -> TakeKind:
    if ask.request.mode.is_admin:
        return TakeKind.ADMIN
    if ask.is_counted or (unsplit and ask.request.mode is AllocationMode.SHARE):
        return TakeKind.COUNT
    return TakeKind.SHARE if ask.request.mode is AllocationMode.SHARE else TakeKind.TOTAL


def _must_stay_apart(stock: RemainingSupply, ask: IndexedRequest, watched: set[int]) -> bool:
    """Whether it matters to which claim a device goes."""
    return ask.demand in watched and stock.site.asks.unit.demands[ask.demand].once


def _distincts(stock: RemainingSupply, ask: IndexedRequest) -> tuple[int, ...]:
    return tuple(index for index, tie in enumerate(stock.site.asks.distincts) if tie.asks & ask.bit)


def _entry_key(stock: RemainingSupply, ask: IndexedRequest, kind: TakeKind, spots: int, watched: set[int]) -> object:
    """Equal for asks that can be served as one; None for those that cannot be served with others."""
    demand = ask.demand if _must_stay_apart(stock, ask, watched) else None
    request = ask.request
    if kind is TakeKind.TOTAL or (kind is TakeKind.SHARE and request.max_count is not None):
        return None
    amounts: object = tuple(sorted(request.requests.items()))
    if kind is TakeKind.SHARE:
        amounts = None  # each resource is a question of its own, so different amounts simply add up
    elif shared := [lot.one.index for lot in stock.site.lots if spots >> lot.number & 1 and lot.one.shareable]:
        # A request has a device once, so what equal requests may take of one device is a matter of how many they are.
        amounts = (request.min_count, *(request.portions.get(index) for index in shared))
        if demand is not None and kind is TakeKind.ADMIN:
            return None
    return kind, request.mode, spots, amounts, _distincts(stock, ask), demand


def _needs(stock: RemainingSupply, lane: DemandEntry) -> list[int]:
    request = lane.ask.request
    if lane.kind is TakeKind.COUNT:
        return [sum(ask.request.min_count if ask.request.mode is AllocationMode.WHOLE else 1 for ask in lane.asks)]
    if lane.kind is TakeKind.ADMIN:
        counts = [ask.request.min_count for ask in lane.asks]
        return [max(counts) if lane.overlaps else sum(counts)]
    if lane.kind is TakeKind.TOTAL:
        return [request.min_count, *(request.requests[name] for name in sorted(request.requests))]
    if len(lane.asks) == 1:
        return [request.requests[name] for name in sorted(request.requests)]
    names = share_names(lane)
    blocks = {name: _common_block(stock, lane, name) for name in names}
    return [
        sum(
            -(-ask.request.requests[name] // blocks[name]) * blocks[name]
            for ask in lane.asks
            if name in ask.request.requests
        )
        for name in names
    ]


def share_names(lane: DemandEntry) -> list[str]:
    """The resources that the asks of a lane want, in the order of its needs."""
    return sorted({name for ask in lane.asks for name in ask.request.requests})


def _common_block(stock: RemainingSupply, lane: DemandEntry, name: str) -> int:
    """With one size of block, requests rounded up to it can be split in any way over devices that have the room."""
    blocks = {
        lot.one.resources[name].block
        for lot in stock.site.lots
        if lane.spots >> lot.number & 1 and name in lot.one.resources
    }
    if len(blocks) > 1:
        raise SharesInterfere("several shares over blocks of different sizes")
    return blocks.pop() if blocks else 1


def _budgets(lane: DemandEntry) -> list[int]:
    request = lane.ask.request
    if lane.kind is TakeKind.TOTAL:
        most = [] if request.max_count is None else [request.max_count]
        return [*most, *(request.limits[name] for name in sorted(request.limits))]
    return [request.max_count] if lane.kind is TakeKind.SHARE and request.max_count is not None else []
