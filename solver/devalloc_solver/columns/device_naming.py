"""From paths to device names: which bin follows which path, and which devices each claim gets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import chain, count

import numpy as np

from devalloc_solver.columns.bins import GeometryBin
from devalloc_solver.columns.claim_kinds import ClaimKind
from devalloc_solver.columns.node_geometry import Ints, NodeTemplate
from devalloc_solver.columns.packing import Packing, Path
from devalloc_solver.columns.patterns import LocalChoice, Pattern
from devalloc_solver.columns.state_network import NetworkPart, User, normal_form
from devalloc_solver.columns.state_space import BinSite, StateSpace
from devalloc_solver.problem.allocations import Usage
from devalloc_solver.problem.demand import Demand, Request
from devalloc_solver.problem.loads import UNIT, Loads, Measure
from devalloc_solver.problem.placement import PlacedDevice, Placement
from devalloc_solver.problem.placement_policy import PlacementPolicy
from devalloc_solver.problem.snapshot import Device, Snapshot


@dataclass(frozen=True, slots=True, eq=False)
class UnitDevices:
    """One unit's devices, request by request, before it is said whose they are."""

    user: User
    node: str
    devices: tuple[tuple[Device, ...], ...]


def name_devices(
    snapshot: Snapshot, state_space: StateSpace, packing: Packing, usage: Usage, policy: PlacementPolicy
) -> list[Placement]:
    """Placements of all claims of a packing.

    Args:
        usage: what is in use before.
        policy: of bins that are alike, those of nodes in use are preferred, if it prefers these; where loads are
            weighed, those of nodes of which least is in use, what is given here included.
    """
    busy = {snapshot.pools[pool].node for pool in usage.pools_in_use()} if policy.prefers_used else set()
    rank = {node: position for position, node in enumerate(snapshot.nodes)}

    def order(site: BinSite) -> tuple[bool, int]:
        node = site[0].nodes[site[1]]
        return node not in busy, rank[node]

    sites = {state: sorted(members, key=order, reverse=True) for state, members in state_space.sites.items()}
    namer = _PathNamer(
        state_space, sites, _LeastLoaded(usage.loads.copy(), policy.measure) if policy.weighs_loads else None
    )
    taken = sorted(namer.name_all(packing), key=lambda t: rank[t.node])
    by_kind: dict[int, list[UnitDevices]] = {}
    for taking in taken:
        by_kind.setdefault(taking.user[0], []).append(taking)
    return [
        placement
        for kind, members in sorted(by_kind.items())
        for placement in _assign_units(state_space.kinds[kind], members)
    ]


def _assign_units(kind: ClaimKind, taken: Sequence[UnitDevices]) -> Iterator[Placement]:
    """The earlier ones of a kind get the places, and the better alternatives (S17)."""
    ordered = sorted(taken, key=lambda t: t.user[1])
    for unit, place in zip(kind.units, ordered, strict=False):
        left = list(place.devices)
        for own, (first, requests) in zip(unit.demands, kind.ways[place.user[1]].claims, strict=True):
            devices, left = left[: len(requests)], left[len(requests) :]
            yield Placement(own, place.node, tuple(_entries(own, first, requests, devices)))


def _entries(
    own: Demand, first: Demand, requests: Sequence[Request], taken: Sequence[tuple[Device, ...]]
) -> Iterator[PlacedDevice]:
    """``requests``: of the first unit of the kind, ``first`` being its claim."""
    for request, first_requests, own_requests, devices in zip(requests, first.details, own.details, taken, strict=True):
        same = own_requests[first_requests.index(request)]
        yield from (PlacedDevice(same, device) for device in sorted(devices, key=lambda d: d.index))


@dataclass(slots=True, eq=False)
class _BinMoves:
    """The patterns of one way within one bin, in columns of the geometry."""

    patterns: list[Pattern]
    takes: Ints
    keeps: Ints | None


@dataclass(slots=True, eq=False)
class _LeastLoaded:
    """Chooses the bin on the node of which least is in use by now, by a measure. Loads only grow."""

    loads: Loads
    measure: Measure
    heaps: dict[int, list[tuple[int, int, BinSite]]] = field(default_factory=lambda: defaultdict(list))
    """state -> (load of the node when it was looked at, turn, bin)"""
    turns: Iterator[int] = field(default_factory=count)

    def next(self, state: int, new: list[BinSite]) -> BinSite:
        """A bin in a state; ``new`` are those that came since, the last one first, and are taken in here."""
        heap = self.heaps[state]
        while new:
            site = new.pop()
            heappush(heap, (self.load(site), next(self.turns), site))
        while True:
            load, turn, site = heappop(heap)
            if (now := self.load(site)) == load:
                return site
            heappush(heap, (now, turn, site))

    def load(self, site: BinSite) -> int:
        return self.loads.growth_of_node(site[0].nodes[site[1]], UNIT, self.measure)


