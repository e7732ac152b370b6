"""What the supply allows: exclusive use, capacities, pool resources, compatibility groups (S10 to S13)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from devalloc_solver.batch import Bin, Terms
from devalloc_solver.bunches import Bunch
from devalloc_solver.draft import Draft, add_terms
from devalloc_solver.linear import add_at_most

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    IntVar = cp_model.IntVar


def add_supply(draft: Draft) -> None:
    """Add the rules that bind all slots together, once all of them have said what they take."""
    _Supply(draft).add_bunches()


class _Supply:
    """Adds the rules bunch by bunch, then pool by pool."""

    def __init__(self, draft: Draft) -> None:
        self.draft, self.model, self.cp = draft, draft.model, draft.model.cp

    def add_bunches(self) -> None:
        self.add_pools([self.add_bunch(b, bunch) for b, bunch in enumerate(self.model.bunches)])

    # -- bunches -----------------------------------------------------------------------------------------------------

    def add_bunch(self, b: int, bunch: Bunch) -> Terms:
        """Exclusive use, capacities, and the number of distinct devices. Returns the uses that draw on the pool."""
        users: Terms = [*self.draft.takers[b], *self.add_bins(b, bunch), *self.add_portions(b, bunch)]
        if users:
            self.cp.add(add_terms(users) <= bunch.size)
            self.model.users[b] = users
        self.count_devices(b, bunch, users)
        return users

    def add_bins(self, b: int, bunch: Bunch) -> Terms:
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
            self.add_blocks((b, number), bunch)
            self.add_amounts((b, number), bunch)
        return [(1, used) for used in used_bins]

    def add_blocks(self, place: Bin, bunch: Bunch) -> None:
        """Shares keep within the free blocks of a device (S11)."""
        for name, resource in bunch.one.resources.items():
            blocks = self.draft.bin_blocks.get((*place, name))
            if blocks:
                free = self.model.ledger.free_blocks(bunch.one, name) * resource.block
                self.add_capacity([(resource.block * weight, v) for weight, v in blocks], free)

    def add_amounts(self, place: Bin, bunch: Bunch) -> None:
        """Portions keep within what is free of a device."""
        taken: dict[str, Terms] = defaultdict(list)
        for portion, variable in self.draft.bin_portions.get(place, ()):
            for name, amount in portion:
                taken[name].append((amount, variable))
        for name, terms in taken.items():
            self.add_capacity(terms, self.model.ledger.free_nano(bunch.one, name))

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

    def add_capacity(self, terms: Terms, bound: int) -> None:
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

    def add_pools(self, newly: Sequence[Terms]) -> None:
        """Pool resources and compatibility groups (S12, S12a). ``newly``: per bunch, the uses that draw on its pool."""
        draws: dict[tuple[int, str], Terms] = defaultdict(list)
        groups: dict[int, dict[object, Terms]] = defaultdict(lambda: defaultdict(list))
        for bunch, uses in zip(self.model.bunches, newly, strict=True):
            if bunch.held_share:
                continue
            for name, blocks in bunch.one.draws:
                draws[bunch.pool, name] += [(blocks * weight, v) for weight, v in uses]
            if bunch.one.compatibility is not None:
                groups[bunch.pool][bunch.one.compatibility] += uses
        self.model.draws = draws
        for (pool, name), terms in draws.items():
            self.add_capacity(terms, self.model.ledger.free_pool_blocks(pool, name))
        for pool, by_value in groups.items():
            self.add_groups(by_value, self.model.ledger.groups.get(pool, set()))

    def add_groups(self, new: Mapping[object, Terms], held: set[object]) -> None:
        """New devices are of one group, and of that of all devices in use (``held``)."""
        literals = []
        for value, terms in new.items():
            active = self.cp.new_bool_var("")
            for _, variable in terms:
                self.draft.imply_positive(variable, active)
            if held - {value}:
                self.cp.add(active == 0)
            literals.append(active)
        if len(literals) > 1:
            self.cp.add_at_most_one(literals)
