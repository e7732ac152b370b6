"""Which nodes to try, in which order, and which of them are alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from devalloc_solver.bounds.least_load import least_load
from devalloc_solver.place.node_view import CandidateGroup, NodeView, Place, device_state
from devalloc_solver.place.search_context import SearchContext
from devalloc_solver.problem.demand import PlacementUnit, Request
from devalloc_solver.problem.device_groups import node_signatures
from devalloc_solver.problem.loads import PoolScale, growth
from devalloc_solver.problem.snapshot import Device, Pool, Snapshot


@dataclass(slots=True, eq=False)
class BatchNodes:
    """Nodes for the units of a batch that are placed one after the other; what is in use only becomes more.

    A unit fares alike on nodes that look alike (``node_signatures``) while nothing of the batch is there. So the first
    of these is enough, beside the nodes where something is. A node that has no room for a unit has none for an equal
    one.
    """

    looks: Mapping[str, object]
    """node -> its look before the batch"""
    cache: dict[object, Any] = field(default_factory=dict)
    """what the candidates of a detail tell of nodes and pools"""
    order: dict[str, int] = field(init=False)
    _unused: dict[object, list[str]] = field(init=False)
    """look -> nodes where nothing of the batch is, the first one last"""
    _used: dict[str, None] = field(default_factory=dict)
    _without_room: dict[object, set[Place]] = field(default_factory=lambda: defaultdict(set))

    def __post_init__(self) -> None:
        self.order = {node: rank for rank, node in enumerate(self.looks)}
        self._unused = defaultdict(list)
        for node, look in reversed([*self.looks.items()]):
            self._unused[look].append(node)

    def nodes(self, unit: PlacementUnit) -> list[str]:
        """Nodes of which one is the best for a unit, if there is any with room."""
        firsts = [nodes[-1] for nodes in self._unused.values() if nodes]
        full = self._without_room.get(unit_key(unit), ())
        return [node for node in (*self._used, *firsts) if node not in full]

    def use(self, node: Place) -> None:
        """Something is on a node from now on."""
        if node is not None and node in self.looks and node not in self._used:
            self._used[node] = None
            self._unused[self.looks[node]].remove(node)

    def note_full(self, unit: PlacementUnit, nodes: Iterable[Place]) -> None:
        """These nodes have no room for a unit."""
        if (key := unit_key(unit)) is not None:
            self._without_room[key].update(nodes)


def batch_nodes(context: SearchContext, units: Sequence[PlacementUnit]) -> BatchNodes:
    """The nodes of a batch of which nothing is placed yet."""

    def use(pool: Pool) -> object:
        return context.use(pool.index), context.use_of_node(pool.node), context.shapes_to_keep(pool)

    return BatchNodes(node_signatures(context.snapshot, context.usage, units, use))


@dataclass(frozen=True, slots=True)
class LeastUse:
    """What a unit brings into use at least wherever it is placed; nothing for a policy that does not weigh it."""

    load: int = 0
    """of a node"""
    one_pool: int = 0
    """what the measure of pools grows by if one pool serves the unit; several may grow by less together"""


def least_use(context: SearchContext, unit: PlacementUnit) -> LeastUse:
    """What a unit brings into use at least."""
    if not context.policy.weighs_loads:
        return LeastUse()
    snapshot, loads = context.snapshot, context.usage.loads
    pools: set[int] = set()

    def devices_of(request: Request) -> Iterator[tuple[int, Device, PoolScale | None]]:
        for index in request.candidates.accepted:
            device = snapshot.devices[index]
            pools.add(device.pool)
            yield index, device, None if snapshot.pools[device.pool].node is None else loads.scale(device.pool)

    load = least_load(unit.demands, devices_of)
    capacities = {loads.scale(pool).capacity for pool in pools}
    return LeastUse(load, min((growth(0, each, load, context.policy.measure) for each in capacities), default=0))


def unit_key(unit: PlacementUnit) -> object | None:
    """Equal for units that ask for the same, groups included."""
    shapes = tuple(demand.shape for demand in unit.demands)
    return None if None in shapes else (unit.pin, shapes)


def candidate_nodes(
    context: SearchContext, unit: PlacementUnit, batch: BatchNodes | None = None, least: int = 0
) -> list[Place]:
    """Nodes where every detail has some candidate, the preferred first: those that cost the policy least where
    ``least`` comes into use, see ``least_use``. ``batch``: of its nodes.

    A unit is always on some node, where there is any (S7).
    """
    if unit.pin is not None:
        return [unit.pin]
    snapshot = context.snapshot
    if not snapshot.nodes:
        return [None]
    among = snapshot.nodes if batch is None else batch.nodes(unit)
    cached: dict[object, dict[str, int] | None] = {} if batch is None else batch.cache
    for detail in (detail for demand in unit.demands for detail in demand.details):
        key = "nodes", _detail_key(detail)
        if key not in cached:
            cached[key] = _nodes_with(snapshot, detail)
        if (nodes := cached[key]) is not None:
            fewest = min(request.fewest for request in detail)
            among = [node for node in among if nodes.get(node, 0) >= fewest]
    if batch is not None:
        among = sorted(among, key=batch.order.__getitem__)
    else:  # all are in natural order
        context.expect_all_nodes()
    costs = context.costs_of_nodes(among, least)
    return [*sorted(among, key=costs.__getitem__)]


def _detail_key(detail: Sequence[Request]) -> object:
    """Equal for details with the same candidates."""
    return id(detail[0].candidates.accepted) if len(detail) == 1 else tuple([id(s.candidates.accepted) for s in detail])


def _nodes_with(snapshot: Snapshot, detail: Sequence[Request]) -> dict[str, int] | None:
    """The nodes that have candidates, in use or not, and no fewer than counted; None where network devices may do."""
    nodes: dict[str, int] = defaultdict(int)
    for accepted in {id(request.candidates.accepted): request.candidates.accepted for request in detail}.values():
        for index in accepted:
            node = snapshot.pools[snapshot.devices[index].pool].node
            if node is None:
                return None
            nodes[node] += 1
    return nodes


def min_pools(snapshot: Snapshot, unit: PlacementUnit, cache: dict[object, Any]) -> int:
    """No node has a placement on fewer pools: details whose candidates have no pool in common need one each.

    ``cache``: of the pools that details have candidates in.
    """
    count, used = 0, set[int]()
    seen: set[object] = set()
    for detail in (detail for demand in unit.demands for detail in demand.details):
        if (key := _detail_key(detail)) in seen:
            continue  # its pools are used, or there are none
        seen.add(key)
        if (pools := cache.get(("pools", key))) is None:
            pools = {snapshot.devices[index].pool for request in detail for index in request.candidates.accepted}
            cache["pools", key] = pools
        if not pools & used:
            count, used = count + 1, used | pools
    return count


@dataclass(slots=True, eq=False)
class NodeKeys:
    """Keys that are equal for nodes where the unit fares alike, up to a renaming of attribute values that only they
    carry. The network devices that nodes share are read once."""

    context: SearchContext
    _network: dict[int, tuple[int, frozenset[object]]] = field(default_factory=dict)
    """id of network groups -> (number, the values of their attributes)"""
    _numbers: dict[object, int] = field(default_factory=dict)
    """key of network groups -> number"""

    def key(self, node_view: NodeView) -> object:
        """Equal for views of nodes that are alike; all are views for the same unit and usage."""
        network = node_view.network
        if id(network) not in self._network:
            groups = tuple(_group_key(node_view, group, lambda _, value: value) for group in network.candidate_groups)
            key = groups, tuple((pool.index, _pool_key(self.context, node_view, pool)) for pool in network.pools)
            names = node_view.unit_requests.names
            values = frozenset(
                v for group in network.candidate_groups for name in names for v in group.one.values(name)
            )
            self._network[id(network)] = self._numbers.setdefault(key, len(self._numbers)), values
        number, shared = self._network[id(network)]
        renamed: dict[object, int] = {}

        def rename(name: str, value: object) -> object:
            return value if value in shared else renamed.setdefault((name, value), len(renamed))

        own_groups = node_view.candidate_groups[len(network.candidate_groups) :]
        own_pools = node_view.pools[len(network.pools) :]
        groups = tuple(_group_key(node_view, candidate_group, rename) for candidate_group in own_groups)
        use = self.context.use_of_node(node_view.node)
        return number, groups, use, tuple(_pool_key(self.context, node_view, pool) for pool in own_pools)


def _group_key(
    node_view: NodeView, candidate_group: CandidateGroup, rename: Callable[[str, object], object]
) -> tuple[object, ...]:
    device, unit_requests = candidate_group.one, node_view.unit_requests
    return (
        candidate_group.pool,
        candidate_group.size,
        candidate_group.accepted,
        candidate_group.takers,
        device_state(unit_requests, device, node_view.usage),
        tuple(tuple(rename(name, v) for v in sorted(device.values(name), key=repr)) for name in unit_requests.names),
    )


def _pool_key(context: SearchContext, node_view: NodeView, pool: Pool) -> tuple[object, ...]:
    usage = node_view.usage
    return (
        context.use(pool.index),
        tuple((name, usage.free_pool_blocks(pool.index, name)) for name in sorted(pool.resources)),
        frozenset(usage.groups.get(pool.index, ())),
        context.shapes_to_keep(pool),
    )
