"""What the supply allows: exclusive use, capacities, pool resources, compatibility groups (S10 to S13)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from devalloc_solver.batch import Bin, Terms
from devalloc_solver.bunches import Bunch
from devalloc_solver.draft import Draft, add_terms
from devalloc_solver.holdings import Holding
from devalloc_solver.linear import add_at_most

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    IntVar = cp_model.IntVar

_Kept = Sequence[tuple["IntVar", dict[str, int]]]
"""The shares of a device that releasable claims keep: (whether it is kept, nano units of each resource)."""


def add_supply(draft: Draft, releasable: Sequence[Holding]) -> None:
    """Add the rules that bind all slots together, once all of them have said what they take."""
    _Supply(draft).add_bunches(releasable)


class _Supply:
    """Adds the rules bunch by bunch, then pool by pool."""

    def __init__(self, draft: Draft) -> None:
        self.draft, self.model, self.cp, self.relax = draft, draft.model, draft.model.cp, draft.relax

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

    # -- bunches -----------------------------------------------------------------------------------------------------

    def add_bunch(self, b: int, bunch: Bunch, holders: Sequence[IntVar], shares: _Kept) -> Terms:
        """Exclusive use, capacities, and the number of distinct devices.

        Returns the uses that draw on the pool: not those of a device that somebody keeps a share of.
        """
        cp = self.cp
        used_bins = self.add_bins(b, bunch, shares)
        users: Terms = [*self.draft.takers[b], *used_bins, *self.add_portions(b, bunch)]
        if users:
            cp.add(add_terms(users) <= bunch.size)
        self.count_devices(b, bunch, users)
        if not holders:
            return users
        sharing = {kept.index: kept for kept, _ in shares}
        for kept in holders:  # the bunch is a single device: while a holder keeps it, nobody else has it whole
            for _, variable in self.draft.takers[b] if kept.index in sharing else users:
                cp.add_implication(kept, variable.negated())
        first = cp.new_bool_var("")
        for _, variable in users:
            cp.add_bool_or(variable.negated(), first, *sharing.values())
        return [(1, first)]

    def add_bins(self, b: int, bunch: Bunch, shares: _Kept) -> Terms:
        """Devices that are modelled one by one: whether each is in use, and that its capacity holds."""
        used_bins: list[IntVar] = []
        for number in range(bunch.size):
            if (b, number) not in self.draft.bin_takers:
                continue
            used = self.cp.new_bool_var("")
            for taken in self.draft.bin_takers[b, number]:
                self.draft.imply_positive(taken, used)
            if used_bins:
                self.cp.add_implication(used, used_bins[-1])
            used_bins.append(used)
            self.add_blocks((b, number), bunch, shares)
            self.add_amounts((b, number), bunch, shares)
        return [(1, used) for used in used_bins]

    def add_blocks(self, place: Bin, bunch: Bunch, shares: _Kept) -> None:
        """Shares keep within the free blocks of a device (S11)."""
        for name, resource in bunch.one.resources.items():
            blocks = self.draft.bin_blocks.get((*place, name))
            if not blocks:
                continue
            free = self.model.ledger.free_blocks(bunch.one, name) * resource.block
            held = [(amounts[name], kept) for kept, amounts in shares if name in amounts]
            self.add_capacity([(resource.block * weight, v) for weight, v in blocks], held, free)

    def add_amounts(self, place: Bin, bunch: Bunch, shares: _Kept) -> None:
        """Portions keep within what is free of a device."""
        taken: dict[str, Terms] = defaultdict(list)
        for portion, variable in self.draft.bin_portions.get(place, ()):
            for name, amount in portion:
                taken[name].append((amount, variable))
        for name, terms in taken.items():
            held = [(amounts[name], kept) for kept, amounts in shares if name in amounts]
            self.add_capacity(terms, held, self.model.ledger.free_nano(bunch.one, name))

    def add_portions(self, b: int, bunch: Bunch) -> Terms:
        """Devices of which everybody takes the same portion: as many as the number of portions needs.

        That is exact, since takes are dealt out to the devices in use in turn (assignment.py).
        """
        takes = self.draft.portions.get(b)
        if not takes:
            return []
        used = self.draft.new_int(bunch.size)
        times = self.model.ledger.portions_left(bunch.one, self.draft.portion_of(b))
        if times is None:
            for _, variable in takes:
                self.cp.add(variable <= self.draft.upper(variable) * used)
        else:
            most = sum(weight * self.draft.upper(variable) for weight, variable in takes)
            self.cp.add(add_terms(takes) <= min(times, most) * used)
        for count in self.draft.spread[b]:
            self.cp.add(count <= used)
        for here in self.draft.covers[b]:
            self.cp.add(used >= bunch.size * here)
        return [(1, used)]

    def add_capacity(self, new: Terms, held: Terms, bound: int) -> None:
        """new + held <= bound, but more held than there is means nothing is left and no contradiction (S18)."""
        if sum(amount for amount, _ in held) > bound:
            some = self.cp.new_bool_var("")
            for _, variable in new:
                self.draft.imply_positive(variable, some)
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
        watchers = self.draft.watchers.get(b, [])
        if not mine and not watchers:
            return
        distinct = self.draft.new_int(bunch.size)
        self.model.devices_used[b] = distinct
        for terms in (mine, *watchers):
            if terms:
                self.cp.add(add_terms(terms) <= distinct)
        used = self.model.pools_used.get(bunch.pool)
        if used is None:
            used = self.model.pools_used[bunch.pool] = self.cp.new_bool_var("")
        self.cp.add(distinct <= bunch.size * used)

    # -- pools -------------------------------------------------------------------------------------------------------

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
        self.model.draws = draws
        for (pool, name), terms in draws.items():
            if (pool, name) not in self.relax.counters:
                free = self.model.ledger.free_pool_blocks(pool, name)
                self.add_capacity(terms, held_draws[pool, name], free)
        for pool, by_value in groups.items() if not self.relax.groups else ():
            self.add_groups(by_value, held_groups[pool], self.model.ledger.groups.get(pool, set()))

    def add_groups(self, new: Mapping[object, Terms], kept: Mapping[object, Terms], held: set[object]) -> None:
        """New devices are of one group, and of that of all devices in use: for good (``held``) or as long as kept."""
        literals = []
        for value, terms in new.items():
            active = self.cp.new_bool_var("")
            for _, variable in terms:
                self.draft.imply_positive(variable, active)
            if held - {value}:
                self.cp.add(active == 0)
            for _, keeping in (term for other, terms in kept.items() if other != value for term in terms):
                self.cp.add_implication(active, keeping.negated())
            literals.append(active)
        if len(literals) > 1:
            self.cp.add_at_most_one(literals)
