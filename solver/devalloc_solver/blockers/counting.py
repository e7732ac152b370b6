"""What counting alone tells of the nodes: how many devices, and how much, a slot can have of each at most.

Upper bounds for all nodes in one pass over a slot's candidates, so that a search need not visit nodes that cannot do.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from devalloc_solver.demand import Demand, Mode, Slot, Unit
from devalloc_solver.eligibility import Candidates
from devalloc_solver.holdings import Holding, Ledger
from devalloc_solver.snapshot import Snapshot

Node = str | None
Spot = tuple[Node, tuple[object, ...]]
"""(node, match values) of devices that may be chosen together; node None: the network's"""
Most = Mapping[Node, int]
"""Node -> the most that a slot can have of it. None: of the network alone, as on nodes that are not mentioned."""

DETAILS = 4_096
"""Details of which is kept where there is enough for them."""
STATES = 8
"""Sets of holdings that are kept added up."""


@dataclass(slots=True)
class State:
    """What is held, added up."""

    held: tuple[Holding, ...]
    ledger: Ledger
    free: bytearray
    """device -> whether nobody holds anything of it"""
    known: dict[object, tuple[Candidates, Most]] = field(default_factory=dict)
    enough: dict[object, tuple[tuple[Slot, ...], frozenset[Node]]] = field(default_factory=dict)
    """identity of a detail, and what its claim matches -> nodes with enough for it"""


@dataclass(slots=True)
class Counting:
    """Counts on one fleet; keeps what several slots have in common."""

    snapshot: Snapshot
    _nodes: list[Node] = field(init=False)
    """device -> its node"""
    _spots: dict[tuple[str, ...], list[Spot | None]] = field(default_factory=dict, init=False)
    _states: list[State] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        pools = self.snapshot.pools
        self._nodes = [pools[device.pool].node for device in self.snapshot.devices]

    def state(self, held: tuple[Holding, ...]) -> State:
        """What these holdings add up to; the same object for the same tuple."""
        for state in self._states:
            if state.held is held or not (held or state.held):
                return state
        ledger = Ledger.of(self.snapshot, held)
        free = bytearray(b"\1") * len(self.snapshot.devices)
        for index in (*ledger.whole, *ledger.shared):
            free[index] = 0
        state = State(held, ledger, free)
        self._states = [*self._states[1 - STATES :], state]
        return state

    def nodes(self, unit: Unit, held: tuple[Holding, ...]) -> list[Node]:
        """Nodes that the unit may go to and where counting rules nothing out; [None] for a fleet without nodes."""
        possible: frozenset[Node] | None = None
        for demand in unit.demands:
            for detail in demand.details:
                found = self._enough_for(demand, detail, held)
                if None not in found:
                    possible = found if possible is None else possible & found
        everywhere: Sequence[Node] = (unit.pin,) if unit.pin is not None else self.snapshot.nodes or (None,)
        return [node for node in everywhere if possible is None or node in possible]

    def _enough_for(self, demand: Demand, detail: tuple[Slot, ...], held: tuple[Holding, ...]) -> frozenset[Node]:
        """Nodes with enough for some slot of a detail, which many questions have in common; None: every node."""
        enough = self.state(held).enough
        key = id(detail), demand.match
        if key not in enough:
            if len(enough) >= DETAILS:
                enough.clear()
            enough[key] = detail, frozenset(node for slot in detail for node in self._enough(demand, slot, held))
        return enough[key][1]

    def _enough(self, demand: Demand, slot: Slot, held: tuple[Holding, ...]) -> set[Node]:
        """Nodes with enough for a slot; None among them means every node."""
        least = slot.least if counts_devices(slot) else 1
        enough = {node for node, count in self.devices(demand, slot, held).items() if count >= least}
        for name, nano in slot.requests.items() if not slot.portions else ():
            here = {node for node, amount in self.amounts(demand, slot, name, held).items() if amount >= nano}
            enough = here if None in enough else enough if None in here else enough & here
        return enough

    def devices(self, demand: Demand, slot: Slot, held: tuple[Holding, ...]) -> Most:
        """The most devices for a slot, with equal match values."""
        state, names = self.state(held), match_names(demand, slot)
        key = id(slot.candidates), names, slot.mode, bool(slot.portions)
        if key not in state.known or state.known[key][0] is not slot.candidates:
            spots = self._spots_of(names)
            counted = Counter(spots[i] for i in _usable(slot, state))
            state.known[key] = slot.candidates, _joined({spot: [n] for spot, n in counted.items() if spot}, None)
        return state.known[key][1]

    def amounts(self, demand: Demand, slot: Slot, name: str, held: tuple[Holding, ...]) -> Most:
        """The most nano units of a resource for a slot, with equal match values, within its limit of devices."""
        state, names = self.state(held), match_names(demand, slot)
        key = id(slot.candidates), names, slot.mode, name, slot.most
        if key not in state.known or state.known[key][0] is not slot.candidates:
            spots, devices, ledger = self._spots_of(names), self.snapshot.devices, state.ledger
            parts: dict[Spot, list[int]] = defaultdict(list)
            for i in _usable(slot, state):
                spot, resource = spots[i], devices[i].resources.get(name)
                if spot is not None and resource is not None:
                    whole = slot.mode is not Mode.SHARE or state.free[i]
                    amount = resource.nano if whole else ledger.free_blocks(devices[i], name) * resource.block
                    parts[spot].append(amount)
            state.known[key] = slot.candidates, _joined(parts, slot.most)
        return state.known[key][1]

    def _spots_of(self, names: tuple[str, ...]) -> list[Spot | None]:
        if names not in self._spots:
            self._spots[names] = [*self._spots_with(names)]
        return self._spots[names]

    def _spots_with(self, names: tuple[str, ...]) -> Iterator[Spot | None]:
        if not names:
            plain: dict[Node, Spot] = {node: (node, ()) for node in {*self._nodes}}
            yield from (plain[node] for node in self._nodes)
            return
        for node, device in zip(self._nodes, self.snapshot.devices, strict=True):
            values = tuple(device.attributes.get(name) for name in names)
            yield None if None in values else (node, values)


