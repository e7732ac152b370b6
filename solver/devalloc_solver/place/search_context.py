"""The context of a search: the fleet, what is in use of it, and the placement policy; how good a placement is there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from devalloc_solver.bounds.largest_partition import Shapes, partition_loss, partition_shapes
from devalloc_solver.problem.allocations import Usage
from devalloc_solver.problem.demand import AllocationMode
from devalloc_solver.problem.ordering import natural_key
from devalloc_solver.problem.placement import PlacedDevice, Placement, added_loads
from devalloc_solver.problem.placement_policy import PlacementPolicy
from devalloc_solver.problem.placement_score import PlacementScore, alternatives_of
from devalloc_solver.problem.snapshot import Device, Pool, Snapshot


@dataclass(slots=True, eq=False)
class SearchContext:
    """Looks at no more of the fleet than it is asked about: a question about one node must not cost a fleet."""

    snapshot: Snapshot
    usage: Usage
    policy: PlacementPolicy
    _busy: dict[int, bool] = field(default_factory=dict)
    _busy_nodes: set[str | None] | None = None
    _partitions: dict[int, Shapes] = field(default_factory=dict)

    def partitions(self, pool: Pool) -> Shapes:
        """The shapes of the devices that may still be had of a pool."""
        if pool.index not in self._partitions:
            self._partitions[pool.index] = partition_shapes(pool, self.usage)
        return self._partitions[pool.index]

    def shapes_to_keep(self, pool: Pool) -> tuple[object, ...]:
        """The same where the policy looks at them."""
        return tuple(self.partitions(pool)) if self.policy.keeps_partitions and pool.resources else ()

    def is_busy(self, pool: int) -> bool:
        """Whether some device of a pool is in use."""
        busy = self._busy.get(pool)
        if busy is None:
            usage = self.usage
            devices = self.snapshot.pools[pool].devices
            in_use = bool(usage.whole or usage.shared) and any(map(usage.in_use, devices))
            busy = self._busy[pool] = in_use
        return busy

    def is_busy_node(self, node: str | None) -> bool:
        """Whether some device of a node's own pools is in use."""
        if self._busy_nodes is not None:
            return node is None or node in self._busy_nodes
        return any(self.is_busy(pool.index) for pool in self.snapshot.pools_by_node.get(node, ())) if node else True

    def expect_all_nodes(self) -> None:
        """Find out at once which nodes are in use: many are going to be asked for."""
        self._busy_nodes = {self.snapshot.pools[pool].node for pool in self.usage.pools_in_use()}

    def rank(self, node: str | None) -> tuple[object, ...]:
        """In the natural order of nodes, wherever their pools are in the order of the dialect; none is before all."""
        return () if node is None else natural_key(node)

    def use(self, pool: int) -> object:
        """All that the policy looks at of a pool's use."""
        place = _PoolInUse(self, pool)
        return (self.policy.use(place), place.capacity) if self.policy.weighs_loads else self.policy.use(place)

    def use_of_node(self, node: str | None) -> object:
        """The same of a node, beside that of its pools with candidates."""
        if node is None or not self.policy.weighs_loads:  # nodes in use come first, so their pools tell enough
            return None
        return self.usage.loads.nodes.get(node, 0), self.usage.loads.capacity(node)

    def load_of(self, takes: Sequence[PlacedDevice]) -> int:
        """How much more of their pool is in use by these takes of one device."""
        return sum(added_loads(self.usage, takes).values())

    def cost_of_pool(self, pool: int, load: int) -> int:
        """How little the policy likes that so much more of a pool is in use (see ``Loads``)."""
        return self.policy.cost(_PoolInUse(self, pool), load)

    def cost_of_node(self, node: str | None, load: int) -> int:
        """The same for a node; nothing for the network."""
        return 0 if node is None else self.policy.cost(_NodeInUse(self, node), load)

    def costs_of_nodes(self, nodes: Iterable[str], load: int) -> dict[str, int]:
        """The same for each of many nodes."""
        costs, place = {}, _NodeInUse(self, "")
        for node in nodes:
            place.node = node
            costs[node] = self.policy.cost(place, load)
        return costs

    def costs_of(self, placements: Sequence[Placement], node: str | None) -> tuple[int, int]:
        """How little the policy likes what placements on a node bring into use: of the node, and of the pools."""
        entries = [entry for placed in placements for entry in placed.entries]
        loads = dict.fromkeys([entry.device.pool for entry in entries], 0)
        if self.policy.weighs_loads:
            loads |= added_loads(self.usage, entries)
        own = sum(load for pool, load in loads.items() if self.snapshot.pools[pool].node is not None)
        return self.cost_of_node(node, own), sum(self.cost_of_pool(pool, load) for pool, load in loads.items())


@dataclass(slots=True, eq=False)
class _PoolInUse:
    """A pool as a policy sees it."""

    context: SearchContext
    pool: int

    @property
    def in_use(self) -> bool:
        return self.context.is_busy(self.pool)

    @property
    def load(self) -> int:
        return self.context.usage.loads.pools.get(self.pool, 0)

    @property
    def capacity(self) -> int:
        return self.context.usage.loads.scale(self.pool).capacity


@dataclass(slots=True, eq=False)
class _NodeInUse:
    """A node as a policy sees it."""

    context: SearchContext
    node: str

    @property
    def in_use(self) -> bool:
        return self.context.is_busy_node(self.node)

    @property
    def load(self) -> int:
        return self.context.usage.loads.nodes.get(self.node, 0)

    @property
    def capacity(self) -> int:
        return self.context.usage.loads.capacity(self.node)


def score_of(context: SearchContext, placements: Sequence[Placement], node: str | None) -> PlacementScore:
    """The score of a unit's placements on a node."""
    entries = [entry for placed in placements for entry in placed.entries]
    pools = sorted({entry.device.pool for entry in entries})
    devices = {entry.device.index: entry.device for entry in entries}
    offsets = sum(index - context.snapshot.pools[device.pool].devices[0].index for index, device in devices.items())
    return PlacementScore(
        _one_of(placements),
        len(pools),
        len(devices),
        sum(entry.request.mode is AllocationMode.SHARE for entry in entries),
        *context.costs_of(placements, node),
        _partition_loss_of(context, entries) if context.policy.keeps_partitions else 0,
        (context.rank(node), sum(pools), offsets),
    )


def _one_of(placements: Iterable[Placement]) -> tuple[int, ...]:
    """The chosen alternatives; the first one where nothing is taken."""
    one_of: list[int] = []
    for placed in placements:
        chosen = {entry.request.detail: entry.request for entry in placed.entries}
        one_of += alternatives_of(chosen.get(number, detail[0]) for number, detail in enumerate(placed.demand.details))
    return tuple(one_of)


def _partition_loss_of(context: SearchContext, entries: Iterable[PlacedDevice]) -> int:
    snapshot, usage = context.snapshot, context.usage
    taken: dict[int, dict[int, Device]] = defaultdict(dict)
    for entry in entries:
        if entry.device.draws and not entry.request.mode.is_admin and not usage.in_use(entry.device):
            taken[entry.device.pool][entry.device.index] = entry.device
    total = 0
    for index, devices in taken.items():
        shapes = context.partitions(snapshot.pools[index])
        if not shapes:
            continue
        free = {name: usage.free_pool_blocks(index, name) for name in snapshot.pools[index].resources}
        total += partition_loss(shapes, free, [device.draws for device in devices.values()])
    return total
