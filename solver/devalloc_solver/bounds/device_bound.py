"""An upper bound from whole devices alone: how many claims can be satisfied, whatever else they ask for.

A claim takes so many whole devices of its candidates on one node, and no device is taken twice. That is a linear
program over devices that the same claims may take, on nodes where the same claims may go. Its prices are rounded to a
grid and the bound is computed again in integers, as that of the columns is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from devalloc_solver.deadline import limit_in_milliseconds
from devalloc_solver.problem.allocations import Usage
from devalloc_solver.problem.demand import PlacementUnit
from devalloc_solver.problem.snapshot import Snapshot

Ints = npt.NDArray[np.int64]
GRID = 2**24
"""Prices are multiples of one in this."""
MISSED_FLOOR_COST = 10_000.0
"""Cost in a linear program of a floor that is missed by one."""
MAX_ROWS = 200_000
"""Up to so many rows, the linear program distinguishes nodes by the claims that may go there."""

Need = tuple[int, int]
"""(candidate set, devices)"""


@dataclass(frozen=True, slots=True)
class MinimumNeed:
    """What units need at least."""

    pin: str | None
    claims: tuple[tuple[int, int], ...]
    """(priority, how many)"""
    details: tuple[tuple[Need, ...], ...]
    """one alternative of each; details that need no device of their own are left out"""


@dataclass(slots=True, eq=False)
class DeviceBound:
    """The devices that were free at first, and what is asked of them."""

    wishes: dict[MinimumNeed, int]
    """how many units have it"""
    where: dict[MinimumNeed, list[int]]
    """classes of nodes where one may go"""
    members: list[list[Ints]]
    """class -> candidate set -> signatures that it has there; the last class is of network devices"""
    supply: Ints
    """class, signature -> free devices"""

    def bound(self, priority: int, floors: Mapping[int, int], ends: float | None = None) -> int:
        """Claims of a priority that can be satisfied at the most, with ``floors`` of the higher ones; more where it
        takes longer than to the monotonic time ``ends``."""
        program = _Program(self, priority, floors)
        program.solve(ends)
        return program.bound()


def make_device_bound(snapshot: Snapshot, usage: Usage, units: Sequence[PlacementUnit]) -> DeviceBound:
    """What there is to count. ``usage``: what was in use before the batch."""
    requests = [s for unit in units for s in unit.requests if s.takes_whole]
    sets, signatures, contents = signatures_of(
        len(snapshot.devices), [request.candidates.accepted for request in requests]
    )
    numbers = {id(request.candidates): sets[id(request.candidates.accepted)] for request in requests}
    wishes = Counter(_minimum_need(unit, numbers) for unit in units)
    # After the nodes come any without devices of its own, and the network devices.
    nodes = {node: position for position, node in enumerate((*snapshot.nodes, None))}
    free = np.zeros((len(nodes) + 1, len(contents)), dtype=np.int64)
    for pool in snapshot.pools:
        row = len(nodes) if pool.node is None else nodes[pool.node]
        for device in pool.devices:
            if signatures[device.index] and not usage.in_use(device):
                free[row, signatures[device.index]] += 1
    width = 1 + max(sets.values(), default=-1)
    holds = np.array([[number in content for content in contents] for number in range(width)], dtype=np.int64)
    room = free @ holds.reshape(width, len(contents)).T
    may = np.array([_may_go(wish, room, nodes) for wish in wishes], dtype=np.bool_).reshape(len(wishes), len(nodes))
    if len(np.unique(may, axis=1).T) * (len(wishes) + int(holds.sum())) > MAX_ROWS:
        may = np.repeat(may.any(axis=1, keepdims=True), len(nodes), axis=1)
    classes, inverse = np.unique(may, axis=1, return_inverse=True)
    supply = np.zeros((classes.shape[1] + 1, len(contents)), dtype=np.int64)
    np.add.at(supply, inverse.reshape(-1), free[:-1])
    supply[-1] = free[-1]
    members = [[np.flatnonzero(holds[number] * row) for number in range(width)] for row in supply]
    where = {wish: np.flatnonzero(row).tolist() for wish, row in zip(wishes, classes, strict=True)}
    return DeviceBound(dict(wishes), where, members, supply)


def signatures_of(
    devices: int, accepted: Sequence[Mapping[int, object]]
) -> tuple[dict[int, int], list[int], list[frozenset[int]]]:
    """(id of a mapping -> candidate set, device -> signature, signature -> candidate sets); signature 0 is of none"""
    by_content: dict[bytes, int] = {}
    numbers: dict[int, int] = {}
    columns: list[npt.NDArray[np.bool_]] = []
    for mapping in accepted:
        if id(mapping) in numbers:
            continue
        column = np.zeros(devices, dtype=np.bool_)
        column[np.fromiter(mapping, dtype=np.int64, count=len(mapping))] = True
        number = by_content.setdefault(column.tobytes(), len(columns))
        numbers[id(mapping)] = number
        if number == len(columns):
            columns.append(column)
    codes = np.zeros(devices, dtype=np.int64)
    for column in columns:
        _, codes = np.unique(codes * 2 + column, return_inverse=True)
    first = np.unique(codes, return_index=True)[1]
    members = [frozenset(n for n, column in enumerate(columns) if column[device]) for device in first.tolist()]
    order = sorted(range(len(members)), key=lambda code: (bool(members[code]), int(first[code])))
    if not members or members[order[0]]:
        order, members = [len(members), *order], [*members, frozenset()]
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return numbers, rank[codes].tolist(), [members[code] for code in order]


def _minimum_need(unit: PlacementUnit, numbers: Mapping[int, int]) -> MinimumNeed:
    details = [
        tuple(sorted({(numbers[id(request.candidates)], request.min_count) for request in alternatives}))
        for demand in unit.demands
        for alternatives in demand.details
        if all(request.takes_whole and request.min_count for request in alternatives)
    ]
    claims = Counter(demand.claim.priority for demand in unit.demands)
    return MinimumNeed(unit.pin, tuple(sorted(claims.items())), tuple(sorted(details)))


def _may_go(wish: MinimumNeed, room: Ints, nodes: Mapping[str | None, int]) -> npt.NDArray[np.bool_]:
    """Node -> whether each detail has enough devices there, network devices included."""
    may = np.ones(len(nodes), dtype=np.bool_)
    for detail in wish.details:
        may &= np.logical_or.reduce([room[:-1, number] + room[-1, number] >= least for number, least in detail])
    if wish.pin is not None:
        may &= np.arange(len(nodes)) == nodes.get(wish.pin, nodes[None])
    return may


@dataclass(slots=True, eq=False)
class _Program:
    """Prices of devices, for one level: the dual of who takes what."""

    counting: DeviceBound
    priority: int
    floors: Mapping[int, int]
    wishes: list[tuple[MinimumNeed, int, int]] = field(init=False)
    """(wish, units, claims of the priority in each)"""
    prices: Ints = field(init=False)
    """class, signature -> price of a device, on the grid"""
    extra: dict[int, int] = field(default_factory=dict)
    """higher priority -> price of a claim, on the grid"""

    def __post_init__(self) -> None:
        wishes = [(wish, count, dict(wish.claims)) for wish, count in self.counting.wishes.items()]
        self.wishes = [
            (wish, count, claims.get(self.priority, 0))
            for wish, count, claims in wishes
            if max(claims) >= self.priority and self.counting.where[wish]
        ]
        self.prices = np.zeros_like(self.counting.supply)

    def solve(self, ends: float | None) -> None:
        """Prices that make the bound least, as far as floating point, and the time until ``ends``, tell."""
        from ortools.linear_solver import pywraplp

        lp = pywraplp.Solver.CreateSolver("GLOP")
        infinity = lp.infinity()
        objective = lp.Objective()
        objective.SetMinimization()
        supply, members = self.counting.supply, self.counting.members
        prices = {}
        for place, signature in zip(*(indexes.tolist() for indexes in np.nonzero(supply)), strict=True):
            prices[place, signature] = lp.NumVar(0, infinity, "")
            objective.SetCoefficient(prices[place, signature], float(supply[place, signature]))
        extra = {priority: lp.NumVar(0, MISSED_FLOOR_COST, "") for priority in self.floors}
        for priority, variable in extra.items():
            objective.SetCoefficient(variable, -float(self.floors[priority]))
        cheapest: dict[tuple[int, int], object] = {}

        def least_price(place: int, number: int) -> object:
            """A variable that is no more than the price of any device of the set."""
            if (place, number) not in cheapest:
                variable = cheapest[place, number] = lp.NumVar(0, infinity, "")
                for here in (place, len(members) - 1):
                    for signature in members[here][number].tolist():
                        row = lp.Constraint(0, infinity)
                        row.SetCoefficient(prices[here, signature], 1)
                        row.SetCoefficient(variable, -1)
            return cheapest[place, number]

        for wish, count, own in self.wishes:
            value = lp.NumVar(0, infinity, "")
            objective.SetCoefficient(value, float(count))
            for place in self.counting.where[wish]:
                row = lp.Constraint(float(own), infinity)
                row.SetCoefficient(value, 1)
                for priority, number_of_claims in wish.claims:
                    if priority in extra:
                        row.SetCoefficient(extra[priority], -float(number_of_claims))
                costs: Counter[object] = Counter()
                for detail in wish.details:
                    if len(detail) == 1:
                        costs[least_price(place, detail[0][0])] += detail[0][1]
                        continue
                    cost = lp.NumVar(0, infinity, "")
                    for number, least in detail:
                        if not self._is_there(place, number):
                            continue
                        each = lp.Constraint(0, infinity)
                        each.SetCoefficient(least_price(place, number), float(least))
                        each.SetCoefficient(cost, -1)
                    costs[cost] += 1
                for variable, times in costs.items():
                    row.SetCoefficient(variable, float(times))
        if ends is not None:
            lp.SetTimeLimit(limit_in_milliseconds(ends))
        if lp.Solve() not in (lp.OPTIMAL, lp.FEASIBLE):
            return  # there was no time: without prices every claim is possible
        for where, variable in prices.items():
            self.prices[where] = max(0, round(variable.solution_value() * GRID))
        self.extra = {priority: max(0, round(v.solution_value() * GRID)) for priority, v in extra.items()}

    def _is_there(self, place: int, number: int) -> bool:
        return any(len(self.counting.members[here][number]) for here in (place, -1))

    def bound(self) -> int:
        """The bound at these prices, in whole claims; it holds at any."""
        total = int((self.prices * self.counting.supply).sum())
        total -= sum(price * self.floors[priority] for priority, price in self.extra.items())
        cheapest: dict[tuple[int, int], int | None] = {}

        def least_price(place: int, number: int) -> int | None:
            if (place, number) not in cheapest:
                prices = [self.prices[here][self.counting.members[here][number]] for here in (place, -1)]
                cheapest[place, number] = min((int(price) for each in prices for price in each), default=None)
            return cheapest[place, number]

        for wish, count, own in self.wishes:
            worth = own * GRID + sum(self.extra.get(priority, 0) * claims for priority, claims in wish.claims)
            costs = []
            for place in self.counting.where[wish]:
                cost = 0
                for detail in wish.details:
                    ways = [(least_price(place, number), least) for number, least in detail]
                    cost += min(price * least for price, least in ways if price is not None)
                costs.append(cost)
            total += count * max(0, worth - min(costs))
        return total // GRID
