"""Lanes: the asks of one choice of alternatives, equal ones together, as a vector of what is still to be had.

A lane needs amounts (devices, or units of a resource) and may have budgets (a cap on devices, limits). What one device
can do for the lanes is a ``Use``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from devalloc_solver.demand import Mode
from devalloc_solver.place.asks import Ask
from devalloc_solver.place.pareto import undominated
from devalloc_solver.place.site import Lot
from devalloc_solver.place.steps import OutOfSteps, Steps
from devalloc_solver.place.stock import Stock

Amounts = tuple[tuple[str, int], ...]


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
    def ask(self) -> Ask:
        """Any of them stands for all."""
        return self.asks[0]


@dataclass(frozen=True, slots=True)
class Use:
    """One way to use one device of a lot."""

    gain: tuple[int, ...]
    """what it adds to each need"""
    spend: tuple[int, ...]
    """what it takes of each budget"""
    cost: int
    """devices it counts for"""
    values: tuple[tuple[int, object], ...]
    """(distinct, value) it takes up"""
    takes: tuple[tuple[int, int], ...]
    """(lane, how often)"""


@dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """All lanes, with their needs and budgets."""

    stock: Stock
    lanes: tuple[Lane, ...]
    needs: tuple[int, ...]
    budgets: tuple[int, ...]
    counts_all: bool
    """whether plain counts cost devices, too: where some are shared, looked at by admins, or counted already"""

    @property
    def constant(self) -> int:
        """Devices that every cover needs and none counts."""
        if self.counts_all:
            return 0
        plain = (lane for lane in self.lanes if lane.kind is Kind.COUNT and lane.ask.slot.mode is Mode.WHOLE)
        return sum(self.needs[lane.first] for lane in plain)

    @property
    def is_constant(self) -> bool:
        """Whether every cover needs equally many devices."""
        return not self.counts_all and all(
            lane.kind is Kind.COUNT and lane.ask.slot.mode is Mode.WHOLE for lane in self.lanes
        )


def make_lanes(stock: Stock, chosen: int) -> Lanes:
    """Raises OutOfSteps where shares of several asks meet in a way that this search cannot split."""
    site = stock.site
    together: dict[object, list[Ask]] = {}
    spots: dict[int, int] = {}
    watched = {ask.demand for ask in site.asks.of(chosen) if ask.slot.mode.is_admin}
    for ask in site.asks.of(chosen):
        if not ask.is_fixed:
            if ask.slot.mode.is_admin and _distincts(stock, ask):
                raise OutOfSteps("admin devices that must differ")
            spots[ask.number] = sum(1 << lot.number for lot in site.lots if stock.takers[lot.number] & ask.bit)
            together.setdefault(_key(stock, ask, spots[ask.number], watched), []).append(ask)
    needs: list[int] = []
    budgets: list[int] = []
    lanes: list[Lane] = []
    for asks in together.values():
        kind = _kind(asks[0])
        lane = Lane(
            number=len(lanes),
            kind=kind,
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
    admin = sum(lane.spots for lane in lanes if lane.kind is Kind.ADMIN)
    seen = sum(1 << number for number in stock.seen)
    split = sum(1 << lot.number for lot in site.lots if lot.one.shareable)
    counts_all = any(lane.spots & (admin | seen | split) for lane in lanes if lane.kind is not Kind.ADMIN)
    return Lanes(stock, tuple(lanes), tuple(needs), tuple(budgets), counts_all)


def _kind(ask: Ask) -> Kind:
    if ask.slot.mode.is_admin:
        return Kind.ADMIN
    if ask.is_counted:
        return Kind.COUNT
    return Kind.SHARE if ask.slot.mode is Mode.SHARE else Kind.TOTAL


def _is_apart(stock: Stock, ask: Ask, watched: set[int]) -> bool:
    """Whether it matters to which claim a device goes."""
    return ask.demand in watched and stock.site.asks.unit.demands[ask.demand].once


def _distincts(stock: Stock, ask: Ask) -> tuple[int, ...]:
    return tuple(index for index, tie in enumerate(stock.site.asks.distincts) if tie.asks & ask.bit)


def _key(stock: Stock, ask: Ask, spots: int, watched: set[int]) -> object:
    """Equal for asks that can be served as one."""
    kind = _kind(ask)
    demand = ask.demand if _is_apart(stock, ask, watched) else None
    slot = ask.slot
    if kind is Kind.TOTAL or (kind is Kind.SHARE and slot.most is not None):
        return ask.number
    amounts: object = tuple(sorted(slot.requests.items()))
    if kind is Kind.SHARE:
        amounts = None  # each resource is a question of its own, so different amounts simply add up
    elif shared := [lot.one.index for lot in stock.site.lots if spots >> lot.number & 1 and lot.one.shareable]:
        # A slot has a device once, so what equal slots may take of one device is a matter of how many they are.
        amounts = (slot.least, *(slot.portions.get(index) for index in shared))
        if demand is not None and kind is Kind.ADMIN:
            return ask.number
    return kind, slot.mode, spots, amounts, _distincts(stock, ask), demand


def _needs(stock: Stock, lane: Lane) -> list[int]:
    slot = lane.ask.slot
    if lane.kind is Kind.COUNT:
        return [sum(ask.slot.least if ask.slot.mode is Mode.WHOLE else 1 for ask in lane.asks)]
    if lane.kind is Kind.ADMIN:
        counts = [ask.slot.least for ask in lane.asks]
        return [max(counts) if lane.demand is None else sum(counts)]
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
        raise OutOfSteps("several shares over blocks of different sizes")
    return found.pop() if found else 1


def _budgets(lane: Lane) -> list[int]:
    slot = lane.ask.slot
    if lane.kind is Kind.TOTAL:
        most = [] if slot.most is None else [slot.most]
        return [*most, *(slot.limits[name] for name in sorted(slot.limits))]
    return [slot.most] if lane.kind is Kind.SHARE and slot.most is not None else []


# -- what one device can do ------------------------------------------------------------------------------------------


def uses_of(lanes: Lanes, lot: Lot, steps: Steps) -> tuple[Use, ...]:
    """The ways to use one device of a lot that is not for admins alone."""
    mine = [lane for lane in lanes.lanes if lane.spots >> lot.number & 1 and lane.kind is not Kind.ADMIN]
    portions = [lane for lane in mine if _takes_portions(lane, lot)]
    shares = [lane for lane in mine if lane.kind is Kind.SHARE]
    if len(shares) > 1 or (shares and portions):
        raise OutOfSteps("shares of several kinds meet on one device")
    found: list[Use] = []
    for lane in mine:
        if lane in portions:
            continue
        values = distinct_values(lanes, lane, lot)
        if values is not None:
            found.append(_whole_or_share(lanes, lane, lot, values))
    if portions:
        found += _portion_uses(lanes, portions, lot, steps)
    return tuple(found)


def distinct_values(lanes: Lanes, lane: Lane, lot: Lot) -> tuple[tuple[int, object], ...] | None:
    """What one take uses up of distinct values; None where the lane may not take the device for lack of one."""
    found: list[tuple[int, object]] = []
    for index in lane.distincts:
        values = lanes.stock.site.distinct_values[index][lot.number]
        if not values or values & lanes.stock.values[index]:
            return None
        found += [(index, value) for value in sorted(values, key=repr)]
    return tuple(found)


def _takes_portions(lane: Lane, lot: Lot) -> bool:
    return lane.kind is Kind.COUNT and (lot.one.shareable or lane.ask.slot.mode is Mode.SHARE)


def portion(ask: Ask, lot: Lot) -> Amounts:
    """What one take of a counted ask consumes of a device: of shares, whole blocks."""
    if ask.slot.mode is Mode.WHOLE:
        return ask.slot.portions[lot.one.index]
    blocks = {name: lot.one.resources[name].block for name in ask.slot.requests}
    return tuple((name, -(-nano // blocks[name]) * blocks[name]) for name, nano in sorted(ask.slot.requests.items()))


def _whole_or_share(lanes: Lanes, lane: Lane, lot: Lot, values: tuple[tuple[int, object], ...]) -> Use:
    gain, spend = [0] * len(lanes.needs), [0] * len(lanes.budgets)
    slot, resources = lane.ask.slot, lot.one.resources
    counted = lane.kind is not Kind.COUNT or lanes.counts_all
    if lane.kind is Kind.COUNT:
        gain[lane.first] = 1
    elif lane.kind is Kind.TOTAL:
        full = {name: resources[name].nano if name in resources else 0 for name in (*slot.requests, *slot.limits)}
        gain[lane.first] = 1
        for offset, name in enumerate(sorted(slot.requests), lane.first + 1):
            gain[offset] = min(full[name], lanes.needs[offset])
        limits = [] if slot.most is None else [1]
        for offset, amount in enumerate([*limits, *(full[name] for name in sorted(slot.limits))], lane.budget):
            spend[offset] = amount
    else:
        for offset, name in enumerate(share_names(lane), lane.first):
            gain[offset] = min(lanes.stock.free_nano(lot, name), lanes.needs[offset])
        if slot.most is not None:
            spend[lane.budget] = 1
    cost = int(counted and lot.number not in lanes.stock.seen)
    return Use(tuple(gain), tuple(spend), cost, values, ((lane.number, 1),))


def _portion_uses(lanes: Lanes, portions: Sequence[Lane], lot: Lot, steps: Steps) -> list[Use]:
    """All ways to cut one device into portions that no other way makes needless."""
    amounts = [portion(lane.ask, lot) for lane in portions]
    names = {name for amount in amounts for name, _ in amount}
    free = {name: lanes.stock.free_nano(lot, name) for name in names}
    values = [distinct_values(lanes, lane, lot) for lane in portions]
    cost = int(lot.number not in lanes.stock.seen)
    found: list[Use] = []
    for counts in _cuts(lanes, portions, amounts, values, free, steps):
        gain = [0] * len(lanes.needs)
        for lane, count in zip(portions, counts, strict=True):
            gain[lane.first] = count
        used = tuple(v for mine, count in zip(values, counts, strict=True) if count for v in mine or ())
        takes = tuple((lane.number, count) for lane, count in zip(portions, counts, strict=True) if count)
        if takes:
            found.append(Use(tuple(gain), (0,) * len(lanes.budgets), cost, used, takes))
    bits: dict[tuple[int, object], int] = {}
    masks = {use: sum(bits.setdefault(value, 1 << len(bits)) for value in use.values) for use in found}
    return undominated(found, lambda use: (use.gain, masks[use]))


def _cuts(
    lanes: Lanes,
    portions: Sequence[Lane],
    amounts: Sequence[Amounts],
    values: Sequence[tuple[tuple[int, object], ...] | None],
    free: dict[str, int],
    steps: Steps,
) -> Iterator[tuple[int, ...]]:
    if not portions:
        yield ()
        return
    lane, amount, mine = portions[0], amounts[0], values[0]
    most = 0 if mine is None else min(lanes.needs[lane.first], len(lane.asks))
    if mine:
        most = min(most, 1)
    for name, nano in amount:
        if nano > free[name]:
            most = 0
        elif nano:
            most = min(most, free[name] // nano)
    for count in range(most, -1, -1):
        steps.spend()
        left = dict(free)
        for name, nano in amount:
            left[name] -= nano * count
        rest = values[1:]
        if count and mine:
            rest = [None if other is not None and set(other) & set(mine) else other for other in rest]
        for others in _cuts(lanes, portions[1:], amounts[1:], rest, left, steps):
            yield (count, *others)
