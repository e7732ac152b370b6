"""Constraints of the supply: exclusive use, capacities, pool resources, compatibility groups (S10 to S13)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from devalloc_solver.exact.builder import ModelBuilder, sum_terms
from devalloc_solver.exact.linear_constraints import add_at_most
from devalloc_solver.exact.variables import DeviceBin, LinearTerms
from devalloc_solver.problem.device_groups import DeviceGroup

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    IntVar = cp_model.IntVar


def add_supply(draft: ModelBuilder) -> None:
    """Add the rules that bind all requests together, once all of them have said what they take."""
    _SupplyBuilder(draft).add_device_groups()


class _SupplyBuilder:
    """Adds the rules, first by device group, then by pool."""

    def __init__(self, draft: ModelBuilder) -> None:
        self.draft, self.model, self.cp = draft, draft.model, draft.model.cp

    def add_device_groups(self) -> None:
        self.add_pools(
            [self.add_device_group(b, device_group) for b, device_group in enumerate(self.model.device_groups)]
        )

    # -- device groups -------------------------------------------------------------------------------------------------

    def add_device_group(self, b: int, device_group: DeviceGroup) -> LinearTerms:
        """Exclusive use, capacities, and the number of distinct devices. Returns the uses that draw on the pool."""
        users: LinearTerms = [
            *self.draft.takers[b],
            *self.add_bins(b, device_group),
            *self.add_portions(b, device_group),
        ]
        if users:
            self.cp.add(sum_terms(users) <= device_group.size)
            self.model.users[b] = users
            if self.draft.weighs_loads:
                self.model.loads[b] = self.loads(b, device_group)
        self.count_devices(b, device_group, users)
        return users

    def loads(self, b: int, device_group: DeviceGroup) -> LinearTerms:
        """How much of its devices comes into use, taker by taker."""
        device, scale = device_group.one, self.model.usage.loads.scale(device_group.pool)
        terms = [(scale.whole(device.draws) * weight, v) for weight, v in self.draft.takers[b]]
        if takes := self.draft.portions.get(b):
            portion = scale.load(device, dict(self.draft.portion_of(b)))
            terms += [(portion * weight, v) for weight, v in takes]
        for number in range(device_group.size):
            for portion_taken, v in self.draft.bin_portions.get((b, number), ()):
                terms.append((scale.load(device, dict(portion_taken)), v))
            for name, resource in device.resources.items():
                for weight, v in self.draft.bin_blocks.get((b, number, name), ()):
                    terms.append((scale.load(device, {name: resource.block * weight}), v))
        return [(load, v) for load, v in terms if load]

    def add_bins(self, b: int, device_group: DeviceGroup) -> LinearTerms:
        """Devices that are modelled one by one: whether each is in use, and that its capacity holds."""
        used_bins: list[IntVar] = []
        for number in range(device_group.size):
            if (b, number) not in self.draft.bin_takers:
                continue
            used = self.cp.new_bool_var("")
            for taken in self.draft.bin_takers[b, number]:
                self.draft.imply_positive(taken, used)
            if used_bins:
                self.cp.add_implication(used, used_bins[-1])
            used_bins.append(used)
            self.add_blocks((b, number), device_group)
            self.add_amounts((b, number), device_group)
        return [(1, used) for used in used_bins]

    def add_blocks(self, place: DeviceBin, device_group: DeviceGroup) -> None:
        """Shares keep within the free blocks of a device (S11)."""
        for name, resource in device_group.one.resources.items():
            blocks = self.draft.bin_blocks.get((*place, name))
            if blocks:
                free = self.model.usage.free_blocks(device_group.one, name) * resource.block
                self.add_capacity([(resource.block * weight, v) for weight, v in blocks], free)

    def add_amounts(self, place: DeviceBin, device_group: DeviceGroup) -> None:
        """Portions keep within what is free of a device."""
        taken: dict[str, LinearTerms] = defaultdict(list)
        for portion, variable in self.draft.bin_portions.get(place, ()):
            for name, amount in portion:
                taken[name].append((amount, variable))
        for name, terms in taken.items():
            self.add_capacity(terms, self.model.usage.free_nano(device_group.one, name))

    def add_portions(self, b: int, device_group: DeviceGroup) -> LinearTerms:
        """Devices of which everybody takes the same portion: as many as the number of portions needs.

        That is exact, since takes are dealt out to the devices in use in turn (problem/placement.py).
        """
        takes = self.draft.portions.get(b)
        if not takes:
            return []
        used = self.draft.new_int(device_group.size)
        times = self.model.usage.portions_left(device_group.one, self.draft.portion_of(b))
        if times is None:
            for _, variable in takes:
                self.cp.add(variable <= self.draft.upper(variable) * used)
        else:
            most = sum(weight * self.draft.upper(variable) for weight, variable in takes)
            self.cp.add(sum_terms(takes) <= min(times, most) * used)
        for count in self.draft.distinct_device_takes[b]:
            self.cp.add(count <= used)
        for here in self.draft.covers[b]:
            self.cp.add(used >= device_group.size * here)
        return [(1, used)]

    def add_capacity(self, terms: LinearTerms, bound: int) -> None:
        add_at_most(self.cp, [v for _, v in terms], [a for a, _ in terms], bound)

    def count_devices(self, b: int, device_group: DeviceGroup, users: LinearTerms) -> None:
        """Distinct devices: exclusive users add up, admin details may look at the same ones (S17, goal 4)."""
        watchers = self.draft.watchers.get(b, [])
        if not users and not watchers:
            return
        distinct = self.draft.new_int(device_group.size)
        self.model.devices_used[b] = distinct
        if not watchers:
            self.model.unwatched.append(b)
        for terms in (users, *watchers):
            if terms:
                self.cp.add(sum_terms(terms) <= distinct)
        used = self.model.pools_used.get(device_group.pool)
        if used is None:
            used = self.model.pools_used[device_group.pool] = self.cp.new_bool_var("")
        self.cp.add(distinct <= device_group.size * used)

    # -- pools ---------------------------------------------------------------------------------------------------------

    def add_pools(self, newly: Sequence[LinearTerms]) -> None:
        """Pool resources and compatibility groups (S12, S12a). ``newly``: per group, the uses that draw on its pool."""
        draws: dict[tuple[int, str], LinearTerms] = defaultdict(list)
        groups: dict[int, dict[object, LinearTerms]] = defaultdict(lambda: defaultdict(list))
        for device_group, uses in zip(self.model.device_groups, newly, strict=True):
            if device_group.held_share:
                continue
            for name, blocks in device_group.one.draws:
                draws[device_group.pool, name] += [(blocks * weight, v) for weight, v in uses]
            if device_group.one.compatibility is not None:
                groups[device_group.pool][device_group.one.compatibility] += uses
        self.model.draws = draws
        for (pool, name), terms in draws.items():
            self.add_capacity(terms, self.model.usage.free_pool_blocks(pool, name))
        for pool, by_value in groups.items():
            self.add_groups(by_value, self.model.usage.groups.get(pool, set()))

    def add_groups(self, new: Mapping[object, LinearTerms], held: set[object]) -> None:
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
