"""From counts to names: which devices each satisfied claim gets, and how much of each (S11, S18)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from devalloc_solver.batch import BatchModel, SlotVars
from devalloc_solver.bunches import Bunch
from devalloc_solver.demand import Demand, Mode, Slot
from devalloc_solver.goals import Search
from devalloc_solver.holdings import Held, Holding
from devalloc_solver.snapshot import Device


@dataclass(frozen=True, slots=True)
class Entry:
    """One device given to one slot; ``amounts`` are (resource, nano units) of a share, empty for a whole device."""

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


def name_devices(search: Search) -> list[Placement]:
    """The placements of all satisfied claims of a solved model."""
    model = search.model
    chosen = [
        parts for parts in model.slots if search.value(parts.chosen) and search.value(model.satisfied[parts.unit])
    ]
    hands = _hand_out(search, chosen)
    entries: dict[int, list[Entry]] = defaultdict(list)
    for parts in chosen:
        entries[id(parts.demand)] += hands[id(parts)]
    placements = []
    for number, unit in enumerate(model.units):
        if not search.value(model.satisfied[number]):
            continue
        place = next((p for p, literal in model.places[number].items() if search.value(literal)), None)
        for demand in unit.demands:
            mine = entries[id(demand)]
            networked = all(model.snapshot.pools[e.device.pool].node is None for e in mine)
            node = None if networked and unit.is_free else place
            placements.append(Placement(demand, node, tuple(mine)))
    return placements


def _hand_out(search: Search, chosen: list[SlotVars]) -> dict[int, list[Entry]]:
    """Name devices bunch by bunch: whole takers first, then shares; admin details look at used devices first."""
    model = search.model
    next_free: dict[int, int] = defaultdict(int)
    hands: dict[int, list[Entry]] = {id(parts): [] for parts in chosen}
    for parts in chosen:
        if parts.slot.mode is Mode.WHOLE:
            for b, count in parts.counts.items():
                for _ in range(search.value(count)):
                    hands[id(parts)].append(Entry(parts.slot, model.bunches[b].devices[next_free[b]]))
                    next_free[b] += 1
    bins: dict[tuple[int, int], Device] = {}
    for parts in chosen:
        if parts.slot.mode is Mode.SHARE:
            hands[id(parts)] = _shares(search, parts, bins, next_free)
    for parts in chosen:
        if parts.slot.mode is Mode.ADMIN_COUNT:
            for b, count in parts.counts.items():
                watched = model.bunches[b].devices[: search.value(count)]
                hands[id(parts)] += [Entry(parts.slot, device) for device in watched]
        elif parts.slot.mode is Mode.ADMIN_ALL:
            place = next(p for p, literal in model.places[parts.unit].items() if search.value(literal))
            found = [device for b in parts.every[place] for device in model.bunches[b].devices]
            hands[id(parts)] = [Entry(parts.slot, device) for device in found]
    return {key: sorted(found, key=lambda e: e.device.index) for key, found in hands.items()}


def _shares(
    search: Search, parts: SlotVars, bins: dict[tuple[int, int], Device], next_free: dict[int, int]
) -> list[Entry]:
    model, slot = search.model, parts.slot
    blocks: dict[tuple[int, int], dict[str, int]] = {}
    for place, (taken, amounts) in parts.shares.items():
        if search.value(taken):
            blocks[place] = {name: search.total(terms) for name, terms in amounts.items()}
    for name, request in slot.requests.items():
        _trim(model, blocks, name, request)
    entries = []
    for place in blocks:
        given = {name: count for name, count in blocks[place].items() if count}
        if not given:
            continue
        if place not in bins:
            bunch: Bunch = model.bunches[place[0]]
            bins[place] = bunch.devices[next_free[place[0]]]
            next_free[place[0]] += 1
        device = bins[place]
        sizes = tuple((name, count * device.resources[name].block) for name, count in sorted(given.items()))
        entries.append(Entry(slot, device, sizes))
    return entries


def _trim(model: BatchModel, blocks: dict[tuple[int, int], dict[str, int]], name: str, request: int) -> None:
    """Give back blocks until one less anywhere would miss the request (S11)."""

    def block(place: tuple[int, int]) -> int:
        return model.bunches[place[0]].one.resources[name].block

    having = [place for place in blocks if blocks[place].get(name)]
    surplus = sum(blocks[place][name] * block(place) for place in having) - request
    for place in sorted(having, key=lambda p: (blocks[p][name] * block(p), p)):
        back = min(blocks[place][name], surplus // block(place))
        blocks[place][name] -= back
        surplus -= back * block(place)
