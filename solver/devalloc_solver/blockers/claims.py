"""Whose release makes room: the smallest set of claims, looked for on the nodes where the fewest are in the way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from devalloc_solver.blockers.question import Finder, Question
from devalloc_solver.demand import Mode, Slot
from devalloc_solver.holdings import Holding, Key, Ledger
from devalloc_solver.snapshot import Snapshot

TRIES = 60
"""Questions that one search may ask, so that it ends soon, and the same way every time."""

NEVER = 1 << 30
"""More claims than there can be: their release would not do."""


@dataclass(frozen=True, slots=True)
class InTheWay:
    """Claims whose release makes room."""

    claims: tuple[Key, ...]
    """none of them can be left out; empty when none were found"""
    smallest: bool
    """no smaller set does, for certain"""


@dataclass(slots=True)
class Releases:
    """Finds who is in the way of units on one fleet."""

    snapshot: Snapshot
    held: Sequence[Holding]
    new: frozenset[Key]
    """claims given their devices in this batch: of equal sets, the one with most of them is told"""
    _by_node: dict[str | None, list[Holding]] = field(init=False)
    """what is held on each node; None: of the network"""

    def __post_init__(self) -> None:
        self._by_node = defaultdict(list)
        for holding in self.held:
            nodes = {self.snapshot.pools[self.snapshot.devices[i.device].pool].node for i in holding.items}
            for node in nodes:
                self._by_node[node].append(holding)

    def find(self, question: Question, finder: Finder) -> InTheWay:
        """Who must go so that the unit fits. It does not fit beside them. Raises Undecided.

        ``question.held`` does not count: all that is held here does.
        """
        bounds = {node: self._least(question, node) for node in self._nodes(question)}
        new = {node: any(h.claim in self.new for h in self._around(node)) for node in bounds}
        order = {node: place for place, node in enumerate(bounds)}
        nodes = sorted((n for n in bounds if bounds[n] < NEVER), key=lambda n: (bounds[n], not new[n], order[n]))
        best: tuple[tuple[int, int], tuple[Key, ...]] = ((NEVER, 0), ())
        last = finder.asked + TRIES
        proven = True
        for node in nodes:
            if (bounds[node], not new[node]) >= best[0]:
                continue
            for chosen in self._sets(node, bounds[node]):
                cost = (len(chosen), sum(holding.claim not in self.new for holding in chosen))
                if cost >= best[0]:
                    break
                if finder.asked >= last:
                    proven = False
                    break
                if self._fits(question, finder, node, chosen):
                    best = cost, tuple(holding.claim for holding in chosen)
                    break
            if not proven:
                break
        if not best[1]:
            found = self._thinned_out(question, finder, nodes)
            return InTheWay(tuple(sorted(found)), proven and not found)
        smallest = proven or all(bounds[node] >= best[0][0] for node in nodes)
        return InTheWay(tuple(sorted(best[1])), smallest)

    def _thinned_out(self, question: Question, finder: Finder, nodes: Sequence[str | None]) -> tuple[Key, ...]:
        """On the first node where it helps, all claims but those that can stay."""
        for node in nodes[:TRIES]:
            kept = self._holders(node)
            if not self._fits(question, finder, node, kept):
                continue
            for holding in sorted(kept, key=lambda h: (h.claim in self.new, h.claim)):
                rest = [other for other in kept if other is not holding]
                if self._fits(question, finder, node, rest):
                    kept = rest
            return tuple(holding.claim for holding in kept)
        return ()

    def _fits(self, question: Question, finder: Finder, node: str | None, gone: Sequence[Holding]) -> bool:
        leaving = {holding.claim for holding in gone}
        held = tuple(h for h in self._around(node) if h.claim not in leaving)
        asked = replace(question, held=held)
        return finder.fits(asked if node is None else asked.pinned(node))

    def _around(self, node: str | None) -> Iterator[Holding]:
        """Who holds anything that matters on a node, each once."""
        seen = set()
        for holding in (*self._by_node.get(node, ()), *(self._by_node.get(None, ()) if node is not None else ())):
            if holding.claim not in seen:
                seen.add(holding.claim)
                yield holding

    def _holders(self, node: str | None) -> list[Holding]:
        """The same in the order in which their release is thought of."""
        return sorted(self._around(node), key=lambda h: (h.claim not in self.new, h.claim))

    def _sets(self, node: str | None, least: int) -> Iterator[tuple[Holding, ...]]:
        """Sets of claims on a node, smaller ones first, then those with more of this batch."""
        holders = self._holders(node)
        new = [holding for holding in holders if holding.claim in self.new]
        old = [holding for holding in holders if holding.claim not in self.new]
        for size in range(max(1, least), len(holders) + 1):
            for count in range(size + 1):
                for some in combinations(old, count):
                    for others in combinations(new, size - count):
                        yield (*others, *some)

    def _nodes(self, question: Question) -> list[str | None]:
        """Where the unit may go; None: anywhere, for a unit of which no node has anything."""
        if question.unit.pin is not None:
            return [question.unit.pin]
        accepted = {i for d in question.unit.demands for slot in d.slots for i in slot.candidates.accepted}
        pools = self.snapshot.pools
        useful = {pools[self.snapshot.devices[i].pool].node for i in accepted}
        nodes: list[str | None] = [node for node in self.snapshot.nodes if node in useful]
        return nodes or [None]

    # -- the bound ---------------------------------------------------------------------------------------------------

    def _least(self, question: Question, node: str | None) -> int:
        """How many claims must go from a node at the very least, as counting tells of each detail on its own."""
        holders = self._holders(node)
        ledger = Ledger.of(self.snapshot, holders)
        most = 0
        for demand in question.unit.demands:
            for detail in demand.details:
                few = min(self._least_of(slot, node, holders, ledger, question.snapshot) for slot in detail)
                most = max(most, few)
        return max(most, 1)

    def _least_of(
        self, slot: Slot, node: str | None, holders: Sequence[Holding], ledger: Ledger, snapshot: Snapshot
    ) -> int:
        if slot.mode.is_admin or slot.mode is Mode.EVERY or slot.portions:
            return 0
        here = self._here(slot, node, snapshot)
        if slot.mode is Mode.WHOLE:
            free = sum(not ledger.in_use(snapshot.devices[i]) for i in here)
            return _fewest(slot.least - free, [sum(i.device in here for i in h.items) for h in holders])
        few = 0
        for name, amount in slot.requests.items():
            devices = [snapshot.devices[i] for i in here]
            free = sum(ledger.free_blocks(d, name) * d.resources[name].block for d in devices if name in d.resources)
            few = max(few, _fewest(amount - free, [_freed(h, name, here, snapshot) for h in holders]))
        return few

    def _here(self, slot: Slot, node: str | None, snapshot: Snapshot) -> Mapping[int, None]:
        """The candidates that a node reaches."""
        pools = [*snapshot.pools_by_node.get(node, ()), *(snapshot.pools_by_node.get(None, ()) if node else ())]
        accepted = slot.candidates.accepted
        return {device.index: None for pool in pools for device in pool.devices if device.index in accepted}


def _freed(holding: Holding, name: str, here: Mapping[int, None], snapshot: Snapshot) -> int:
    """At most so much of a resource comes free."""
    total = 0
    for item in holding.items:
        resource = snapshot.devices[item.device].resources.get(name)
        if item.device in here and resource is not None:
            # Rounding down to blocks, a device may gain up to a block more than the share was.
            share = resource.nano if item.amounts is None else dict(item.amounts).get(name, 0) + resource.block
            total += min(share, resource.nano)
    return total


def _fewest(missing: int, parts: Sequence[int]) -> int:
    """How many of the parts make up for what is missing; NEVER when all together do not."""
    count = 0
    for part in sorted(parts, reverse=True):
        if missing <= 0:
            return count
        missing -= part
        count += 1
    return count if missing <= 0 else NEVER
