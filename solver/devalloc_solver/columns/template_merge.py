"""Merge node templates: a smaller node is treated as a larger one with the rest in use.

In a fleet at work, hardly two nodes have the same devices left. As separate templates each would have its own states,
although most of them are states of the few nodes that have everything: a node with three GPUs on two roots is one with
four of which one is taken. Templates with counters or compatibility groups are not merged: free devices do not describe
these completely.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from devalloc_solver.columns.node_geometry import DeviceCell, Geometry, NodeTemplate
from devalloc_solver.problem.snapshot import Device

MAX_CELL_PAIRS = 200_000
"""Pairs of cells that are looked at for all templates together."""


def merge_templates(templates: Sequence[NodeTemplate]) -> list[NodeTemplate]:
    """The same nodes in fewer templates; those that take others in are changed."""
    survivors: set[int] = set()
    hosts: dict[str | None, list[tuple[NodeTemplate, Counter[object]]]] = {}
    large_first = sorted(range(len(templates)), key=lambda n: (-_total_devices(templates[n].geometry), n))
    merger = _Embedding()
    for number in large_first:
        template = templates[number]
        if not _can_merge(template.geometry):
            survivors.add(number)
            continue
        devices, others = _devices(template), hosts.setdefault(template.pin, [])
        for host, theirs in others:
            if devices <= theirs and (images := merger.images(template, host)) is not None:
                _move_nodes(template, host, images)
                break
        else:
            survivors.add(number)
            others.append((template, devices))
    return [template for number, template in enumerate(templates) if number in survivors]


def _total_devices(geometry: Geometry) -> int:
    return sum(cell.size for cell in geometry.cells)


def _can_merge(geometry: Geometry) -> bool:
    return not geometry.counters and all(
        cell.group is None and all(values is None or len(values) == 1 for values in cell.values)
        for cell in geometry.cells
    )


def _devices(template: NodeTemplate) -> Counter[object]:
    """How many devices of each look there are, values left out."""
    looks: Counter[object] = Counter()
    for cell in template.geometry.cells:
        looks[_cell_key(template, cell)] += cell.size
    return looks


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

    def images(self, template: NodeTemplate, host: NodeTemplate) -> list[int] | None:
        """Cell -> cell of the host, each another one; values are renamed one to one."""
        cells, theirs = template.geometry.cells, host.geometry.cells
        looks = [_cell_key(template, cell) for cell in cells]
        host_looks = [_cell_key(host, cell) for cell in theirs]
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
                if self.steps > MAX_CELL_PAIRS:
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
