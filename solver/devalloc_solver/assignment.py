"""From counts to names: which devices each satisfied claim gets, and how much of each (S11, S18)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from devalloc_solver.batch import BatchModel, Bin, Cell, Crowd, Target
from devalloc_solver.bunches import Place
from devalloc_solver.demand import Demand, Mode, Slot
from devalloc_solver.goals import Search
from devalloc_solver.holdings import Held, Holding
from devalloc_solver.snapshot import Device


@dataclass(frozen=True, slots=True)
class Entry:
    """One take: a device given to one slot; of a shareable device there may be several.

    ``amounts`` are the (resource, nano units) of a share or portion, empty for a whole device.
    """

    slot: Slot
    device: Device
    amounts: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one claim goes."""

    demand: Demand
    node: str | None
    entries: tuple[Entry, ...]

    def holding(self) -> Holding:
        """What the claim holds from now on."""
        items = tuple(
            Held(e.device.index, e.amounts if e.amounts or e.device.shareable else None)
            for e in self.entries
            if not e.slot.mode.is_admin
        )
        return Holding(self.demand.key, self.demand.claim.priority, items)


@dataclass(slots=True, eq=False)
class _Taker:
    """One slot of one satisfied claim, and what it gets."""

    unit: int
    demand: Demand
    slot: Slot
    takes: dict[Target, int] = field(default_factory=dict)
    every: Sequence[int] = ()
    """bunches of which it gets all devices"""
    blocks: dict[Bin, dict[str, int]] = field(default_factory=dict)
    """blocks of each resource that its share has of a device"""
    entries: list[Entry] = field(default_factory=list)

    def give(self, device: Device) -> None:
        self.entries.append(Entry(self.slot, device, self.slot.portions.get(device.index, ())))


def name_devices(search: Search) -> list[Placement]:
    """The placements of all satisfied claims of a solved model."""
    model = search.model
    takers, places = _singles(search)
    for crowd in model.crowds:
        found, where = _members(search, crowd)
        takers += found
        places |= where
    takers.sort(key=lambda taker: (taker.unit, taker.slot.detail))
    _Names(search, takers).hand_out()
    entries: dict[int, list[Entry]] = defaultdict(list)
    for taker in takers:
        entries[id(taker.demand)] += sorted(taker.entries, key=lambda entry: entry.device.index)
    placements = []
    for number, unit in enumerate(model.units):
        if not search.value(model.satisfied[number]):
            continue
        for demand in unit.demands:
            mine = entries[id(demand)]
            networked = all(model.snapshot.pools[e.device.pool].node is None for e in mine)
            node = None if networked and unit.is_free else places[number]
            placements.append(Placement(demand, node, tuple(mine)))
    return placements


def _singles(search: Search) -> tuple[list[_Taker], dict[int, Place]]:
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
        takers.append(_Taker(parts.unit, parts.demand, parts.slot, takes, every, blocks))
    return takers, places


# -- crowds ----------------------------------------------------------------------------------------------------------


def _members(search: Search, crowd: Crowd) -> tuple[list[_Taker], dict[int, Place]]:
    """What each member of a crowd takes, and where it is: the earlier ones have the smaller alternatives (S17)."""
    units = search.model.units
    choices = sorted(
        (pattern, order)
        for order, site in enumerate(crowd.sites)
        for pattern, variable in site.patterns.items()
        for _ in range(search.value(variable))
    )
    places: dict[int, Place] = {}
    at_site: dict[int, list[tuple[int, tuple[int, ...]]]] = defaultdict(list)
    for number, (pattern, order) in zip(crowd.units, choices, strict=False):
        places[number] = crowd.sites[order].place
        at_site[order].append((number, pattern))
    takers = []
    for order, members in at_site.items():
        for (detail, alternative), cells in crowd.sites[order].cells.items():
            mine = [number for number, pattern in members if pattern[detail] == alternative]
            demands = [(number, units[number].demands[0]) for number in mine]
            asking = iter([_Taker(number, d, d.details[detail][alternative]) for number, d in demands])
            for cell in cells:
                takers += _deal(search, cell, asking)
    return takers, places


def _deal(search: Search, cell: Cell, asking: Iterator[_Taker]) -> list[_Taker]:
    """Deal out the takes of a cell: to each member what it needs, then what is left to the first with room."""
    members = [next(asking) for _ in range(search.total(cell.members))]
    left = {target: count for target, variable in cell.takes.items() if (count := search.value(variable))}

    def give(member: _Taker, most: int) -> None:
        for target in [*left]:
            count = min(left[target], most)
            if count:
                member.takes[target] = member.takes.get(target, 0) + count
                left[target] -= count
                most -= count
            if not left[target]:
                del left[target]

    for member in members:
        give(member, member.slot.least)
    for member in members:
        give(member, (member.slot.most or 0) - member.slot.least)
    if members and members[0].slot.mode is Mode.SHARE:
        _deal_shares(search, cell, members)
    return members


