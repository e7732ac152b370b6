"""Nodes that are smaller ones of another geometry: as if the rest of that were in use.

A fleet at work has hardly two nodes with the same devices left. Told apart, each has its own states, though most of
them are states of the few nodes that have everything: a node with three GPUs on two roots is one with four of which
one is taken. What is merged has no counters and no groups, which say more than what is free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from devalloc_solver.columns.geometry import Cell, Geometry, Template
from devalloc_solver.snapshot import Device

MOST_STEPS = 200_000
"""Pairs of cells that are looked at for all templates together."""


def merge_templates(templates: Sequence[Template]) -> list[Template]:
    """The same nodes in fewer templates; those that take others in are changed."""
    kept: set[int] = set()
    hosts: dict[str | None, list[tuple[Template, Counter[object]]]] = {}
    large_first = sorted(range(len(templates)), key=lambda n: (-_total(templates[n].geometry), n))
    merger = _Merger()
    for number in large_first:
        template = templates[number]
        if not _can_merge(template.geometry):
            kept.add(number)
            continue
        mine, others = _devices(template), hosts.setdefault(template.pin, [])
        for host, theirs in others:
            if mine <= theirs and (images := merger.images(template, host)) is not None:
                _move(template, host, images)
                break
        else:
            kept.add(number)
            others.append((template, mine))
    return [template for number, template in enumerate(templates) if number in kept]


def _total(geometry: Geometry) -> int:
    return sum(cell.size for cell in geometry.cells)


def _can_merge(geometry: Geometry) -> bool:
    return not geometry.counters and all(
        cell.group is None and all(values is None or len(values) == 1 for values in cell.values)
        for cell in geometry.cells
    )


def _devices(template: Template) -> Counter[object]:
    """How many devices of each look there are, values left out."""
    found: Counter[object] = Counter()
    for cell in template.geometry.cells:
        found[_look(template, cell)] += cell.size
    return found


def _look(template: Template, cell: Cell) -> object:
    missing = tuple(values is None for values in cell.values)
    return template.signatures[cell.color], template.geometry.amounts[cell.color], missing


def _move(template: Template, host: Template, images: Sequence[int]) -> None:
    width = len(host.geometry.cells)
    for node, devices, state in zip(template.nodes, template.devices, template.states, strict=True):
        own: list[list[Device]] = [[] for _ in range(width)]
        counts = [0] * width
        for cell, image in enumerate(images):
            own[image], counts[image] = devices[cell], state[cell]
        host.nodes.append(node)
        host.devices.append(own)
        host.states.append(counts)


class _Merger:
    """Looks for cells of a host that can stand for those of a smaller template."""

    def __init__(self) -> None:
        self.steps = 0

    def images(self, template: Template, host: Template) -> list[int] | None:
        """Cell -> cell of the host, each another one; values are renamed one to one."""
        cells, theirs = template.geometry.cells, host.geometry.cells
        looks = [_look(template, cell) for cell in cells]
        known = [_look(host, cell) for cell in theirs]
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
                if self.steps > MOST_STEPS:
                    return False
                if image in images or cell.size < cells[c].size or known[image] != looks[c]:
                    continue
                new: list[tuple[tuple[int, int], tuple[int, int]]] = []
                if _rename(cells[c], cell, to, back, new):
                    images[c] = image
                    if put(position + 1):
                        return True
                    images[c] = -1
                for mine, other in new:
                    del to[mine], back[other]
            return False

        return images if put(0) else None


def _rename(
    cell: Cell,
    image: Cell,
    to: dict[tuple[int, int], int],
    back: dict[tuple[int, int], int],
    new: list[tuple[tuple[int, int], tuple[int, int]]],
) -> bool:
    """Whether the values of a cell can be those of its image; ``new`` are the names given on the way."""
    for attribute, (values, others) in enumerate(zip(cell.values, image.values, strict=True)):
        if values is None or others is None:
            continue  # of one look: both are None
        (value,), (other,) = values, others
        known, named = to.get((attribute, value)), back.get((attribute, other))
        if known is None and named is None:
            to[attribute, value], back[attribute, other] = other, value
            new.append(((attribute, value), (attribute, other)))
        elif known != other or named != value:
            return False
    return True
