"""A model that is being built: what the slots take of each bunch, as the rules of the supply side need it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from devalloc_solver.batch import BatchModel, Bin, Target, Terms, bin_count, sharing_slots
from devalloc_solver.bunches import Portion, may_take
from devalloc_solver.demand import Slot

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    IntVar = cp_model.IntVar


def _lists() -> defaultdict[int, Terms]:
    return defaultdict(list)


@dataclass(slots=True, eq=False)
class Draft:
    """The model so far."""

    model: BatchModel
    uppers: dict[int, int] = field(default_factory=dict)
    """variable index -> upper bound, where it is not 1"""
    takers: dict[int, Terms] = field(default_factory=_lists)
    """bunch -> whole takers"""
    portions: dict[int, Terms] = field(default_factory=_lists)
    """bunch whose portions are all alike -> takes"""
    spread: dict[int, list[IntVar]] = field(default_factory=lambda: defaultdict(list))
    """the same -> takes that are each of another device"""
    covers: dict[int, list[IntVar]] = field(default_factory=lambda: defaultdict(list))
    """the same -> literals that hold when somebody takes a portion of each device"""
    bin_portions: dict[Bin, list[tuple[Portion, IntVar]]] = field(default_factory=lambda: defaultdict(list))
    """one device -> portions taken of it"""
    bin_takers: dict[Bin, list[IntVar]] = field(default_factory=lambda: defaultdict(list))
    """one device -> shares and portions of it"""
    bin_blocks: dict[tuple[int, int, str], Terms] = field(default_factory=lambda: defaultdict(list))
    """(bunch, bin, resource) -> blocks that shares take"""
    watchers: dict[int, list[Terms]] = field(default_factory=lambda: defaultdict(list))
    """bunch -> for each admin detail, or claim with such, how many of its devices it looks at"""
    sharing: Sequence[Slot] = field(init=False)
    _by_set: dict[int, list[int]] = field(default_factory=dict)
    _bin_counts: dict[int, int] = field(default_factory=dict)
    _distinct_portions: dict[int, set[Portion]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sharing = sharing_slots(self.model.units)

    # -- what slots may take -----------------------------------------------------------------------------------------

    def accepted(self, slot: Slot) -> list[int]:
        """The bunches of a slot's candidates, in use or not."""
        key = id(slot.candidates)
        if key not in self._by_set:
            accepted = slot.candidates.accepted
            self._by_set[key] = [i for i, b in enumerate(self.model.bunches) if b.one.index in accepted]
        return self._by_set[key]

    def eligible(self, slot: Slot) -> list[int]:
        """The bunches of which a slot may take devices."""
        return [b for b in self.accepted(slot) if may_take(slot, self.model.bunches[b], self.model.ledger)]

    def bin_count(self, b: int) -> int:
        """How many devices of a bunch are modelled one by one."""
        if b not in self._bin_counts:
            self._bin_counts[b] = bin_count(self.model.bunches[b], self.model.ledger, self.sharing)
        return self._bin_counts[b]

    def portions_are_alike(self, b: int) -> bool:
        """Whether everybody takes the same portion of a bunch: then its devices need not be told apart."""
        device = self.model.bunches[b].one
        if b not in self._distinct_portions:
            asked = (slot.portions.get(device.index) for slot in self.sharing)
            self._distinct_portions[b] = {portion for portion in asked if portion is not None}
        return len(self._distinct_portions[b]) == 1

    def portion_of(self, b: int) -> Portion:
        """The portion that everybody takes of a bunch."""
        self.portions_are_alike(b)
        (portion,) = self._distinct_portions[b]
        return portion

    def room(self, slot: Slot, b: int, members: int = 1) -> int:
        """How many devices or portions equal slots may take of a bunch, each of them a device at most once."""
        bunch = self.model.bunches[b]
        most = bunch.size if slot.most is None else min(slot.most, bunch.size)
        if not bunch.one.shareable:
            return min(members * most, bunch.size)
        times = (
            None if slot.mode.is_admin else self.model.ledger.portions_left(bunch.one, slot.portions[bunch.one.index])
        )
        return members * most if times is None else min(members * most, times * bunch.size)

    # -- variables ---------------------------------------------------------------------------------------------------

    def new_takes(self, slot: Slot, b: int, members: int = 1) -> dict[Target, IntVar]:
        """Variables for the non-admin takes of a bunch by equal slots, known to the supply side."""
        bunch = self.model.bunches[b]
        if not bunch.one.shareable or self.portions_are_alike(b):
            count = self.new_int(self.room(slot, b, members))
            (self.portions if bunch.one.shareable else self.takers)[b].append((1, count))
            if bunch.one.shareable and members == 1:
                self.spread[b].append(count)
            return {b: count}
        portion = slot.portions[bunch.one.index]
        times = self.model.ledger.portions_left(bunch.one, portion)
        found: dict[Target, IntVar] = {}
        for number in range(self.bin_count(b)):
            found[b, number] = self.new_int(members if times is None else min(members, times))
            self.take_portion((b, number), portion, found[b, number])
        return found

    def take_every(self, slot: Slot, b: int, here: IntVar) -> None:
        """A literal takes all devices of a bunch, or a portion of each."""
        bunch = self.model.bunches[b]
        if slot.mode.is_admin:
            self.watchers[b].append([(bunch.size, here)])
        elif not bunch.one.shareable:
            self.takers[b].append((bunch.size, here))
        elif self.portions_are_alike(b):
            self.portions[b].append((bunch.size, here))
            self.covers[b].append(here)
        else:
            for number in range(bunch.size):
                self.take_portion((b, number), slot.portions[bunch.one.index], here)

    def take_portion(self, place: Bin, portion: Portion, count: IntVar) -> None:
        self.bin_takers[place].append(count)
        self.bin_portions[place].append((portion, count))

    def new_int(self, upper: int) -> IntVar:
        """A variable from 0 to ``upper``; CP-SAT's own domain is slow to read back."""
        variable = self.model.cp.new_bool_var("") if upper == 1 else self.model.cp.new_int_var(0, upper, "")
        self.uppers[variable.index] = upper
        return variable

    def upper(self, variable: IntVar) -> int:
        return self.uppers.get(variable.index, 1)

    def imply_positive(self, variable: IntVar, *literals: IntVar) -> None:
        """variable > 0 implies one of the literals."""
        upper = self.upper(variable)
        if not literals:
            self.model.cp.add(variable == 0)
        elif upper == 1:
            self.model.cp.add_bool_or(variable.negated(), *literals)
        else:
            self.model.cp.add(variable <= upper * sum(literals))


def add_terms(terms: Sequence[tuple[int, IntVar]]) -> cp_model.LinearExprT:
    """The sum as an expression; 0 when empty."""
    from ortools.sat.python import cp_model

    return cp_model.LinearExpr.weighted_sum([v for _, v in terms], [a for a, _ in terms])
