"""The structure of nodes: cells of interchangeable devices, the values they match in, and the counters they draw on.

Names are left out: two nodes have one geometry when a renaming of attribute values, pools and counters turns one into
the other. A template is a geometry with the candidate sets its devices are in; many nodes share one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import gcd

import numpy as np
import numpy.typing as npt

from devalloc_solver.bounds.device_bound import signatures_of
from devalloc_solver.columns.claim_kinds import ClaimKind
from devalloc_solver.problem.allocations import Usage
from devalloc_solver.problem.snapshot import Device, Pool, Snapshot

Ints = npt.NDArray[np.int64]
Values = tuple[frozenset[object] | None, ...]
"""per attribute that anyone matches: the values of a device, None where it has none"""


@dataclass(frozen=True, slots=True)
class DeviceCell:
    """Interchangeable devices of a node, up to names."""

    color: int
    """cells of one color are candidates of the same requests and have equal capacities"""
    size: int
    values: tuple[frozenset[int] | None, ...]
    draws: tuple[tuple[int, int], ...]
    """(counter, units) that one device takes"""
    group: tuple[int, int] | None
    """(domain, group): of a domain, devices of one group only are in use together (S12a)"""


@dataclass(frozen=True, slots=True)
class Geometry:
    """What a node is made of."""

    cells: tuple[DeviceCell, ...]
    counters: tuple[int, ...]
    """capacities"""
    amounts: tuple[tuple[int, ...], ...]
    """color -> capacity of a device, in nano units, of each resource that anyone asks for with whole devices"""


@dataclass(slots=True, eq=False)
class NodeTemplate:
    """Nodes of one geometry whose devices are candidates of the same requests."""

    geometry: Geometry
    signatures: tuple[int, ...]
    """color -> signature (which candidate sets have such a device)"""
    pin: str | None
    """the node, where some kind may go nowhere else"""
    nodes: list[str] = field(default_factory=list)
    devices: list[list[list[Device]]] = field(default_factory=list)
    """node -> cell -> free devices, in natural order"""
    states: list[list[int]] = field(default_factory=list)
    """node -> free devices of each cell, then what is left in each counter"""


@dataclass(slots=True, eq=False)
class NodeTemplates:
    """All nodes that have candidates, by template."""

    attributes: tuple[str, ...]
    resources: tuple[str, ...]
    sets: dict[int, int]
    """id of Candidates -> number of the distinct candidate set"""
    members: list[frozenset[int]]
    """signature -> candidate sets"""
    templates: list[NodeTemplate]


def group_nodes(snapshot: Snapshot, usage: Usage, kinds: Sequence[ClaimKind]) -> NodeTemplates:
    """Sort the nodes into templates."""
    requests = [request for kind in kinds for way in kind.ways for request in way.requests]
    demands = [demand for kind in kinds for demand, _ in kind.ways[0].claims]
    names = {name for request in requests for name in request.match} | {
        name for demand in demands for name in demand.match
    }
    names |= {relation.attribute for demand in demands for relation in demand.relations}
    attributes = tuple(sorted(names))
    resources = tuple(sorted({name for request in requests for name in (*request.requests, *request.limits)}))
    sets, signatures, members = signatures_of(
        len(snapshot.devices), [request.candidates.accepted for request in requests]
    )
    numbers = {id(request.candidates): sets[id(request.candidates.accepted)] for request in requests}
    node_templates = NodeTemplates(attributes, resources, numbers, members, [])
    surveyor = _NodeGrouper(
        snapshot, usage, node_templates, signatures, {kind.pin for kind in kinds if kind.pin is not None}
    )
    for node in snapshot.nodes:
        surveyor.add(node)
    return node_templates


@dataclass(slots=True, eq=False)
class _CellPlan:
    """How the relevant devices of a node fall into cells, whatever is in use."""

    template: NodeTemplate
    cells: list[int]
    """position of a device among the relevant ones of the node -> cell"""
    counters: list[tuple[int, str, int]]
    """(position of the pool, resource, blocks of one unit)"""
    groups: list[tuple[int, object]]
    """cell -> (position of the pool, compatibility group or None)"""


class _NodeGrouper:
    """Adds node after node; remembers how equal ones fell."""

    def __init__(
        self, snapshot: Snapshot, usage: Usage, node_templates: NodeTemplates, signatures: list[int], pins: set[str]
    ) -> None:
        self.snapshot, self.usage, self.node_templates, self.signatures, self.pins = (
            snapshot,
            usage,
            node_templates,
            signatures,
            pins,
        )
        self.plans: dict[object, _CellPlan] = {}
        self.templates: dict[object, NodeTemplate] = {}
        self.looks: dict[object, int] = {}
        """what tells devices apart -> number"""
        self.facts: list[tuple[int, Values, tuple[tuple[str, int], ...], object, tuple[int, ...]]] = []

    def add(self, node: str) -> None:
        pools = self.snapshot.pools_by_node.get(node, ())
        members = [[device for device in pool.devices if self.signatures[device.index]] for pool in pools]
        if not any(members):
            return
        pin = node if node in self.pins else None
        looks = tuple(tuple(map(self.look, devices)) for devices in members)
        drawing = [any(self.facts[look][2] for look in own) for own in looks]
        capacities = tuple(
            tuple((name, pool.resources[name].blocks) for name in sorted(pool.resources)) if draws else ()
            for pool, draws in zip(pools, drawing, strict=True)
        )
        key = (pin, looks, capacities)
        if key not in self.plans:
            self.plans[key] = self.plan(pin, looks, pools)
        plan = self.plans[key]
        self.fill(plan, node, pools, [device for devices in members for device in devices])

    def look(self, device: Device) -> int:
        attributes = device.attributes
        values = tuple([attributes.get(name) for name in self.node_templates.attributes])
        amounts = tuple(self.amount(device, name) for name in self.node_templates.resources)
        key = (self.signatures[device.index], values, device.draws, device.compatibility, amounts)
        number = self.looks.get(key)
        if number is None:
            number = self.looks[key] = len(self.facts)
            sets: Values = tuple(device.values(name) or None for name in self.node_templates.attributes)
            self.facts.append((key[0], sets, device.draws, device.compatibility, amounts))
        return number

    def amount(self, device: Device, name: str) -> int:
        resource = device.resources.get(name)
        return 0 if resource is None else resource.nano

    def plan(self, pin: str | None, looks: tuple[tuple[int, ...], ...], pools: Sequence[Pool]) -> _CellPlan:
        """Sort devices into cells. Of pools that bind nothing together, equal devices fall into one cell."""
        cells: dict[object, int] = {}
        sizes: list[int] = []
        described: list[tuple[int, int]] = []
        falls: list[int] = []
        for position, own in enumerate(looks):
            for look in own:
                bound = self.facts[look][2] or self.facts[look][3] is not None
                cell = cells.setdefault((look, position if bound else None), len(sizes))
                if cell == len(sizes):
                    sizes.append(0)
                    described.append((look, position))
                sizes[cell] += 1
                falls.append(cell)
        geometry, signatures, counters = self.describe(described, sizes, pools)
        key = (pin, geometry, signatures)
        if key not in self.templates:
            template = self.templates[key] = NodeTemplate(geometry, signatures, pin)
            self.node_templates.templates.append(template)
        groups = [(position, self.facts[look][3]) for look, position in described]
        return _CellPlan(self.templates[key], falls, counters, groups)

    def describe(
        self, described: list[tuple[int, int]], sizes: list[int], pools: Sequence[Pool]
    ) -> tuple[Geometry, tuple[int, ...], list[tuple[int, str, int]]]:
        """(geometry, signature of each color, counters); whatever has a name is numbered as it comes."""
        colors: dict[tuple[int, tuple[int, ...]], int] = {}
        values: list[dict[object, int]] = [{} for _ in self.node_templates.attributes]
        domains: dict[int, dict[object, int]] = {}
        units: dict[tuple[int, str], int] = {}
        for look, position in described:
            for name, blocks in self.facts[look][2]:
                units[position, name] = gcd(units.get((position, name), 0), blocks)
        numbers = {counter: number for number, counter in enumerate(units)}
        cells = []
        for (look, position), size in zip(described, sizes, strict=True):
            signature, sets, draws, group, amounts = self.facts[look]
            groups = domains.setdefault(position, {}) if group is not None else {}
            cells.append(
                DeviceCell(
                    colors.setdefault((signature, amounts), len(colors)),
                    size,
                    tuple(_renumber(renumbered, value_set) for renumbered, value_set in zip(values, sets, strict=True)),
                    tuple((numbers[position, n], blocks // units[position, n]) for n, blocks in draws),
                    None if group is None else ([*domains].index(position), groups.setdefault(group, len(groups))),
                )
            )
        capacities = tuple(pools[p].resources[name].blocks // unit for (p, name), unit in units.items())
        geometry = Geometry(tuple(cells), capacities, tuple(amounts for _, amounts in colors))
        return geometry, tuple(s for s, _ in colors), [(p, name, unit) for (p, name), unit in units.items()]

    def fill(self, plan: _CellPlan, node: str, pools: Sequence[Pool], devices: Sequence[Device]) -> None:
        """Record what is free on a node. A group that others in use exclude has nothing free (S12a)."""
        usage = self.usage
        free: list[list[Device]] = [[] for _ in plan.groups]
        for device, cell in zip(devices, plan.cells, strict=True):
            if not usage.in_use(device):
                free[cell].append(device)
        for cell, (position, group) in enumerate(plan.groups):
            if group is not None and usage.groups.get(pools[position].index, set()) - {group}:
                free[cell] = []
        left = [usage.free_pool_blocks(pools[p].index, name) // unit for p, name, unit in plan.counters]
        plan.template.nodes.append(node)
        plan.template.devices.append(free)
        plan.template.states.append([*map(len, free), *left])


def _renumber(renumbered: dict[object, int], values: frozenset[object] | None) -> frozenset[int] | None:
    if values is None:
        return None
    return frozenset(renumbered.setdefault(value, len(renumbered)) for value in sorted(values, key=repr))
