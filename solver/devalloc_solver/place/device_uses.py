"""All ways to use one device for the requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from devalloc_solver.place.demand_vector import DemandEntry, DemandVector, TakeKind, share_names
from devalloc_solver.place.dominance import undominated
from devalloc_solver.place.node_view import CandidateGroup
from devalloc_solver.place.requests import Portion
from devalloc_solver.place.step_budget import SharesInterfere, StepBudget
from devalloc_solver.problem.demand import AllocationMode

Value = tuple[int, object]
"""(distinct, value), of which there may be one"""


@dataclass(frozen=True, slots=True)
class DeviceUse:
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


def uses_of(lanes: DemandVector, lot: CandidateGroup, steps: StepBudget) -> tuple[DeviceUse, ...]:
    """The ways to use one device of a lot, admins aside.

    Raises SharesMeet.
    """
    own_lanes = [lane for lane in lanes.lanes if lane.spots >> lot.number & 1 and lane.kind is not TakeKind.ADMIN]
    portions = [lane for lane in own_lanes if _takes_portions(lane, lot)]
    shares = [lane for lane in own_lanes if lane.kind is TakeKind.SHARE]
    if len(shares) > 1 or (shares and portions):
        raise SharesInterfere("shares of several kinds meet on one device")
    uses: list[DeviceUse] = []
    for lane in own_lanes:
        values = distinct_values(lanes, lane, lot)
        if lane not in portions and values is not None:
            uses.append(_make_use(lanes, lot, {lane: 1}, {lane: _capacity(lanes, lane, lot)}, values))
    if portions:
        uses += _portion_uses(lanes, portions, lot, steps)
    return tuple(uses)


def distinct_values(lanes: DemandVector, lane: DemandEntry, lot: CandidateGroup) -> tuple[Value, ...] | None:
    """What one take uses up of distinct values; None where the lane may not take the device for lack of one."""
    used: list[Value] = []
    for index in lane.distincts:
        values = lanes.stock.site.distinct_values[index][lot.number]
        if not values or values & lanes.stock.values[index]:
            return None
        used += [(index, value) for value in sorted(values, key=repr)]
    return tuple(used)


def _make_use(
    lanes: DemandVector,
    lot: CandidateGroup,
    takes: Mapping[DemandEntry, int],
    amounts: Mapping[DemandEntry, Mapping[str, int]],
    values: tuple[Value, ...],
) -> DeviceUse:
    """The use of a device by these lanes, each as often as told; a take gives a lane its ``amounts``."""
    gain, spend = [0] * len(lanes.needs), [0] * len(lanes.budgets)
    counted = lanes.counts_all
    for lane, count in takes.items():
        request, given = lane.ask.request, amounts[lane]
        counted |= lane.kind is not TakeKind.COUNT or request.mode is AllocationMode.SHARE
        names = share_names(lane) if lane.kind is TakeKind.SHARE else sorted(request.requests)
        first = lane.first
        if lane.kind is not TakeKind.SHARE:
            gain[first] = count
            first += 1
        if lane.kind is not TakeKind.COUNT:
            for offset, name in enumerate(names, first):
                gain[offset] = min(given.get(name, 0), lanes.needs[offset])
            caps = [] if request.max_count is None else [1]
            limits = [given.get(name, 0) for name in sorted(request.limits)] if lane.kind is TakeKind.TOTAL else []
            for offset, amount in enumerate([*caps, *limits], lane.budget):
                spend[offset] = amount
        if lane.kind is TakeKind.TOTAL and (entries := lanes.entries.get(lane.ask.demand)) is not None:
            spend[entries] += 1
    cost = int(counted and lot.number not in lanes.stock.seen)
    return DeviceUse(
        tuple(gain), tuple(spend), cost, values, tuple((lane.number, count) for lane, count in takes.items())
    )


def _capacity(lanes: DemandVector, lane: DemandEntry, lot: CandidateGroup) -> dict[str, int]:
    """What a take of the whole device gives, or what a share may have of it."""
    request, resources = lane.ask.request, lot.one.resources
    if lane.kind is TakeKind.SHARE:
        return {name: lanes.stock.free_nano(lot, name) for name in share_names(lane)}
    return {name: resources[name].nano for name in (*request.requests, *request.limits) if name in resources}


# -- portions ----------------------------------------------------------------------------------------------------------


def _takes_portions(lane: DemandEntry, lot: CandidateGroup) -> bool:
    """Shareable devices are taken in portions, and so are shares that must be of one device."""
    return lane.kind is not TakeKind.SHARE and (lot.one.shareable or lane.ask.request.mode is AllocationMode.SHARE)


def _portion_uses(
    lanes: DemandVector, portions: Sequence[DemandEntry], lot: CandidateGroup, steps: StepBudget
) -> list[DeviceUse]:
    """All ways to cut one device into portions that no other way makes needless."""
    amounts = {lane: lane.ask.portion_of(lot.one) for lane in portions}
    given = {lane: dict(amount) for lane, amount in amounts.items()}
    names = {name for amount in amounts.values() for name, _ in amount}
    free = {name: lanes.stock.free_nano(lot, name) for name in names}
    values = {lane: distinct_values(lanes, lane, lot) for lane in portions}
    uses: list[DeviceUse] = []
    for counts in _cuts_of_device(lanes, portions, amounts, values, free, steps):
        takes = {lane: count for lane, count in zip(portions, counts, strict=True) if count}
        if takes:
            used = tuple(value for lane in takes for value in values[lane] or ())
            uses.append(_make_use(lanes, lot, takes, given, used))
    bits: dict[Value, int] = {}
    masks = {use: sum(bits.setdefault(value, 1 << len(bits)) for value in use.values) for use in uses}
    return undominated(uses, lambda use: ((*use.gain, *(-spent for spent in use.spend)), masks[use]), steps)


def _cuts_of_device(
    lanes: DemandVector,
    portions: Sequence[DemandEntry],
    amounts: Mapping[DemandEntry, Portion],
    values: Mapping[DemandEntry, tuple[Value, ...] | None],
    free: Mapping[str, int],
    steps: StepBudget,
) -> Iterator[tuple[int, ...]]:
    """How often each lane may take a portion of one device."""
    if not portions:
        yield ()
        return
    lane, own_values = portions[0], values[portions[0]]
    most = 0 if own_values is None else min(lanes.needs[lane.first], len(lane.asks))
    if own_values:
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
        if count and own_values:
            rest = {
                other: None if theirs is not None and set(theirs) & set(own_values) else theirs
                for other, theirs in values.items()
            }
        for others in _cuts_of_device(lanes, portions[1:], amounts, rest, left, steps):
            yield (count, *others)
