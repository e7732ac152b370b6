"""What one unit asks for: its node, its alternatives, and what each slot takes (S7 to S11, S14 to S16)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from devalloc_solver.amounts import Amounts
from devalloc_solver.batch import SlotVars, Terms
from devalloc_solver.bunches import Place
from devalloc_solver.demand import Demand, Mode, Slot, Unit
from devalloc_solver.draft import Draft, add_terms
from devalloc_solver.linear import add_at_least, add_at_most
from devalloc_solver.relations import add_agreement, add_relations

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    IntVar = cp_model.IntVar


def add_unit(draft: Draft, amounts: Amounts, number: int, unit: Unit, places: Sequence[Place]) -> None:
    """Add a unit that may be at one of these places; ``model.satisfied`` has its literal already."""
    model = draft.model
    literals: dict[Place, IntVar] = {place: model.cp.new_bool_var("") for place in places}
    model.places[number] = literals
    model.cp.add(sum(literals.values()) == model.satisfied[number])
    asked = _Asked(draft, amounts, number, literals)
    slots = [(demand, asked.add_demand(demand)) for demand in unit.demands]
    for name in dict.fromkeys(name for demand in unit.demands for name in demand.shared):
        bound = [parts for demand, found in slots if name in demand.shared for parts in found]
        add_agreement(draft, name, bound, asked.satisfied)


class _Asked:
    """Adds the demands of one unit; lives only while the model is being built."""

    def __init__(self, draft: Draft, amounts: Amounts, number: int, places: Mapping[Place, IntVar]) -> None:
        self.draft, self.amounts, self.number, self.places = draft, amounts, number, places
        self.model, self.cp = draft.model, draft.model.cp
        self.satisfied = self.model.satisfied[number]

    def add_demand(self, demand: Demand) -> list[SlotVars]:
        found: list[SlotVars] = []
        for alternatives in demand.details:
            chosen = [self.satisfied]
            if len(alternatives) > 1:
                chosen = [self.cp.new_bool_var("") for _ in alternatives]
                self.cp.add(sum(chosen) == self.satisfied)
            found += [self.add_slot(demand, slot, literal) for slot, literal in zip(alternatives, chosen, strict=True)]
        add_relations(self.draft, demand, found, self.satisfied)
        if demand.most is not None:
            self.cp.add(add_terms([term for parts in found for term in self.entries(parts)]) <= demand.most)
        if demand.once and any(parts.slot.mode.is_admin for parts in found):
            self.add_once(found)
        return found

    def add_slot(self, demand: Demand, slot: Slot, chosen: IntVar) -> SlotVars:
        parts = SlotVars(self.number, demand, slot, chosen)
        self.model.slots.append(parts)
        if slot.mode in (Mode.EVERY, Mode.ADMIN_ALL):
            self.add_every(parts)
            return parts
        usable = [b for b in self.draft.eligible(slot) if self.literals_of(b)]
        if slot.mode is Mode.SHARE:
            self.add_shares(parts, usable)
        else:
            self.add_counts(parts, usable)
        for b, variable in _variables(parts):
            literals = self.literals_of(b)
            if len(literals) < len(self.places):
                self.draft.imply_positive(variable, *literals)
        return parts

    def literals_of(self, b: int) -> list[IntVar]:
        """The places that reach a bunch."""
        bunch = self.model.bunches[b]
        if bunch.node is not None:
            return [self.places[bunch.node]] if bunch.node in self.places else []
        return [literal for place, literal in self.places.items() if bunch.is_reached_from(place)]

    # -- counts ------------------------------------------------------------------------------------------------------

    def add_counts(self, parts: SlotVars, usable: Sequence[int]) -> None:
        slot, cp = parts.slot, self.cp
        for b in usable:
            if slot.mode.is_admin:
                count = parts.takes[b] = self.draft.new_int(self.draft.room(slot, b))
                self.draft.watchers[b].append([(1, count)])
            else:
                parts.takes |= self.draft.new_takes(slot, b)
        cap = sum(self.draft.upper(variable) for variable in parts.takes.values())
        cap = cap if slot.most is None else min(cap, slot.most)
        if not parts.takes or cap < slot.least:
            cp.add(parts.chosen == 0)
            return
        total = sum(parts.takes.values())
        cp.add(total >= slot.least * parts.chosen)
        cp.add(total <= cap * parts.chosen)
        for name, amount in slot.requests.items():
            add_at_least(cp, [*parts.takes.values()], self.capacities(parts, name), amount, parts.chosen)
        for name, amount in slot.limits.items():
            add_at_most(cp, [*parts.takes.values()], self.capacities(parts, name), amount)

    def capacities(self, parts: SlotVars, name: str) -> list[int]:
        """What one take of each target gives: full capacity, rounded down to blocks (S10), or a portion."""
        found = []
        for target in parts.takes:
            device = self.model.bunches[_bunch(target)].one
            if device.shareable:
                found.append(dict(parts.slot.portions.get(device.index, ())).get(name, 0))
            else:
                found.append(device.resources[name].nano if name in device.resources else 0)
        return found

    # -- shares ------------------------------------------------------------------------------------------------------

    def add_shares(self, parts: SlotVars, usable: Sequence[int]) -> None:
        slot, cp = parts.slot, self.cp
        supply: dict[str, tuple[list[IntVar], list[int]]] = {name: ([], []) for name in slot.requests}
        for b in usable:
            resources = self.model.bunches[b].one.resources
            if not any(self.model.ledger.free_blocks(self.model.bunches[b].one, name) for name in slot.requests):
                continue
            for number in range(self.draft.bin_count(b)):
                taken = cp.new_bool_var("")
                blocks = {name: self.amounts.new(b, name, amount, taken) for name, amount in slot.requests.items()}
                cp.add_implication(taken, parts.chosen)
                parts.shares[b, number] = (taken, blocks)
                self.draft.bin_takers[b, number].append(taken)
                for name, terms in blocks.items():
                    self.draft.bin_blocks[b, number, name] += terms
                    supply[name][0].extend(variable for _, variable in terms)
                    supply[name][1].extend(resources[name].block * weight for weight, _ in terms)
        for name, amount in slot.requests.items():
            add_at_least(cp, *supply[name], amount, parts.chosen)
        if slot.most is not None and parts.shares:
            cp.add(sum(taken for taken, _ in parts.shares.values()) <= min(slot.most, len(parts.shares)))

    # -- all devices -------------------------------------------------------------------------------------------------

    def add_every(self, parts: SlotVars) -> None:
        """All candidates the node reaches: at least one, within the limit, and each of them to be had."""
        slot = parts.slot
        eligible = {*self.draft.eligible(slot)}
        for place, literal in self.places.items():
            reached = (b for b in self.draft.accepted(slot) if self.model.bunches[b].is_reached_from(place))
            mine = [*reached] if place not in slot.candidates.barred else []
            count = sum(self.model.bunches[b].size for b in mine)
            too_many = slot.most is not None and count > slot.most
            if not mine or too_many or not eligible.issuperset(mine):
                self.cp.add_bool_or(literal.negated(), parts.chosen.negated())
                continue
            here = literal
            if parts.chosen is not self.satisfied:
                here = self.cp.new_bool_var("")
                self.cp.add_bool_or(literal.negated(), parts.chosen.negated(), here)
            parts.every[place] = (tuple(mine), here)
            for b in mine:
                self.draft.take_every(slot, b, here)

    # -- rules of the whole claim ------------------------------------------------------------------------------------

    def entries(self, parts: SlotVars) -> Terms:
        """How many entries a slot has in the answer."""
        sizes = [(sum(self.model.bunches[b].size for b in mine), here) for mine, here in parts.every.values()]
        return [*sizes, *((1, variable) for _, variable in _variables(parts))]

    def add_once(self, found: Sequence[SlotVars]) -> None:
        """No device twice in the claim, whether an admin detail has it or another; shareable ones may be."""
        uses: dict[int, Terms] = {}
        for parts in found:
            for b, variable in _variables(parts):
                uses.setdefault(b, []).append((1, variable))
            for mine, here in parts.every.values():
                for b in mine:
                    uses.setdefault(b, []).append((self.model.bunches[b].size, here))
        for b, terms in uses.items():
            bunch = self.model.bunches[b]
            if len(terms) > 1 and not bunch.one.shareable:
                self.cp.add(add_terms(terms) <= bunch.size)
                self.draft.watchers[b].append(terms)


def _bunch(target: int | tuple[int, int]) -> int:
    return target if isinstance(target, int) else target[0]


def _variables(parts: SlotVars) -> Iterable[tuple[int, IntVar]]:
    """(bunch, variable) of all takes and shares"""
    for target, variable in parts.takes.items():
        yield _bunch(target), variable
    for (b, _), (taken, _) in parts.shares.items():
        yield b, taken
