"""From paths to names: which bin goes which path, which devices each claim gets there, and which claim is whose."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

import numpy as np

from devalloc_solver.assignment import Entry, Placement
from devalloc_solver.columns.board import Board, Site
from devalloc_solver.columns.geometry import Ints, Template
from devalloc_solver.columns.kinds import Kind
from devalloc_solver.columns.network import Part, User, normal
from devalloc_solver.columns.packing import Packing, Path
from devalloc_solver.columns.patterns import LocalWay, Pattern
from devalloc_solver.columns.shapes import Bin
from devalloc_solver.demand import Demand, Slot
from devalloc_solver.snapshot import Device, Snapshot


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """One unit's devices, slot by slot, before it is said whose they are."""

    user: User
    node: str
    devices: tuple[tuple[Device, ...], ...]


def name_devices(
    snapshot: Snapshot, board: Board, packing: Packing, loads: Mapping[str, int], placement: str
) -> list[Placement]:
    """Placements of all claims of a packing.

    Args:
        loads: how many devices of each node are in use.
        placement: of bins that are alike, ``pack`` prefers those of nodes in use, ``spread`` those of nodes with the
            fewest devices in use, those given here included.
    """
    rank = {node: position for position, node in enumerate(snapshot.nodes)}

    def order(site: Site) -> tuple[bool, int]:
        node = site[0].nodes[site[1]]
        return not loads.get(node), rank[node]

    sites = {state: sorted(found, key=order, reverse=True) for state, found in board.sites.items()}
    namer = _Namer(board, sites, _Even(Counter(loads)) if placement == "spread" else None)
    taken = sorted(namer.name_all(packing), key=lambda t: rank[t.node])
    by_kind: dict[int, list[Taken]] = {}
    for found in taken:
        by_kind.setdefault(found.user[0], []).append(found)
    return [placement for kind, found in sorted(by_kind.items()) for placement in _deal(board.kinds[kind], found)]


def _deal(kind: Kind, taken: Sequence[Taken]) -> Iterator[Placement]:
    """The earlier ones of a kind get the places, and the better alternatives (S17)."""
    ordered = sorted(taken, key=lambda t: t.user[1])
    for unit, found in zip(kind.units, ordered, strict=False):
        left = list(found.devices)
        for own, (first, slots) in zip(unit.demands, kind.ways[found.user[1]].claims, strict=True):
            devices, left = left[: len(slots)], left[len(slots) :]
            yield Placement(own, found.node, tuple(_entries(own, first, slots, devices)))


def _entries(own: Demand, first: Demand, slots: Sequence[Slot], taken: Sequence[tuple[Device, ...]]) -> Iterator[Entry]:
    """``slots``: of the first unit of the kind, ``first`` being its claim."""
    for slot, known, mine, devices in zip(slots, first.details, own.details, taken, strict=True):
        same = mine[known.index(slot)]
        yield from (Entry(same, device) for device in sorted(devices, key=lambda d: d.index))


@dataclass(slots=True, eq=False)
class _Moves:
    """The patterns of one way within one bin, in columns of the geometry."""

    patterns: list[Pattern]
    takes: Ints
    keeps: Ints | None


@dataclass(slots=True, eq=False)
class _Even:
    """Chooses the bin on the node with the fewest devices in use by now. Loads only grow."""

    loads: Counter[str]
    heaps: dict[int, list[tuple[int, int, Site]]] = field(default_factory=lambda: defaultdict(list))
    """state -> (load of the node when it was looked at, turn, bin)"""
    turns: Iterator[int] = field(default_factory=count)

    def next(self, state: int, new: list[Site]) -> Site:
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

    def load(self, site: Site) -> int:
        return self.loads[site[0].nodes[site[1]]]


