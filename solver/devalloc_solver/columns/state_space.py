"""The whole problem in states: the bins, their current states, and the moves between states."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from devalloc_solver.columns.bins import BinShape, GeometryBin, split_into_bins
from devalloc_solver.columns.claim_kinds import ClaimKind
from devalloc_solver.columns.node_geometry import DeviceCell, Geometry, Ints, NodeTemplate, NodeTemplates, group_nodes
from devalloc_solver.columns.patterns import LocalChoice, Localizer, Pattern, find_patterns
from devalloc_solver.columns.state_network import (
    PAIRS_PER_ARC,
    Lattice,
    Network,
    NetworkPart,
    User,
    build_lattice,
    join_lattices,
)
from devalloc_solver.deadline import seconds_left
from devalloc_solver.place import SearchDeadline, SearchTimeout
from devalloc_solver.place.step_budget import GRACE_WORK
from devalloc_solver.problem.allocations import Usage
from devalloc_solver.problem.snapshot import Device, Snapshot

MAX_CELL_PAIRS = 200_000
"""Pairs of cells that are looked at for all templates together."""


def merge_templates(templates: Sequence[NodeTemplate], ends: float | None = None) -> list[NodeTemplate]:
    """The same nodes in fewer templates; those that take others in are changed. Fewer are merged where that takes many
    steps, or longer than to the monotonic time ``ends``."""
    survivors: set[int] = set()
    hosts: dict[str | None, list[_Host]] = {}
    large_first = sorted(range(len(templates)), key=lambda n: (-_total_devices(templates[n].geometry), n))
    merger = _Embedding()
    for number in large_first:
        template = templates[number]
        is_late = ends is not None and time.monotonic() > ends
        if is_late or merger.is_spent or not _can_merge(template.geometry):
            survivors.add(number)
            continue
        own, others = _Host.of(template), hosts.setdefault(template.pin, [])
        for host in others:
            if (images := merger.images(own, host)) is not None:
                _move_nodes(template, host.template, images)
                break
        else:
            survivors.add(number)
            others.append(own)
    return [template for number, template in enumerate(templates) if number in survivors]


def _total_devices(geometry: Geometry) -> int:
    return sum(cell.size for cell in geometry.cells)


def _can_merge(geometry: Geometry) -> bool:
    return not geometry.counters and all(
        cell.group is None and all(values is None or len(values) == 1 for values in cell.values)
        for cell in geometry.cells
    )


@dataclass(frozen=True, slots=True)
class _Host:
    """A template that may take in others, or be taken in."""

    template: NodeTemplate
    looks: list[object]
    """of each cell, values left out"""
    devices: Counter[object]
    """look -> how many devices have it"""

    @classmethod
    def of(cls, template: NodeTemplate) -> _Host:
        looks = [_cell_key(template, cell) for cell in template.geometry.cells]
        devices: Counter[object] = Counter()
        for look, cell in zip(looks, template.geometry.cells, strict=True):
            devices[look] += cell.size
        return cls(template, looks, devices)


def _cell_key(template: NodeTemplate, cell: DeviceCell) -> object:
    missing = tuple(values is None for values in cell.values)
    return template.signatures[cell.color], template.geometry.amounts[cell.color], missing


def _move_nodes(template: NodeTemplate, host: NodeTemplate, images: Sequence[int]) -> None:
    width = len(host.geometry.cells)
    for node, devices, state in zip(template.nodes, template.devices, template.states, strict=True):
        own: list[list[Device]] = [[] for _ in range(width)]
        counts = [0] * width
        for cell, image in enumerate(images):
            own[image], counts[image] = devices[cell], state[cell]
        host.nodes.append(node)
        host.devices.append(own)
        host.states.append(counts)


class _Embedding:
    """Looks for cells of a host that can stand for those of a smaller template."""

    def __init__(self) -> None:
        self.steps = 0

    @property
    def is_spent(self) -> bool:
        """Whether nothing is looked for any more."""
        return self.steps > MAX_CELL_PAIRS

    def images(self, own: _Host, host: _Host) -> list[int] | None:
        """Cell -> cell of the host, each another one; values are renamed one to one."""
        if self.is_spent or not own.devices <= host.devices:
            return None
        cells, theirs = own.template.geometry.cells, host.template.geometry.cells
        looks, host_looks = own.looks, host.looks
        order = sorted(range(len(cells)), key=lambda c: (-cells[c].size, c))
        images = [-1] * len(cells)
        to: dict[tuple[int, int], int] = {}
        back: dict[tuple[int, int], int] = {}

        def put(position: int) -> bool:
            if position == len(order):
                return True
            c = order[position]
            for image, cell in enumerate(theirs):
                self.steps += 1
                if self.is_spent:
                    return False
                if image in images or cell.size < cells[c].size or host_looks[image] != looks[c]:
                    continue
                new: list[tuple[tuple[int, int], tuple[int, int]]] = []
                if _can_rename(cells[c], cell, to, back, new):
                    images[c] = image
                    if put(position + 1):
                        return True
                    images[c] = -1
                for value, other in new:
                    del to[value], back[other]
            return False

        return images if put(0) else None


def _can_rename(
    cell: DeviceCell,
    image: DeviceCell,
    to: dict[tuple[int, int], int],
    back: dict[tuple[int, int], int],
    new: list[tuple[tuple[int, int], tuple[int, int]]],
) -> bool:
    """Whether the values of a cell can be those of its image; ``new`` are the names given on the way."""
    for attribute, (values, others) in enumerate(zip(cell.values, image.values, strict=True)):
        if values is None or others is None:
            continue  # of one look: both are None
        (value,), (other,) = values, others
        renamed, named = to.get((attribute, value)), back.get((attribute, other))
        if renamed is None and named is None:
            to[attribute, value], back[attribute, other] = other, value
            new.append(((attribute, value), (attribute, other)))
        elif renamed != other or named != value:
            return False
    return True


MAX_PAIRS = 60_000_000
"""Pairs of state and pattern that are looked at for all shapes together, and what their arcs cost: some seconds."""

QUICK_PAIRS, QUICK_TRIED = 3_000_000, 1_000
"""The same, and choices of one way on one geometry (``patterns``), for a state space that is wanted soon."""

MAX_PATTERNS = 60_000
"""Patterns on all geometries together: a fleet where hardly two nodes are alike has no use for this encoding."""

SECONDS_PER_WAY = 5e-6
"""What it takes at least to look at one way on one template."""

Cache = dict[object, list[Pattern] | None]
"""(what attributes mean, geometry, way) -> its patterns, or None where there are too many"""

BinSite = tuple[NodeTemplate, int, GeometryBin]
"""A bin of the fleet: the template, the number of the node among its nodes, and the bin of its geometry."""


@dataclass(slots=True, eq=False)
class StateSpace:
    """Kinds, bins and the network of their states."""

    kinds: list[ClaimKind]
    node_templates: NodeTemplates
    network: Network
    sites: dict[int, list[BinSite]]
    """state -> bins that are in it, in natural order of the nodes"""
    patterns: dict[Geometry, dict[LocalChoice, list[Pattern]]]
    bins: dict[Geometry, list[GeometryBin]]
    parts: dict[tuple[int, int], NetworkPart]
    """(template, shape), by identity -> its part of the network"""
    ways_there: dict[int, dict[User, LocalChoice]]
    """template, by identity -> what a way is there"""
    child_bins: dict[tuple[int, int], int]
    """(source, target) of an arc that opens a card -> state of the card"""
    priorities: list[int]
    """highest first"""
    _ordered: list[NetworkPart] = field(default_factory=list)
    _offsets: list[int] = field(default_factory=list)

    def part_of(self, state: int) -> NetworkPart:
        """The part of the network that a state belongs to."""
        if not self._offsets:
            self._ordered = [*self.parts.values()]
            self._offsets = [part.offset for part in self._ordered]
        return self._ordered[bisect_right(self._offsets, state) - 1]

    def supply(self) -> Ints:
        """state -> bins in it"""
        counts = np.zeros(self.network.states, dtype=np.int64)
        for state, sites in self.sites.items():
            counts[state] = len(sites)
        return counts


def build_state_space(
    snapshot: Snapshot,
    usage: Usage,
    kinds: Sequence[ClaimKind],
    cache: Cache,
    *,
    ends: float | None = None,
    is_quick: bool = False,
) -> tuple[StateSpace, list[ClaimKind]]:
    """The states of the kinds that can be encoded; the kinds that cannot, or not before the monotonic time ``ends``.

    ``is_quick``: encode all kinds or none, and only if it takes a few milliseconds.

    Where the time is over before all patterns are there, no kind is encoded: one of which nothing is known on some
    nodes would have none there.
    """
    left = list(kinds)
    refused: list[ClaimKind] = []
    deadline = SearchDeadline(ends)
    while True:
        node_templates = group_nodes(snapshot, usage, left)
        node_templates.templates = merge_templates(node_templates.templates, ends)
        builder = _StateSpaceBuilder(left, node_templates, cache, deadline, is_quick=is_quick)
        try:
            builder.find_patterns()
        except SearchTimeout:
            builder.too_free = {*range(len(left))}
        if not builder.too_free:
            return builder.build(), refused
        refused += [kind for number, kind in enumerate(left) if number in builder.too_free]
        left = [] if is_quick else [kind for number, kind in enumerate(left) if number not in builder.too_free]


class _StateSpaceBuilder:
    """Finds patterns first; kinds with too many are in ``too_free``."""

    def __init__(
        self,
        kinds: list[ClaimKind],
        node_templates: NodeTemplates,
        cache: Cache,
        deadline: SearchDeadline,
        *,
        is_quick: bool,
    ) -> None:
        self.kinds, self.node_templates, self.cache, self.ends = kinds, node_templates, cache, deadline.ends
        self.is_quick, self.deadline = is_quick, deadline
        self.patterns: dict[Geometry, dict[LocalChoice, list[Pattern]]] = {}
        self.ways_there: dict[int, dict[User, LocalChoice]] = {}
        self.too_free: set[int] = set()

    def find_patterns(self) -> None:
        """Raises SearchTimeout when the time is over before all are there."""
        self.foresee()
        most_tried = QUICK_TRIED if self.is_quick else None
        found_so_far = 0
        for template in self.node_templates.templates:
            if found_so_far > MAX_PATTERNS:
                # What groups ask for together has most patterns by far.
                groups = {number for number, kind in enumerate(self.kinds) if sum(kind.claims.values()) > 1}
                self.too_free = groups or {*range(len(self.kinds))}
                return
            there = self.ways_there[id(template)] = dict(self.ways_of(template))
            by_way = self.patterns.setdefault(template.geometry, {})
            attributes, resources = self.node_templates.attributes, self.node_templates.resources
            for user, way in there.items():
                if way not in by_way and user[0] not in self.too_free:
                    key = (attributes, resources, template.geometry, way)
                    if key not in self.cache:
                        self.cache[key] = find_patterns(
                            template.geometry, way, most_tried=most_tried, deadline=self.deadline
                        )
                    patterns = self.cache[key]
                    if patterns is None:
                        self.too_free.add(user[0])
                        if self.is_quick:
                            return
                    else:
                        by_way[way] = patterns
                        found_so_far += len(patterns)

    def foresee(self) -> None:
        """Raises SearchTimeout if the time cannot suffice, so that it is there for something else."""
        ways = sum(len(kind.ways) for kind in self.kinds) * len(self.node_templates.templates)
        left = seconds_left(self.ends)
        if ways > GRACE_WORK and left is not None and ways * SECONDS_PER_WAY > left:
            raise SearchTimeout("the search will be out of time")

    def ways_of(self, template: NodeTemplate) -> Iterator[tuple[User, LocalChoice]]:
        """What each way of each kind is on these nodes, where it is anything. Raises SearchTimeout."""
        localizer = Localizer(template, self.node_templates)
        for number, kind in enumerate(self.kinds):
            self.deadline.spend(len(kind.ways))
            if kind.pin is None or kind.pin == template.pin:
                for position, way in enumerate(kind.ways):
                    if (local := localizer.localize(way)) is not None:
                        yield (number, position), local

    def build(self) -> StateSpace:
        by_geometry: dict[Geometry, list[NodeTemplate]] = {}
        for template in self.node_templates.templates:
            by_geometry.setdefault(template.geometry, []).append(template)
        parts: dict[tuple[int, int], NetworkPart] = {}
        bin_states: list[tuple[NodeTemplate, GeometryBin, Ints]] = []
        all_bins: dict[Geometry, list[GeometryBin]] = {}
        offset = 0
        room, waiting = QUICK_PAIRS if self.is_quick else MAX_PAIRS, len(by_geometry)
        # Those with few states first: what they leave of the room is for the others.
        for geometry, templates in sorted(
            by_geometry.items(), key=lambda item: prod(c.size + 1 for c in item[0].cells)
        ):
            rows = {id(template): np.array(template.states, dtype=np.int64) for template in templates}
            bins = all_bins[geometry] = split_into_bins(
                geometry, self.patterns[geometry], np.concatenate([*rows.values()])
            )
            full = np.array([*(cell.size for cell in geometry.cells), *geometry.counters], dtype=np.int64)
            states = {(id(t), id(b)): b.states(rows[id(t)], full) for t in templates for b in bins}
            lattices = self.lattices(bins, templates, states, room // waiting)
            room -= sum(
                len(lattice.rows) * shape.width + PAIRS_PER_ARC * len(lattice.source) for shape, lattice in lattices
            )
            waiting -= 1
            for template in templates:
                users = self.users(template)
                for shape, lattice in lattices:
                    opened = {
                        cell: int(inner.lattice.find(np.array([card.full]))[0]) + inner.offset
                        for cell, (card, _) in shape.child_bins.items()
                        for inner in (parts[id(template), id(card)],)
                    }
                    parts[id(template), id(shape)] = NetworkPart(lattice, users, opened, offset)
                    offset += len(lattice.rows)
                bin_states += [(template, b, states[id(template), id(b)]) for b in bins]
        network = join_lattices([*parts.values()])
        arcs = network.inner < network.states
        pairs = zip(network.source[arcs].tolist(), network.target[arcs].tolist(), strict=True)
        child_bins = dict(zip(pairs, network.inner[arcs].tolist(), strict=True))
        sites = self.sites(bin_states, parts, network)
        priorities = sorted({priority for kind in self.kinds for priority in kind.claims}, reverse=True)
        return StateSpace(
            self.kinds,
            self.node_templates,
            network,
            sites,
            self.patterns,
            all_bins,
            parts,
            self.ways_there,
            child_bins,
            priorities,
        )

    def users(self, template: NodeTemplate) -> dict[LocalChoice, tuple[User, ...]]:
        users: dict[LocalChoice, tuple[User, ...]] = {}
        for user, way in self.ways_there[id(template)].items():
            users[way] = (*users.get(way, ()), user)
        return users

    def lattices(
        self,
        bins: Sequence[GeometryBin],
        templates: Sequence[NodeTemplate],
        states: dict[tuple[int, int], Ints],
        room: int,
    ) -> list[tuple[BinShape, Lattice]]:
        """One for each shape; those that are opened before those that open them."""
        shapes = {id(b.shape): b.shape for b in bins}
        by_shape = []
        for shape in sorted(shapes.values(), key=lambda shape: bool(shape.child_bins)):
            starts = [states[id(t), id(b)] for t in templates for b in bins if b.shape is shape]
            starts += [np.array([shape.full], dtype=np.int64)] if shape.is_opened else []
            by_shape.append((shape, build_lattice(shape, np.concatenate(starts), room // len(shapes), self.ends)))
        return by_shape

    def sites(
        self,
        bin_states: Sequence[tuple[NodeTemplate, GeometryBin, Ints]],
        parts: dict[tuple[int, int], NetworkPart],
        network: Network,
    ) -> dict[int, list[BinSite]]:
        """Bins by state, but for those where nothing can be done and cards that are still to be opened."""
        useful = np.zeros(network.states, dtype=np.bool_)
        useful[network.sources] = True
        useful[network.unexpanded_states] = True
        sites: dict[int, list[BinSite]] = {}
        for template, own, rows in bin_states:
            part = parts[id(template), id(own.shape)]
            numbers = part.lattice.find(rows) + part.offset
            full = np.array(own.shape.full, dtype=np.int64)
            closed = (rows == full).all(axis=1) if own.shape.is_opened else np.zeros(len(rows), dtype=np.bool_)
            for node in np.flatnonzero(useful[numbers] & ~closed).tolist():
                sites.setdefault(int(numbers[node]), []).append((template, node, own))
        return sites
