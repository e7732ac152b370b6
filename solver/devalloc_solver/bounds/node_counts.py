"""Upper bounds by counting: how many devices, and how much of each resource, a request can have on each node.

One pass over a request's candidates gives the bounds of all nodes, so that a search skips nodes that cannot satisfy it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from devalloc_solver.problem.allocations import Holding, Usage
from devalloc_solver.problem.demand import AllocationMode, Candidates, Demand, PlacementUnit, Request
from devalloc_solver.problem.snapshot import Snapshot

Node = str | None
MatchGroup = tuple[Node, tuple[object, ...]]
"""(node, match values) of devices that may be chosen together; node None: the network's"""
CountByNode = Mapping[Node, int]
"""Node -> the most that a request can have of it. None: of the network alone, as on nodes that are not mentioned."""

MAX_CACHED_DETAILS = 4_096
"""Details of which is kept where there is enough for them."""
MAX_CACHED_STATES = 8
"""Sets of allocations that are kept added up."""


@dataclass(slots=True)
class CountedUsage:
    """What is held, added up."""

    held: tuple[Holding, ...]
    usage: Usage
    free: bytearray
    """device -> whether it is free altogether"""
    counted: dict[object, tuple[Candidates, CountByNode]] = field(default_factory=dict)
    enough: dict[object, tuple[tuple[Request, ...], frozenset[Node]]] = field(default_factory=dict)
    """identity of a detail, and what its claim matches -> nodes with enough for it"""


@dataclass(slots=True)
class NodeCounts:
    """Counts on one fleet; keeps what several requests have in common."""

    snapshot: Snapshot
    _nodes: list[Node] = field(init=False)
    """device -> its node"""
    _match_groups: dict[tuple[str, ...], list[MatchGroup | None]] = field(default_factory=dict, init=False)
    _states: list[CountedUsage] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        pools = self.snapshot.pools
        self._nodes = [pools[device.pool].node for device in self.snapshot.devices]

    def state(self, held: tuple[Holding, ...]) -> CountedUsage:
        """What these allocations add up to; the same object for the same tuple."""
        for state in self._states:
            if state.held is held or not (held or state.held):
                return state
        usage = Usage.of(self.snapshot, held)
        free = bytearray(b"\1") * len(self.snapshot.devices)
        for index in (*usage.whole, *usage.shared):
            free[index] = 0
        state = CountedUsage(held, usage, free)
        self._states = [*self._states[1 - MAX_CACHED_STATES :], state]
        return state

    def nodes(self, unit: PlacementUnit, held: tuple[Holding, ...]) -> list[Node]:
        """Nodes that the unit may go to and where counting rules nothing out; [None] for a fleet without nodes."""
        possible: frozenset[Node] | None = None
        for demand in unit.demands:
            for detail in demand.details:
                with_enough = self._enough_for(demand, detail, held)
                if None not in with_enough:
                    possible = with_enough if possible is None else possible & with_enough
        everywhere: Sequence[Node] = (unit.pin,) if unit.pin is not None else self.snapshot.nodes or (None,)
        return [node for node in everywhere if possible is None or node in possible]

    def _enough_for(self, demand: Demand, detail: tuple[Request, ...], held: tuple[Holding, ...]) -> frozenset[Node]:
        """Nodes with enough for some request of a detail, which many questions have in common; None: every node."""
        enough = self.state(held).enough
        key = id(detail), demand.match
        if key not in enough:
            if len(enough) >= MAX_CACHED_DETAILS:
                enough.clear()
            enough[key] = detail, frozenset(node for request in detail for node in self._enough(demand, request, held))
        return enough[key][1]

    def _enough(self, demand: Demand, request: Request, held: tuple[Holding, ...]) -> set[Node]:
        """Nodes with enough for a request; None among them means every node."""
        least = min_devices(request)
        enough = {node for node, count in self.devices(demand, request, held).items() if count >= least}
        for name, nano in request.requests.items() if not request.portions else ():
            here = {node for node, amount in self.amounts(demand, request, name, held).items() if amount >= nano}
            enough = here if None in enough else enough if None in here else enough & here
        return enough

    def devices(self, demand: Demand, request: Request, held: tuple[Holding, ...]) -> CountByNode:
        """The most devices for a request, with equal match values."""
        state, names = self.state(held), match_attributes(demand, request)
        key = id(request.candidates), names, request.mode, bool(request.portions)
        if key not in state.counted or state.counted[key][0] is not request.candidates:
            match_groups = self._match_groups_of(names)
            counted = Counter(match_groups[i] for i in _candidates_left(request, state))
            state.counted[key] = (
                request.candidates,
                _max_by_node({match_group: [n] for match_group, n in counted.items() if match_group}, None),
            )
        return state.counted[key][1]

    def amounts(self, demand: Demand, request: Request, name: str, held: tuple[Holding, ...]) -> CountByNode:
        """The most nano units of a resource for a request, with equal match values, within its limit of devices."""
        state, names = self.state(held), match_attributes(demand, request)
        key = id(request.candidates), names, request.mode, name, request.max_count
        if key not in state.counted or state.counted[key][0] is not request.candidates:
            match_groups, devices, usage = self._match_groups_of(names), self.snapshot.devices, state.usage
            parts: dict[MatchGroup, list[int]] = defaultdict(list)
            for i in _candidates_left(request, state):
                match_group, resource = match_groups[i], devices[i].resources.get(name)
                if match_group is not None and resource is not None:
                    whole = request.mode is not AllocationMode.SHARE or state.free[i]
                    amount = resource.nano if whole else usage.free_blocks(devices[i], name) * resource.block
                    parts[match_group].append(amount)
            state.counted[key] = request.candidates, _max_by_node(parts, request.max_count)
        return state.counted[key][1]

    def _match_groups_of(self, names: tuple[str, ...]) -> list[MatchGroup | None]:
        if names not in self._match_groups:
            self._match_groups[names] = [*self._match_groups_with(names)]
        return self._match_groups[names]

    def _match_groups_with(self, names: tuple[str, ...]) -> Iterator[MatchGroup | None]:
        if not names:
            plain: dict[Node, MatchGroup] = {node: (node, ()) for node in {*self._nodes}}
            yield from (plain[node] for node in self._nodes)
            return
        for node, device in zip(self._nodes, self.snapshot.devices, strict=True):
            values = tuple(device.attributes.get(name) for name in names)
            yield None if None in values else (node, values)