@dataclass(slots=True, eq=False)
class _PathNamer:
    """Goes all paths again, with names."""

    state_space: StateSpace
    sites: dict[int, list[BinSite]]
    """state -> bins in it; the last one goes first"""
    even: _LeastLoaded | None = None
    """chooses among bins in one state, where not the last one goes first"""
    moves: dict[tuple[int, LocalChoice], _BinMoves] = field(default_factory=dict)
    chosen: dict[tuple[object, ...], int] = field(default_factory=dict)

    def name_all(self, packing: Packing) -> Iterator[UnitDevices]:
        cards = {*self.state_space.child_bins.values()}
        paths = [*packing.all_paths()]
        # Cards come last: they may have to be opened by others first.
        for path in sorted(paths, key=lambda path: path[0] in cards):
            yield from self.name_path(path)

    def name_path(self, path: Path) -> Iterator[UnitDevices]:
        start, steps = path
        sites = self.sites[start]
        template, node, own = sites.pop() if self.even is None else self.even.next(start, sites)
        part = self.state_space.parts[id(template), id(own.shape)]
        row = np.array(template.states[node], dtype=np.int64)
        before = start
        for user, target in steps:
            if user is None:
                row = self.open(template, node, own, part, row, target, self.state_space.child_bins[before, target])
            else:
                pattern, row = self.take(template, own, part, row, user, target)
                devices = tuple(
                    tuple(template.devices[node][cell].pop(0) for cell, count in take for _ in range(count))
                    for take in pattern.takes
                )
                if self.even is not None:
                    for device in chain(*devices):
                        self.even.loads.add(device.pool, self.even.loads.scale(device.pool).whole(device.draws))
                yield UnitDevices(user, template.nodes[node], devices)
            before = target

    def open(
        self, template: NodeTemplate, node: int, own: GeometryBin, part: NetworkPart, row: Ints, target: int, card: int
    ) -> Ints:
        """Take a card out of a bin: it is one of its own from now on."""
        full = empty_node_state(template)
        for cell, (shape, _) in own.shape.child_bins.items():
            if part.opened[cell] != card:
                continue
            for columns in map(list, own.columns[cell]):
                if (row[columns] != full[columns]).any():
                    continue
                left = row.copy()
                left[columns] = 0
                if self.reaches(own, part, left[None], full, target)[0]:
                    inner = next(
                        b
                        for b in self.state_space.bins[template.geometry]
                        if b.shape is shape and b.members == {*columns}
                    )
                    self.sites.setdefault(card, []).append((template, node, inner))
                    return left
        raise AssertionError("no card of this bin can be opened that way")

    def take(
        self, template: NodeTemplate, own: GeometryBin, part: NetworkPart, row: Ints, user: User, target: int
    ) -> tuple[Pattern, Ints]:
        """The devices of one step: those after which the bin is in the target state."""
        way = self.state_space.ways_there[id(template)][user]
        moves = self.moves_of(template, own, way)
        key = (id(own), part.offset, way, row.tobytes(), target)
        if key not in self.chosen:
            fits = np.flatnonzero((row >= moves.takes).all(axis=1))
            rows = self.after(moves, row, fits)
            reached = self.reaches(own, part, rows, empty_node_state(template), target)
            assert reached.any(), "no pattern of this way leads to the next state"
            self.chosen[key] = int(fits[reached.argmax()])
        number = self.chosen[key]
        return moves.patterns[number], self.after(moves, row, np.array([number]))[0]

    def after(self, moves: _BinMoves, row: Ints, numbers: Ints) -> Ints:
        rows = row - moves.takes[numbers]
        if moves.keeps is not None:
            rows *= moves.keeps[numbers]
        return rows

    def reaches(self, own: GeometryBin, part: NetworkPart, rows: Ints, full: Ints, target: int) -> Ints:
        states = normal_form(own.shape, own.states(rows, full))
        matches: Ints = (states == part.lattice.rows[target - part.offset]).all(axis=1)
        return matches

    def moves_of(self, template: NodeTemplate, own: GeometryBin, way: LocalChoice) -> _BinMoves:
        key = (id(own), way)
        if key not in self.moves:
            members, geometry = own.members, template.geometry
            inside = [
                p
                for p in self.state_space.patterns[geometry][way]
                if all(cell in members for cell, count in enumerate(p.counts) if count)
            ]
            draws = np.zeros((len(geometry.cells), len(geometry.counters)), dtype=np.int64)
            for c, cell in enumerate(geometry.cells):
                for counter, units in cell.draws:
                    draws[c, counter] = units
            counts = np.array([p.counts for p in inside], dtype=np.int64).reshape(len(inside), len(geometry.cells))
            self.moves[key] = _BinMoves(
                inside, np.concatenate([counts, counts @ draws], axis=1), _remaining_after_group(template, counts)
            )
        return self.moves[key]


def empty_node_state(template: NodeTemplate) -> Ints:
    """The state of a node with nothing in use."""
    geometry = template.geometry
    return np.array([*(cell.size for cell in geometry.cells), *geometry.counters], dtype=np.int64)


def _remaining_after_group(template: NodeTemplate, counts: Ints) -> Ints | None:
    """What is left where a group excludes others of its domain (S12a)."""
    groups = [cell.group for cell in template.geometry.cells]
    if not any(groups):
        return None
    keep = np.ones((len(counts), len(groups) + len(template.geometry.counters)), dtype=np.int64)
    for p, pattern in enumerate(counts):
        active = {group for group, count in zip(groups, pattern, strict=True) if group is not None and count}
        for c, group in enumerate(groups):
            if group is not None and group not in active and group[0] in {domain for domain, _ in active}:
                keep[p, c] = 0
    return keep
