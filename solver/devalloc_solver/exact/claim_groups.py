"""Equal claims counted instead of distinguished: how many of them go where, and what they take together.

Twenty equal claims are one integer and not twenty symmetric copies, which a search would have to distinguish before it
can prove anything. This is exact if everything that the members take together at one site can be dealt out to them:
whole devices and fixed portions that members request by number. A site is a place and one value of the attributes that
all devices of a claim share. On one site each detail is dealt out on its own, and so is each value of a request's own
match attributes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from operator import itemgetter
from typing import TYPE_CHECKING

from devalloc_solver.exact.builder import ModelBuilder, ShareVariables, sum_terms
from devalloc_solver.exact.variables import ClaimGroupVars, DeviceBin, GroupCellVars, GroupSiteVars, LinearTerms
from devalloc_solver.problem.demand import AllocationMode, Constraint, Demand, PlacementUnit, Request
from devalloc_solver.problem.device_groups import DeviceGroup, Place
from devalloc_solver.problem.ordering import claim_order

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    IntVar = cp_model.IntVar

MAX_BLOCKS = 2**40
"""Blocks of a device or a request up to which shares are counted: sums over thousands of members fit into 64 bits."""


def are_shares_countable(request: Request, device_groups: Sequence[DeviceGroup]) -> bool:
    """Whether shares of equal requests can be counted: each on one device, or split in blocks of one size."""
    if request.max_count not in (None, 1):
        return False
    for name, amount in request.requests.items():
        accepted = (
            device_group.one.resources.get(name)
            for device_group in device_groups
            if device_group.one.index in request.candidates.accepted
        )
        resources = [resource for resource in accepted if resource is not None]
        if any(max(r.blocks, -(-amount // r.block)) > MAX_BLOCKS for r in resources):
            return False
        if request.max_count is None and len({resource.block for resource in resources}) > 1:
            return False
    return True


@dataclass(slots=True, eq=False)
class CountedShares:
    """Adds the shares of one request of a claim group; lives only while the model is being built."""

    draft: ModelBuilder
    amounts: ShareVariables
    request: Request
    size: int
    """members of the claim group"""

    def room(self, device_groups: Sequence[int]) -> int:
        """How many members these devices are enough for, as far as counting tells."""
        if self.request.max_count is not None:
            return min(self.size, sum(self.whole(b) * self.draft.model.device_groups[b].size for b in device_groups))
        rooms = [self.size]
        for name in self.request.requests:
            free = sum(self.free(b, name) * self.draft.model.device_groups[b].size for b in device_groups)
            needed = next((self.needed(b, name) for b in device_groups if self.free(b, name)), 1)
            rooms.append(free // needed)
        return min(rooms)

    def add(self, cell: GroupCellVars, device_groups: Sequence[int]) -> None:
        """Shares of the members of a cell, of these device groups."""
        draft, cp = self.draft, self.draft.model.cp
        here = sum_terms(cell.members)
        supply: dict[str, list[cp_model.IntVar]] = {name: [] for name in self.request.requests}
        needed: dict[str, int] = {}
        for b in device_groups:
            for number in range(draft.bin_count(b)):
                if whole := min(self.size, self.whole(b)):
                    self.add_undivided(cell, (b, number), whole)
                for name in self.request.requests if self.request.max_count is None else ():
                    if free := self.free(b, name):
                        needed[name] = self.needed(b, name)
                        most = min(free, self.size * needed[name])
                        supply[name].append(self.add_part(cell, (b, number), name, most))
        undivided = sum(cell.undivided.values())
        if self.request.max_count is not None or not all(supply.values()):
            cp.add(undivided == here)
            return
        cell.split = draft.new_int(self.size)
        cp.add(undivided + cell.split == here)
        for name, parts in supply.items():
            cp.add(sum(parts) == needed[name] * cell.split)

    def add_undivided(self, cell: GroupCellVars, place: DeviceBin, most: int) -> None:
        """Members that have all of their share on this device."""
        count = cell.undivided[place] = self.draft.new_int(most)
        self.draft.bin_takers[place].append(count)
        for name in self.request.requests:
            blocks = self.needed(place[0], name) * self.step(place[0], name)
            self.draft.bin_blocks[*place, name].append((blocks, count))

    def add_part(self, cell: GroupCellVars, place: DeviceBin, name: str, most: int) -> cp_model.IntVar:
        """Blocks of this device for members whose share is on several."""
        part = self.draft.new_int(most)
        terms: LinearTerms = [(self.step(place[0], name), part)]
        cell.parts.setdefault(place, {})[name] = terms
        self.draft.bin_takers[place].append(part)
        self.draft.bin_blocks[*place, name] += terms
        return part

    # -- amounts in steps of so many blocks ----------------------------------------------------------------------------

    def step(self, b: int, name: str) -> int:
        return max(1, self.amounts.measure(name) // self.draft.model.device_groups[b].one.resources[name].block)

    def free(self, b: int, name: str) -> int:
        """What is free on one device of a device group."""
        blocks = self.draft.model.usage.free_blocks(self.draft.model.device_groups[b].one, name)
        return blocks // self.step(b, name) if blocks else 0

    def needed(self, b: int, name: str) -> int:
        """What one member asks for."""
        size = self.draft.model.device_groups[b].one.resources[name].block * self.step(b, name)
        return -(-self.request.requests[name] // size)

    def whole(self, b: int) -> int:
        """How many members one device of a device group has room for, each with all of its share."""
        return min(
            (self.free(b, n) // self.needed(b, n) if self.free(b, n) else 0 for n in self.request.requests), default=0
        )


MAX_PATTERNS = 32
"""Combinations of alternatives up to which they are counted one by one."""
RequestIndex = tuple[int, int]
"""(detail, alternative)"""


def request_key(unit: PlacementUnit) -> object | None:
    """Equal for units that ask for the same, at whatever priority; None for groups."""
    if unit.group is not None or unit.demands[0].shape is None:
        return None
    return unit.pin, unit.demands[0].shape


def group_equal_units(units: Sequence[PlacementUnit]) -> list[tuple[int, ...]]:
    """The numbers of units that ask for the same, in the order in which claims are decided.

    Of these the earlier ones are satisfied (S17), those of higher priority before others: could two change places, the
    answer would be better.
    """
    alike: dict[object, list[int]] = defaultdict(list)
    for number, unit in enumerate(units):
        if (wish := request_key(unit)) is not None:
            alike[wish].append(number)
    return [tuple(sorted(numbers, key=lambda n: claim_order(units[n].demands[0].claim))) for numbers in alike.values()]


def find_claim_groups(units: Sequence[PlacementUnit], device_groups: Sequence[DeviceGroup]) -> list[tuple[int, ...]]:
    """The units that may be counted together; those that stay on their own are in none."""
    return [
        numbers
        for numbers in group_equal_units(units)
        if len(numbers) > 1 and _can_be_counted(units[numbers[0]].demands[0], device_groups)
    ]


def _can_be_counted(demand: Demand, device_groups: Sequence[DeviceGroup]) -> bool:
    if not all(_is_counted(request, device_groups) for request in demand.requests):
        return False
    if prod(len(detail) for detail in demand.details) > MAX_PATTERNS:
        return False
    if demand.most is not None:
        entries = sum(max(request.max_count or demand.most + 1 for request in detail) for detail in demand.details)
        if entries > demand.most:
            return False
    return all(_is_simple_constraint(relation, demand, device_groups) for relation in demand.relations)


def _is_counted(request: Request, device_groups: Sequence[DeviceGroup]) -> bool:
    """Whether members ask for a number of devices, and nothing that depends on which of them go together."""
    if request.mode is AllocationMode.SHARE:
        return are_shares_countable(request, device_groups)
    together = request.requests or request.limits or request.portions
    return (
        request.mode is AllocationMode.WHOLE
        and request.max_count is not None
        and (request.max_count == 1 or not together)
    )


def _is_simple_constraint(relation: Constraint, demand: Demand, device_groups: Sequence[DeviceGroup]) -> bool:
    """Whether a relation is one value on all devices of the claim or of one request, and no device has two of them."""
    covered = [request.label in relation.labels for request in demand.requests]
    if relation.distinct or not (all(covered) or sum(covered) <= 1):
        return False
    return all(len(device_group.one.values(relation.attribute)) <= 1 for device_group in device_groups)


def add_claim_group(
    draft: ModelBuilder, amounts: ShareVariables, numbers: tuple[int, ...], places: Sequence[Place]
) -> None:
    """Add equal units that may be at these places; ``model.satisfied`` has their literals already."""
    model = draft.model
    claim_group = ClaimGroupVars(numbers)
    model.claim_groups.append(claim_group)
    counting = _GroupBuilder(draft, amounts, model.units[numbers[0]].demands[0], len(numbers))
    for place in places:
        claim_group.sites += counting.sites_at(place)
    members = [variable for site in claim_group.sites for variable in site.patterns.values()]
    satisfied = [model.satisfied[number] for number in numbers]
    model.cp.add(sum(members) == sum(satisfied))


class _GroupBuilder:
    """Adds the sites of one claim group; lives only while the model is being built."""

    def __init__(self, draft: ModelBuilder, amounts: ShareVariables, demand: Demand, size: int) -> None:
        self.amounts = amounts
        self.draft, self.demand, self.size = draft, demand, size
        self.cp, self.device_groups = draft.model.cp, draft.model.device_groups
        labels = {request.label for request in demand.requests}
        self.shared = demand.match, [r.attribute for r in demand.relations if labels <= r.labels]
        self.partial = [r for r in demand.relations if not labels <= r.labels]
        self.usable = [(key, self.usable_groups(request)) for key, request in self.requests()]
        """of each request by node"""

    def usable_groups(self, request: Request) -> dict[Place, list[tuple[int, object, object]]]:
        """node -> device groups that a request may use, each with the values that all devices of a member and those of
        this request share."""
        own = request.match, [r.attribute for r in self.partial if request.label in r.labels]
        usable: dict[Place, list[tuple[int, object, object]]] = defaultdict(list)
        for b in self.draft.eligible(request):
            device_group = self.device_groups[b]
            shared, own_key = _values(device_group, *self.shared), _values(device_group, *own)
            if shared is not None and own_key is not None and self.suits(request, device_group):
                usable[device_group.node].append((b, shared, own_key))
        return usable

    def sites_at(self, place: Place) -> list[GroupSiteVars]:
        """The sites of a place where at least one member has room."""
        by_value: dict[object, dict[RequestIndex, dict[object, list[int]]]] = defaultdict(dict)
        for key, by_node in self.usable:
            own = by_node.get(place, []) if place is not None else []
            network = [cell for cell in by_node.get(None, []) if self.device_groups[cell[0]].is_reached_from(place)]
            for b, shared, own_key in sorted([*own, *network], key=itemgetter(0)) if network else own:
                by_value[shared].setdefault(key, {}).setdefault(own_key, []).append(b)
        return [site for cells in by_value.values() if (site := self.new_site(place, cells)) is not None]

    def requests(self) -> list[tuple[RequestIndex, Request]]:
        return [((d, a), request) for d, detail in enumerate(self.demand.details) for a, request in enumerate(detail)]

    def suits(self, request: Request, device_group: DeviceGroup) -> bool:
        """Whether one device alone meets the amounts asked for, where there is only one."""
        if request.mode is AllocationMode.SHARE:
            return True
        device = device_group.one
        if device.shareable:
            given = dict(request.portions[device.index])
        else:
            given = {name: resource.nano for name, resource in device.resources.items()}
        enough = all(given.get(name, 0) >= amount for name, amount in request.requests.items())
        limited = any(given.get(name, 0) > most for name, most in request.limits.items())
        return enough and not limited

    def new_site(self, place: Place, cells: dict[RequestIndex, dict[object, list[int]]]) -> GroupSiteVars | None:
        requests = dict(self.requests())
        rooms = {
            key: [self.room(requests[key], numbers) for numbers in by_own.values()] for key, by_own in cells.items()
        }
        patterns = {}
        for pattern in product(*(range(len(detail)) for detail in self.demand.details)):
            room = min(sum(rooms.get(key, ())) for key in enumerate(pattern))
            if room:
                patterns[pattern] = self.draft.new_int(min(room, self.size))
        if not patterns:
            return None
        site = GroupSiteVars(place, patterns)
        for (detail, alternative), by_own in cells.items():
            members: LinearTerms = [(1, v) for pattern, v in patterns.items() if pattern[detail] == alternative]
            if members:
                site.cells[detail, alternative] = self.new_cells(requests[detail, alternative], by_own, members)
        return site

    def room(self, request: Request, device_groups: Sequence[int]) -> int:
        """How many members these devices are enough for, as far as counting tells."""
        if request.mode is AllocationMode.SHARE:
            return CountedShares(self.draft, self.amounts, request, self.size).room(device_groups)
        return sum(self.draft.room(request, b, self.size) for b in device_groups) // request.min_count

    def new_cells(self, request: Request, by_own: dict[object, list[int]], members: LinearTerms) -> list[GroupCellVars]:
        cells = []
        for device_groups in by_own.values():
            cell = GroupCellVars(members)
            if len(by_own) > 1:
                room = self.room(request, device_groups)
                if not room:
                    continue
                cell = GroupCellVars([(1, self.draft.new_int(min(room, self.size)))])
            if request.mode is AllocationMode.SHARE:
                CountedShares(self.draft, self.amounts, request, self.size).add(cell, device_groups)
            else:
                self.add_counts(cell, request, device_groups)
            cells.append(cell)
        if len(by_own) > 1:
            self.cp.add(sum(sum_terms(cell.members) for cell in cells) == sum_terms(members))
        return cells

    def add_counts(self, cell: GroupCellVars, request: Request, device_groups: Sequence[int]) -> None:
        assert request.max_count is not None
        for b in device_groups:
            cell.takes |= self.draft.new_takes(request, b, self.size)
        taken, here = sum(cell.takes.values()), sum_terms(cell.members)
        self.cp.add(taken >= request.min_count * here)
        self.cp.add(taken <= request.max_count * here)


def _values(device_group: DeviceGroup, names: Sequence[str], scalars: Sequence[str]) -> tuple[object, ...] | None:
    """The values of match attributes and relations, or None where one is missing."""
    matched = device_group.match_value(names)
    members = [next(iter(device_group.one.values(name)), None) for name in scalars]
    return None if matched is None or None in members else (*matched, *members)
