"""Interchangeable parts of a node: what turns states that differ by a renaming only into one.

Cells are linked when they share a value of an attribute that not all of them share, a counter or a domain of groups.
The parts that links hold together can change places when they look alike, and so can parts of parts: NUMA nodes, the
PCIe roots of each, the cards of a root. What is found is sound; a symmetry that is not found costs time only.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from devalloc_solver.columns.node_geometry import DeviceCell, Ints
from devalloc_solver.problem.linked_parts import LinkedParts

MULTIPLIERS = np.random.default_rng(20260101).integers(1, 2**62, size=4096, dtype=np.int64) | 1
"""Fixed odd numbers; the scalar product with them, modulo 2**64, distinguishes a row from most others."""


def find_symmetries(cells: Sequence[DeviceCell], counters: int) -> list[Ints]:
    """Groups of interchangeable parts, inner ones first: arrays of shape (parts, columns of a part).

    A column is a cell, or a counter (they follow the cells).
    """
    groups: list[Ints] = []
    _split(cells, [*range(len(cells))], counters, groups)
    return groups


def canonical(states: Ints, symmetries: Sequence[Ints]) -> Ints:
    """The same states with interchangeable parts in descending order. Shape (states, columns), changed in place."""
    for parts in symmetries:
        blocks = states[:, parts]
        width = parts.shape[1]
        keys = blocks[:, :, 0] if width == 1 else blocks[:, :, : len(MULTIPLIERS)] @ MULTIPLIERS[:width]
        if len(parts) == 2:
            swap = keys[:, 0] < keys[:, 1]
            if swap.any():
                rows = states[swap]
                rows[:, parts.ravel()] = rows[:, parts[::-1].ravel()]
                states[swap] = rows
            continue
        order = np.argsort(-keys, axis=1, kind="stable")
        states[:, parts.ravel()] = np.take_along_axis(blocks, order[:, :, None], axis=1).reshape(
            len(states), parts.size
        )
    return states


def _split(cells: Sequence[DeviceCell], members: list[int], first_counter: int, groups: list[Ints]) -> None:
    common = [_is_common(cells, members, number) for number in range(len(cells[members[0]].values))]
    parts = _linked(cells, members, common)
    if len(parts) == 1:
        return
    alike: dict[object, list[list[int]]] = {}
    for part in parts:
        _split(cells, part, first_counter, groups)
        part.sort(key=lambda c: (cells[c].color, cells[c].size, [u for _, u in cells[c].draws], c))
        code, counters = _part_code(cells, part, common)
        alike.setdefault(code, []).append([*part, *(len(cells) + counter for counter in counters)])
    groups += [np.array(columns, dtype=np.int64) for columns in alike.values() if len(columns) > 1]


def _is_common(cells: Sequence[DeviceCell], members: list[int], attribute: int) -> bool:
    return len({cells[c].values[attribute] for c in members} - {None}) <= 1


def _linked(cells: Sequence[DeviceCell], members: list[int], common: Sequence[bool]) -> list[list[int]]:
    linked = LinkedParts(members)
    for c in members:
        cell = cells[c]
        links: list[Hashable] = [("counter", counter) for counter, _ in cell.draws]
        links += [("domain", cell.group[0])] if cell.group is not None else []
        for number, values in enumerate(cell.values):
            if values is not None and not common[number]:
                links += [(number, value) for value in sorted(values)]
        linked.link(c, links)
    return linked.parts()


def _part_code(cells: Sequence[DeviceCell], part: list[int], common: Sequence[bool]) -> tuple[object, list[int]]:
    """(what a part looks like, its counters); parts of one code can change places."""
    counters: dict[int, int] = {}
    domains: dict[int, int] = {}
    groups: dict[tuple[int, int], int] = {}
    names: list[dict[int, int]] = [{} for _ in common]
    looks = []
    for c in part:
        cell = cells[c]
        draws = tuple((counters.setdefault(counter, len(counters)), units) for counter, units in cell.draws)
        group = None
        if cell.group is not None:
            group = (domains.setdefault(cell.group[0], len(domains)), groups.setdefault(cell.group, len(groups)))
        values = tuple(
            None
            if value_set is None
            else ()
            if common[n]
            else tuple(names[n].setdefault(v, len(names[n])) for v in sorted(value_set))
            for n, value_set in enumerate(cell.values)
        )
        looks.append((cell.color, cell.size, draws, group, values))
    return tuple(looks), list(counters)
