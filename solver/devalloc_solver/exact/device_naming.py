"""Names of devices: how counts of the exact model become the devices of each claim (S11, S18)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from devalloc_solver.exact.goal_search import GoalSearch
from devalloc_solver.exact.variables import BatchModel, ClaimGroupVars, DeviceBin, GroupCellVars, Target
from devalloc_solver.problem.demand import AllocationMode, Demand, Request
from devalloc_solver.problem.device_groups import Place
from devalloc_solver.problem.placement import PlacedDevice, Placement
from devalloc_solver.problem.snapshot import Device


@dataclass(slots=True, eq=False)
class _RequestFill:
    """One request of one satisfied claim, and what it gets."""

    unit: int
    demand: Demand
    request: Request
    takes: dict[Target, int] = field(default_factory=dict)
    every: Sequence[int] = ()
    """device groups of which it gets all devices"""
    blocks: dict[DeviceBin, dict[str, int]] = field(default_factory=dict)
    """blocks of each resource that its share has of a device"""
    entries: list[PlacedDevice] = field(default_factory=list)

    def give(self, device: Device) -> None:
        self.entries.append(PlacedDevice(self.request, device, self.request.portions.get(device.index, ())))


def name_devices(search: GoalSearch) -> list[Placement]:
    """The placements of all satisfied claims of a solved model."""
    model = search.model
    takers, places = _single_units(search)
    for claim_group in model.claim_groups:
        new_takers, where = _members(search, claim_group)
        takers += new_takers
        places |= where
    takers.sort(key=lambda taker: (taker.unit, taker.request.detail))
    _DeviceNamer(search, takers).hand_out()
    entries: dict[int, list[PlacedDevice]] = defaultdict(list)
    for taker in takers:
        entries[id(taker.demand)] += sorted(taker.entries, key=lambda entry: entry.device.index)
    placements = []
    for number, unit in enumerate(model.units):
        if not search.value(model.satisfied[number]):
            continue
        for demand in unit.demands:
            own_entries = entries[id(demand)]
            networked = all(model.snapshot.pools[e.device.pool].node is None for e in own_entries)
            node = None if networked and unit.is_free else places[number]
            placements.append(Placement(demand, node, tuple(own_entries)))
    return placements


def _single_units(search: GoalSearch) -> tuple[list[_RequestFill], dict[int, Place]]:
    """What the units on their own take, and where they are."""
    model = search.model
    places = {
        number: place for number, where in model.places.items() for place, lit in where.items() if search.value(lit)
    }
    takers = []
    for parts in search.chosen():
        takes = {target: count for target, variable in parts.takes.items() if (count := search.value(variable))}
        every, _ = parts.every.get(places[parts.unit], ((), None))
        blocks = {
            place: {name: search.total(terms) for name, terms in amounts.items()}
            for place, (taken, amounts) in parts.shares.items()
            if search.value(taken)
        }
        takers.append(_RequestFill(parts.unit, parts.demand, parts.request, takes, every, blocks))
    return takers, places


# -- claim groups ------------------------------------------------------------------------------------------------------


def _members(search: GoalSearch, claim_group: ClaimGroupVars) -> tuple[list[_RequestFill], dict[int, Place]]:
    """What each member of a claim group takes, and where: earlier members have the smaller alternatives (S17)."""
    units = search.model.units
    choices = sorted(
        (pattern, order)
        for order, site in enumerate(claim_group.sites)
        for pattern, variable in site.patterns.items()
        for _ in range(search.value(variable))
    )
    places: dict[int, Place] = {}
    at_site: dict[int, list[tuple[int, tuple[int, ...]]]] = defaultdict(list)
    for number, (pattern, order) in zip(claim_group.units, choices, strict=False):
        places[number] = claim_group.sites[order].place
        at_site[order].append((number, pattern))
    takers = []
    for order, members in at_site.items():
        for (detail, alternative), cells in claim_group.sites[order].cells.items():
            choosers = [number for number, pattern in members if pattern[detail] == alternative]
            demands = [(number, units[number].demands[0]) for number in choosers]
            asking = iter([_RequestFill(number, d, d.details[detail][alternative]) for number, d in demands])
            for cell in cells:
                takers += _deal_devices(search, cell, asking)
    return takers, places


def _deal_devices(search: GoalSearch, cell: GroupCellVars, asking: Iterator[_RequestFill]) -> list[_RequestFill]:
    """Deal out the takes of a cell: to each member what it needs, then what is left to the first with room."""
    members = [next(asking) for _ in range(search.total(cell.members))]
    left = {target: count for target, variable in cell.takes.items() if (count := search.value(variable))}

    def give(member: _RequestFill, most: int) -> None:
        for target in [*left]:
            count = min(left[target], most)
            if count:
                member.takes[target] = member.takes.get(target, 0) + count
                left[target] -= count
                most -= count
            if not left[target]:
                del left[target]

    for member in members:
        give(member, member.request.min_count)
    for member in members:
        give(member, (member.request.max_count or 0) - member.request.min_count)
    if members and members[0].request.mode is AllocationMode.SHARE:
        _deal_shares(search, cell, members)
    return members


def _deal_shares(search: GoalSearch, cell: GroupCellVars, members: Sequence[_RequestFill]) -> None:
    """To the first members shares on one device each, to the others in parts, one device after the other."""
    device_groups = search.model.device_groups
    asking = iter(members)
    for place, variable in cell.undivided.items():
        resources = device_groups[place[0]].one.resources
        for _ in range(search.value(variable)):
            member = next(asking)
            member.blocks[place] = {
                name: -(-amount // resources[name].block) for name, amount in member.request.requests.items()
            }
    left = {(place, name): search.total(terms) for place, parts in cell.parts.items() for name, terms in parts.items()}
    for member in asking:
        for name, amount in member.request.requests.items():
            for place in (place for place, named in left if named == name):
                size = device_groups[place[0]].one.resources[name].block
                count = min(left[place, name], -(-amount // size))
                if count:
                    member.blocks.setdefault(place, {})[name] = count
                    left[place, name] -= count
                    amount -= count * size


# -- names -------------------------------------------------------------------------------------------------------------


class _DeviceNamer:
    """Names devices, group by group: whole takers first, then portions and shares; admin details look at used ones."""

    def __init__(self, search: GoalSearch, takers: Sequence[_RequestFill]) -> None:
        self.search, self.model, self.takers = search, search.model, takers
        self.next_free: dict[int, int] = defaultdict(int)
        self.bins: dict[DeviceBin, Device] = {}
        self.in_turn: dict[int, int] = {}

    def hand_out(self) -> None:
        given = [taker for taker in self.takers if not taker.request.mode.is_admin]
        for taker in given:
            self.give_every(taker)
        for taker in given:
            for target, count in taker.takes.items():
                self.give(taker, target, count)
        for taker in given:
            if taker.request.mode is AllocationMode.SHARE:
                self.give_shares(taker)
        for taker in self.takers:
            if taker.request.mode.is_admin:
                self.show(taker)

    def give_every(self, taker: _RequestFill) -> None:
        for b in taker.every:
            for number, device in enumerate(self.model.device_groups[b].devices):
                taker.give(device)
                self.bins[b, number] = device

    def give(self, taker: _RequestFill, target: Target, count: int) -> None:
        if not isinstance(target, int):
            for _ in range(count):
                taker.give(self.device_of(target))
            return
        device_group = self.model.device_groups[target]
        for _ in range(count):
            taker.give(device_group.devices[self.next_free[target]])
            self.next_free[target] += 1
            if device_group.one.shareable:
                self.next_free[target] %= self.devices_in_turn(target)

    def devices_in_turn(self, b: int) -> int:
        """How many devices of a group with equal portions serve in turn: then no taker gets a device twice."""
        if b not in self.in_turn:
            device_group = self.model.device_groups[b]
            takers = [taker for taker in self.takers if not taker.request.mode.is_admin]
            takes = [
                count for taker in takers if (count := device_group.size if b in taker.every else taker.takes.get(b, 0))
            ]
            portions = (taker.request.portions[device_group.one.index] for taker in takers if b in taker.takes)
            times = self.model.usage.portions_left(device_group.one, next(portions))
            self.in_turn[b] = max(*takes, -(-sum(takes) // times) if times else 0)
        return self.in_turn[b]

    def device_of(self, place: DeviceBin) -> Device:
        """The device that stands for one place of a device group."""
        if place not in self.bins:
            b, _ = place
            self.bins[place] = self.model.device_groups[b].devices[self.next_free[b]]
            self.next_free[b] += 1
        return self.bins[place]

    def give_shares(self, taker: _RequestFill) -> None:
        request, blocks = taker.request, taker.blocks
        for name, amount in request.requests.items():
            _trim_excess_blocks(self.model, blocks, name, amount)
        for place, amounts_there in blocks.items():
            given = {name: count for name, count in amounts_there.items() if count}
            if given:
                device = self.device_of(place)
                sizes = tuple((name, count * device.resources[name].block) for name, count in sorted(given.items()))
                taker.entries.append(PlacedDevice(request, device, sizes))

    def show(self, taker: _RequestFill) -> None:
        """Devices for an admin detail: those in use come first, since they are the first of their device group."""
        for b in taker.every:
            for device in self.model.device_groups[b].devices:
                taker.give(device)
        seen: set[int] = set()
        if taker.demand.once:
            siblings = (other for other in self.takers if other.demand is taker.demand)
            seen = {entry.device.index for other in siblings for entry in other.entries}
        for target, count in taker.takes.items():
            assert isinstance(target, int)
            devices = self.model.device_groups[target].devices
            unseen = [device for device in devices if device.shareable or device.index not in seen]
            for device in unseen[:count]:
                taker.give(device)


def _trim_excess_blocks(model: BatchModel, blocks: dict[DeviceBin, dict[str, int]], name: str, request: int) -> None:
    """Give back blocks until one less anywhere would miss the request (S11)."""

    def block(place: DeviceBin) -> int:
        return model.device_groups[place[0]].one.resources[name].block

    having = [place for place in blocks if blocks[place].get(name)]
    surplus = sum(blocks[place][name] * block(place) for place in having) - request
    for place in sorted(having, key=lambda p: (blocks[p][name] * block(p), p)):
        back = min(blocks[place][name], surplus // block(place))
        blocks[place][name] -= back
        surplus -= back * block(place)
