"""Claims whose expressions tell devices of one kind apart (by uuid, by address): judged node by node.

Equality with literals is looked up, so that only the nodes that have such a value are judged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from devalloc_solver.demand import Demand, Mode, Unit
from devalloc_solver.index.exact import place
from devalloc_solver.index.kinds import joined
from devalloc_solver.index.recipe import Score, score_of
from devalloc_solver.index.seams import Ask, Given
from devalloc_solver.index.states import NodeRecord

if TYPE_CHECKING:
    from devalloc_solver.index.nodes import NodeIndex


@dataclass(frozen=True, slots=True)
class Found:
    """The best on one node as it is."""

    score: Score
    devices: tuple[Given, ...]
    local: bool

    def given(self, record: NodeRecord, network: NodeRecord | None) -> list[Given]:
        return list(self.devices)


@dataclass(slots=True, eq=False)
class Apart:
    """One shape of that sort."""

    index: NodeIndex
    ask: Ask
    unit: Unit
    demand: Demand = field(init=False)
    _known: dict[str | None, tuple[int, int, Found | None]] = field(default_factory=dict)
    """node -> its version and that of the network, and the best there"""

    def __post_init__(self) -> None:
        (self.demand,) = self.unit.demands

    def best(self) -> tuple[NodeRecord, Found] | None:
        """The first node in natural order among those with the best score, and what to take there."""
        least = self._least()
        best: tuple[NodeRecord, Found] | None = None
        for record in self._candidates():
            found = self.on(record)
            if found is not None and (best is None or found.score < best[1].score):
                best = record, found
                if found.score[:4] <= least:
                    break
        return best

    def on(self, record: NodeRecord) -> Found | None:
        """What to take on one node."""
        known = self._known.get(record.name)
        if known is None or known[:2] != (record.version, self.index.network_version):
            known = record.version, self.index.network_version, self._solve(record)
            self._known[record.name] = known
        return known[2]

    def _least(self) -> tuple[object, ...]:
        """No score is better: the first alternatives, one pool, as many devices as are counted."""
        devices = sum(detail[0].least for detail in self.demand.details if detail[0].mode is Mode.WHOLE)
        return (0,) * len(self.demand.details), 1, devices, devices

    def _candidates(self) -> list[NodeRecord]:
        """The nodes that may have what is asked, those in front that the policy prefers."""
        index = self.index
        named = self._named()
        records = index.records.values() if named is None else [index.records[n] for n in named if n in index.records]

        def order(record: NodeRecord) -> tuple[bool, int]:
            assert record.member_of is not None
            return record.member_of.in_use is index.spread, record.rank

        return sorted(records, key=order)

    def _named(self) -> set[str | None] | None:
        """The nodes where all values are that the expressions name; None when they name none."""
        found: set[str | None] | None = None
        for detail in self.demand.details:
            places = [self._places(position) for position in detail]
            if any(each is None for each in places):
                continue
            nodes = {node for each in places if each is not None for node in each}
            if None in nodes:
                continue  # the network's devices are reached from every node
            found = nodes if found is None else found & nodes
        return found

    def _places(self, slot: object) -> set[str | None] | None:
        found: set[str | None] | None = None
        for name, values in self.ask.literals(slot):  # type: ignore[arg-type]
            nodes = self.index.kinds.find(name, values)
            if nodes is not None:
                found = {*nodes} if found is None else found & {*nodes}
        return found

    def _solve(self, record: NodeRecord) -> Found | None:
        index, network = self.index, self.index.network
        offset = len(network.snapshot.devices) if network is not None else 0
        if network is None:
            snapshot, ledger = record.snapshot, record.ledger()
        else:
            snapshot = joined(record.snapshot, network.snapshot, record.name)
            ledger = record.ledger(snapshot, offset)
            network.fill(ledger, 0)
        unit = self.ask.unit_on(snapshot)
        (demand,) = unit.demands
        if not all(any(slot.candidates.accepted for slot in detail) for detail in demand.details):
            return None
        placements = place(snapshot, ledger, unit, record.name, index.placement)
        if not placements:
            return None
        given, used, chosen = [], [], {}
        for entry in placements[0].entries:
            own = entry.device.index >= offset
            owner = record if own or network is None else network
            device = owner.snapshot.devices[entry.device.index - (offset if own else 0)]
            accepted = entry.slot.candidates.accepted[entry.device.index]
            given.append(Given(entry.slot, owner.snapshot.pools[device.pool], device, accepted, entry.amounts))
            used.append((owner, device.pool, device.index))
            chosen[entry.slot.detail] = entry.slot.alternative or 0
        alternatives = tuple(chosen.get(position, 0) for position in range(len(demand.details)))
        score = score_of(alternatives, used, len(given), 0, spread=index.spread)
        return Found(score, tuple(given), local=any(owner is not network for owner, _, _ in used))
