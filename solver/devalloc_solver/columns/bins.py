"""The parts of a node that can be packed independently of each other, and what each can hold.

A node is not one bin: GPUs that no choice of alternatives takes together with NICs are bins of their own. A card that
is given either whole or in partitions is a bin that the node's own bin *opens*: for the node it is one more device.
Both cuts are exact. They keep the number of states small; its product would be astronomic.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from devalloc_solver.columns.node_geometry import DeviceCell, Geometry, Ints
from devalloc_solver.columns.patterns import LocalChoice, Pattern
from devalloc_solver.columns.symmetry import find_symmetries
from devalloc_solver.problem.linked_parts import LinkedParts


@dataclass(slots=True, eq=False)
class BinShape:
    """A bin without names. A state is a row: free devices of each cell, then what is left in each counter."""

    cells: tuple[DeviceCell, ...]
    counters: int
    full: tuple[int, ...]
    """the state when nothing is in use"""
    patterns: dict[LocalChoice, Ints]
    """way -> devices of each cell; shape (patterns, cells)"""
    child_bins: dict[int, tuple[BinShape, Ints]] = field(default_factory=dict)
    """cell that stands for cards -> their shape, and the pattern that opens one"""
    is_opened: bool = False
    """whether such a bin, as long as it is full, belongs to the bin that opens it"""
    symmetries: list[Ints] = field(default_factory=list)
    draws: Ints = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    """(cells, counters)"""

    def __post_init__(self) -> None:
        self.symmetries = find_symmetries(self.cells, self.counters)
        self.draws = np.zeros((len(self.cells), self.counters), dtype=np.int64)
        for c, cell in enumerate(self.cells):
            for counter, units in cell.draws:
                self.draws[c, counter] = units

    @property
    def width(self) -> int:
        """Patterns of all ways, and of cards."""
        return sum(map(len, self.patterns.values())) + len(self.child_bins)


@dataclass(frozen=True, slots=True, eq=False)
class GeometryBin:
    """A bin of a geometry: which of its columns make up a state of the shape."""

    shape: BinShape
    columns: tuple[tuple[tuple[int, ...], ...], ...]
    """for each column of the shape: one column of the geometry, or for cards the columns of each"""

    def states(self, rows: Ints, full: Ints) -> Ints:
        """States of the bin, from states of whole nodes. Shape (nodes, columns)."""
        states = np.zeros((len(rows), len(self.columns)), dtype=np.int64)
        for number, parts in enumerate(self.columns):
            if number in self.shape.child_bins:
                states[:, number] = sum((rows[:, part] == full[list(part)]).all(axis=1) for part in map(list, parts))
            else:
                states[:, number] = rows[:, parts[0][0]]
        return states

    @property
    def members(self) -> frozenset[int]:
        """All its columns of the geometry."""
        return frozenset(column for parts in self.columns for part in parts for column in part)


PatternsByWay = Mapping[LocalChoice, Sequence[Pattern]]


def split_into_bins(geometry: Geometry, patterns: PatternsByWay, whole: Ints) -> list[GeometryBin]:
    """The bins of a geometry. ``whole``: the states of its nodes, shape (nodes, columns)."""
    return _BinBuilder(geometry, patterns, whole).bins()


class _BinBuilder:
    """Cuts one geometry."""

    def __init__(self, geometry: Geometry, patterns: PatternsByWay, rows: Ints) -> None:
        self.geometry, self.cells, self.patterns, self.rows = geometry, geometry.cells, patterns, rows
        self.full = np.array([*(cell.size for cell in self.cells), *geometry.counters], dtype=np.int64)
        self.shapes: dict[object, BinShape] = {}

    def bins(self) -> list[GeometryBin]:
        cards = [part for part in self.linked(range(len(self.cells)), hard=True) if self.is_card(part)]
        inside = {c: number for number, card in enumerate(cards) for c in card}
        inner_bins: list[GeometryBin] = []
        metas: dict[object, list[int]] = {}
        for number, card in enumerate(cards):
            inner = self.plain_bin(card, opened=True)
            inner_bins.append(inner)
            metas.setdefault((id(inner.shape), self.cells[card[0]].values), []).append(number)
        rest = [c for c in range(len(self.cells)) if c not in inside]
        outer = {c: ("cell", c) for c in rest}
        for position, numbers in enumerate(metas.values()):
            outer |= {c: ("card", position) for number in numbers for c in cards[number]}
        groups = [[cards[number] for number in numbers] for numbers in metas.values()]
        return inner_bins + self.outer_bins(rest, groups, inner_bins, outer, inside)

    # -- cards ---------------------------------------------------------------------------------------------------------

    def is_card(self, part: Sequence[int]) -> bool:
        """Whether all that reaches beyond the part takes it whole: all of a counter on which all its cells draw."""
        cells = set(part)
        shared = set.intersection(*({counter for counter, _ in self.cells[c].draws} for c in part))
        if not shared or len(part) < 2 or len({self.cells[c].values for c in part}) > 1:
            return False
        wide = [p.counts for patterns in self.patterns.values() for p in patterns if self.straddles(p, cells)]
        if not wide:
            return False
        for counter in sorted(shared):
            drawn = {sum(counts[c] * dict(self.cells[c].draws)[counter] for c in part) for counts in wide}
            if drawn == {self.geometry.counters[counter]}:
                columns = self.columns_of(part)
                untouched = self.rows[:, len(self.cells) + counter] == self.full[len(self.cells) + counter]
                return bool((self.rows[untouched][:, columns] == self.full[columns]).all())
        return False

    def straddles(self, pattern: Pattern, cells: set[int]) -> bool:
        used = {c for c, count in enumerate(pattern.counts) if count}
        return bool(used & cells) and not used <= cells

    def columns_of(self, part: Sequence[int]) -> list[int]:
        counters = dict.fromkeys(counter for c in part for counter, _ in self.cells[c].draws)
        return [*part, *(len(self.cells) + counter for counter in counters)]

    # -- bins ----------------------------------------------------------------------------------------------------------

    def linked(self, members: Sequence[int] | range, *, hard: bool) -> list[list[int]]:
        """Cells that counters and groups hold together; or that patterns do as well."""
        linked, inside = LinkedParts(members), {*members}
        for c in members:
            cell = self.cells[c]
            links: list[Hashable] = [counter for counter, _ in cell.draws]
            links += [("domain", cell.group[0])] if cell.group is not None else []
            linked.link(c, links)
        for pattern in () if hard else (p for patterns in self.patterns.values() for p in patterns):
            linked.join([c for c, count in enumerate(pattern.counts) if count and c in inside])
        return linked.parts()

    def plain_bin(self, part: Sequence[int], *, opened: bool = False) -> GeometryBin:
        """A bin of cells alone."""
        columns = self.columns_of(part)
        position = {c: n for n, c in enumerate(part)}
        patterns: dict[LocalChoice, Ints] = {}
        for way, way_patterns in self.patterns.items():
            inside = [p.counts for p in way_patterns if all(c in position for c, count in enumerate(p.counts) if count)]
            if inside:
                patterns[way] = np.array([[counts[c] for c in part] for counts in inside], dtype=np.int64)
        cells = self.renumbered([self.cells[c] for c in part], {c: n for n, c in enumerate(columns[len(part) :])})
        shape = self.shape(cells, columns, patterns, {}, opened)
        return GeometryBin(shape, tuple(((column,),) for column in columns))

    def outer_bins(
        self,
        rest: Sequence[int],
        groups: Sequence[Sequence[list[int]]],
        inner: Sequence[GeometryBin],
        outer: Mapping[int, tuple[str, int]],
        inside: Mapping[int, int],
    ) -> list[GeometryBin]:
        """Bins of the cells that are no cards, and of the cards as one device each."""
        if not groups:
            return [self.plain_bin(part) for part in self.linked(range(len(self.cells)), hard=False)]
        names = [*(("cell", c) for c in rest), *(("card", g) for g in range(len(groups)))]
        position = {name: n for n, name in enumerate(names)}
        images: dict[LocalChoice, dict[tuple[int, ...], None]] = {}
        for way, way_patterns in self.patterns.items():
            for pattern in way_patterns:
                used = [c for c, count in enumerate(pattern.counts) if count]
                taken = {inside[c] for c in used if c in inside}
                if taken and all(inside.get(c) == min(taken) for c in used):
                    continue  # on one card alone: that is for the opened card
                image = [0] * len(names)
                for c in used:
                    if c not in inside:
                        image[position["cell", c]] = pattern.counts[c]
                for card in taken:
                    image[position[outer[min(c for c in inside if inside[c] == card)]]] += 1
                images.setdefault(way, {})[tuple(image)] = None
        return [self.outer_bin(part, names, images, groups, inner, inside) for part in self.joined(names, images)]

    def joined(
        self, names: Sequence[tuple[str, int]], images: Mapping[LocalChoice, Mapping[tuple[int, ...], None]]
    ) -> list[list[int]]:
        joined = LinkedParts(range(len(names)))
        number = {c: n for n, (what, c) in enumerate(names) if what == "cell"}
        for part in self.linked([*number], hard=True):
            joined.join([number[c] for c in part])
        for image in (image for way_images in images.values() for image in way_images):
            joined.join([n for n, count in enumerate(image) if count])
        return joined.parts()

    def outer_bin(
        self,
        part: Sequence[int],
        names: Sequence[tuple[str, int]],
        images: Mapping[LocalChoice, Mapping[tuple[int, ...], None]],
        groups: Sequence[Sequence[list[int]]],
        inner: Sequence[GeometryBin],
        inside: Mapping[int, int],
    ) -> GeometryBin:
        cells: list[DeviceCell] = []
        columns: list[tuple[tuple[int, ...], ...]] = []
        child_bins: dict[int, tuple[BinShape, Ints]] = {}
        plain = [names[n][1] for n in part if names[n][0] == "cell"]
        counters = [column - len(self.cells) for column in self.columns_of(plain)[len(plain) :]]
        shapes = [*dict.fromkeys(id(b.shape) for b in inner)]
        for n in part:
            what, which = names[n]
            if what == "cell":
                cells.append(self.cells[which])
                columns.append(((which,),))
                continue
            shape = inner[inside[groups[which][0][0]]].shape
            color = len(self.geometry.amounts) + shapes.index(id(shape))
            first = self.cells[groups[which][0][0]]
            child_bins[len(cells)] = (shape, np.array([[int(m == n) for m in part]], dtype=np.int64))
            cells.append(DeviceCell(color, len(groups[which]), first.values, (), None))
            columns.append(tuple(tuple(self.columns_of(card)) for card in groups[which]))
        patterns: dict[LocalChoice, Ints] = {}
        for way, way_images in images.items():
            counts = [[image[n] for n in part] for image in way_images if any(image[n] for n in part)]
            if counts:
                patterns[way] = np.array(counts, dtype=np.int64)
        numbered = self.renumbered(cells, {c + len(self.cells): n for n, c in enumerate(counters)})
        full = [*(cell.size for cell in cells), *(self.geometry.counters[c] for c in counters)]
        shape = self.intern(numbered, full, patterns, child_bins, opened=False)
        return GeometryBin(shape, (*columns, *(((len(self.cells) + c,),) for c in counters)))

    # -- shapes --------------------------------------------------------------------------------------------------------

    def renumbered(self, cells: Sequence[DeviceCell], counters: Mapping[int, int]) -> tuple[DeviceCell, ...]:
        """The same with values, counters and domains numbered as they come, so that bins alike are equal."""
        values: list[dict[int, int]] = [{} for _ in cells[0].values] if cells else []
        domains: dict[int, int] = {}
        base = len(self.cells)
        return tuple(
            replace(
                cell,
                values=tuple(
                    None if value_set is None else frozenset(ids.setdefault(v, len(ids)) for v in sorted(value_set))
                    for ids, value_set in zip(values, cell.values, strict=True)
                ),
                draws=tuple((counters[base + counter], units) for counter, units in cell.draws),
                group=None if cell.group is None else (domains.setdefault(cell.group[0], len(domains)), cell.group[1]),
            )
            for cell in cells
        )

    def shape(
        self,
        cells: tuple[DeviceCell, ...],
        columns: Sequence[int],
        patterns: dict[LocalChoice, Ints],
        child_bins: dict[int, tuple[BinShape, Ints]],
        opened: bool,
    ) -> BinShape:
        return self.intern(cells, self.full[list(columns)].tolist(), patterns, child_bins, opened=opened)

    def intern(
        self,
        cells: tuple[DeviceCell, ...],
        full: Sequence[int],
        patterns: dict[LocalChoice, Ints],
        child_bins: dict[int, tuple[BinShape, Ints]],
        *,
        opened: bool,
    ) -> BinShape:
        content = tuple((way, tuple(sorted(map(tuple, rows.tolist())))) for way, rows in patterns.items())
        key = (cells, tuple(full), content, tuple((c, id(shape)) for c, (shape, _) in child_bins.items()), opened)
        if key not in self.shapes:
            counters = len(full) - len(cells)
            self.shapes[key] = BinShape(cells, counters, tuple(full), patterns, child_bins, opened)
        return self.shapes[key]
