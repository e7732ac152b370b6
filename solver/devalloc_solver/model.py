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
from devalloc_solver.bunches import Bunch, make_bunches, may_take
from devalloc_solver.demand import Demand, Mode, Slot, Unit
from devalloc_solver.holdings import Holding, Ledger
from devalloc_solver.linear import add_at_least, add_at_most
from devalloc_solver.snapshot import Snapshot

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
    builder = _Builder(model, releasable, relax)
    for number, unit in enumerate(units):
        builder.add_unit(number, unit)
    builder.add_bunches(releasable)
    builder.add_nodes()
    return model


class _Builder:
    """Adds variables and constraints; lives only while a model is being built."""

    def __init__(self, model: BatchModel, releasable: Sequence[Holding], relax: Relax) -> None:
        self.model, self.cp, self.relax = model, model.cp, relax
        self.uppers: dict[int, int] = {}
        self.bin_counts: dict[int, int] = {}
        self.by_set: dict[int, list[int]] = {}
        self.takers: dict[int, Terms] = defaultdict(list)
        self.watchers: dict[int, list[tuple[int, IntVar]]] = defaultdict(list)
        self.bin_takers: dict[tuple[int, int], list[IntVar]] = defaultdict(list)
        self.bin_blocks: dict[tuple[int, int, str], Terms] = defaultdict(list)
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
                    self.imply_positive(variable, place)
        if not self.relax.match:
            self.add_match(amounts, slot.match, {}, chosen)
            self.add_match(amounts, demand.match, spec_values, None)

    def add_counts(self, parts: SlotVars, usable: Sequence[int]) -> None:
        slot, cp = parts.slot, self.cp
        most = slot.most
        for b in usable:
            size = self.model.bunches[b].size
            count = self.new_int(size if most is None else min(size, most))
            parts.counts[b] = count
            (self.watchers[b] if slot.mode.is_admin else self.takers[b]).append((1, count))
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
                self.bin_takers[b, number].append(taken)
                for name, terms in blocks.items():
                    self.bin_blocks[b, number, name] += terms
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
                self.watchers[b].append((self.model.bunches[b].size, here))
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
                self.imply_positive(variable, literal)
        if chosen is not None and literals:
            self.cp.add(sum(literals.values()) == chosen)

    def imply_positive(self, variable: IntVar, literal: IntVar) -> None:
        """variable > 0 implies literal."""
        upper = self.uppers.get(variable.index, 1)
        if upper == 1:
            self.cp.add_implication(variable, literal)
        else:
            self.cp.add(variable <= upper * literal)

    def new_int(self, upper: int) -> IntVar:
        """A variable from 0 to ``upper``; CP-SAT's own domain is slow to read back."""
        variable = self.cp.new_bool_var("") if upper == 1 else self.cp.new_int_var(0, upper, "")
        self.uppers[variable.index] = upper
        return variable

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
            variable = self.new_int(upper)
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

    # -- bunches and pools -------------------------------------------------------------------------------------------

    def add_bunches(self, releasable: Sequence[Holding]) -> None:
        holders: dict[int, list[IntVar]] = defaultdict(list)
        shares: dict[int, list[tuple[IntVar, dict[str, int]]]] = defaultdict(list)
        for holding in releasable:
            kept = self.model.kept[holding.claim]
            for item in holding.items:
                holders[item.device].append(kept)
                if item.amounts is not None:
                    shares[item.device].append((kept, dict(item.amounts)))
        anyone = {device: self.any_of(keeping) for device, keeping in holders.items()}
        newly: dict[int, Terms] = {}
        for b, bunch in enumerate(self.model.bunches):
            device = bunch.one.index
            newly[b] = self.add_bunch(b, bunch, holders.get(device, []), shares.get(device, []))
        self.add_pools(newly, anyone)

    def any_of(self, literals: Sequence[IntVar]) -> IntVar:
        """A literal that each of these implies."""
        if len(literals) == 1:
            return literals[0]
        one = self.cp.new_bool_var("")
        for literal in literals:
            self.cp.add_implication(literal, one)
        return one

    def add_bunch(
        self, b: int, bunch: Bunch, holders: Sequence[IntVar], shares: Sequence[tuple[IntVar, dict[str, int]]]
    ) -> Terms:
        """Exclusive use, block capacities, and the number of distinct devices.

        Returns the uses that draw on the pool: not those of a device that somebody keeps a share of.
        """
        cp = self.cp
        bins = [number for number in range(bunch.size) if (b, number) in self.bin_takers]
        used_bins: list[IntVar] = []
        for number in bins:
            used = cp.new_bool_var("")
            for taken in self.bin_takers[b, number]:
                cp.add_implication(taken, used)
            if used_bins:
                cp.add_implication(used, used_bins[-1])
            used_bins.append(used)
            self.add_bin_capacity(b, number, bunch, shares)
        users: Terms = [*self.takers[b], *((1, used) for used in used_bins)]
        if users:
            cp.add(_total(users) <= bunch.size)
        self.count_devices(b, bunch, users)
        if not holders:
            return users
        sharing = {kept.index: kept for kept, _ in shares}
        for kept in holders:  # the bunch is a single device: while a holder keeps it, nobody else has it whole
            for _, variable in self.takers[b] if kept.index in sharing else users:
                cp.add_implication(kept, variable.negated())
        first = cp.new_bool_var("")
        for _, variable in users:
            cp.add_bool_or(variable.negated(), first, *sharing.values())
        return [(1, first)]

    def add_bin_capacity(
        self, b: int, number: int, bunch: Bunch, shares: Sequence[tuple[IntVar, dict[str, int]]]
    ) -> None:
        for name, resource in bunch.one.resources.items():
            blocks = self.bin_blocks.get((b, number, name))
            if not blocks:
                continue
            free = self.model.ledger.free_blocks(bunch.one, name) * resource.block
            held = [(amounts[name], kept) for kept, amounts in shares if name in amounts]
            self.add_capacity([(resource.block * weight, v) for weight, v in blocks], held, free)

    def add_capacity(self, new: Terms, held: Terms, bound: int) -> None:
        """new + held <= bound, but more held than there is means nothing is left and no contradiction (S18)."""
        if sum(amount for amount, _ in held) > bound:
            some = self.cp.new_bool_var("")
            for _, variable in new:
                self.imply_positive(variable, some)
            counted: Terms = []
            for amount, kept in held:
                both = self.cp.new_bool_var("")
                self.cp.add_bool_or(kept.negated(), some.negated(), both)
                counted.append((amount, both))
            held = counted
        terms = [*new, *held]
        add_at_most(self.cp, [v for _, v in terms], [a for a, _ in terms], bound)

    def count_devices(self, b: int, bunch: Bunch, mine: Terms) -> None:
        """Distinct devices: exclusive users add up, admin details may look at the same ones (S17, goal 4)."""
        watchers = self.watchers.get(b, [])
        if not mine and not watchers:
            return
        distinct = self.cp.new_int_var(0, bunch.size, "")
        self.model.devices_used[b] = distinct
        if mine:
            self.cp.add(_total(mine) <= distinct)
        for weight, variable in watchers:
            self.cp.add(weight * variable <= distinct)
        used = self.model.pools_used.get(bunch.pool)
        if used is None:
            used = self.model.pools_used[bunch.pool] = self.cp.new_bool_var("")
        self.cp.add(distinct <= bunch.size * used)

    def add_pools(self, newly: Mapping[int, Terms], anyone: Mapping[int, IntVar]) -> None:
        """Pool resources and compatibility groups (S12, S12a). ``anyone``: device -> whether a holder keeps it."""
        if self.relax.pool_resources:
            return
        draws: dict[tuple[int, str], Terms] = defaultdict(list)
        held_draws: dict[tuple[int, str], Terms] = defaultdict(list)
        groups: dict[int, dict[object, Terms]] = defaultdict(lambda: defaultdict(list))
        held_groups: dict[int, dict[object, Terms]] = defaultdict(lambda: defaultdict(list))
        for b, bunch in enumerate(self.model.bunches):
            if bunch.held_share:
                continue
            for name, blocks in bunch.one.draws:
                draws[bunch.pool, name] += [(blocks * weight, v) for weight, v in newly[b]]
            if bunch.one.compatibility is not None:
                groups[bunch.pool][bunch.one.compatibility] += newly[b]
        for index, kept in anyone.items():
            device = self.model.snapshot.devices[index]
            for name, blocks in device.draws:
                held_draws[device.pool, name].append((blocks, kept))
            if device.compatibility is not None:
                held_groups[device.pool][device.compatibility].append((1, kept))
        for pool, name in draws:
            free = self.model.ledger.free_pool_blocks(pool, name)
            self.add_capacity(draws[pool, name], held_draws[pool, name], free)
        for pool, by_value in groups.items():
            self.add_groups(by_value, held_groups[pool], self.model.ledger.groups.get(pool, set()))

    def add_groups(self, new: Mapping[object, Terms], kept: Mapping[object, Terms], held: set[object]) -> None:
        """New devices are of one group, and of that of all devices in use: for good (``held``) or as long as kept."""
        literals = []
        for value, terms in new.items():
            active = self.cp.new_bool_var("")
            for _, variable in terms:
                self.imply_positive(variable, active)
            if held - {value}:
                self.cp.add(active == 0)
            for _, keeping in (term for other, terms in kept.items() if other != value for term in terms):
                self.cp.add_implication(active, keeping.negated())
            literals.append(active)
        if len(literals) > 1:
            self.cp.add_at_most_one(literals)

    def add_nodes(self) -> None:
        """Whether a node is used at all, for the placement policy."""
        for places in self.model.places:
            for place, literal in places.items():
                if place is not None:
                    used = self.model.nodes_used.setdefault(place, self.cp.new_bool_var(""))
                    self.cp.add_implication(literal, used)


def _total(terms: Terms) -> cp_model.LinearExprT:
    from ortools.sat.python import cp_model

    return cp_model.LinearExpr.weighted_sum([v for _, v in terms], [a for a, _ in terms])
