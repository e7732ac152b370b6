"""The exact model of a batch: every rule of claim-semantics S5 to S16 as CP-SAT constraints.

One model holds some units, the devices they may take (as bunches of interchangeable ones) and what is in use. Devices
are counted, not named: names are given afterwards (assignment.py). Claims in ``releasable`` keep their devices only
while a literal says so, which is how the reasons find who is in the way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import gcd
from typing import TYPE_CHECKING

from devalloc_solver.batch import NOTHING, BatchModel, Place, Relax, SlotVars, Terms, bin_count
from devalloc_solver.bunches import make_bunches, may_take
from devalloc_solver.demand import Demand, Mode, Slot, Unit
from devalloc_solver.draft import Draft
from devalloc_solver.holdings import Holding, Ledger
from devalloc_solver.linear import add_at_least, add_at_most
from devalloc_solver.snapshot import Snapshot
from devalloc_solver.supply import add_supply

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    IntVar = cp_model.IntVar

MOST_UNITS = 2**44
"""What one variable counts up to, so that thousands of them add up in 64 bits; beyond, amounts have several digits."""
LIMB = 2**32
"""The base of these digits."""


def model_size(snapshot: Snapshot, ledger: Ledger, units: Sequence[Unit]) -> int:
    """An estimate of the number of variables that the model would have."""
    bunches = make_bunches(snapshot, ledger, units)
    bins = [bin_count(bunch, ledger, units) for bunch in bunches]
    of_set: dict[int, list[int]] = {}
    total = 0
    for unit in units:
        for slot in (slot for demand in unit.demands for slot in demand.slots):
            key = id(slot.candidates)
            if key not in of_set:
                of_set[key] = [b for b, bunch in enumerate(bunches) if bunch.one.index in slot.candidates.accepted]
            if slot.mode is Mode.SHARE:
                total += (1 + len(slot.requests)) * sum(bins[b] for b in of_set[key])
            else:
                total += len(of_set[key])
        total += len({bunch.node for bunch in bunches})
    return total


def build_model(
    snapshot: Snapshot,
    holdings: Iterable[Holding],
    units: Sequence[Unit],
    *,
    releasable: Sequence[Holding] = (),
    relax: Relax = NOTHING,
) -> BatchModel:
    """Build the model of a batch. ``holdings`` are in use for good, ``releasable`` ones may give way."""
    from ortools.sat.python import cp_model

    ledger = Ledger.of(snapshot, holdings)
    apart = frozenset(item.device for holding in releasable for item in holding.items)
    bunches = make_bunches(snapshot, ledger, units, apart=apart)
    cp = cp_model.CpModel()
    kept = {holding.claim: cp.new_bool_var("") for holding in releasable}
    model = BatchModel(snapshot=snapshot, ledger=ledger, units=units, bunches=bunches, cp=cp, kept=kept)
    draft = Draft(model)
    builder = _Builder(draft, releasable, relax)
    for number, unit in enumerate(units):
        builder.add_unit(number, unit)
    builder.order_equal_units()
    add_supply(draft, releasable, relax)
    builder.add_nodes()
    return model


class _Builder:
    """Adds what the units ask for; lives only while a model is being built."""

    def __init__(self, draft: Draft, releasable: Sequence[Holding], relax: Relax) -> None:
        self.draft, self.model, self.cp, self.relax = draft, draft.model, draft.model.cp, relax
        self.bin_counts: dict[int, int] = {}
        self.by_set: dict[int, list[int]] = {}
        self.measures: dict[str, int] = {}
        self.held_amounts = [item.amounts or () for holding in releasable for item in holding.items]

    # -- units -------------------------------------------------------------------------------------------------------

    def add_unit(self, number: int, unit: Unit) -> None:
        satisfied = self.cp.new_bool_var("")
        self.model.satisfied.append(satisfied)
        eligible = {id(slot): self.eligible(slot) for demand in unit.demands for slot in demand.slots}
        places: dict[Place, IntVar] = {p: self.cp.new_bool_var("") for p in self.places_of(unit, eligible)}
        self.model.places.append(places)
        self.cp.add(sum(places.values()) == satisfied)
        for demand in unit.demands:
            spec_values: dict[object, IntVar] = {}
            for alternatives in demand.details:
                chosen = [satisfied] if len(alternatives) == 1 else [self.cp.new_bool_var("") for _ in alternatives]
                if len(alternatives) > 1:
                    self.cp.add(sum(chosen) == satisfied)
                for slot, literal in zip(alternatives, chosen, strict=True):
                    self.add_slot(number, demand, slot, literal, eligible[id(slot)], places, spec_values)
            if spec_values:
                self.cp.add(sum(spec_values.values()) == satisfied)

    def order_equal_units(self) -> None:
        """Of equal claims the earlier ones are satisfied (S17): the search need not try the others."""
        last: dict[object, IntVar] = {}
        for unit, satisfied in zip(self.model.units, self.model.satisfied, strict=True):
            if (kind := unit.kind) is None:
                continue
            if kind in last:
                self.cp.add_implication(satisfied, last[kind])
            last[kind] = satisfied

    def eligible(self, slot: Slot) -> list[int]:
        key = id(slot.candidates)
        if key not in self.by_set:
            accepted = slot.candidates.accepted
            self.by_set[key] = [i for i, b in enumerate(self.model.bunches) if b.one.index in accepted]
        return [i for i in self.by_set[key] if may_take(slot, self.model.bunches[i], self.model.ledger)]

    def places_of(self, unit: Unit, eligible: Mapping[int, list[int]]) -> list[Place]:
        """Nodes where every detail has some candidate. A unit is always on some node, where there is any (S7)."""
        if unit.pin is not None:
            return [unit.pin]
        reachable: set[Place] | None = None
        everywhere: set[Place] = {*self.model.snapshot.nodes} if self.model.snapshot.nodes else set()
        network = {None, *everywhere}
        for demand in unit.demands:
            for alternatives in demand.details:
                nodes = {self.model.bunches[i].node for slot in alternatives for i in eligible[id(slot)]}
                found = network if None in nodes else nodes
                reachable = found if reachable is None else reachable & found
        reachable = reachable or set()
        if None in reachable and everywhere:
            # Network devices alone will do, wherever that is: on a node that is modelled, or on one that adds nothing.
            reachable &= {b.node for b in self.model.bunches} | {self.barren_node(unit)}
            reachable.discard(None)
        order = {node: position for position, node in enumerate(self.model.snapshot.nodes)}
        return sorted(reachable, key=lambda place: -1 if place is None else order[place])

    def barren_node(self, unit: Unit) -> Place:
        """The first node without any candidate of the unit, or None."""
        snapshot = self.model.snapshot
        slots = [slot for demand in unit.demands for slot in demand.slots]
        useful = {snapshot.pools[snapshot.devices[i].pool].node for slot in slots for i in slot.candidates.accepted}
        return next((node for node in snapshot.nodes if node not in useful), None)

    # -- slots -------------------------------------------------------------------------------------------------------

    def add_slot(
        self,
        number: int,
        demand: Demand,
        slot: Slot,
        chosen: IntVar,
        eligible: Sequence[int],
        places: Mapping[Place, IntVar],
        spec_values: dict[object, IntVar],
    ) -> None:
        parts = SlotVars(number, demand, slot, chosen)
        self.model.slots.append(parts)
        if slot.mode is Mode.ADMIN_ALL:
            self.add_every(parts, demand, eligible, places, spec_values)
            return
        reached = {b: places.get(self.node(b)) for b in eligible if self.node(b) is not None}
        usable = [
            b
            for b in eligible
            if (b not in reached or reached[b] is not None)
            and (self.relax.match or None not in (self.value(b, slot.match), self.value(b, demand.match)))
        ]
        if slot.mode is Mode.SHARE:
            self.add_shares(parts, usable)
        else:
            self.add_counts(parts, usable)
        amounts = self.taken(parts)
        for b, terms in amounts.items():
            place = reached.get(b)
            if place is not None:
                for _, variable in terms:
                    self.draft.imply_positive(variable, place)
        if not self.relax.match:
            self.add_match(amounts, slot.match, {}, chosen)
            self.add_match(amounts, demand.match, spec_values, None)

    def add_counts(self, parts: SlotVars, usable: Sequence[int]) -> None:
        slot, cp = parts.slot, self.cp
        most = slot.most
        for b in usable:
            size = self.model.bunches[b].size
            count = self.draft.new_int(size if most is None else min(size, most))
            parts.counts[b] = count
            (self.draft.watchers[b] if slot.mode.is_admin else self.draft.takers[b]).append((1, count))
        total = sum(parts.counts.values())
        size = sum(self.model.bunches[b].size for b in usable)
        cap = size if most is None else min(size, most)
        if not parts.counts or cap < slot.least:
            cp.add(parts.chosen == 0)
            return
        cp.add(total >= slot.least * parts.chosen)
        cp.add(total <= cap * parts.chosen)
        for name, amount in slot.requests.items():
            add_at_least(cp, [*parts.counts.values()], self.capacities(parts.counts, name), amount, parts.chosen)
        for name, amount in slot.limits.items() if not self.relax.limits else ():
            add_at_most(cp, [*parts.counts.values()], self.capacities(parts.counts, name), amount)

    def capacities(self, bunches: Iterable[int], name: str) -> list[int]:
        """Full capacity of one device of each bunch, rounded down to blocks (S10)."""
        found = (self.model.bunches[b].one.resources.get(name) for b in bunches)
        return [0 if resource is None else resource.nano for resource in found]

    def add_shares(self, parts: SlotVars, usable: Sequence[int]) -> None:
        slot, cp = parts.slot, self.cp
        supply: dict[str, tuple[list[IntVar], list[int]]] = {name: ([], []) for name in slot.requests}
        for b in usable:
            resources = self.model.bunches[b].one.resources
            if not any(self.model.ledger.free_blocks(self.model.bunches[b].one, name) for name in slot.requests):
                continue
            for number in range(self.bin_count(b)):
                taken = cp.new_bool_var("")
                blocks = {name: self.new_amount(b, name, amount, taken) for name, amount in slot.requests.items()}
                cp.add_implication(taken, parts.chosen)
                parts.shares[b, number] = (taken, blocks)
                self.draft.bin_takers[b, number].append(taken)
                for name, terms in blocks.items():
                    self.draft.bin_blocks[b, number, name] += terms
                    supply[name][0].extend(variable for _, variable in terms)
                    supply[name][1].extend(resources[name].block * weight for weight, _ in terms)
        for name, amount in slot.requests.items():
            add_at_least(cp, *supply[name], amount, parts.chosen)
        if slot.most is not None and parts.shares and not self.relax.limits:
            cp.add(sum(taken for taken, _ in parts.shares.values()) <= min(slot.most, len(parts.shares)))

    def add_every(
        self,
        parts: SlotVars,
        demand: Demand,
        eligible: Sequence[int],
        places: Mapping[Place, IntVar],
        spec_values: dict[object, IntVar],
    ) -> None:
        """All matching devices the node reaches: at least one, within the limit, agreeing on every match (S14)."""
        slot = parts.slot
        for place, literal in places.items():
            mine = tuple(b for b in eligible if self.node(b) is None or self.node(b) == place)
            count = sum(self.model.bunches[b].size for b in mine)
            values = {self.value(b, slot.match) for b in mine}
            shared = {self.value(b, demand.match) for b in mine}
            agree = self.relax.match or (
                len(values) == 1 and len(shared) == 1 and None not in values and None not in shared
            )
            too_many = slot.most is not None and count > slot.most and not self.relax.limits
            if not mine or not agree or too_many:
                self.cp.add_bool_or(literal.negated(), parts.chosen.negated())
                continue
            parts.every[place] = mine
            here = self.cp.new_bool_var("")
            self.cp.add_bool_or(literal.negated(), parts.chosen.negated(), here)
            for b in mine:
                self.draft.watchers[b].append((self.model.bunches[b].size, here))
            if demand.match and not self.relax.match:
                self.cp.add_implication(here, self.value_literal(spec_values, next(iter(shared))))

    # -- relations ---------------------------------------------------------------------------------------------------

    def node(self, bunch: int) -> Place:
        return self.model.bunches[bunch].node

    def value(self, bunch: int, names: Sequence[str]) -> object | None:
        return self.model.bunches[bunch].match_value(names)

    def value_literal(self, literals: dict[object, IntVar], value: object) -> IntVar:
        if value not in literals:
            literals[value] = self.cp.new_bool_var("")
        return literals[value]

    def taken(self, parts: SlotVars) -> dict[int, Terms]:
        amounts: dict[int, Terms] = defaultdict(list)
        for b, count in parts.counts.items():
            amounts[b].append((1, count))
        for (b, _), (taken, _) in parts.shares.items():
            amounts[b].append((1, taken))
        return amounts

    def add_match(
        self, amounts: Mapping[int, Terms], names: Sequence[str], literals: dict[object, IntVar], chosen: IntVar | None
    ) -> None:
        """Devices of one value only. Spec-level literals are shared by the details and summed by the caller (S15)."""
        if not names:
            return
        for b, terms in amounts.items():
            literal = self.value_literal(literals, self.value(b, names))
            for _, variable in terms:
                self.draft.imply_positive(variable, literal)
        if chosen is not None and literals:
            self.cp.add(sum(literals.values()) == chosen)

    def bin_count(self, b: int) -> int:
        if b not in self.bin_counts:
            self.bin_counts[b] = bin_count(self.model.bunches[b], self.model.ledger, self.model.units)
        return self.bin_counts[b]

    def new_amount(self, b: int, name: str, amount: int, taken: IntVar) -> Terms:
        """Blocks of a resource for a share of up to ``amount`` nano units, none unless ``taken``. Empty: none free."""
        resource = self.model.bunches[b].one.resources.get(name)
        free = self.model.ledger.free_blocks(self.model.bunches[b].one, name)
        if resource is None or not free:
            return []
        step = max(1, self.measure(name) // resource.block)
        most = min(free // step, -(-amount // (resource.block * step)))
        terms: Terms = []
        while most:
            upper, most = (most, 0) if most <= MOST_UNITS else (LIMB - 1, most // LIMB)
            variable = self.draft.new_int(upper)
            self.cp.add(variable <= upper * taken)
            terms.append((step, variable))
            step *= LIMB
        return terms

    def measure(self, name: str) -> int:
        """Nano units of which all amounts of a resource are multiples, so that shares need not be any finer.

        Exact: with what coarser blocks give set aside, the rest is a flow between capacities and requests that are
        multiples of it, and such a flow need not be finer than they are.
        """
        if name not in self.measures:
            slots = (slot for unit in self.model.units for demand in unit.demands for slot in demand.slots)
            amounts = {slot.requests[name] for slot in slots if slot.mode is Mode.SHARE and name in slot.requests}
            amounts |= {a for items in self.held_amounts for resource, a in items if resource == name}
            blocks = set()
            for bunch in self.model.bunches:
                if (resource := bunch.one.resources.get(name)) is not None:
                    amounts.add(resource.block * self.model.ledger.free_blocks(bunch.one, name))
                    blocks.add(resource.block)
            found = gcd(*amounts)
            while odd := next((block for block in blocks if found % block and block % found), 0):
                found = gcd(found, odd)
            self.measures[name] = found
        return self.measures[name]

    def add_nodes(self) -> None:
        """Whether a node is used at all, for the placement policy."""
        for places in self.model.places:
            for place, literal in places.items():
                if place is not None:
                    used = self.model.nodes_used.setdefault(place, self.cp.new_bool_var(""))
                    self.cp.add_implication(literal, used)
