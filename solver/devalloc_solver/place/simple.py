"""The common question, answered at once: one detail that wants devices, nothing to weigh but which.

Covers a single device whatever it draws, and several that draw nothing, are of no compatibility group and fit into one
pool. All else is for the search, which would answer the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from devalloc_solver.assignment import Entry, Placement
from devalloc_solver.demand import Demand, Mode, Slot, Unit
from devalloc_solver.place.ground import Ground
from devalloc_solver.place.partitions import Draws, loss_of
from devalloc_solver.place.score import Score
from devalloc_solver.place.site import free_blocks, pool_allows
from devalloc_solver.snapshot import Device, Pool


def simple_slots(unit: Unit) -> tuple[Slot, ...]:
    """The alternatives of a unit that is simple; empty for any other."""
    if [len(demand.details) for demand in unit.demands] != [1]:
        return ()
    demand = unit.demands[0]
    slots = demand.details[0]
    return slots if not (demand.relations or demand.shared) and all(_is_simple(slot, demand) for slot in slots) else ()


def _is_simple(slot: Slot, demand: Demand) -> bool:
    if slot.mode is not Mode.WHOLE or slot.requests or slot.limits or slot.portions:
        return False
    if slot.least > 1 and (slot.match or demand.match):
        return False
    return demand.most is None or slot.least <= demand.most


def place_simple(ground: Ground, unit: Unit, slots: Sequence[Slot], node: str | None) -> tuple[Placement, Score] | bool:
    """Where the first slot that fits goes on one node; False when none does, True when the search has to tell."""
    for slot in slots:
        answer = _place_slot(ground, unit, slot, node)
        if answer is not False:
            return answer
    return False


def _place_slot(ground: Ground, unit: Unit, slot: Slot, node: str | None) -> tuple[Placement, Score] | bool:
    names = (*slot.match, *unit.demands[0].match)
    best: tuple[tuple[int, ...], Pool, list[Device]] | None = None
    several = 0
    for pool, devices in _free(ground, slot, node, names):
        if slot.least == 1:
            loss, device = _least_loss(ground, pool, devices)
            chosen = [device]
        elif any(device.draws or device.compatibility is not None for device in devices):
            return True
        elif len(devices) < slot.least:
            several += len(devices)
            continue
        else:
            loss, chosen = 0, devices[: slot.least]
        rank = (ground.cost_of_pool(pool.index, slot.least), loss, pool.index)
        if best is None or rank < best[0]:
            best = rank, pool, chosen
    if best is None:
        return several >= slot.least
    (avoided, loss, _), pool, devices = best
    demand = unit.demands[0]
    placed = Placement(
        demand,
        None if pool.node is None and unit.is_free else node,
        tuple(Entry(slot, device) for device in devices),
    )
    offsets = sum(device.index for device in devices) - len(devices) * pool.devices[0].index
    chosen_index = () if slot.alternative is None else (slot.alternative,)
    own = 0 if pool.node is None else slot.least
    policy = (0, ground.cost_of_node(node, own), avoided, loss, ground.rank(node), pool.index, offsets)
    return placed, Score(chosen_index, 1, len(devices), policy)


def _free(ground: Ground, slot: Slot, node: str | None, names: tuple[str, ...]) -> Iterator[tuple[Pool, list[Device]]]:
    """The devices that the slot may have, pool by pool."""
    snapshot, ledger = ground.snapshot, ground.ledger
    accepted = slot.candidates.accepted
    whole, shared = ledger.whole, ledger.shared
    reached = snapshot.pools_by_node.get(None, ())
    for pool in (*reached, *snapshot.pools_by_node.get(node, ())) if node is not None else reached:
        found = []
        free: dict[str, int] | None = None
        for device in pool.devices:
            index = device.index
            if index not in accepted or index in whole or index in shared:
                continue
            if device.shareable or device.undefined is not None:
                continue
            if device.reach is not None and node not in device.reach:
                continue
            if any(name not in device.attributes for name in names):
                continue
            if device.draws or device.compatibility is not None:
                free = free_blocks(pool, ledger) if free is None else free
                if not pool_allows(device, free, ledger):
                    continue
            found.append(device)
        if found:
            yield pool, found


def _least_loss(ground: Ground, pool: Pool, devices: list[Device]) -> tuple[int, Device]:
    """The device that costs least of the largest partition; the first of equals."""
    first = devices[0]
    if not ground.packs or not first.draws:
        return 0, first
    shapes = ground.partitions(pool)
    if not shapes:
        return 0, first
    free = {name: ground.ledger.free_pool_blocks(pool.index, name) for name in pool.resources}
    losses: dict[Draws, int] = {}
    for device in devices:
        if device.draws not in losses:
            losses[device.draws] = loss_of(shapes, free, [device.draws])
    return min(((losses[device.draws], device) for device in devices), key=lambda pair: pair[0])
