"""How to place a claim on any node of a class, and how good that is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from devalloc_solver.demand import Slot
from devalloc_solver.index.seams import Given
from devalloc_solver.index.states import NodeRecord, Sharing
from devalloc_solver.loads import added

Score = tuple[tuple[int, ...], int, int, int, int, int, int]
"""Smaller is better (S17, goals 2 to 5): alternatives, pools, devices, entries, then what the policy says of the node
and of the pools (to pack, how many are idle; to spread, what the squares of their loads grow by), and of what is left
of partitioned ones. Goal 6 decides between equal ones."""


@dataclass(frozen=True, slots=True)
class Part:
    """So many free devices of some groups of one pool, the first ones in order."""

    slot: Slot
    pool: int
    groups: tuple[int, ...]
    count: int


@dataclass(frozen=True, slots=True)
class Pick:
    """The n-th in order of the devices of a group that are in the same use."""

    slot: Slot
    network: bool
    pool: int
    group: int
    use: str | Sharing
    number: int
    amounts: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Valid for every node of the class that it was made for."""

    score: Score
    parts: tuple[Part | Pick, ...]
    local: bool
    """whether any device is the node's own"""

    def given(self, record: NodeRecord, network: NodeRecord | None) -> list[Given]:
        """The devices, by name; those of a slot in natural order."""
        found: list[Given] = []
        for part in self.parts:
            if isinstance(part, Part):
                found += _take(part, record)
            else:
                owner = network if part.network else record
                assert owner is not None
                found.append(_pick(part, owner))
        return found


FREE = "free"
WHOLE = "whole"


def use_of(record: NodeRecord, pool: int, position: int) -> str | Sharing:
    use = record.uses[pool].get(position)
    if use is None:
        return FREE
    return use.sharing if use.shares else WHOLE


def score_of(
    alternatives: tuple[int, ...],
    used: Sequence[tuple[NodeRecord, int, int, Slot]],
    entries: int,
    loss: int,
    *,
    spread: bool,
) -> Score:
    """``used``: (node or network, pool, device, slot) of each entry."""
    pools = {(record.name, pool): record for record, pool, _, _ in used}
    devices = {(record.name, device) for record, _, device, _ in used}
    if spread:
        return alternatives, len(pools), len(devices), entries, *_growth(used), loss
    idle_pools = sum(not record.states[pool].in_use for (_, pool), record in pools.items())
    owners = {record.name: record for record, _, _, _ in used if record.name is not None}
    idle_nodes = sum(not any(state.in_use for state in record.states) for record in owners.values())
    return alternatives, len(pools), len(devices), entries, idle_nodes, idle_pools, loss


def _growth(used: Sequence[tuple[NodeRecord, int, int, Slot]]) -> tuple[int, int]:
    """What the squares of the loads of nodes and pools grow by (S17, goal 5)."""
    records = {record.name: record for record, _, _, _ in used}
    given = {(record.name, pool, device) for record, pool, device, slot in used if not slot.mode.is_admin}
    new = [
        (name, pool)
        for name, pool, device in given
        if device - records[name].starts[pool] not in records[name].uses[pool]
    ]
    by_node = Counter(name for name, _ in new if name is not None)
    return (
        sum(added(sum(state.load for state in records[name].states), count) for name, count in by_node.items()),
        sum(added(records[name].states[pool].load, count) for (name, pool), count in Counter(new).items()),
    )


def _take(part: Part, record: NodeRecord) -> list[Given]:
    pool, uses = record.pools[part.pool], record.uses[part.pool]
    if len(part.groups) == 1:
        free = [position for position in pool.groups[part.groups[0]] if position not in uses]
    else:
        free = sorted(p for group in part.groups for p in pool.groups[group] if p not in uses)
    view = record.snapshot.pools[part.pool]
    accepted = part.slot.candidates.accepted
    kinds, group_of = pool.kinds, pool.group_of
    return [
        Given(part.slot, view, view.devices[position], accepted[kinds[group_of[position]].index])
        for position in free[: part.count]
    ]


def _pick(part: Pick, record: NodeRecord) -> Given:
    pool = record.pools[part.pool]
    alike = (p for p in pool.groups[part.group] if use_of(record, part.pool, p) == part.use)
    position = next(p for number, p in enumerate(alike) if number == part.number)
    view = record.snapshot.pools[part.pool]
    accepted = part.slot.candidates.accepted[pool.kinds[part.group].index]
    return Given(part.slot, view, view.devices[position], accepted, part.amounts)


def pick_of(
    slot: Slot, record: NodeRecord, pool: int, position: int, amounts: tuple[tuple[str, int], ...], *, network: bool
) -> Pick:
    """The pick that stands for a device, on any node of the same class."""
    kind = record.pools[pool]
    group, use = kind.group_of[position], use_of(record, pool, position)
    alike = [p for p in kind.groups[group] if use_of(record, pool, p) == use]
    return Pick(slot, network, pool, group, use, alike.index(position), amounts)
