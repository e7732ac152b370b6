"""Uses: all that one device can do for the lanes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from devalloc_solver.demand import Mode
from devalloc_solver.place.asks import Portion
from devalloc_solver.place.lanes import Kind, Lane, Lanes, share_names
from devalloc_solver.place.pareto import undominated
from devalloc_solver.place.site import Lot
from devalloc_solver.place.steps import SharesMeet, Steps

Value = tuple[int, object]
"""(distinct, value), of which there may be one"""


@dataclass(frozen=True, slots=True)
class Use:
    """One way to use one device of a lot."""

    gain: tuple[int, ...]
    """what it adds to each need"""
    spend: tuple[int, ...]
    """what it takes of each budget"""
    cost: int
    """devices it counts for"""
    values: tuple[Value, ...]
    """what it takes up of values that must differ"""
    takes: tuple[tuple[int, int], ...]
    """(lane, how often)"""


def uses_of(lanes: Lanes, lot: Lot, steps: Steps) -> tuple[Use, ...]:
    """The ways to use one device of a lot, admins aside.

    Raises SharesMeet.
    """
    mine = [lane for lane in lanes.lanes if lane.spots >> lot.number & 1 and lane.kind is not Kind.ADMIN]
    portions = [lane for lane in mine if _takes_portions(lane, lot)]
    shares = [lane for lane in mine if lane.kind is Kind.SHARE]
    if len(shares) > 1 or (shares and portions):
        raise SharesMeet("shares of several kinds meet on one device")
    found: list[Use] = []
    for lane in mine:
        values = distinct_values(lanes, lane, lot)
        if lane not in portions and values is not None:
            found.append(_use(lanes, lot, {lane: 1}, {lane: _capacity(lanes, lane, lot)}, values))
    if portions:
        found += _portion_uses(lanes, portions, lot, steps)
    return tuple(found)


def distinct_values(lanes: Lanes, lane: Lane, lot: Lot) -> tuple[Value, ...] | None:
    """What one take uses up of distinct values; None where the lane may not take the device for lack of one."""
    found: list[Value] = []
    for index in lane.distincts:
        values = lanes.stock.site.distinct_values[index][lot.number]
        if not values or values & lanes.stock.values[index]:
            return None
        found += [(index, value) for value in sorted(values, key=repr)]
    return tuple(found)


def _use(
    lanes: Lanes,
    lot: Lot,
    takes: Mapping[Lane, int],
    amounts: Mapping[Lane, Mapping[str, int]],
    values: tuple[Value, ...],
) -> Use:
    """The use of a device by these lanes, each as often as told; a take gives a lane its ``amounts``."""
    gain, spend = [0] * len(lanes.needs), [0] * len(lanes.budgets)
    counted = lanes.counts_all
    for lane, count in takes.items():
        slot, given = lane.ask.slot, amounts[lane]
        counted |= lane.kind is not Kind.COUNT or slot.mode is Mode.SHARE
        names = share_names(lane) if lane.kind is Kind.SHARE else sorted(slot.requests)
        first = lane.first
        if lane.kind is not Kind.SHARE:
            gain[first] = count
            first += 1
        if lane.kind is not Kind.COUNT:
            for offset, name in enumerate(names, first):
                gain[offset] = min(given.get(name, 0), lanes.needs[offset])
            caps = [] if slot.most is None else [1]
            limits = [given.get(name, 0) for name in sorted(slot.limits)] if lane.kind is Kind.TOTAL else []
            for offset, amount in enumerate([*caps, *limits], lane.budget):
                spend[offset] = amount
        if lane.kind is Kind.TOTAL and (entries := lanes.entries.get(lane.ask.demand)) is not None:
            spend[entries] += 1
    cost = int(counted and lot.number not in lanes.stock.seen)
    return Use(tuple(gain), tuple(spend), cost, values, tuple((lane.number, count) for lane, count in takes.items()))


def _capacity(lanes: Lanes, lane: Lane, lot: Lot) -> dict[str, int]:
    """What a take of the whole device gives, or what a share may have of it."""
    slot, resources = lane.ask.slot, lot.one.resources
    if lane.kind is Kind.SHARE:
        return {name: lanes.stock.free_nano(lot, name) for name in share_names(lane)}
    return {name: resources[name].nano for name in (*slot.requests, *slot.limits) if name in resources}


# -- portions --------------------------------------------------------------------------------------------------------


def _takes_portions(lane: Lane, lot: Lot) -> bool:
    """Shareable devices are taken in portions, and so are shares that must be of one device."""
    return lane.kind is not Kind.SHARE and (lot.one.shareable or lane.ask.slot.mode is Mode.SHARE)


def _portion_uses(lanes: Lanes, portions: Sequence[Lane], lot: Lot, steps: Steps) -> list[Use]:
    """All ways to cut one device into portions that no other way makes needless."""
    amounts = {lane: lane.ask.portion_of(lot.one) for lane in portions}
    given = {lane: dict(amount) for lane, amount in amounts.items()}
    names = {name for amount in amounts.values() for name, _ in amount}
    free = {name: lanes.stock.free_nano(lot, name) for name in names}
    values = {lane: distinct_values(lanes, lane, lot) for lane in portions}
    found: list[Use] = []
    for counts in _cuts(lanes, portions, amounts, values, free, steps):
        takes = {lane: count for lane, count in zip(portions, counts, strict=True) if count}
        if takes:
            used = tuple(value for lane in takes for value in values[lane] or ())
            found.append(_use(lanes, lot, takes, given, used))
    bits: dict[Value, int] = {}
    masks = {use: sum(bits.setdefault(value, 1 << len(bits)) for value in use.values) for use in found}
    return undominated(found, lambda use: ((*use.gain, *(-spent for spent in use.spend)), masks[use]), steps)


def _cuts(
    lanes: Lanes,
    portions: Sequence[Lane],
    amounts: Mapping[Lane, Portion],
    values: Mapping[Lane, tuple[Value, ...] | None],
    free: Mapping[str, int],
    steps: Steps,
) -> Iterator[tuple[int, ...]]:
    """How often each lane may take a portion of one device."""
    if not portions:
        yield ()
        return
    lane, mine = portions[0], values[portions[0]]
    most = 0 if mine is None else min(lanes.needs[lane.first], len(lane.asks))
    if mine:
        most = min(most, 1)
    for name, nano in amounts[lane]:
        if nano > free[name]:
            most = 0
        elif nano:
            most = min(most, free[name] // nano)
    for count in range(most, -1, -1):
        steps.spend()
        left = dict(free)
        for name, nano in amounts[lane]:
            left[name] -= nano * count
        rest = values
        if count and mine:
            rest = {
                other: None if theirs is not None and set(theirs) & set(mine) else theirs
                for other, theirs in values.items()
            }
        for others in _cuts(lanes, portions[1:], amounts, rest, left, steps):
            yield (count, *others)
