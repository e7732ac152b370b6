"""Turn a cover into devices: which devices each request gets, and how much of each (S11, S18)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from devalloc_solver.place.component_options import ComponentOption
from devalloc_solver.place.components import MergedGroup
from devalloc_solver.place.cover_dp import Cover
from devalloc_solver.place.demand_vector import DemandEntry, DemandVector, TakeKind
from devalloc_solver.place.node_view import devices_of_fixed
from devalloc_solver.place.requests import IndexedRequest
from devalloc_solver.problem.placement import PlacedDevice, Placement
from devalloc_solver.problem.snapshot import Device


def assign_devices(lanes: DemandVector, cover: Cover, chosen: int) -> tuple[Placement, ...]:
    """The placements of the unit's claims, devices in natural order."""
    site = lanes.stock.site
    entries: dict[int, list[PlacedDevice]] = {}
    for ask in site.asks.of(chosen):
        if ask.is_fixed:
            of_ask = [device for lot in devices_of_fixed(site, ask) for device in lot.devices]
            entries[ask.number] = [PlacedDevice(ask.request, device, ask.portion_of(device)) for device in of_ask]
    given: dict[int, list[Device]] = defaultdict(list)
    for _, cell, option in cover.parts:
        _assign_option(lanes, cell.groups, option, given)
    for lane in lanes.lanes:
        devices = sorted(given[lane.number], key=lambda device: device.index)
        entries.update(
            _assign_shares(lanes, lane, devices) if lane.kind is TakeKind.SHARE else _assign_lane(lane, devices)
        )
    ordered = [sorted(entries[ask.number], key=lambda entry: entry.device.index) for ask in site.asks.of(chosen)]
    everything = [entry for of_ask in ordered for entry in of_ask]
    networked = all(site.ledger.snapshot.pools[entry.device.pool].node is None for entry in everything)
    node = None if networked and site.asks.unit.is_free else site.node
    by_demand: dict[int, list[PlacedDevice]] = defaultdict(list)
    for ask, own_entries in zip(site.asks.of(chosen), ordered, strict=True):
        by_demand[ask.demand] += own_entries
    return tuple(
        Placement(demand, node, tuple(by_demand[number])) for number, demand in enumerate(site.asks.unit.demands)
    )


def _assign_option(
    lanes: DemandVector, stacks: Sequence[MergedGroup], option: ComponentOption, given: dict[int, list[Device]]
) -> None:
    """The first devices of each stack go to its uses; admins look at devices in use before others."""
    first: dict[int, int] = defaultdict(int)
    owners: dict[int, set[int | None]] = defaultdict(set)
    """device -> the claims that have it"""
    for number, position, count in option.uses:
        stack = stacks[number]
        for device in stack.devices[first[number] : first[number] + count]:
            for taker, times in stack.uses[position].takes:
                given[taker] += [device] * times
                owners[device.index].add(lanes.lanes[taker].demand)
        first[number] += count
    for number, position, count in option.looks:
        lane = lanes.lanes[position]
        free = [
            device
            for device in stacks[number].devices
            if lane.demand is None or device.shareable or lane.demand not in owners[device.index]
        ]
        for device in sorted(free, key=lambda device: not owners[device.index])[:count]:
            given[position].append(device)
            owners[device.index].add(lane.demand)


def _assign_lane(lane: DemandEntry, devices: Sequence[Device]) -> dict[int, list[PlacedDevice]]:
    """Devices of a lane to its asks, in order; more than they need is left."""
    hands: list[Sequence[Device]] = []
    if lane.kind is TakeKind.TOTAL:
        hands = [devices]
    elif lane.overlaps:
        hands = [devices[: ask.need] for ask in lane.asks]
    elif any(device.shareable for device in devices):
        # In turn: takes of one device are side by side, so no ask has it twice.
        count = len(lane.asks)
        hands = [devices[number : count * lane.ask.need : count] for number in range(count)]
    else:
        start = 0
        for ask in lane.asks:
            hands.append(devices[start : start + ask.need])
            start += ask.need
    return {
        ask.number: [PlacedDevice(ask.request, device, ask.portion_of(device)) for device in hand]
        for ask, hand in zip(lane.asks, hands, strict=True)
    }


# -- shares ------------------------------------------------------------------------------------------------------------


def _assign_shares(lanes: DemandVector, lane: DemandEntry, devices: Sequence[Device]) -> dict[int, list[PlacedDevice]]:
    """Blocks for each ask: of one device if one has the room, else of as many as it takes (S11)."""
    lots = {device.index: lot for lot in lanes.stock.site.lots for device in lot.devices}
    blocks: dict[int, dict[str, int]] = {}
    """device -> resource -> free blocks"""
    for device in devices:
        lot = lots[device.index]
        free = {name: lanes.stock.free_nano(lot, name) for ask in lane.asks for name in ask.request.requests}
        blocks[device.index] = {n: nano // device.resources[n].block for n, nano in free.items() if nano > 0}
    entries: dict[int, list[PlacedDevice]] = {}
    for ask in lane.asks:
        taken = _one_device(ask, devices, blocks) or _split_over_devices(ask, devices, blocks)
        for index, amounts in taken.items():
            for name, count in amounts.items():
                blocks[index][name] -= count
        entries[ask.number] = [
            PlacedDevice(
                ask.request, device, tuple((n, c * device.resources[n].block) for n, c in sorted(own_amounts.items()))
            )
            for device in devices
            if (own_amounts := {n: c for n, c in taken.get(device.index, {}).items() if c})
        ]
    return entries


def _one_device(
    ask: IndexedRequest, devices: Iterable[Device], blocks: dict[int, dict[str, int]]
) -> dict[int, dict[str, int]] | None:
    for device in devices:
        wanted = {}
        for name, nano in ask.request.requests.items():
            if name in device.resources:
                wanted[name] = -(-nano // device.resources[name].block)
        free = blocks[device.index]
        if len(wanted) == len(ask.request.requests) and all(free.get(n, 0) >= count for n, count in wanted.items()):
            return {device.index: wanted}
    return None


def _split_over_devices(
    ask: IndexedRequest, devices: Sequence[Device], blocks: dict[int, dict[str, int]]
) -> dict[int, dict[str, int]]:
    """All that may help, then blocks are given back until one less anywhere would miss the request."""
    taken: dict[int, dict[str, int]] = {device.index: {} for device in devices}
    for name, nano in ask.request.requests.items():
        having = [device for device in devices if blocks[device.index].get(name)]
        size = {device.index: device.resources[name].block for device in having}
        for device in having:
            taken[device.index][name] = min(blocks[device.index][name], -(-nano // size[device.index]))
        surplus = sum(taken[index][name] * size[index] for index in size) - nano
        for index in sorted(size, key=lambda index: (taken[index][name] * size[index], -index)):
            back = min(taken[index][name], surplus // size[index])
            taken[index][name] -= back
            surplus -= back * size[index]
    return taken
