"""Interchangeable devices and nodes: what the exact model need not tell apart.

Devices of one pool are interchangeable when every slot sees them alike; nodes are when their pools are, up to a
renaming of attribute values that only they carry. Both merges are exact: no value of any goal 1 to 4 is lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from devalloc.api.pool import AttributeValue
from devalloc_solver.demand import Demand, Mode, Slot, Unit
from devalloc_solver.holdings import Ledger
from devalloc_solver.snapshot import Device, Snapshot

MatchValue = tuple[AttributeValue, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Bunch:
    """Interchangeable devices of one pool, in natural order."""

    pool: int
    node: str | None
    devices: tuple[Device, ...]
    held_share: bool
    """somebody already has a share of it: no whole takers, and its pool resources are drawn already"""

    @property
    def size(self) -> int:
        return len(self.devices)

    @property
    def one(self) -> Device:
        """Any of them stands for all."""
        return self.devices[0]

    def match_value(self, names: Sequence[str]) -> MatchValue | None:
        """The values of attributes, or None where one is missing (S15)."""
        attributes = self.one.attributes
        if any(name not in attributes for name in names):
            return None
        return tuple(attributes[name] for name in names)


def make_bunches(
    snapshot: Snapshot, ledger: Ledger, units: Sequence[Unit], *, apart: frozenset[int] = frozenset()
) -> list[Bunch]:
    """Bunches of all devices that some slot may take. Devices in ``apart`` stay single."""
    slots = [slot for unit in units for demand in unit.demands for slot in demand.slots]
    masks = _masks(slots)
    match_names = sorted({name for unit in units for demand in unit.demands for name in _match_names(demand)})
    resources = sorted({name for slot in slots for name in (*slot.requests, *slot.limits)})
    nodes = _representatives(snapshot, ledger, units, masks, match_names, resources, apart)
    bunches: list[Bunch] = []
    for pool in snapshot.pools:
        if pool.node is not None and pool.node not in nodes:
            continue
        alike: dict[object, list[Device]] = defaultdict(list)
        for device in pool.devices:
            if device.index in masks:
                single = device.index if device.index in apart else None
                values = tuple(device.attributes.get(name) for name in match_names)
                alike[masks[device.index], _state(device, ledger, resources), values, single].append(device)
        for devices in alike.values():
            held = devices[0].index in ledger.shared
            bunches.append(Bunch(pool.index, pool.node, tuple(devices), held))
    return bunches


def may_take(slot: Slot, bunch: Bunch, ledger: Ledger) -> bool:
    """Whether a slot may take devices of a bunch, as far as the bunch alone tells."""
    if bunch.one.index not in slot.candidates.accepted:
        return False
    if slot.mode.is_admin:
        return True
    if bunch.one.index in ledger.whole:
        return False
    return not (slot.mode is Mode.WHOLE and bunch.held_share)


def _match_names(demand: Demand) -> Iterable[str]:
    yield from demand.match
    for slot in demand.slots:
        yield from slot.match


def _masks(slots: Sequence[Slot]) -> dict[int, int]:
    """device -> which of the distinct candidate sets have it, as bits"""
    masks: dict[int, int] = defaultdict(int)
    sets = {id(slot.candidates): slot.candidates for slot in slots}
    for bit, candidates in enumerate(sets.values()):
        for index in candidates.accepted:
            masks[index] |= 1 << bit
    return masks


def _state(device: Device, ledger: Ledger, resources: Sequence[str]) -> tuple[object, ...]:
    """What a device has left, and what taking it would draw on its pool: nothing more when it is in use already."""
    amounts = tuple(
        (device.resources[name].block, device.resources[name].blocks, ledger.free_blocks(device, name))
        if name in device.resources
        else None
        for name in resources
    )
    if ledger.in_use(device):
        return device.index in ledger.whole, device.index in ledger.shared, amounts
    return device.draws, device.compatibility, amounts


def _representatives(
    snapshot: Snapshot,
    ledger: Ledger,
    units: Sequence[Unit],
    masks: dict[int, int],
    match_names: Sequence[str],
    resources: Sequence[str],
    apart: frozenset[int],
) -> set[str]:
    """Enough nodes of each kind: no solution needs more nodes of one kind than there are units."""
    pinned = {unit.pin for unit in units if unit.pin is not None}
    free_units = sum(unit.pin is None for unit in units)
    network_values = {
        device.attributes.get(name)
        for pool in snapshot.pools_by_node.get(None, ())
        for device in pool.devices
        for name in match_names
    }
    in_use = ledger.pools_in_use()
    kept: set[str] = set()
    counts: dict[object, int] = defaultdict(int)
    for node in snapshot.nodes:
        renamed: dict[object, int] = {}
        signature: list[object] = []
        useful = False
        for pool in snapshot.pools_by_node[node]:
            members = []
            for device in pool.devices:
                if device.index not in masks:
                    continue
                useful = True
                values = tuple(
                    value
                    if value is None or value in network_values
                    else renamed.setdefault((name, value), len(renamed))
                    for name in match_names
                    for value in (device.attributes.get(name),)
                )
                members.append((masks[device.index], _state(device, ledger, resources), values))
            free = tuple((name, ledger.free_pool_blocks(pool.index, name)) for name in sorted(pool.resources))
            groups = tuple(sorted(map(repr, ledger.groups.get(pool.index, ()))))
            # A device that nobody here may take still counts: while it is held, it draws on its pool.
            held_apart = tuple(device.index for device in pool.devices if device.index in apart)
            signature.append((tuple(members), free, groups, pool.index in in_use, held_apart))
        if not useful:
            continue
        if node in pinned:
            kept.add(node)
            continue
        counts[tuple(signature)] += 1
        if counts[tuple(signature)] <= free_units:
            kept.add(node)
    return kept
