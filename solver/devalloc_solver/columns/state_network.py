"""The reachable states of all bins, and the arcs between them: one arc is one claim taken in.

States that differ only by renaming are one state. A column of the master problem is a path from the state that a bin is
in. One sweep over the arcs, in integers, finds the best paths of all bins for given prices.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from devalloc_solver.columns.bins import BinShape
from devalloc_solver.columns.node_geometry import Ints
from devalloc_solver.columns.patterns import LocalChoice
from devalloc_solver.columns.symmetry import MULTIPLIERS, canonical

MAX_STATES = 50_000
"""States of one lattice, more or less: a node with so many is too free for this encoding to say much of it."""

PAIRS_PER_ARC = 20
"""What an arc costs, in pairs that turn out not to fit: it is sorted, numbered, and carried through the network."""

_CHUNK = 400_000
"""Pairs of state and pattern that are looked at together."""

User = tuple[int, int]
"""(kind, way)"""


@dataclass(slots=True, eq=False)
class Lattice:
    """The states of one shape that can be reached, and the arcs between them."""

    shape: BinShape
    ways: list[LocalChoice | int]
    """label -> way, or the cell of the cards that are opened"""
    rows: Ints
    """shape (states, columns)"""
    source: Ints
    target: Ints
    label: Ints
    unexpanded_states: Ints
    """states without arcs for want of room"""
    _numbers: dict[bytes, int]

    def find(self, rows: Ints) -> Ints:
        """Numbers of states, from rows in any form; -1 for those that are not reached."""
        return np.array(
            [self._numbers.get(key, -1) for key in _row_keys(normal_form(self.shape, rows))], dtype=np.int64
        )


def _row_keys(rows: Ints) -> list[bytes]:
    """A key per row: its content."""
    content, width = rows.tobytes(), rows.shape[1] * rows.itemsize
    if not width:
        return [b""] * len(rows)
    return [content[start : start + width] for start in range(0, len(rows) * width, width)]


def _unique_rows(rows: Ints) -> tuple[Ints, Ints]:
    """(positions of rows that differ, row -> which of them it is equal to)"""
    width = min(rows.shape[1], len(MULTIPLIERS))
    hashes = rows[:, rows.shape[1] - width :] @ MULTIPLIERS[len(MULTIPLIERS) - width :]
    unique, inverse = np.unique(hashes, return_inverse=True)
    positions = np.zeros(len(unique), dtype=np.int64)
    positions[inverse] = np.arange(len(rows))
    if (rows[positions[inverse]] != rows).any():  # two rows have one hash: compare them in full, which takes longer
        _, positions, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return positions, inverse.reshape(-1)


def normal_form(shape: BinShape, rows: Ints) -> Ints:
    """One row for all states that are worth the same: what cannot be used is cut off, equal parts are in order."""
    rows = np.array(rows, dtype=np.int64)
    count = len(shape.cells)
    if shape.counters:
        for c in range(count):
            for counter, units in shape.cells[c].draws:
                np.minimum(rows[:, c], rows[:, count + counter] // units, out=rows[:, c])
        np.minimum(rows[:, count:], rows[:, :count] @ shape.draws, out=rows[:, count:])
    return canonical(rows, shape.symmetries)


def build_lattice(shape: BinShape, starts: Ints, room: int, ends: float | None = None) -> Lattice:
    """What can be reached from these states.

    Args:
        shape: of the bins.
        starts: states, in any form; shape (states, columns).
        room: pairs of state and pattern to look at, with ``PAIRS_PER_ARC`` for each that fits; states that are left
            over are ``unexpanded_states``.
        ends: monotonic time from which on all states are left over.
    """
    return _Explorer(shape).explore(starts, room, ends)


class _Explorer:
    """Breadth first, a whole front at a time."""

    def __init__(self, shape: BinShape) -> None:
        self.shape, self.count = shape, len(shape.cells)
        self.ways: list[LocalChoice | int] = [*shape.patterns, *shape.child_bins]
        blocks = [*shape.patterns.values(), *(pattern for _, pattern in shape.child_bins.values())]
        empty = np.zeros((0, self.count), dtype=np.int64)
        self.takes = np.concatenate([empty, *blocks])
        self.labels = np.repeat(np.arange(len(blocks)), [len(block) for block in blocks])
        self.takes = np.concatenate([self.takes, self.takes @ shape.draws], axis=1)
        self.killed = self.kills()
        self.numbers: dict[bytes, int] = {}
        self.rows: list[Ints] = []

    def kills(self) -> Ints | None:
        """pattern -> cells whose group it excludes, as a mask to multiply with (S12a)"""
        groups = [cell.group for cell in self.shape.cells]
        if not any(groups):
            return None
        keep = np.ones((len(self.takes), self.count), dtype=np.int64)
        for p, pattern in enumerate(self.takes):
            active = {groups[c] for c in range(self.count) if pattern[c]} - {None}
            domains = {group[0] for group in active if group is not None}
            for c, group in enumerate(groups):
                if group is not None and group[0] in domains and group not in active:
                    keep[p, c] = 0
        return keep

    def explore(self, starts: Ints, room: int, ends: float | None) -> Lattice:
        front, _ = self.intern(normal_form(self.shape, starts))
        empty = np.zeros(0, dtype=np.int64)
        arcs: list[tuple[Ints, Ints, Ints]] = [(empty, empty, empty)]
        first, unexpanded_states = 0, empty
        width = max(1, len(self.takes))
        while len(front):
            at = 0
            reached: list[Ints] = []
            while at < len(front):
                rows = min(max(1, _CHUNK // width), room // width, len(front) - at)
                if rows <= 0 or len(self.numbers) > MAX_STATES or (ends is not None and time.monotonic() > ends):
                    break
                new_rows, arc = self.expand(front[at : at + rows], first + at)
                at += rows
                room -= rows * width + PAIRS_PER_ARC * len(arc[0])
                reached.append(new_rows)
                arcs.append(arc)
            if at < len(front):
                unexpanded_states = np.arange(first + at, len(self.numbers))
                break
            first += len(front)
            front = np.concatenate(reached)
        source, target, label = (np.concatenate(column) for column in zip(*arcs, strict=True))
        return Lattice(
            self.shape, self.ways, np.concatenate(self.rows), source, target, label, unexpanded_states, self.numbers
        )

    def expand(self, front: Ints, first: int) -> tuple[Ints, tuple[Ints, Ints, Ints]]:
        """(new states, arcs as sources, targets and labels)"""
        fits = np.ones((len(front), len(self.takes)), dtype=np.bool_)
        for column in range(front.shape[1]):
            if self.takes[:, column].any():
                fits &= front[:, column, None] >= self.takes[None, :, column]
        state, pattern = np.nonzero(fits)
        rows = front[state] - self.takes[pattern]
        if self.killed is not None:
            rows[:, : self.count] *= self.killed[pattern]
        rows = normal_form(self.shape, rows)
        positions, number = _unique_rows(rows)
        count = len(positions)
        arcs = np.unique(((state * len(self.ways)) + self.labels[pattern]) * count + number)
        fresh, numbers = self.intern(rows[positions])
        pair, to = np.divmod(arcs, count) if count else (arcs, arcs)
        source, label = np.divmod(pair, len(self.ways)) if self.ways else (pair, pair)
        return fresh, (source + first, numbers[to], label)

    def intern(self, rows: Ints) -> tuple[Ints, Ints]:
        """(those not seen before, numbers of all)"""
        numbers = np.zeros(len(rows), dtype=np.int64)
        fresh: list[int] = []
        size = len(self.numbers)
        for position, key in enumerate(_row_keys(rows)):
            number = numbers[position] = self.numbers.setdefault(key, size)
            if number == size:
                size += 1
                fresh.append(position)
        new_rows = rows[fresh]
        if len(new_rows) or not self.rows:
            self.rows.append(new_rows)
        return new_rows, numbers


@dataclass(frozen=True, slots=True, eq=False)
class ArcGroups:
    """The arcs of a network, in groups."""

    first: Ints
    """group -> its first arc"""
    sizes: Ints
    order: Ints
    """groups by label, then by the devices that are free in their source"""
    bounds: Ints
    """label (and one more) -> where its groups begin in that order"""


@dataclass(slots=True, eq=False)
class Network:
    """The lattices of all shapes of all templates side by side."""

    states: int
    users: list[tuple[User, ...]]
    """label -> which ways of which kinds it stands for; none for the opening of a card"""
    source: Ints
    target: Ints
    label: Ints
    inner: Ints
    """arc -> state of the card that it opens, or ``states``, which is worth nothing"""
    weight: Ints
    """state -> devices that are free, which every arc makes fewer"""
    unexpanded_states: Ints
    """states that were not looked at"""
    room: Ints
    """unexpanded state -> arcs that can follow at the most, those of cards that are opened included"""
    first: Ints
    """positions in the arcs where those of another source begin"""
    sources: Ints
    """the sources of these"""
    sweep: list[tuple[int, int, int, int]]
    """(range of ``sources``, range of arcs) that can be looked at together, in the order of what depends on what"""
    _range: dict[int, tuple[int, int]] = field(default_factory=dict)
    _groups: ArcGroups | None = None

    def arc_groups(self) -> ArcGroups:
        """The arcs of one source and label each; they stand together."""
        if self._groups is None:
            first = np.flatnonzero(np.diff(self.source * len(self.users) + self.label, prepend=-1))
            source, label = self.source[first], self.label[first]
            order = np.lexsort((source, self.weight[source], label))
            bounds = np.searchsorted(label[order], np.arange(len(self.users) + 1))
            self._groups = ArcGroups(first, np.diff(first, append=len(self.source)), order, bounds)
        return self._groups

    def arcs_of(self, state: int) -> tuple[int, int]:
        """The range of the arcs that leave a state."""
        if not self._range:
            ends = [*self.first[1:].tolist(), len(self.source)]
            self._range = dict(zip(self.sources.tolist(), zip(self.first.tolist(), ends, strict=True), strict=True))
        return self._range.get(state, (0, 0))

    def best(self, values: Ints, *, estimate: int = 0) -> tuple[Ints, Ints]:
        """(worth of the best path from each state, worth of each arc with all that follows).

        ``values``: label -> worth of one arc; 0 for an opening, which is worth what the card is. ``estimate``: what a
        device of a state without arcs may be worth, for an upper bound.
        """
        worth = np.zeros(self.states + 1, dtype=np.int64)
        if estimate and len(self.unexpanded_states):
            worth[self.unexpanded_states] = estimate * self.room
        arcs = values[self.label]
        for low, high, start, end in self.sweep:
            arcs[start:end] += worth[self.target[start:end]] + worth[self.inner[start:end]]
            best_arcs = np.maximum.reduceat(arcs[start:end], self.first[low:high] - start)
            worth[self.sources[low:high]] = np.maximum(0, best_arcs)
        return worth, arcs


@dataclass(frozen=True, slots=True, eq=False)
class NetworkPart:
    """One lattice within the network: of one shape, for one template."""

    lattice: Lattice
    users: Mapping[LocalChoice, tuple[User, ...]]
    opened: Mapping[int, int]
    """cell of cards -> state of the network that a full card is in"""
    offset: int


def join_lattices(parts: Sequence[NetworkPart]) -> Network:
    """Put lattices side by side. A part that is opened stands before the one that opens it."""
    numbers: dict[tuple[User, ...], int] = {}
    columns: list[tuple[Ints, Ints, Ints, Ints, Ints]] = []
    weights: list[Ints] = []
    rooms: list[Ints] = []
    total = sum(len(part.lattice.rows) for part in parts)
    for part in parts:
        lattice = part.lattice
        users = [part.users.get(way, ()) if isinstance(way, LocalChoice) else () for way in lattice.ways]
        used = [bool(user) or not isinstance(way, LocalChoice) for way, user in zip(lattice.ways, users, strict=True)]
        label = np.array([numbers.setdefault(user, len(numbers)) for user in users], dtype=np.int64)
        inner = np.array(
            [total if isinstance(way, LocalChoice) else part.opened[way] for way in lattice.ways], dtype=np.int64
        )
        weight = lattice.rows[:, : len(lattice.shape.cells)].sum(axis=1)
        weights.append(weight)
        rooms.append(_free_devices(lattice))
        if not len(lattice.source):
            continue
        used_arcs = np.array(used)[lattice.label]
        source, target, own = lattice.source[used_arcs], lattice.target[used_arcs], lattice.label[used_arcs]
        rank = weight[source] + (1 << 40 if part.opened else 0)
        columns.append((rank, source + part.offset, target + part.offset, label[own], inner[own]))
    empty = np.zeros(0, dtype=np.int64)
    rank, source, target, labels, inner = (
        np.concatenate([empty, *column]) for column in (zip(*columns, strict=True) if columns else [()] * 5)
    )
    order = np.lexsort((target, labels, source, rank))
    rank, source, target, labels, inner = (column[order] for column in (rank, source, target, labels, inner))
    first = np.flatnonzero(np.diff(source, prepend=-1))
    cuts = [0, *(np.flatnonzero(np.diff(rank[first])) + 1).tolist(), len(first)]
    ends = [*first.tolist(), len(source)]
    sweep = [(low, high, ends[low], ends[high]) for low, high in pairwise(cuts) if high > low]
    unexpanded_states = np.concatenate([empty, *(part.lattice.unexpanded_states + part.offset for part in parts)])
    weight = np.concatenate([empty, *weights])
    room = np.concatenate([empty, *rooms])
    return Network(
        total, [*numbers], source, target, labels, inner, weight, unexpanded_states, room, first, source[first], sweep
    )


def _free_devices(lattice: Lattice) -> Ints:
    """Devices that are free in each unexpanded state, a card's own counted apart."""
    shape = lattice.shape
    sizes = np.ones(len(shape.cells), dtype=np.int64)
    for cell, (card, _) in shape.child_bins.items():
        sizes[cell] = 1 + sum(card.full[: len(card.cells)])
    devices: Ints = lattice.rows[lattice.unexpanded_states][:, : len(shape.cells)] @ sizes
    return devices