def counts_whole_devices(request: Request) -> bool:
    """Whether the request needs ``least`` devices: in portions, one may serve several times."""
    return request.mode.is_counted and not request.portions


def min_devices(request: Request) -> int:
    """The fewest devices that a request needs."""
    return request.min_count if counts_whole_devices(request) else 1


def match_attributes(demand: Demand, request: Request) -> tuple[str, ...]:
    """Attributes that all devices of a request agree on."""
    return tuple(dict.fromkeys((*request.match, *demand.match)))


def _candidates_left(request: Request, state: CountedUsage) -> Iterator[int]:
    """Candidates of which there is anything left, or might be."""
    if request.mode is AllocationMode.SHARE:
        return (i for i in request.candidates.accepted if i not in state.usage.whole)
    if request.takes_whole:
        free = state.free
        return (i for i in request.candidates.accepted if free[i])
    return iter(request.candidates.accepted)


def _max_by_node(parts: Mapping[MatchGroup, list[int]], most: int | None) -> CountByNode:
    """The best sum per node: of its own parts and the network's with the same match values, the largest ``most``."""
    network = {values: some for (node, values), some in parts.items() if node is None}
    best: dict[Node, int] = {}
    for (node, values), some in parts.items():
        counts = some if node is None else [*some, *network.get(values, ())]
        total = sum(counts) if most is None or len(counts) <= most else sum(sorted(counts, reverse=True)[:most])
        best[node] = max(best.get(node, 0), total)
    if None in best:
        alone = best[None]
        best = {node: max(total, alone) for node, total in best.items()}
    return best


def max_on_node(most: CountByNode, pin: str | None) -> int:
    """The most on one node, or on the one that is allowed."""
    if pin is not None:
        return most.get(pin, most.get(None, 0))
    return max(map(itemgetter(1), most.items()), default=0)
