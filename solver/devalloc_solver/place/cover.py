"""The heart of the search: serve all lanes from the fewest pools, then the fewest devices.

A dynamic program goes from cell to cell. Pools meet only in what the lanes still need, so that vector, the cell and
the number of pools that may still be opened say all about the rest; each such state is searched once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from devalloc_solver.place.bounds import Bounds
from devalloc_solver.place.cells import Cell, Yard
from devalloc_solver.place.lanes import Lanes
from devalloc_solver.place.options import Option
from devalloc_solver.place.steps import OutOfSteps, Steps

_DEEP = 400
"""Cells beyond which the recursion would be too deep."""


@dataclass(frozen=True, slots=True, eq=False)
class Cover:
    """A way to serve all lanes."""

    yards: int
    """pools that might have been opened"""
    pools: int
    """pools that count, those that fixed asks opened left aside"""
    cost: int
    parts: tuple[tuple[Yard, Cell, Option], ...]


_State = tuple[int, int, tuple[int, ...], tuple[int, ...], int, bool, int]
"""(yard, cell, needs, budgets, pools that may still be opened, whether the yard is open, wide values in use)"""


def cover(
    lanes: Lanes, yards: Sequence[Yard], steps: Steps, *, most: int | None = None, any_will_do: bool = False
) -> Cover | None:
    """The best cover, with no more than ``most`` pools opened, or just some cover; None when there is none."""
    if not any(lanes.needs):
        return Cover(0, 0, 0, ())
    if not yards:
        return None
    if sum(len(yard.cells) for yard in yards) > _DEEP:
        raise OutOfSteps("too many cells")
    ordered = _by_kind(yards)
    bounds = Bounds(lanes, ordered)
    fewest = bounds.fewest(lanes.needs)
    closed = sum(not yard.is_open for yard in ordered)
    limit = closed if most is None else min(most, closed)
    if fewest is None or fewest > limit:
        return None
    search = _Search(ordered, bounds, steps)
    for count in [limit] if any_will_do else range(fewest, limit + 1):
        found = search.best(search.start(lanes, count))
        if found is not None:
            return Cover(closed, count, found, tuple(search.parts(search.start(lanes, count))))
        if count == fewest < limit and search.best(search.start(lanes, limit)) is None:
            return None
    return None


@dataclass(frozen=True, slots=True)
class Taste:
    """What a cover costs beyond devices, where a policy prefers some covers to others."""

    opening: tuple[int, ...]
    """per pool of the site"""
    device: int = 1
    loss: int = 0


PLAIN = Taste(())


def _by_kind(yards: Sequence[Yard], taste: Taste = PLAIN) -> list[Yard]:
    """Pools that can do the same side by side, in the order of the first of each kind; open ones first.

    The search takes the first ones of a kind, or none: so they are in order of what it costs to open them.
    """
    kinds: dict[object, list[Yard]] = {}
    for yard in sorted(yards, key=lambda yard: not yard.is_open):
        kinds.setdefault(yard.kind, []).append(yard)
    if taste.opening:
        for same in kinds.values():
            same.sort(key=lambda yard: taste.opening[yard.pool])
    return [yard for same in kinds.values() for yard in same]


def improve(lanes: Lanes, yards: Sequence[Yard], found: Cover, taste: Taste, steps: Steps) -> Cover:
    """A cover with as few pools and devices as ``found`` has, and the best to the taste.

    Raises OutOfSteps.
    """
    if not found.parts or sum(len(yard.cells) for yard in yards) > _DEEP:
        return found
    ordered = _by_kind(yards, taste)
    search = _Search(ordered, Bounds(lanes, ordered), steps, taste)
    start = search.start(lanes, found.pools)
    if search.best(start) is None:
        raise AssertionError("a cover that was found is not found again")
    return Cover(found.yards, found.pools, found.cost, tuple(search.parts(start)))


class _Search:
    """Memoised search over states."""

    def __init__(self, yards: Sequence[Yard], bounds: Bounds, steps: Steps, taste: Taste = PLAIN) -> None:
        self.taste = taste
        self.yards, self.bounds, self.steps = yards, bounds, steps
        self.known: dict[_State, tuple[int, Option | None, _State | None] | None] = {}
        self.next_kind = _next_kinds([yard.kind for yard in yards])
        self.next_cell = [_next_kinds([cell.kind for cell in yard.cells]) for yard in yards]
        self.rates = _rates(yards)

    def start(self, lanes: Lanes, pools: int) -> _State:
        return self._enter(0, lanes.needs, lanes.budgets, pools, 0)

    def _enter(self, yard: int, needs: tuple[int, ...], budgets: tuple[int, ...], pools: int, used: int) -> _State:
        is_open = yard < len(self.yards) and self.yards[yard].is_open
        return yard, 0, needs, budgets, pools, is_open, used

    def best(self, state: _State) -> int | None:
        """The least cost of serving the rest, or None."""
        yard, number, needs, _, pools, is_open, _ = state
        if not any(needs):
            return 0
        if yard == len(self.yards):
            return None
        if state in self.known:
            found = self.known[state]
            return None if found is None else found[0]
        self.steps.spend()
        self.known[state] = None
        if not self.bounds.may_do(yard, number, needs, pools, is_open):
            return None
        more = pools if is_open else pools - 1
        floor = self._floor(needs) * self.taste.device
        best: tuple[int, Option | None, _State | None] | None = None
        if more >= 0:
            for option in self.yards[yard].cells[number].options:
                after = self._after(state, option, more)
                if after is None:
                    continue
                rest = self.best(after)
                if rest is None:
                    continue
                cost = rest + option.cost * self.taste.device + option.loss * self.taste.loss
                if not is_open and self.taste.opening:
                    cost += self.taste.opening[self.yards[yard].pool]
                if best is None or cost < best[0]:
                    best = (cost, option, after)
                    if best[0] <= floor:
                        break
        if best is None or best[0] > floor:
            after = self._skip(state)
            rest = self.best(after)
            if rest is not None and (best is None or rest < best[0]):
                best = (rest, None, after)
        self.known[state] = best
        return None if best is None else best[0]

    def _after(self, state: _State, option: Option, more: int) -> _State | None:
        """The state once an option is taken; None where it may not be, or would be of no use."""
        yard, number, needs, budgets, _, _, used = state
        if option.wide & used:
            return None
        left = tuple([need - gain if need > gain else 0 for need, gain in zip(needs, option.gain, strict=True)])
        if left == needs:
            return None
        if budgets:
            budgets = tuple([budget - spent for budget, spent in zip(budgets, option.spend, strict=True)])
            if min(budgets) < 0:
                return None
        self.steps.spend()
        if number + 1 < len(self.yards[yard].cells):
            return yard, number + 1, left, budgets, more, True, used | option.wide
        return self._enter(yard + 1, left, budgets, more, used | option.wide)

    def _skip(self, state: _State) -> _State:
        """Use nothing of this cell, nor of its equals after it; nor of equal pools, where the pool stays closed."""
        yard, number, needs, budgets, pools, is_open, used = state
        following = self.next_cell[yard][number]
        if following < len(self.yards[yard].cells):
            return yard, following, needs, budgets, pools, is_open, used
        return self._enter(yard + 1 if is_open else self.next_kind[yard], needs, budgets, pools, used)

    def _floor(self, needs: Sequence[int]) -> int:
        """A lower bound of the cost."""
        return max(
            (-(-need * cost // gain) for need, (cost, gain) in zip(needs, self.rates, strict=True) if need and cost),
            default=0,
        )

    def parts(self, state: _State | None) -> list[tuple[Yard, Cell, Option]]:
        """The decisions from a state that has been searched."""
        found = []
        while state is not None and any(state[2]):
            known = self.known[state]
            assert known is not None
            _, option, after = known
            if option is not None:
                yard = self.yards[state[0]]
                found.append((yard, yard.cells[state[1]], option))
            state = after
        return found


def _next_kinds(kinds: Sequence[object]) -> list[int]:
    """Per position the first position after it of another kind."""
    following = [len(kinds)] * len(kinds)
    for position in range(len(kinds) - 2, -1, -1):
        same = kinds[position] == kinds[position + 1]
        following[position] = following[position + 1] if same else position + 1
    return following


def _rates(yards: Sequence[Yard]) -> list[tuple[int, int]]:
    """Per need the best ratio of cost to gain of any option."""
    options = {id(cell.options): cell.options for yard in yards for cell in yard.cells}
    rates: list[tuple[int, int]] | None = None
    for option in (option for found in options.values() for option in found):
        if rates is None:
            rates = [(0, 0)] * len(option.gain)
        for position, gain in enumerate(option.gain):
            cost, most = rates[position]
            if gain and (not most or option.cost * most < cost * gain):
                rates[position] = (option.cost, gain)
    return rates or []