def counts_devices(slot: Slot) -> bool:
    """Whether the slot needs ``least`` devices: in portions, one may serve several times."""
    return slot.mode in (Mode.WHOLE, Mode.ADMIN_COUNT) and not slot.portions


def match_names(demand: Demand, slot: Slot) -> tuple[str, ...]:
    """Attributes that all devices of a slot agree on."""
    return tuple(dict.fromkeys((*slot.match, *demand.match)))


def _usable(slot: Slot, state: State) -> Iterator[int]:
    """Candidates of which there is anything left, or might be."""
    if slot.mode is Mode.SHARE:
        return (i for i in slot.candidates.accepted if i not in state.ledger.whole)
    if slot.mode is Mode.WHOLE and not slot.portions:
        free = state.free
        return (i for i in slot.candidates.accepted if free[i])
    return iter(slot.candidates.accepted)


def _joined(parts: Mapping[Spot, list[int]], most: int | None) -> Most:
    """The best sum per node: of its own parts and the network's with the same match values, the largest ``most``."""
    network = {values: some for (node, values), some in parts.items() if node is None}
    best: dict[Node, int] = {}
    for (node, values), some in parts.items():
        mine = some if node is None else [*some, *network.get(values, ())]
        total = sum(mine) if most is None or len(mine) <= most else sum(sorted(mine, reverse=True)[:most])
        best[node] = max(best.get(node, 0), total)
    if None in best:
        alone = best[None]
        best = {node: max(total, alone) for node, total in best.items()}
    return best


def best_of(most: Most, pin: str | None) -> int:
    """The most on one node, or on the one that is allowed."""
    if pin is not None:
        return most.get(pin, most.get(None, 0))
    return max(map(itemgetter(1), most.items()), default=0)
