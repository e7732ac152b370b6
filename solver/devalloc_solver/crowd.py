"""Equal claims counted instead of told apart: how many of them go where, and what they take together.

Twenty claims that ask for the same are one integer and not twenty symmetric copies, which a search would have to tell
apart before it can prove anything. It is exact where whatever the members take together at one site can be dealt out to
them: whole devices and fixed portions for which members ask by number. On one site, that is a place and one value of
the attributes that all devices of a claim share, each detail is dealt out on its own, and so is each value of a slot's
own match attributes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING

from devalloc_solver.amounts import Amounts
from devalloc_solver.batch import Cell, Crowd, Site, Terms
from devalloc_solver.bunches import Bunch, Place
from devalloc_solver.demand import Demand, Mode, Relation, Slot, Unit
from devalloc_solver.draft import Draft, add_terms
from devalloc_solver.naming import claim_order
from devalloc_solver.shares import CountedShares, can_count_shares

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    IntVar = cp_model.IntVar

MOST_PATTERNS = 32
"""Combinations of alternatives up to which they are counted one by one."""
SlotKey = tuple[int, int]
"""(detail, alternative)"""


def wish_of(unit: Unit) -> object | None:
    """Equal for units that ask for the same, at whatever priority; None for groups."""
    if unit.group is not None or unit.demands[0].shape is None:
        return None
    return unit.pin, unit.demands[0].shape


def equal_units(units: Sequence[Unit]) -> list[tuple[int, ...]]:
    """The numbers of units that ask for the same, in the order in which claims are decided.

    Of these the earlier ones are satisfied (S17), those of higher priority before others: could two change places, the
    answer would be better.
    """
    alike: dict[object, list[int]] = defaultdict(list)
    for number, unit in enumerate(units):
        if (wish := wish_of(unit)) is not None:
            alike[wish].append(number)
    return [tuple(sorted(numbers, key=lambda n: claim_order(units[n].demands[0].claim))) for numbers in alike.values()]


def find_crowds(units: Sequence[Unit], bunches: Sequence[Bunch]) -> list[tuple[int, ...]]:
    """The units that may be counted together; those that stay on their own are in none."""
    return [
        numbers
        for numbers in equal_units(units)
        if len(numbers) > 1 and _can_be_counted(units[numbers[0]].demands[0], bunches)
    ]


def _can_be_counted(demand: Demand, bunches: Sequence[Bunch]) -> bool:
    if not all(_is_counted(slot, bunches) for slot in demand.slots):
        return False
    if prod(len(detail) for detail in demand.details) > MOST_PATTERNS:
        return False
    if demand.most is not None:
        entries = sum(max(slot.most or demand.most + 1 for slot in detail) for detail in demand.details)
        if entries > demand.most:
            return False
    return all(_is_simple(relation, demand, bunches) for relation in demand.relations)


def _is_counted(slot: Slot, bunches: Sequence[Bunch]) -> bool:
    """Whether members ask for a number of devices, and nothing that depends on which of them go together."""
    if slot.mode is Mode.SHARE:
        return can_count_shares(slot, bunches)
    together = slot.requests or slot.limits or slot.portions
    return slot.mode is Mode.WHOLE and slot.most is not None and (slot.most == 1 or not together)


def _is_simple(relation: Relation, demand: Demand, bunches: Sequence[Bunch]) -> bool:
    """Whether a relation is one value on all devices of the claim or of one slot, and no device has two of them."""
    covered = [slot.label in relation.labels for slot in demand.slots]
    if relation.distinct or not (all(covered) or sum(covered) <= 1):
        return False
    return all(len(bunch.one.values(relation.attribute)) <= 1 for bunch in bunches)


def add_crowd(draft: Draft, amounts: Amounts, numbers: tuple[int, ...], places: Sequence[Place]) -> None:
    """Add equal units that may be at these places; ``model.satisfied`` has their literals already."""
    model = draft.model
    crowd = Crowd(numbers)
    model.crowds.append(crowd)
    counting = _Counting(draft, amounts, model.units[numbers[0]].demands[0], len(numbers))
    for place in places:
        crowd.sites += counting.sites_at(place)
    members = [variable for site in crowd.sites for variable in site.patterns.values()]
    satisfied = [model.satisfied[number] for number in numbers]
    model.cp.add(sum(members) == sum(satisfied))


class _Counting:
    """Adds the sites of one crowd; lives only while the model is being built."""

    def __init__(self, draft: Draft, amounts: Amounts, demand: Demand, size: int) -> None:
        self.amounts = amounts
        self.draft, self.demand, self.size = draft, demand, size
        self.cp, self.bunches = draft.model.cp, draft.model.bunches
        labels = {slot.label for slot in demand.slots}
        self.shared = demand.match, [r.attribute for r in demand.relations if labels <= r.labels]
        self.partial = [r for r in demand.relations if not labels <= r.labels]

    def sites_at(self, place: Place) -> list[Site]:
        """The sites of a place where at least one member has room."""
        by_value: dict[object, dict[SlotKey, dict[object, list[int]]]] = defaultdict(dict)
        for key, slot in self.slots():
            own = slot.match, [r.attribute for r in self.partial if slot.label in r.labels]
            for b in self.draft.eligible(slot):
                bunch = self.bunches[b]
                shared, mine = _values(bunch, *self.shared), _values(bunch, *own)
                if shared is None or mine is None or not bunch.is_reached_from(place) or not self.suits(slot, bunch):
                    continue
                by_value[shared].setdefault(key, {}).setdefault(mine, []).append(b)
        return [site for cells in by_value.values() if (site := self.new_site(place, cells)) is not None]

    def slots(self) -> list[tuple[SlotKey, Slot]]:
        return [((d, a), slot) for d, detail in enumerate(self.demand.details) for a, slot in enumerate(detail)]

    def suits(self, slot: Slot, bunch: Bunch) -> bool:
        """Whether one device alone meets the amounts asked for, where there is only one."""
        if slot.mode is Mode.SHARE:
            return True
        device = bunch.one
        if device.shareable:
            given = dict(slot.portions[device.index])
        else:
            given = {name: resource.nano for name, resource in device.resources.items()}
        enough = all(given.get(name, 0) >= amount for name, amount in slot.requests.items())
        limited = any(given.get(name, 0) > most for name, most in slot.limits.items())
        return enough and not limited

    def new_site(self, place: Place, cells: dict[SlotKey, dict[object, list[int]]]) -> Site | None:
        slots = dict(self.slots())
        rooms = {key: [self.room(slots[key], found) for found in by_own.values()] for key, by_own in cells.items()}
        patterns = {}
        for pattern in product(*(range(len(detail)) for detail in self.demand.details)):
            room = min(sum(rooms.get(key, ())) for key in enumerate(pattern))
            if room:
                patterns[pattern] = self.draft.new_int(min(room, self.size))
        if not patterns:
            return None
        site = Site(place, patterns)
        for (detail, alternative), by_own in cells.items():
            members: Terms = [(1, v) for pattern, v in patterns.items() if pattern[detail] == alternative]
            if members:
                site.cells[detail, alternative] = self.new_cells(slots[detail, alternative], by_own, members)
        return site

    def room(self, slot: Slot, bunches: Sequence[int]) -> int:
        """How many members these devices are enough for, as far as counting tells."""
        if slot.mode is Mode.SHARE:
            return CountedShares(self.draft, self.amounts, slot, self.size).room(bunches)
        return sum(self.draft.room(slot, b, self.size) for b in bunches) // slot.least

    def new_cells(self, slot: Slot, by_own: dict[object, list[int]], members: Terms) -> list[Cell]:
        found = []
        for bunches in by_own.values():
            cell = Cell(members)
            if len(by_own) > 1:
                room = self.room(slot, bunches)
                if not room:
                    continue
                cell = Cell([(1, self.draft.new_int(min(room, self.size)))])
            if slot.mode is Mode.SHARE:
                CountedShares(self.draft, self.amounts, slot, self.size).add(cell, bunches)
            else:
                self.add_counts(cell, slot, bunches)
            found.append(cell)
        if len(by_own) > 1:
            self.cp.add(sum(add_terms(cell.members) for cell in found) == add_terms(members))
        return found

    def add_counts(self, cell: Cell, slot: Slot, bunches: Sequence[int]) -> None:
        assert slot.most is not None
        for b in bunches:
            cell.takes |= self.draft.new_takes(slot, b, self.size)
        taken, here = sum(cell.takes.values()), add_terms(cell.members)
        self.cp.add(taken >= slot.least * here)
        self.cp.add(taken <= slot.most * here)


def _values(bunch: Bunch, names: Sequence[str], scalars: Sequence[str]) -> tuple[object, ...] | None:
    """The values of match attributes and relations, or None where one is missing."""
    found = bunch.match_value(names)
    members = [next(iter(bunch.one.values(name)), None) for name in scalars]
    return None if found is None or None in members else (*found, *members)
