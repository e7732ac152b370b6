"""All ways to use one device for the requests, without those that another one dominates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from devalloc_solver.place.demand_vector import DemandEntry, DemandVector, TakeKind, share_names
from devalloc_solver.place.node_view import CandidateGroup
from devalloc_solver.place.requests import Portion
from devalloc_solver.place.step_budget import SharesInterfere, StepBudget
from devalloc_solver.problem.demand import AllocationMode
from devalloc_solver.problem.placement import PlacedDevice
from devalloc_solver.problem.snapshot import Device

T = TypeVar("T")
_COMPARED = 128
"""Comparisons that cost as much as a step. With 16 the benchmark `hard` takes 6 % more steps, with 1,024 as many."""


def undominated(things: Iterable[T], rank: Callable[[T], tuple[tuple[int, ...], int]], steps: StepBudget) -> list[T]:
    """Those of which no other is as good in every number without using up more; best sums first, equal ones once.

    ``rank`` gives (numbers of which more is better, mask of what is used up).
    """
    first: dict[tuple[tuple[int, ...], int], T] = {}
    for thing in things:
        first.setdefault(rank(thing), thing)
    # What is as good in every number has no smaller sum; with the same sum, it comes first if it uses up less.
    ranked = sorted(first.items(), key=lambda row: (-sum(row[0][0]), row[0][1].bit_count()))
    packed, guards = _pack_rows([numbers for (numbers, _), _ in ranked])
    survivors: list[T] = []
    # A guard survives where the number beside it is no less than the one subtracted.
    if not any(used for _, used in first):
        rows: list[int] = []
        best = 0
        """the row that was as good as the one before: often it is as good as the next one, too"""
        for (_, thing), numbers in zip(ranked, packed, strict=True):
            steps.spend(1 + len(rows) // _COMPARED)
            if rows and (best - numbers) & guards == guards:
                continue
            for others in rows:
                if (others - numbers) & guards == guards:
                    best = others
                    break
            else:
                best = numbers | guards
                rows.append(best)
                survivors.append(thing)
        return survivors
    ranks: list[tuple[int, int]] = []
    """(numbers with their guards, what is used up)"""
    for ((_, used), thing), numbers in zip(ranked, packed, strict=True):
        steps.spend(1 + len(ranks) // _COMPARED)
        for others, theirs in ranks:
            if not theirs & ~used and (others - numbers) & guards == guards:
                break
        else:
            ranks.append((numbers | guards, used))
            survivors.append(thing)
    return survivors


def _pack_rows(rows: Sequence[tuple[int, ...]]) -> tuple[list[int], int]:
    """Each row as one integer, and the guard bits above its numbers: rows compare in all numbers at once."""
    packed, guards, shift = [0] * len(rows), 0, 0
    for column in zip(*rows, strict=True):
        least, most = min(column), max(column)
        if least == most:
            continue
        packed = [row | (number - least) << shift for row, number in zip(packed, column, strict=True)]
        shift += (most - least).bit_length()
        guards |= 1 << shift
        shift += 1
    return packed, guards


Value = tuple[int, object]
"""(distinct, value), of which there may be one"""


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """One way to use one device of a candidate group."""

    gain: tuple[int, ...]
    """what it adds to each need"""
    spend: tuple[int, ...]
    """what it takes of each budget"""
    cost: int
    """devices it counts for"""
    values: tuple[Value, ...]
    """what it takes up of values that must differ"""
    takes: tuple[tuple[int, int], ...]
    """(demand entry, how often)"""
    load: int
    """how much more of its pool is in use then, at most; 0 where that does not matter"""


LoadOf = Callable[[Sequence[PlacedDevice]], int]
"""How much more of a pool is in use by these takes of one of its devices."""


def uses_of(
    demand_vector: DemandVector, candidate_group: CandidateGroup, steps: StepBudget, load_of: LoadOf | None = None
) -> tuple[DeviceUse, ...]:
    """The ways to use one device of a candidate group, admins aside.

    Raises SharesInterfere.
    """
    own_entries = [
        entry
        for entry in demand_vector.demand_entries
        if entry.candidate_mask >> candidate_group.number & 1 and entry.kind is not TakeKind.ADMIN
    ]
    portions = [entry for entry in own_entries if _takes_portions(entry, candidate_group)]
    shares = [entry for entry in own_entries if entry.kind is TakeKind.SHARE]
    if len(shares) > 1 or (shares and portions):
        raise SharesInterfere("shares of several kinds meet on one device")
    uses: list[DeviceUse] = []
    for entry in own_entries:
        values = distinct_values(demand_vector, entry, candidate_group)
        if entry not in portions and values is not None:
            uses.append(
                _make_use(
                    demand_vector,
                    candidate_group,
                    {entry: 1},
                    {entry: _capacity(demand_vector, entry, candidate_group)},
                    values,
                    load_of,
                )
            )
    if portions:
        uses += _portion_uses(demand_vector, portions, candidate_group, steps, load_of)
    return tuple(uses)


def distinct_values(
    demand_vector: DemandVector, entry: DemandEntry, candidate_group: CandidateGroup
) -> tuple[Value, ...] | None:
    """What one take uses up of distinct values; None where the demand entry may not take the device for lack of one."""
    used: list[Value] = []
    for index in entry.distincts:
        values = demand_vector.stock.node_view.distinct_values[index][candidate_group.number]
        if not values or values & demand_vector.stock.values[index]:
            return None
        used += [(index, value) for value in sorted(values, key=repr)]
    return tuple(used)


def _make_use(
    demand_vector: DemandVector,
    candidate_group: CandidateGroup,
    takes: Mapping[DemandEntry, int],
    amounts: Mapping[DemandEntry, Mapping[str, int]],
    values: tuple[Value, ...],
    load_of: LoadOf | None,
) -> DeviceUse:
    """The use of a device by these demand entries, each as often as told; a take gives an entry its ``amounts``."""
    gain, spend = [0] * len(demand_vector.needs), [0] * len(demand_vector.budgets)
    counted = demand_vector.counts_all
    for entry, count in takes.items():
        request, given = entry.indexed.request, amounts[entry]
        counted |= entry.kind is not TakeKind.COUNT or request.mode is AllocationMode.SHARE
        names = share_names(entry) if entry.kind is TakeKind.SHARE else sorted(request.requests)
        first = entry.first
        if entry.kind is not TakeKind.SHARE:
            gain[first] = count
            first += 1
        if entry.kind is not TakeKind.COUNT:
            for offset, name in enumerate(names, first):
                gain[offset] = min(given.get(name, 0), demand_vector.needs[offset])
            caps = [] if request.max_count is None else [1]
            limits = [given.get(name, 0) for name in sorted(request.limits)] if entry.kind is TakeKind.TOTAL else []
            for offset, amount in enumerate([*caps, *limits], entry.budget):
                spend[offset] = amount
        if entry.kind is TakeKind.TOTAL and (entries := demand_vector.entries.get(entry.indexed.demand)) is not None:
            spend[entries] += 1
    cost = int(counted and candidate_group.number not in demand_vector.stock.seen)
    load = 0
    if load_of is not None:
        takes_of_device = [(_taken(demand_vector, candidate_group.one, e, amounts[e]), n) for e, n in takes.items()]
        load = load_of([one for one, count in takes_of_device for _ in range(count)])
    return DeviceUse(
        tuple(gain),
        tuple(spend),
        cost,
        values,
        tuple((entry.number, count) for entry, count in takes.items()),
        load,
    )


def _taken(demand_vector: DemandVector, device: Device, entry: DemandEntry, given: Mapping[str, int]) -> PlacedDevice:
    """What a demand entry takes of a device: of shares that may be split, all that they can have there."""
    if entry.kind is not TakeKind.SHARE:
        return PlacedDevice(entry.indexed.request, device, entry.indexed.portion_of(device))
    needs = enumerate(share_names(entry), entry.first)
    amounts = [(name, min(given.get(name, 0), demand_vector.needs[at])) for at, name in needs]
    return PlacedDevice(entry.indexed.request, device, tuple(amounts))


def _capacity(demand_vector: DemandVector, entry: DemandEntry, candidate_group: CandidateGroup) -> dict[str, int]:
    """What a take of the whole device gives, or what a share may have of it."""
    request, resources = entry.indexed.request, candidate_group.one.resources
    if entry.kind is TakeKind.SHARE:
        return {name: demand_vector.stock.free_nano(candidate_group, name) for name in share_names(entry)}
    return {name: resources[name].nano for name in (*request.requests, *request.limits) if name in resources}


# -- portions ----------------------------------------------------------------------------------------------------------


def _takes_portions(entry: DemandEntry, candidate_group: CandidateGroup) -> bool:
    """Shareable devices are taken in portions, and so are shares that must be of one device."""
    return entry.kind is not TakeKind.SHARE and (
        candidate_group.one.shareable or entry.indexed.request.mode is AllocationMode.SHARE
    )


def _portion_uses(
    demand_vector: DemandVector,
    portions: Sequence[DemandEntry],
    candidate_group: CandidateGroup,
    steps: StepBudget,
    load_of: LoadOf | None,
) -> list[DeviceUse]:
    """All ways to cut one device into portions that no other way makes needless."""
    amounts = {entry: entry.indexed.portion_of(candidate_group.one) for entry in portions}
    given = {entry: dict(amount) for entry, amount in amounts.items()}
    names = {name for amount in amounts.values() for name, _ in amount}
    free = {name: demand_vector.stock.free_nano(candidate_group, name) for name in names}
    values = {entry: distinct_values(demand_vector, entry, candidate_group) for entry in portions}
    uses: list[DeviceUse] = []
    for counts in _cuts_of_device(demand_vector, portions, amounts, values, free, steps):
        takes = {entry: count for entry, count in zip(portions, counts, strict=True) if count}
        if takes:
            used = tuple(value for entry in takes for value in values[entry] or ())
            uses.append(_make_use(demand_vector, candidate_group, takes, given, used, load_of))
    bits: dict[Value, int] = {}
    masks = {use: sum(bits.setdefault(value, 1 << len(bits)) for value in use.values) for use in uses}
    return undominated(uses, lambda use: ((*use.gain, *(-spent for spent in use.spend), -use.load), masks[use]), steps)


def _cuts_of_device(
    demand_vector: DemandVector,
    portions: Sequence[DemandEntry],
    amounts: Mapping[DemandEntry, Portion],
    values: Mapping[DemandEntry, tuple[Value, ...] | None],
    free: Mapping[str, int],
    steps: StepBudget,
) -> Iterator[tuple[int, ...]]:
    """How often each demand entry may take a portion of one device."""
    if not portions:
        yield ()
        return
    entry, own_values = portions[0], values[portions[0]]
    most = 0 if own_values is None else min(demand_vector.needs[entry.first], len(entry.indexed_requests))
    if own_values:
        most = min(most, 1)
    for name, nano in amounts[entry]:
        if nano > free[name]:
            most = 0
        elif nano:
            most = min(most, free[name] // nano)
    for count in range(most, -1, -1):
        steps.spend()
        left = dict(free)
        for name, nano in amounts[entry]:
            left[name] -= nano * count
        rest = values
        if count and own_values:
            rest = {
                other: None if theirs is not None and set(theirs) & set(own_values) else theirs
                for other, theirs in values.items()
            }
        for others in _cuts_of_device(demand_vector, portions[1:], amounts, rest, left, steps):
            yield (count, *others)
