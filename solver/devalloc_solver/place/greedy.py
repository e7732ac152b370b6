"""Greedy first answers: each unit on the first node that has room. The fallback at a deadline, and a lower bound
for better answers.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from devalloc_solver.place import (
    DEFAULT_STEPS,
    SearchDeadline,
    StepBudget,
    StepsExhausted,
    UnitReader,
    place,
    place_on,
)
from devalloc_solver.place.node_order import BatchNodes, batch_nodes, unit_key
from devalloc_solver.place.search_context import SearchContext
from devalloc_solver.problem.allocations import Holding, Usage
from devalloc_solver.problem.demand import Candidates, PlacementUnit
from devalloc_solver.problem.placement import Placement
from devalloc_solver.problem.placement_policy import PACK, PlacementPolicy
from devalloc_solver.problem.snapshot import Snapshot

MAX_SPREAD_UNITS = 200
"""Units up to which each is placed where it is best in all goals to spread them; beyond, where there is room first."""

MAX_MOVES = 200
"""Units that are tried elsewhere to close pools. With 50 and with 800 the batches of 30 claims of the benchmark
`batches` have the same answers in the same time."""

STEPS = 4_000
"""Search steps for one unit on one node; a node that takes more is passed over. A chain of 64 details takes 3,800. With
500 a batch of 30 claims for partitions of the benchmark `batches` takes three times as long and a pool more; with 8,000
no answer is better."""


def place_greedily(
    snapshot: Snapshot,
    allocations: Sequence[Holding],
    units: Sequence[PlacementUnit],
    *,
    policy: PlacementPolicy,
    ends: float | None,
    rival: Sequence[tuple[int, int]] = (),
    in_haste: bool = False,
) -> list[Placement]:
    """Placements that are right but not always best, as many as come about before ``ends`` (monotonic time).

    Args:
        rival: (priority, claims) of an answer, highest priority first. Where this one can no longer satisfy more, it is
            left unfinished.
        in_haste: begin with the node where the unit before found room, and not with the first one, and take any
            devices there: to find out that a node which is nearly full has no room for a unit takes long.
    """
    possible = Counter(demand.claim.priority for unit in units for demand in unit.demands)
    usage = Usage.of(snapshot, allocations)
    rooms = _FreeDevices(snapshot, usage)
    placements: list[Placement] = []
    hopeless: dict[object, int] = {}
    """kind of units -> how many of the nodes have no room for one: what a node has only gets less"""
    deadline = SearchDeadline(ends)
    latest = 0
    for unit in units:
        if ends is not None and time.monotonic() > ends:
            break
        nodes = _nodes(unit, usage, policy)
        if in_haste and not policy.weighs_loads and unit.pin is None:
            nodes = [*nodes[latest:], *nodes[:latest]]
        kind = unit_key(unit) if not policy.weighs_loads and not in_haste else None
        start = hopeless.get(kind, 0) if kind is not None else 0
        needs, reader = rooms.needs(unit), UnitReader()
        for position in range(start, len(nodes)):
            if not needs.may_be_met(nodes[position]):
                continue
            placed = _try_node(
                snapshot, usage, unit, nodes[position], policy, deadline, reader=reader, any_will_do=in_haste
            )
            if placed:
                for one in placed:
                    usage.add(one.holding())
                    rooms.take(one)
                placements += placed
                latest = (latest + position) % len(nodes) if unit.pin is None else latest
                break
        else:
            position = len(nodes)
            possible.subtract(demand.claim.priority for demand in unit.demands)
            if rival and [possible[priority] for priority, _ in rival] <= [claims for _, claims in rival]:
                break
        if kind is not None:
            hopeless[kind] = position
    return placements


def place_compactly(
    snapshot: Snapshot,
    allocations: Sequence[Holding],
    units: Sequence[PlacementUnit],
    *,
    policy: PlacementPolicy,
    ends: float | None,
    is_roomy: bool = False,
) -> list[Placement]:
    """Each unit in pools that units before it have opened, as long as these have room for its first alternatives; else
    where it is best on what those before it leave, or if ``is_roomy`` on the node where most is free."""
    usage = Usage.of(snapshot, allocations)
    rooms = _FreeDevices(snapshot, usage)
    placements: list[Placement] = []
    pools: set[int] = set()
    opened: list[str | None] = []
    """nodes with such pools"""
    full: Counter[object] = Counter()
    """kind of units -> how many of these have no room for one"""
    denied: set[object] = set()
    batch = batch_nodes(SearchContext(snapshot, usage, policy), units)
    roomiest = _roomiest_nodes(snapshot, usage) if is_roomy else []
    hopeless: Counter[object] = Counter()
    """kind of units -> how many of the roomiest nodes have no room for one"""
    deadline = SearchDeadline(ends)
    for unit in units:
        if ends is not None and time.monotonic() > ends:
            break
        kind = unit_key(unit)
        if kind is not None and kind in denied:
            continue
        needs = rooms.needs(unit)
        placed: Sequence[Placement] = ()
        for start in range(full[kind] if kind is not None else 0, len(opened)):
            if unit.pin in (None, opened[start]) and needs.may_be_met(opened[start]):
                tried = _try_node(snapshot, usage, unit, opened[start], policy, deadline)
                inside = pools.issuperset(entry.device.pool for one in tried for entry in one.entries)
                placed = tried if inside and not has_later_choice(tried) else ()
            full[kind] = start + (not placed)
            if placed:
                break
        for position in range(hopeless[kind], len(roomiest) if not placed and unit.pin is None else 0):
            fits = needs.may_be_met(roomiest[position])
            placed = _try_node(snapshot, usage, unit, roomiest[position], policy, deadline) if fits else ()
            if placed:
                placed = () if has_later_choice(placed) else placed
                break
            hopeless[kind] += kind is not None and position == hopeless[kind]
        placed = placed or _best_node(snapshot, usage, unit, policy, batch, deadline)
        if not placed:
            denied.add(kind)
        for one in placed:
            batch.use(one.node)
            usage.add(one.holding())
            rooms.take(one)
            pools.update(entry.device.pool for entry in one.entries)
            if one.node not in opened:
                opened.append(one.node)
        placements += placed
    return placements


def _roomiest_nodes(snapshot: Snapshot, usage: Usage) -> list[str]:
    """The nodes with the most devices to be had first."""
    free = {
        node: sum(
            not usage.in_use(device) and not usage.excludes(device)
            for pool in snapshot.pools_by_node.get(node, ())
            for device in pool.devices
        )
        for node in snapshot.nodes
    }
    return sorted(free, key=lambda node: -free[node])


def close_pools(
    snapshot: Snapshot,
    allocations: Sequence[Holding],
    units: Sequence[PlacementUnit],
    placements: Sequence[Placement],
    *,
    policy: PlacementPolicy,
    ends: float | None,
) -> list[Placement]:
    """The same units by the same alternatives in fewer pools: one pool after the other is closed, those with the fewest
    devices given first, where all its units have room in the others."""
    groups = {demand.key: unit for unit in units for demand in unit.demands}
    best = list(placements)
    closed = True
    tries, deadline = MAX_MOVES, SearchDeadline(ends)
    while closed:
        closed = False
        given = Counter(entry.device.pool for one in best for entry in one.entries)
        for pool in sorted(given, key=lambda pool: (given[pool], pool)):
            inside = [one for one in best if any(entry.device.pool == pool for entry in one.entries)]
            moved = {id(groups[one.demand.key]): groups[one.demand.key] for one in inside}
            stay = [one for one in best if id(groups[one.demand.key]) not in moved]
            usage = Usage.of(snapshot, [*allocations, *(one.holding() for one in stay)])
            pools = {*given} - {pool}
            nodes = [*dict.fromkeys(one.node for one in stay)]
            for unit in sorted(moved.values(), key=min_whole_devices, reverse=True):
                tries -= 1
                if tries < 0 or (ends is not None and time.monotonic() > ends):
                    return best
                tried = (
                    _try_node(snapshot, usage, unit, node, policy, deadline)
                    for node in nodes
                    if unit.pin in (None, node)
                )
                placed = next(
                    (new for new in tried if new and _is_inside(new, pools) and not has_later_choice(new)), ()
                )
                if not placed:
                    break
                for one in placed:
                    usage.add(one.holding())
                stay += placed
            else:
                best, closed = stay, True
                break
    return best


def _is_inside(placements: Iterable[Placement], pools: Collection[int]) -> bool:
    return all(entry.device.pool in pools for one in placements for entry in one.entries)


def has_later_choice(placements: Iterable[Placement]) -> bool:
    """Whether claims have other alternatives than their first ones."""
    return any(entry.request.alternative for one in placements for entry in one.entries)


def _best_node(
    snapshot: Snapshot,
    usage: Usage,
    unit: PlacementUnit,
    policy: PlacementPolicy,
    batch: BatchNodes,
    deadline: SearchDeadline,
) -> Sequence[Placement]:
    try:
        placed = place(snapshot, usage, unit, policy=policy, steps=StepBudget(STEPS, deadline), batch=batch)
    except StepsExhausted:
        return ()
    return () if placed is None else placed.placements


def place_evenly(
    snapshot: Snapshot,
    allocations: Sequence[Holding],
    units: Sequence[PlacementUnit],
    *,
    policy: PlacementPolicy,
    ends: float | None,
    fill: bool,
) -> list[Placement]:
    """Each unit where a policy that weighs loads likes it best beside those before it (S17, goal 5), as many as
    come about before ``ends``.

    ``fill``: in pools that units before it have opened, as long as these have room.
    """
    if len(units) > MAX_SPREAD_UNITS and not fill:
        return place_greedily(snapshot, allocations, units, policy=policy, ends=ends)
    usage = Usage.of(snapshot, allocations)
    given: list[Placement] = []
    pools: set[int] = set()
    opened: list[str | None] = []
    """nodes with such pools"""
    full: dict[object, int] = {}
    """kind of units -> how many of these have no room for one in such pools"""
    deadline = SearchDeadline(ends)
    is_exact = len(units) <= MAX_SPREAD_UNITS
    for unit in units:
        if ends is not None and time.monotonic() > ends:
            break
        kind = unit_key(unit)
        start = full.get(kind, 0) if fill and kind is not None else 0
        placed: Sequence[Placement] = ()
        while not placed and start < len(opened) and fill:
            tried: Sequence[Placement] = ()
            if unit.pin in (None, opened[start]):
                tried = _try_node(snapshot, usage, unit, opened[start], PACK, deadline)
            placed = tried if pools.issuperset(e.device.pool for one in tried for e in one.entries) else ()
            start += not placed
        if kind is not None:
            full[kind] = start
        placed = placed or _most_even(snapshot, usage, unit, policy, deadline, exactly=is_exact)
        for one in placed:
            usage.add(one.holding())
            new = {entry.device.pool for entry in one.entries} - pools
            pools |= new
            opened += [one.node] if new else []
            given.append(one)
    return given


def _most_even(
    snapshot: Snapshot,
    usage: Usage,
    unit: PlacementUnit,
    policy: PlacementPolicy,
    deadline: SearchDeadline,
    *,
    exactly: bool,
) -> Sequence[Placement]:
    """Where the policy likes a unit best; if not exactly, the first node in its order that has room."""
    if exactly:
        try:
            best = place(snapshot, usage, unit, policy=policy, steps=StepBudget(DEFAULT_STEPS, deadline))
        except StepsExhausted:
            return ()
        return () if best is None else best.placements
    tried = (_try_node(snapshot, usage, unit, node, policy, deadline) for node in _nodes(unit, usage, policy))
    return next((placed for placed in tried if placed), ())


def candidate_orders(units: Sequence[PlacementUnit], parts: Sequence[Fraction] = ()) -> Iterator[list[PlacementUnit]]:
    """Orders in which a first fit may do well, higher priorities first in all of them: the small units first; of these
    those with the fewest candidates; those with the fewest candidates, of these the small ones; as they come; and where
    ``parts`` tells what each takes of all amounts, the small units first, of these those that take little.

    Of orders that are the same one is left out.
    """
    taken = dict(zip(map(id, units), parts, strict=True)) if parts else {}
    looks: list[Callable[[PlacementUnit], tuple[Fraction | int, ...]]] = [
        lambda unit: (min_whole_devices(unit),),
        lambda unit: (min_whole_devices(unit), _fewest_candidates(unit)),
        lambda unit: (_fewest_candidates(unit), min_whole_devices(unit)),
        lambda unit: (),
    ]
    looks += [lambda unit: (min_whole_devices(unit), taken[id(unit)])] if taken else []
    seen: set[tuple[int, ...]] = set()
    for look in looks:
        ordered = sorted(units, key=lambda unit: (-unit.demands[0].claim.priority, *look(unit)))
        if (order := tuple(map(id, ordered))) not in seen:
            seen.add(order)
            yield ordered


def min_whole_devices(unit: PlacementUnit) -> Fraction:
    """Devices that a unit takes whole at least, for each of its claims."""
    devices = sum(
        min(request.min_count if request.takes_whole else 0 for request in alternatives)
        for demand in unit.demands
        for alternatives in demand.details
    )
    return Fraction(devices, len(unit.demands))


def _fewest_candidates(unit: PlacementUnit) -> int:
    """Candidates of the detail that has the fewest."""
    return min(
        (
            sum(len(request.candidates.accepted) for request in detail)
            for demand in unit.demands
            for detail in demand.details
        ),
        default=0,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _WholeDeviceNeeds:
    """The devices that a unit needs whole, detail by detail."""

    details: list[list[tuple[dict[str | None, int], int]]]
    """of each alternative: the devices by node that are free now, and how many it needs"""

    def may_be_met(self, node: str | None) -> bool:
        """Whether there are enough free devices on a node, those of the network included, for each detail."""
        for detail in self.details:
            for counts, least in detail:
                if counts.get(node, 0) + (counts.get(None, 0) if node is not None else 0) >= least:
                    break
            else:
                return False
        return True


@dataclass(slots=True, eq=False)
class _FreeDevices:
    """How many devices of a set of candidates are free on a node: where there are too few, no search is needed."""

    snapshot: Snapshot
    usage: Usage
    free: dict[int, dict[str | None, int]] = field(default_factory=dict)
    """id of candidates -> node -> devices"""
    owners: dict[int, list[dict[str | None, int]]] = field(default_factory=lambda: defaultdict(list))
    """device -> the counts that it is in"""
    taken: set[int] = field(default_factory=set)

    def needs(self, unit: PlacementUnit) -> _WholeDeviceNeeds:
        details = (detail for demand in unit.demands for detail in demand.details)
        return _WholeDeviceNeeds(
            [
                [(self.counts(request.candidates), request.min_count) for request in detail]
                for detail in details
                if all(request.takes_whole for request in detail)
            ]
        )

    def counts(self, candidates: Candidates) -> dict[str | None, int]:
        """Free devices by node."""
        counts = self.free.get(id(candidates))
        if counts is None:
            counts = self.free[id(candidates)] = defaultdict(int)
            for index in candidates.accepted:
                device = self.snapshot.devices[index]
                if not self.usage.in_use(device):
                    counts[self.snapshot.pools[device.pool].node] += 1
                    self.owners[index].append(counts)
        return counts

    def take(self, placement: Placement) -> None:
        for entry in placement.entries:
            device = entry.device
            if device.index not in self.taken and self.usage.in_use(device):
                self.taken.add(device.index)
                for counts in self.owners.get(device.index, ()):
                    counts[self.snapshot.pools[device.pool].node] -= 1


def _nodes(unit: PlacementUnit, usage: Usage, policy: PlacementPolicy) -> Sequence[str | None]:
    """Where to look for room, in this order."""
    if unit.pin is not None:
        return [unit.pin]
    return policy.first_fit_order(usage.snapshot.nodes, usage) or [None]


def _try_node(
    snapshot: Snapshot,
    usage: Usage,
    unit: PlacementUnit,
    node: str | None,
    policy: PlacementPolicy,
    deadline: SearchDeadline,
    *,
    reader: UnitReader | None = None,
    any_will_do: bool = False,
) -> Sequence[Placement]:
    """Nothing if the unit does not fit on the node, or if that takes too long to find out."""
    steps = StepBudget(STEPS, deadline)
    try:
        placed = place_on(
            snapshot, usage, unit, node, policy=policy, steps=steps, any_will_do=any_will_do, reader=reader
        )
    except StepsExhausted:
        return ()
    return () if placed is None else placed.placements