def _deal_shares(search: Search, cell: Cell, members: Sequence[_Taker]) -> None:
    """To the first members shares on one device each, to the others in parts, one device after the other."""
    bunches = search.model.bunches
    asking = iter(members)
    for place, variable in cell.undivided.items():
        resources = bunches[place[0]].one.resources
        for _ in range(search.value(variable)):
            member = next(asking)
            member.blocks[place] = {
                name: -(-amount // resources[name].block) for name, amount in member.slot.requests.items()
            }
    left = {(place, name): search.total(terms) for place, parts in cell.parts.items() for name, terms in parts.items()}
    for member in asking:
        for name, amount in member.slot.requests.items():
            for place in (place for place, named in left if named == name):
                size = bunches[place[0]].one.resources[name].block
                count = min(left[place, name], -(-amount // size))
                if count:
                    member.blocks.setdefault(place, {})[name] = count
                    left[place, name] -= count
                    amount -= count * size


# -- names -----------------------------------------------------------------------------------------------------------


class _Names:
    """Names devices bunch by bunch: whole takers first, then portions and shares; admin details look at used ones."""

    def __init__(self, search: Search, takers: Sequence[_Taker]) -> None:
        self.search, self.model, self.takers = search, search.model, takers
        self.next_free: dict[int, int] = defaultdict(int)
        self.bins: dict[Bin, Device] = {}
        self.in_turn: dict[int, int] = {}

    def hand_out(self) -> None:
        given = [taker for taker in self.takers if not taker.slot.mode.is_admin]
        for taker in given:
            self.give_every(taker)
        for taker in given:
            for target, count in taker.takes.items():
                self.give(taker, target, count)
        for taker in given:
            if taker.slot.mode is Mode.SHARE:
                self.give_shares(taker)
        for taker in self.takers:
            if taker.slot.mode.is_admin:
                self.show(taker)

    def give_every(self, taker: _Taker) -> None:
        for b in taker.every:
            for number, device in enumerate(self.model.bunches[b].devices):
                taker.give(device)
                self.bins[b, number] = device

    def give(self, taker: _Taker, target: Target, count: int) -> None:
        if not isinstance(target, int):
            for _ in range(count):
                taker.give(self.device_of(target))
            return
        bunch = self.model.bunches[target]
        for _ in range(count):
            taker.give(bunch.devices[self.next_free[target]])
            self.next_free[target] += 1
            if bunch.one.shareable:
                self.next_free[target] %= self.devices_in_turn(target)

    def devices_in_turn(self, b: int) -> int:
        """How many devices of a bunch whose portions are alike serve in turn: nobody gets a device twice then."""
        if b not in self.in_turn:
            bunch = self.model.bunches[b]
            takers = [taker for taker in self.takers if not taker.slot.mode.is_admin]
            takes = [count for taker in takers if (count := bunch.size if b in taker.every else taker.takes.get(b, 0))]
            portions = (taker.slot.portions[bunch.one.index] for taker in takers if b in taker.takes)
            times = self.model.ledger.portions_left(bunch.one, next(portions))
            self.in_turn[b] = max(*takes, -(-sum(takes) // times) if times else 0)
        return self.in_turn[b]

    def device_of(self, place: Bin) -> Device:
        """The device that stands for one place of a bunch."""
        if place not in self.bins:
            b, _ = place
            self.bins[place] = self.model.bunches[b].devices[self.next_free[b]]
            self.next_free[b] += 1
        return self.bins[place]

    def give_shares(self, taker: _Taker) -> None:
        slot, blocks = taker.slot, taker.blocks
        for name, request in slot.requests.items():
            _trim(self.model, blocks, name, request)
        for place, amounts_there in blocks.items():
            given = {name: count for name, count in amounts_there.items() if count}
            if given:
                device = self.device_of(place)
                sizes = tuple((name, count * device.resources[name].block) for name, count in sorted(given.items()))
                taker.entries.append(Entry(slot, device, sizes))

    def show(self, taker: _Taker) -> None:
        """Devices for an admin detail: those in use come first, since they are the first of their bunch."""
        for b in taker.every:
            for device in self.model.bunches[b].devices:
                taker.give(device)
        seen: set[int] = set()
        if taker.demand.once:
            mine = (other for other in self.takers if other.demand is taker.demand)
            seen = {entry.device.index for other in mine for entry in other.entries}
        for target, count in taker.takes.items():
            assert isinstance(target, int)
            devices = self.model.bunches[target].devices
            unseen = [device for device in devices if device.shareable or device.index not in seen]
            for device in unseen[:count]:
                taker.give(device)


def _trim(model: BatchModel, blocks: dict[Bin, dict[str, int]], name: str, request: int) -> None:
    """Give back blocks until one less anywhere would miss the request (S11)."""

    def block(place: Bin) -> int:
        return model.bunches[place[0]].one.resources[name].block

    having = [place for place in blocks if blocks[place].get(name)]
    surplus = sum(blocks[place][name] * block(place) for place in having) - request
    for place in sorted(having, key=lambda p: (blocks[p][name] * block(p), p)):
        back = min(blocks[place][name], surplus // block(place))
        blocks[place][name] -= back
        surplus -= back * block(place)