@dataclass(slots=True, eq=False)
class _Namer:
    """Goes all paths again, with names."""

    board: Board
    sites: dict[int, list[Site]]
    """state -> bins in it; the last one goes first"""
    even: _Even | None = None
    """chooses among bins in one state, where not the last one goes first"""
    moves: dict[tuple[int, LocalWay], _Moves] = field(default_factory=dict)
    known: dict[tuple[object, ...], int] = field(default_factory=dict)

    def name_all(self, packing: Packing) -> Iterator[Taken]:
        cards = {*self.board.opens.values()}
        paths = [*packing.all_paths()]
        # Cards come last: they may have to be opened by others first.
        for path in sorted(paths, key=lambda path: path[0] in cards):
            yield from self.name_path(path)

    def name_path(self, path: Path) -> Iterator[Taken]:
        start, steps = path
        sites = self.sites[start]
        template, node, own = sites.pop() if self.even is None else self.even.next(start, sites)
        part = self.board.parts[id(template), id(own.shape)]
        row = np.array(template.states[node], dtype=np.int64)
        before = start
        for user, target in steps:
            if user is None:
                row = self.open(template, node, own, part, row, target, self.board.opens[before, target])
            else:
                pattern, row = self.take(template, own, part, row, user, target)
                devices = tuple(
                    tuple(template.devices[node][cell].pop(0) for cell, count in take for _ in range(count))
                    for take in pattern.takes
                )
                if self.even is not None:
                    self.even.loads[template.nodes[node]] += sum(map(len, devices))
                yield Taken(user, template.nodes[node], devices)
            before = target

    def open(self, template: Template, node: int, own: Bin, part: Part, row: Ints, target: int, card: int) -> Ints:
        """Take a card out of a bin: it is one of its own from now on."""
        full = full_row(template)
        for cell, (shape, _) in own.shape.opens.items():
            if part.opened[cell] != card:
                continue
            for columns in map(list, own.columns[cell]):
                if (row[columns] != full[columns]).any():
                    continue
                left = row.copy()
                left[columns] = 0
                if self.reaches(own, part, left[None], full, target)[0]:
                    inner = next(
                        b for b in self.board.bins[template.geometry] if b.shape is shape and b.members == {*columns}
                    )
                    self.sites.setdefault(card, []).append((template, node, inner))
                    return left
        raise AssertionError("no card of this bin can be opened that way")

    def take(
        self, template: Template, own: Bin, part: Part, row: Ints, user: User, target: int
    ) -> tuple[Pattern, Ints]:
        """The devices of one step: those after which the bin is in the target state."""
        way = self.board.ways_there[id(template)][user]
        moves = self.moves_of(template, own, way)
        key = (id(own), part.offset, way, row.tobytes(), target)
        if key not in self.known:
            fits = np.flatnonzero((row >= moves.takes).all(axis=1))
            rows = self.after(moves, row, fits)
            reached = self.reaches(own, part, rows, full_row(template), target)
            assert reached.any(), "no pattern of this way leads to the next state"
            self.known[key] = int(fits[reached.argmax()])
        number = self.known[key]
        return moves.patterns[number], self.after(moves, row, np.array([number]))[0]

    def after(self, moves: _Moves, row: Ints, numbers: Ints) -> Ints:
        rows = row - moves.takes[numbers]
        if moves.keeps is not None:
            rows *= moves.keeps[numbers]
        return rows

    def reaches(self, own: Bin, part: Part, rows: Ints, full: Ints, target: int) -> Ints:
        states = normal(own.shape, own.states(rows, full))
        found: Ints = (states == part.lattice.rows[target - part.offset]).all(axis=1)
        return found

    def moves_of(self, template: Template, own: Bin, way: LocalWay) -> _Moves:
        key = (id(own), way)
        if key not in self.moves:
            members, geometry = own.members, template.geometry
            inside = [
                p
                for p in self.board.patterns[geometry][way]
                if all(cell in members for cell, count in enumerate(p.counts) if count)
            ]
            draws = np.zeros((len(geometry.cells), len(geometry.counters)), dtype=np.int64)
            for c, cell in enumerate(geometry.cells):
                for counter, units in cell.draws:
                    draws[c, counter] = units
            counts = np.array([p.counts for p in inside], dtype=np.int64).reshape(len(inside), len(geometry.cells))
            self.moves[key] = _Moves(inside, np.concatenate([counts, counts @ draws], axis=1), _keeps(template, counts))
        return self.moves[key]


def full_row(template: Template) -> Ints:
    """The state of a node with nothing in use."""
    geometry = template.geometry
    return np.array([*(cell.size for cell in geometry.cells), *geometry.counters], dtype=np.int64)


def _keeps(template: Template, counts: Ints) -> Ints | None:
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
