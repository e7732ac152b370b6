"""Choose alternatives: depth first in the order of preference, so that the first choice that fits is best (S17).

Before a detail is decided further, counting bounds say whether the rest may still fit. A complete choice that fails is
made smaller until it fails for a reason: that part is never tried again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from devalloc_solver.place.counting_bounds import CountingBounds
from devalloc_solver.place.match_values import MatchedCover, MatchValueSearch
from devalloc_solver.place.step_budget import StepBudget

Vector = tuple[int, ...]
"""The chosen index of each oneOf, in the order of claims and details."""


@dataclass(slots=True)
class AlternativeSearch:
    """Chooses on one node."""

    screen: CountingBounds
    steps: StepBudget
    conflicts: list[Counter[int]] = field(default_factory=list)
    """kinds of asks that cannot be chosen together, each so many times"""

    def best(self, limit: Vector | None, *, any_will_do: bool = False) -> tuple[Vector, MatchedCover] | None:
        """The first choice that is no worse than ``limit``, and how it is served: best, or just somehow."""
        allowed = self.screen.viable()
        if not self.screen.may_choose(allowed):
            return None
        for chosen in self._choices(0, 0, allowed, limit):
            settled = MatchValueSearch(self.screen, self.steps).settle(chosen, any_will_do=any_will_do)
            if settled is not None:
                return self.vector(chosen), settled
            self._learn(chosen)
        return None

    def vector(self, chosen: int) -> Vector:
        """Only of details that have a choice."""
        asks = self.screen.site.asks
        return tuple(a for ask in asks.of(chosen) if (a := ask.request.alternative) is not None)

    def _choices(self, detail: int, chosen: int, allowed: int, limit: Vector | None) -> Iterator[int]:
        """Complete choices that the bounds let pass, best first. ``allowed``: what open details may still choose."""
        asks = self.screen.site.asks
        if detail == len(asks.details):
            if self._without_conflicts(chosen, allowed, detail) is not None:
                yield chosen
            return
        tried: set[int] = set()
        for ask in asks.of(asks.details[detail] & allowed):
            if ask.kind in tried:
                continue
            tried.add(ask.kind)
            self.steps.spend(1 if asks.details[detail] == ask.bit else len(asks.details))
            if not self._keeps_order(detail, ask.bit, chosen):
                continue
            picked = chosen | ask.bit
            if limit is not None and (vector := self.vector(picked)) > limit[: len(vector)]:
                return
            is_open = asks.details[detail] != ask.bit
            rest = allowed & ~asks.details[detail] | ask.bit
            left: int | None = rest
            if is_open or not detail or self.conflicts:  # elsewhere nothing has changed since it was looked at
                left = self._without_conflicts(picked, rest, detail + 1)
            if left is None or (is_open and not self.screen.may_choose(left)):
                continue
            yield from self._choices(detail + 1, picked, left, limit)

    def _keeps_order(self, detail: int, bit: int, chosen: int) -> bool:
        """Of equal details the later ones choose no earlier alternative: they could change places."""
        asks = self.screen.site.asks
        twin = asks.twins[detail]
        if twin is None:
            return True
        first = asks.details[twin] & -asks.details[twin]
        lowest = asks.details[detail] & -asks.details[detail]
        return bit // lowest >= (chosen & asks.details[twin]) // first

    def _without_conflicts(self, picked: int, allowed: int, detail: int) -> int | None:
        """``allowed`` less what conflicts with the choices made; None where nothing is left of a detail."""
        if self.conflicts:
            asks = self.screen.site.asks
            have = Counter(ask.kind for ask in asks.of(picked))
            for conflict in self.conflicts:
                missing = conflict - have
                if not missing:
                    return None
                if missing.total() == 1:
                    (kind,) = missing
                    allowed &= ~sum(ask.bit for ask in asks.of(allowed & ~picked) if ask.kind == kind)
        details = self.screen.site.asks.details
        return allowed if all(mask & allowed for mask in details[detail:]) else None

    def _learn(self, chosen: int) -> None:
        """Remember a part of a failed choice that fails on its own, with whatever asks of the same kinds."""
        asks = self.screen.site.asks
        if all(mask & (mask - 1) == 0 for mask in asks.details):
            return
        settler = MatchValueSearch(self.screen, self.steps)
        conflict = chosen
        for ask in asks.of(chosen):
            less = conflict & ~ask.bit
            if less and settler.settle(less, any_will_do=True) is None:
                conflict = less
        self.conflicts.append(Counter(ask.kind for ask in asks.of(conflict)))
