"""The core of the search: a dynamic program that serves all requests from the fewest pools, then the fewest devices.

A dynamic program goes from cell to cell. Pools meet only in what the demand entries still need, so that vector, the
cell and the number of pools that may still be opened say all about the rest; each such state is searched once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from operator import add, ge, mul

from devalloc_solver.place.component_options import ComponentOption
from devalloc_solver.place.components import Component, PoolComponents
from devalloc_solver.place.demand_vector import DemandEntry, DemandVector, TakeKind
from devalloc_solver.place.node_view import resource_families
from devalloc_solver.place.step_budget import StepBudget, StepsExhausted

Weight = tuple[int, ...]


def make_weights(demand_vector: DemandVector) -> list[Weight]:
    """The weights to bound with, each a number per need."""
    size = len(demand_vector.needs)
    weights: dict[Weight, None] = {tuple(int(i == j) for j in range(size)): None for i in range(size)}
    counted = [entry for entry in demand_vector.demand_entries if entry.kind in (TakeKind.COUNT, TakeKind.TOTAL)]
    weights[_weight(size, {entry.first: 1 for entry in counted})] = None
    for family in resource_families(demand_vector.stock.node_view):
        weights[
            _weight(
                size,
                {entry.first: _min_weight(demand_vector, entry, family.weights) for entry in counted},
            )
        ] = None
    return [weight for weight in weights if any(weight)]


def _weight(size: int, parts: Mapping[int, int]) -> Weight:
    return tuple(parts.get(position, 0) for position in range(size))


def _min_weight(demand_vector: DemandVector, entry: DemandEntry, weights: Sequence[int]) -> int:
    """What a device of an entry weighs at the least; any weights give a bound, and these tend to give a sharp one."""
    candidates = [
        candidate_group
        for candidate_group in demand_vector.stock.node_view.candidate_groups
        if entry.candidate_mask >> candidate_group.number & 1
    ]
    return min(
        (0 if candidate_group.one.shareable else weights[candidate_group.number] for candidate_group in candidates),
        default=0,
    )


class LinearBounds:
    """How much is left from each cell on, by weight."""

    def __init__(self, demand_vector: DemandVector, components: Sequence[PoolComponents]) -> None:
        self.weights = make_weights(demand_vector)
        carried: dict[int, list[int]] = {}
        self.rest: list[list[list[int]]] = []
        """per component, per cell: what this cell and those after it in the component carry, by weight"""
        for component in components:
            rows = [[0] * len(self.weights)]
            for cell in reversed(component.cells):
                if cell.kind not in carried:
                    carried[cell.kind] = _max_weights(cell, self.weights)
                rows.append([a + b for a, b in zip(carried[cell.kind], rows[-1], strict=True)])
            self.rest.append(rows[::-1])
        self.top: list[list[list[int]]] = [self._top(components, first) for first in range(len(components) + 1)]
        """per component, per number of pools that may be opened: what the best of the components from here on carry"""

    def _top(self, components: Sequence[PoolComponents], first: int) -> list[list[int]]:
        free = [0] * len(self.weights)
        columns: list[list[int]] = [[] for _ in self.weights]
        for number in range(first, len(components)):
            for position, amount in enumerate(self.rest[number][0]):
                if components[number].is_open:
                    free[position] += amount
                else:
                    columns[position].append(amount)
        for column in columns:
            column.sort(reverse=True)
        rows = [free]
        for count in range(max((len(column) for column in columns), default=0)):
            rows.append([row + column[count] for row, column in zip(rows[-1], columns, strict=True)])
        return rows

    def weigh(self, rem: Sequence[int]) -> list[int]:
        """What needs weigh by each weight; the first weights are the needs themselves."""
        return [*rem, *(sum(map(mul, weight, rem)) for weight in self.weights[len(rem) :])]

    def fewest(self, rem: Sequence[int]) -> int | None:
        """No fewer pools than that will do; None when all of them do not."""
        wanted = self.weigh(rem)
        for count, row in enumerate(self.top[0]):
            if all(map(ge, row, wanted)):
                return count
        return None

    def may_do(self, component: int, cell: int, rem: Sequence[int], pools: int, is_open: bool) -> bool:
        """Whether cells from this one on, in this component if it is open, and ``pools`` more may cover ``rem``."""
        wanted = self.weigh(rem)
        tops = self.top[component + 1]
        last = len(tops) - 1
        if is_open or pools:
            # In a component that is not open yet, it is one of the pools.
            others = tops[min(pools if is_open else pools - 1, last)]
            if all(map(ge, map(add, self.rest[component][cell], others), wanted)):
                return True
        return not is_open and all(map(ge, tops[min(pools, last)], wanted))


def _max_weights(cell: Component, weights: Sequence[Weight]) -> list[int]:
    """The most that a cell carries of each weight; the first weights are the needs themselves."""
    gains = [option.gain for option in cell.options]
    single = [*map(max, *gains)] if len(gains) > 1 else [*gains[0]]
    return [*single, *(max([sum(map(mul, weight, gain)) for gain in gains]) for weight in weights[len(single) :])]


_MAX_DEPTH = 400
"""Cells beyond which the recursion would be too deep."""


@dataclass(frozen=True, slots=True, eq=False)
class Cover:
    """A way to serve all demand entries."""

    components: int
    """pools that might have been opened"""
    pools: int
    """pools that count, those that fixed requests opened left aside"""
    cost: int
    parts: tuple[tuple[PoolComponents, Component, ComponentOption], ...]


_State = tuple[int, int, tuple[int, ...], tuple[int, ...], int, bool, int, int]
"""(component, cell, needs, budgets, pools that may still be opened, whether it is open, wide values in use, how much of
the pool comes into use by the cells before)"""


def cover(
    demand_vector: DemandVector,
    components: Sequence[PoolComponents],
    steps: StepBudget,
    *,
    most: int | None = None,
    any_will_do: bool = False,
) -> Cover | None:
    """The best cover, with no more than ``most`` pools opened, or just some cover; None when there is none."""
    if not any(demand_vector.needs):
        return Cover(0, 0, 0, ())
    if not components:
        return None
    if sum(len(component.cells) for component in components) > _MAX_DEPTH:
        raise StepsExhausted("too many cells")
    ordered = _by_kind(components)
    bounds = LinearBounds(demand_vector, ordered)
    fewest = bounds.fewest(demand_vector.needs)
    closed = sum(not component.is_open for component in ordered)
    limit = closed if most is None else min(most, closed)
    if fewest is None or fewest > limit:
        return None
    search = _Search(ordered, bounds, steps)
    for count in [limit] if any_will_do else range(fewest, limit + 1):
        cost = search.best(search.start(demand_vector, count))
        if cost is not None:
            return Cover(closed, count, cost, tuple(search.parts(search.start(demand_vector, count))))
        if count == fewest < limit and search.best(search.start(demand_vector, limit)) is None:
            return None
    return None


@dataclass(frozen=True, slots=True)
class PolicyCost:
    """What a cover costs beyond devices, where a policy prefers some covers to others."""

    opening: tuple[int, ...]
    """per pool of the node"""
    device: int = 1
    loss: int = 0
    use: Callable[[int, int], int] | None = None
    """of a pool, by how much of it comes into use"""
    states: tuple[object, ...] = ()
    """per pool all that the costs of its use depend on"""


NO_POLICY = PolicyCost(())


def _by_kind(components: Sequence[PoolComponents], policy_cost: PolicyCost = NO_POLICY) -> list[PoolComponents]:
    """Pools that can do the same side by side, in the order of the first of each kind; open ones first.

    The search takes the first ones of a kind, or none: so they are in order of what it costs to open them.
    """
    kinds: dict[object, list[PoolComponents]] = {}
    for component in sorted(components, key=lambda component: not component.is_open):
        kinds.setdefault(_kind(component, policy_cost), []).append(component)
    if policy_cost.opening:
        for same in kinds.values():
            same.sort(key=lambda component: policy_cost.opening[component.pool])
    return [component for same in kinds.values() for component in same]


def _kind(component: PoolComponents, policy_cost: PolicyCost) -> object:
    """Equal for pools that can do the same, at costs that differ in what it takes to open them only."""
    return component.kind, policy_cost.states[component.pool] if policy_cost.states else None


def improve_cover(
    demand_vector: DemandVector,
    components: Sequence[PoolComponents],
    initial: Cover,
    policy_cost: PolicyCost,
    steps: StepBudget,
) -> Cover:
    """A cover with as few pools and devices as ``initial`` has, and the best by policy cost.

    Raises StepsExhausted.
    """
    if not initial.parts or sum(len(component.cells) for component in components) > _MAX_DEPTH:
        return initial
    ordered = _by_kind(components, policy_cost)
    search = _Search(ordered, LinearBounds(demand_vector, ordered), steps, policy_cost)
    start = search.start(demand_vector, initial.pools)
    if search.best(start) is None:
        raise AssertionError("a cover that was found is not found again")
    return Cover(initial.components, initial.pools, initial.cost, tuple(search.parts(start)))


def split_evenly(
    demand_vector: DemandVector, components: Sequence[PoolComponents], initial: Cover, policy_cost: PolicyCost
) -> Cover | None:
    """The best cover of the same pools by policy cost, of any number of devices: each goes to the pool where it costs
    least, since costs are convex. None where a pool has devices that are not alike, or serves several entries."""
    opened, use = {component.pool for component, _, _ in initial.parts}, policy_cost.use
    if use is None or len(opened) < 2:
        return None
    by_need: dict[int, list[PoolComponents]] = {}
    for component in components:
        if component.pool in opened:
            options = component.cells[0].options
            gained = {need for option in options for need, gain in enumerate(option.gain) if gain}
            counts = [(sum(option.gain), option.load, option.wide) for option in options]
            alike = [(count, count * options[-1].load, 0) for count in range(len(options), 0, -1)]
            if len(component.cells) > 1 or len(gained) > 1 or counts != alike:
                return None
            by_need.setdefault(gained.pop(), []).append(component)
    parts: list[tuple[PoolComponents, Component, ComponentOption]] = []
    for need, own in by_need.items():
        given = [0] * len(own)
        heap = [(_cost_of_next(component, 0, use), number) for number, component in enumerate(own)]
        heapify(heap)
        for _ in range(demand_vector.needs[need]):
            _, number = heappop(heap)
            given[number] += 1
            if given[number] < len(own[number].cells[0].options):
                heappush(heap, (_cost_of_next(own[number], given[number], use), number))
        cells = [(component, component.cells[0]) for component in own]
        parts += [(c, cell, cell.options[-count]) for (c, cell), count in zip(cells, given, strict=True) if count]
    return Cover(initial.components, initial.pools, initial.cost, tuple(parts))


def _cost_of_next(component: PoolComponents, count: int, use: Callable[[int, int], int]) -> int:
    """What a device of a pool costs beside so many others."""
    load = component.cells[0].options[-1].load
    return use(component.pool, (count + 1) * load) - use(component.pool, count * load)


class _Search:
    """Memoised search over states."""

    def __init__(
        self,
        components: Sequence[PoolComponents],
        bounds: LinearBounds,
        steps: StepBudget,
        policy_cost: PolicyCost = NO_POLICY,
    ) -> None:
        self.policy_cost = policy_cost
        self.components, self.bounds, self.steps = components, bounds, steps
        self.solved: dict[_State, tuple[int, ComponentOption | None, _State | None] | None] = {}
        self.next_kind = _next_kinds([_kind(component, policy_cost) for component in components])
        self.next_cell = [_next_kinds([cell.kind for cell in component.cells]) for component in components]
        self.gains: dict[int, list[tuple[int, int]]] = {}
        """identity of an option -> (need, what it gains of it)"""

    def start(self, demand_vector: DemandVector, pools: int) -> _State:
        return self._enter(0, demand_vector.needs, demand_vector.budgets, pools, 0)

    def _enter(self, component: int, needs: tuple[int, ...], budgets: tuple[int, ...], pools: int, used: int) -> _State:
        is_open = component < len(self.components) and self.components[component].is_open
        return component, 0, needs, budgets, pools, is_open, used, 0

    def best(self, state: _State) -> int | None:
        """The least cost of serving the rest, or None."""
        component, number, needs, _, pools, is_open, _, load = state
        if not any(needs):
            return 0
        if component == len(self.components):
            return None
        if state in self.solved:
            solved = self.solved[state]
            return None if solved is None else solved[0]
        self.steps.spend()
        self.solved[state] = None
        if not self.bounds.may_do(component, number, needs, pools, is_open):
            return None
        more = pools if is_open else pools - 1
        best: tuple[int, ComponentOption | None, _State | None] | None = None
        if more >= 0:
            for option in self.components[component].cells[number].options:
                after = self._after(state, option, more)
                if after is None:
                    continue
                rest = self.best(after)
                if rest is None:
                    continue
                cost = rest + option.cost * self.policy_cost.device + option.loss * self.policy_cost.loss
                if not is_open and self.policy_cost.opening:
                    cost += self.policy_cost.opening[self.components[component].pool]
                if option.load and self.policy_cost.use is not None:
                    pool = self.components[component].pool
                    cost += self.policy_cost.use(pool, load + option.load) - self.policy_cost.use(pool, load)
                if best is None or cost < best[0]:
                    best = (cost, option, after)
                    if not cost:
                        break
        if best is None or best[0]:
            after = self._skip(state)
            rest = self.best(after)
            if rest is not None and (best is None or rest < best[0]):
                best = (rest, None, after)
        self.solved[state] = best
        return None if best is None else best[0]

    def _after(self, state: _State, option: ComponentOption, more: int) -> _State | None:
        """The state once an option is taken; None where it may not be, or would be of no use."""
        component, number, needs, budgets, _, _, used, load = state
        if option.wide & used:
            return None
        gains = self.gains.get(id(option))
        if gains is None:
            gains = self.gains[id(option)] = [(need, gain) for need, gain in enumerate(option.gain) if gain]
        left: list[int] | None = None
        for position, gain in gains:
            if need := needs[position]:
                left = [*needs] if left is None else left
                left[position] = max(0, need - gain)
        if left is None:
            return None
        after = tuple(left)
        if budgets:
            budgets = tuple([budget - spent for budget, spent in zip(budgets, option.spend, strict=True)])
            if min(budgets) < 0:
                return None
        self.steps.spend()
        if number + 1 < len(self.components[component].cells):
            return component, number + 1, after, budgets, more, True, used | option.wide, load + option.load
        return self._enter(component + 1, after, budgets, more, used | option.wide)

    def _skip(self, state: _State) -> _State:
        """Use nothing of this cell, nor of its equals after it; nor of equal pools, where the pool stays closed."""
        component, number, needs, budgets, pools, is_open, used, load = state
        following = self.next_cell[component][number]
        if following < len(self.components[component].cells):
            return component, following, needs, budgets, pools, is_open, used, load
        return self._enter(component + 1 if is_open else self.next_kind[component], needs, budgets, pools, used)

    def parts(self, state: _State | None) -> list[tuple[PoolComponents, Component, ComponentOption]]:
        """The decisions from a state that has been searched."""
        decisions = []
        while state is not None and any(state[2]):
            solved = self.solved[state]
            assert solved is not None
            _, option, after = solved
            if option is not None:
                component = self.components[state[0]]
                decisions.append((component, component.cells[state[1]], option))
            state = after
        return decisions


def _next_kinds(kinds: Sequence[object]) -> list[int]:
    """Per position the first position after it of another kind."""
    following = [len(kinds)] * len(kinds)
    for position in range(len(kinds) - 2, -1, -1):
        same = kinds[position] == kinds[position + 1]
        following[position] = following[position + 1] if same else position + 1
    return following
