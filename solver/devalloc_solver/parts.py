"""The parts of a batch: units that compete for nothing are solved apart, and the answer stays as good (S17).

Two units compete when there is a pool that both may use: its devices, its resources (S12), its compatibility groups
(S12a), and that it counts once however many use it (goal 3). Parts have no pool in common, so no rule ties what one
part gets to what another one gets, and goals 1 to 4 are sums and vectors over the parts: the best answers of the parts
are the best answer of the batch. Only goal 5 looks at nodes, which parts may share: each part is solved on top of those
before it.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from devalloc_solver.demand import Demand, Slot, Unit
from devalloc_solver.holdings import Holding, Key
from devalloc_solver.naming import claim_order
from devalloc_solver.snapshot import Device, Snapshot


@dataclass(frozen=True, slots=True)
class Part:
    """Units that compete with each other, directly or through others, and with no unit of another part."""

    units: tuple[Unit, ...]
    """in the order of the batch"""
    pools: frozenset[int]
    """all that they may use"""

    @property
    def keys(self) -> tuple[Key, ...]:
        """The claims."""
        return tuple(demand.key for unit in self.units for demand in unit.demands)


@dataclass(frozen=True, slots=True)
class Summary:
    """A part by the names of its claims, for those who know no snapshot."""

    units: tuple[tuple[Key, ...], ...]
    """claims that are satisfied together or not at all"""
    priorities: Mapping[Key, int]
    fingerprint: str
    """see ``fingerprint``"""


def summaries(snapshot: Snapshot, holdings: Sequence[Holding], units: Sequence[Unit]) -> list[Summary]:
    """The parts of a batch."""
    return [
        Summary(
            tuple(tuple(demand.key for demand in unit.demands) for unit in part.units),
            {demand.key: demand.claim.priority for unit in part.units for demand in unit.demands},
            fingerprint(snapshot, holdings, part),
        )
        for part in split(snapshot, units)
    ]


def unproven_names(parts: Iterable[Part]) -> list[str]:
    """``NAMESPACE/NAME`` of the claims of parts, as answers have them."""
    return sorted("/".join(key) for part in parts for key in part.keys)


def split(snapshot: Snapshot, units: Sequence[Unit]) -> list[Part]:
    """The parts of a batch, those that are easier to solve first. Units that may use no pool at all are one part."""
    reach = _Reach(snapshot)
    sets = _Sets()
    first: list[int | None] = []
    """of each unit some pool that it may use"""
    for unit in units:
        start: int | None = None
        for slot in (slot for demand in unit.demands for slot in demand.slots):
            for pools in reach.of(slot, unit.pin):
                start = pools[0] if start is None else start
                sets.join(start, pools)
        first.append(start)
    members: dict[int | None, list[Unit]] = defaultdict(list)
    for unit, start in zip(units, first, strict=True):
        members[None if start is None else sets.root(start)].append(unit)
    pools_of: dict[int | None, list[int]] = defaultdict(list)
    for pool in sets.parents:
        pools_of[sets.root(pool)].append(pool)
    parts = [Part(tuple(found), frozenset(pools_of.get(root, ()))) for root, found in members.items()]
    return sorted(parts, key=_effort)  # stable: equal ones in the order of their first unit


def joined(parts: Sequence[Part]) -> Part:
    """One part of several."""
    units = tuple(unit for part in parts for unit in part.units)
    return Part(units, frozenset[int]().union(*(part.pools for part in parts)))


def _effort(part: Part) -> tuple[bool, int, int]:
    """A single unit needs no search among several, and what there is to decide grows with both numbers."""
    return len(part.units) > 1, len(part.units) * len(part.pools), len(part.units)


@dataclass(slots=True)
class _Reach:
    """The pools that slots may use; slots with the same candidates are looked at once."""

    snapshot: Snapshot
    by_node: dict[int, Mapping[str | None, tuple[int, ...]]] = field(default_factory=dict)
    everywhere: dict[int, tuple[int, ...]] = field(default_factory=dict)
    alive: list[object] = field(default_factory=list)
    """what the identities are of"""

    def of(self, slot: Slot, pin: str | None) -> Iterable[tuple[int, ...]]:
        """Groups of pools, none of them empty; from the node ``pin`` only, where there is one."""
        key = id(slot.candidates)
        if key not in self.by_node:
            self.alive.append(slot.candidates)
            found: dict[str | None, dict[int, None]] = defaultdict(dict)
            for index in slot.candidates.accepted:
                pool = self.snapshot.devices[index].pool
                found[self.snapshot.pools[pool].node][pool] = None
            self.by_node[key] = {node: tuple(pools) for node, pools in found.items()}
            self.everywhere[key] = tuple(pool for pools in found.values() for pool in pools)
        if pin is None:
            return [self.everywhere[key]] if self.everywhere[key] else []
        nodes = self.by_node[key]
        return [nodes[node] for node in (pin, None) if node in nodes]


@dataclass(slots=True)
class _Sets:
    """Pools that hang together (union-find)."""

    parents: dict[int, int] = field(default_factory=dict)
    joined: set[tuple[int, int]] = field(default_factory=set)
    """(a pool, identity of a tuple of pools) that are one set already"""

    def root(self, pool: int) -> int:
        while (parent := self.parents[pool]) != pool:
            self.parents[pool] = self.parents[parent]
            pool = parent
        return pool

    def join(self, start: int, pools: tuple[int, ...]) -> None:
        if (start, id(pools)) in self.joined:
            return
        self.joined.add((start, id(pools)))
        root = self.root(start) if start in self.parents else self.parents.setdefault(start, start)
        for pool in pools:
            self.parents[self.root(pool) if pool in self.parents else pool] = root


# -- what the answer of a part depends on ----------------------------------------------------------------------------


def fingerprint(snapshot: Snapshot, holdings: Iterable[Holding], part: Part) -> str:
    """Equal for a part whose answer can be no other than before: its claims ask for the same, of pools that offer the
    same, of which the same claims hold the same.

    Names count, and what else an answer or a reason is made of; nothing does that claims only carry along.
    """
    told = hashlib.sha256()
    for unit in part.units:
        told.update(repr((unit.group, unit.pin, sorted(unit.pinned_by))).encode())
        for demand in unit.demands:
            told.update(repr(_of_demand(snapshot, demand)).encode())
    for pool in (snapshot.pools[index] for index in sorted(part.pools)):
        told.update(repr((pool.node, pool.driver, pool.name, sorted(pool.resources.items()))).encode())
        told.update(repr([_of_device(device) for device in pool.devices]).encode())
    for holding in holdings:
        items = [item for item in holding.items if snapshot.devices[item.device].pool in part.pools]
        if items:
            named = [(_name(snapshot, item.device), item.amounts) for item in items]
            told.update(repr((holding.claim, holding.priority, named)).encode())
    return told.hexdigest()


def _of_demand(snapshot: Snapshot, demand: Demand) -> object:
    slots = [
        (
            *(slot.label, slot.mode.value, slot.least, slot.most, slot.match),
            *(sorted(slot.requests.items()), sorted(slot.limits.items())),
            *(sorted(slot.candidates.barred), [_name(snapshot, index) for index in sorted(slot.candidates.bars)]),
            [(_name(snapshot, index), named) for index, named in sorted(slot.candidates.accepted.items())],
            [(_name(snapshot, index), portion) for index, portion in sorted(slot.portions.items())],
        )
        for slot in demand.slots
    ]
    relations = [(one.attribute, one.distinct, sorted(one.labels)) for one in demand.relations]
    return claim_order(demand.claim), demand.match, demand.shared, relations, demand.most, demand.once, slots


def _of_device(device: Device) -> object:
    attributes = sorted((name, type(value).__name__, _shown(value)) for name, value in device.attributes.items())
    reach = None if device.reach is None else sorted(device.reach)
    return device.name, attributes, sorted(device.resources.items()), device.draws, device.shareable, reach


def _shown(value: object) -> str:
    return repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value)


def _name(snapshot: Snapshot, index: int) -> tuple[str | None, str, str]:
    device = snapshot.devices[index]
    pool = snapshot.pools[device.pool]
    return pool.node, pool.name, device.name
