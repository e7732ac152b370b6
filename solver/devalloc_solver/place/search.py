"""Placing a unit: node by node, the preferred first, one of each kind."""

from __future__ import annotations

from dataclasses import dataclass

from devalloc_solver.assignment import Placement
from devalloc_solver.demand import Mode, Unit
from devalloc_solver.holdings import Ledger
from devalloc_solver.loads import squares
from devalloc_solver.place.asks import Asks, Reader
from devalloc_solver.place.choose import Chooser
from devalloc_solver.place.ground import Ground
from devalloc_solver.place.hand import hand_out
from devalloc_solver.place.nodes import fewest_pools, kind_of, nodes_of
from devalloc_solver.place.polish import polish
from devalloc_solver.place.score import Score, score_of
from devalloc_solver.place.screen import Screen
from devalloc_solver.place.simple import place_simple, simple_slots
from devalloc_solver.place.site import Place, Site, survey
from devalloc_solver.place.steps import DEFAULT, Steps
from devalloc_solver.snapshot import Snapshot

TASTE = 64
"""Nodes to look at for the sake of the policy alone, once nothing else can be better."""


@dataclass(frozen=True, slots=True)
class Found:
    """Where a unit goes."""

    placements: tuple[Placement, ...]
    score: Score


def place(
    snapshot: Snapshot, ledger: Ledger, unit: Unit, *, placement: str = "pack", steps: int = DEFAULT
) -> Found | None:
    """The best placement of a unit on what is free: proven for goals 2 to 4 of S17. None: it fits nowhere, proven.

    Args:
        snapshot: the fleet.
        ledger: what is in use.
        unit: claims that share a node and are placed all or none.
        placement: ``pack`` or ``spread`` (goal 5).
        steps: the budget.

    Raises:
        OutOfSteps: the budget is spent, or the unit has something that this search does not handle.
    """
    ground = Ground(snapshot, ledger, placement)
    seek = _Seek(ground, unit, Steps(steps))
    for node in nodes_of(ground, unit):
        seek.look(node)
        if seek.is_over():
            break
    return seek.best


def place_on(
    snapshot: Snapshot,
    ledger: Ledger,
    unit: Unit,
    node: Place,
    *,
    placement: str = "pack",
    steps: int | Steps = DEFAULT,
    any_will_do: bool = False,
    reader: Reader | None = None,
) -> Found | None:
    """The same on one node (None: network devices only), whatever node the unit is pinned to.

    ``steps`` may be a budget that several questions share. ``any_will_do``: some placement, and not the best.
    ``reader``: of whoever asks several questions about the same claims.
    """
    ground = Ground(snapshot, ledger, placement)
    budget = steps if isinstance(steps, Steps) else Steps(steps)
    seek = _Seek(ground, unit, budget, any_will_do=any_will_do, reader=reader)
    seek.look(node)
    return seek.best


def fits(
    snapshot: Snapshot, ledger: Ledger, unit: Unit, *, steps: int | Steps = DEFAULT, reader: Reader | None = None
) -> bool:
    """Whether the unit fits anywhere it may go; less work than to say where best. Raises OutOfSteps.

    ``steps`` may be a budget that several questions share; for ``reader`` see ``place_on``.
    """
    ground = Ground(snapshot, ledger, "pack")
    seek = _Seek(ground, unit, steps if isinstance(steps, Steps) else Steps(steps), reader=reader)
    return any(seek.may_go(node) for node in nodes_of(ground, unit))


def _most_even(devices: int, pools: int) -> int:
    """The least that the squares of loads grow by when devices come into use in so many pools."""
    each, more = divmod(devices, pools) if pools else (0, 0)
    return squares([each + 1] * more + [each] * (pools - more))


class _Seek:
    """Goes from node to node and keeps the best."""

    def __init__(
        self, ground: Ground, unit: Unit, steps: Steps, *, any_will_do: bool = False, reader: Reader | None = None
    ) -> None:
        self.ground, self.unit, self.steps, self.any_will_do = ground, unit, steps, any_will_do
        self.reader = reader or Reader()
        self.slots = simple_slots(unit)
        self.best: Found | None = None
        self.tasted = 0
        """nodes looked at since goals 2 to 4 were reached"""
        self._floor: tuple[int, int] | None = None
        """(pools, devices) below which no node can be"""
        self._asks: Asks | None = None
        self._first: Site | None = None
        """the first node, which is compared once there is a second one"""
        self._seen: set[object] = set()

    def look(self, node: Place) -> None:
        """Place the unit on a node, if that may be better than what was found so far."""
        answer = place_simple(self.ground, self.unit, self.slots, node) if self.slots else True
        found: Found | None = None
        if not isinstance(answer, bool):
            found = Found((answer[0],), answer[1])
        elif answer:
            found = self._search(node)
        if found is not None and (self.best is None or found.score < self.best.score):
            self.best = found

    def may_go(self, node: Place) -> bool:
        """Whether the unit fits on a node; not asked again of one like it."""
        answer = place_simple(self.ground, self.unit, self.slots, node) if self.slots else True
        if not isinstance(answer, bool):
            return True
        if not answer or (chooser := self._chooser(node)) is None:
            return False
        return chooser.best(None, any_will_do=True) is not None

    def is_over(self) -> bool:
        """Whether no node after the last one can be better, or only in a preference that was sought for long enough.

        Nodes come in the order of the policy, so those to come are no better than the best in that.
        """
        if self.best is None or not self._is_optimal(self.best.score):
            return False
        self.tasted += 1
        score = self.best.score
        _, node, pools, loss, *_ = score.policy
        liked = not pools or node if self.ground.packs else pools <= _most_even(score.devices, score.pools)
        return bool(liked and not loss) or self.tasted > TASTE

    def _is_optimal(self, score: Score) -> bool:
        """Whether goals 2 to 4 are as good as on any node could be."""
        if self._floor is None:
            slots = [detail[0] for demand in self.unit.demands for detail in demand.details]
            plain = all(s.mode is Mode.WHOLE and not (s.requests or s.limits or s.portions) for s in slots)
            devices = sum(slot.least for slot in slots) if plain else 0
            self._floor = fewest_pools(self.ground.snapshot, self.unit), devices
        return not any(score.one_of) and (score.pools, score.devices) == self._floor

    def _search(self, node: Place) -> Found | None:
        if (chooser := self._chooser(node)) is None:
            return None
        limit = None if self.best is None else self.best.score.one_of
        found = chooser.best(limit, any_will_do=self.any_will_do)
        if found is None:
            return None
        _, settled = found
        cover = settled.cover if self.any_will_do else polish(self.ground, settled, self.steps)
        placements = hand_out(settled.lanes, cover, settled.chosen)
        return Found(placements, score_of(self.ground, placements, node))

    def _chooser(self, node: Place) -> Chooser | None:
        """None for a node like one that was looked at."""
        if self._asks is None:
            self._asks = self.reader.read(self.unit)
        site = survey(self._asks, self.ground.snapshot, self.ground.ledger, node)
        if self._first is None:
            self._first = site
        else:
            self._seen = self._seen or {kind_of(self.ground, self._first)}
            kind = kind_of(self.ground, site)
            if kind in self._seen:
                return None
            self._seen.add(kind)
        return Chooser(Screen(site), self.steps)
