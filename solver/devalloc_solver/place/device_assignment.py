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


def assign_devices(demand_vector: DemandVector, cover: Cover, chosen: int) -> tuple[Placement, ...]:
    """The placements of the unit's claims, devices in natural order."""
    node_view = demand_vector.stock.node_view
    entries: dict[int, list[PlacedDevice]] = {}
    for indexed in node_view.unit_requests.of(chosen):
        if indexed.is_fixed:
            of_request = [
                device for candidate_group in devices_of_fixed(node_view, indexed) for device in candidate_group.devices
            ]
            entries[indexed.number] = [
                PlacedDevice(indexed.request, device, indexed.portion_of(device)) for device in of_request
            ]
    given: dict[int, list[Device]] = defaultdict(list)
    for _, cell, option in cover.parts:
        _assign_option(demand_vector, cell.groups, option, given)
    for entry in demand_vector.demand_entries:
        devices = sorted(given[entry.number], key=lambda device: device.index)
        entries.update(
            _assign_shares(demand_vector, entry, devices)
            if entry.kind is TakeKind.SHARE
            else _assign_entry(entry, devices)
        )
    ordered = [
        sorted(entries[indexed.number], key=lambda placed: placed.device.index)
        for indexed in node_view.unit_requests.of(chosen)
    ]
    everything = [placed for of_request in ordered for placed in of_request]
    networked = all(node_view.usage.snapshot.pools[placed.device.pool].node is None for placed in everything)
    node = None if networked and node_view.unit_requests.unit.is_free else node_view.node
    by_demand: dict[int, list[PlacedDevice]] = defaultdict(list)
    for indexed, own_entries in zip(node_view.unit_requests.of(chosen), ordered, strict=True):
        by_demand[indexed.demand] += own_entries
    return tuple(
        Placement(demand, node, tuple(by_demand[number]))
        for number, demand in enumerate(node_view.unit_requests.unit.demands)
    )


def _assign_option(
    demand_vector: DemandVector, stacks: Sequence[MergedGroup], option: ComponentOption, given: dict[int, list[Device]]
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
                owners[device.index].add(demand_vector.demand_entries[taker].demand)
        first[number] += count
    for number, position, count in option.looks:
        entry = demand_vector.demand_entries[position]
        free = [
            device
            for device in stacks[number].devices
            if entry.demand is None or device.shareable or entry.demand not in owners[device.index]
        ]
        for device in sorted(free, key=lambda device: not owners[device.index])[:count]:
            given[position].append(device)
            owners[device.index].add(entry.demand)


def _assign_entry(entry: DemandEntry, devices: Sequence[Device]) -> dict[int, list[PlacedDevice]]:
    """Devices of a demand entry to its requests, in order; more than they need is left."""
    hands: list[Sequence[Device]] = []
    if entry.kind is TakeKind.TOTAL:
        hands = [devices]
    elif entry.overlaps:
        hands = [devices[: indexed.need] for indexed in entry.indexed_requests]
    elif any(device.shareable for device in devices):
        # In turn: takes of one device are side by side, so no request has it twice.
        count = len(entry.indexed_requests)
        hands = [devices[number : count * entry.indexed.need : count] for number in range(count)]
    else:
        start = 0
        for indexed in entry.indexed_requests:
            hands.append(devices[start : start + indexed.need])
            start += indexed.need
    return {
        indexed.number: [PlacedDevice(indexed.request, device, indexed.portion_of(device)) for device in hand]
        for indexed, hand in zip(entry.indexed_requests, hands, strict=True)
    }


# -- shares ------------------------------------------------------------------------------------------------------------


def _assign_shares(
    demand_vector: DemandVector, entry: DemandEntry, devices: Sequence[Device]
) -> dict[int, list[PlacedDevice]]:
    """Blocks for each request: of one device if one has the room, else of as many as it takes (S11)."""
    candidate_groups = {
        device.index: candidate_group
        for candidate_group in demand_vector.stock.node_view.candidate_groups
        for device in candidate_group.devices
    }
    blocks: dict[int, dict[str, int]] = {}
    """device -> resource -> free blocks"""
    for device in devices:
        candidate_group = candidate_groups[device.index]
        free = {
            name: demand_vector.stock.free_nano(candidate_group, name)
            for indexed in entry.indexed_requests
            for name in indexed.request.requests
        }
        blocks[device.index] = {n: nano // device.resources[n].block for n, nano in free.items() if nano > 0}
    entries: dict[int, list[PlacedDevice]] = {}
    for indexed in entry.indexed_requests:
        taken = _one_device(indexed, devices, blocks) or _split_over_devices(indexed, devices, blocks)
        for index, amounts in taken.items():
            for name, count in amounts.items():
                blocks[index][name] -= count
        entries[indexed.number] = [
            PlacedDevice(
                indexed.request,
                device,
                tuple((n, c * device.resources[n].block) for n, c in sorted(own_amounts.items())),
            )
            for device in devices
            if (own_amounts := {n: c for n, c in taken.get(device.index, {}).items() if c})
        ]
    return entries


def _one_device(
    indexed: IndexedRequest, devices: Iterable[Device], blocks: dict[int, dict[str, int]]
) -> dict[int, dict[str, int]] | None:
    for device in devices:
        wanted = {}
        for name, nano in indexed.request.requests.items():
            if name in device.resources:
                wanted[name] = -(-nano // device.resources[name].block)
        free = blocks[device.index]
        if len(wanted) == len(indexed.request.requests) and all(free.get(n, 0) >= count for n, count in wanted.items()):
            return {device.index: wanted}
    return None


def _split_over_devices(
    indexed: IndexedRequest, devices: Sequence[Device], blocks: dict[int, dict[str, int]]
) -> dict[int, dict[str, int]]:
    """All that may help, then blocks are given back until one less anywhere would miss the request."""
    taken: dict[int, dict[str, int]] = {device.index: {} for device in devices}
    for name, nano in indexed.request.requests.items():
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
