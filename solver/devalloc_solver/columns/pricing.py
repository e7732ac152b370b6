"""What paths are worth at given prices, and the bound that follows. All in integers.

For prices of kinds and of floors that are not negative,

    sum(price of a kind * its claims) - sum(price of a floor * floor) + sum(bins of a state * worth of its best path)

is at least what any solution is worth, when a path is valued at the worth of its claims less their prices. The prices
come from a linear program in floating point; they are rounded to a grid first, so the bound does not rest on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from devalloc_solver.bounds.device_bound import GRID
from devalloc_solver.columns.node_geometry import Ints
from devalloc_solver.columns.packing import Step
from devalloc_solver.columns.state_network import User
from devalloc_solver.columns.state_space import StateSpace

FORBIDDEN = -(2**56)
"""Worth of what must not be taken in."""


@dataclass(frozen=True, slots=True, eq=False)
class StageGoal:
    """What a stage maximises, and what it must keep."""

    worth: Mapping[User, int]
    """of those that take part"""
    floors: Mapping[int, int]
    """priority -> claims that must be in"""


@dataclass(frozen=True, slots=True)
class Prices:
    """On the grid, and not negative."""

    kinds: Mapping[int, int]
    floors: Mapping[int, int]

    @classmethod
    def rounded(cls, kinds: Mapping[int, float], floors: Mapping[int, float]) -> Prices:
        def on_grid(prices: Mapping[int, float]) -> dict[int, int]:
            steps = np.rint(np.array([*prices.values()]) * GRID).astype(np.int64)
            return dict(zip(prices, np.maximum(0, steps).tolist(), strict=True))

        return cls(on_grid(kinds), on_grid(floors))


@dataclass(frozen=True, slots=True, eq=False)
class PathValues:
    """What everything is worth at some prices."""

    state_space: StateSpace
    worth: Ints
    """state (and one more, of none) -> its best path, on the grid"""
    arcs: Ints
    """arc -> the best path that begins with it"""
    best: dict[int, User]
    """label -> the user it is worth most to"""
    values: dict[User, int]
    """what one claim is worth, less its price, on the grid"""
    most: int
    """what one arc is worth at the most"""

    def walk(self, state: int) -> tuple[Step, ...]:
        """The best path from a state."""
        network = self.state_space.network
        steps: list[Step] = []
        while self.worth[state] > 0:
            low, high = network.arcs_of(state)
            if low == high:
                break
            arc = low + int(self.arcs[low:high].argmax())
            state = int(network.target[arc])
            steps.append((self.best.get(int(network.label[arc])), state))
        return tuple(steps)


@dataclass(slots=True, eq=False)
class PathPricer:
    """Values the states of one state space for one goal, at any prices."""

    state_space: StateSpace
    goal: StageGoal
    _labels: Ints = field(init=False)
    _users: list[User] = field(init=False)
    _worth: Ints = field(init=False)
    _opens: list[int] = field(init=False)
    _kinds: Ints = field(init=False)
    _claims: dict[int, Ints] = field(init=False)
    """priority -> claims of each user"""

    def __post_init__(self) -> None:
        pairs = [
            (label, user)
            for label, users in enumerate(self.state_space.network.users)
            for user in users
            if user in self.goal.worth
        ]
        self._labels = np.array([label for label, _ in pairs], dtype=np.int64)
        self._users = [user for _, user in pairs]
        self._worth = np.array([self.goal.worth[user] for user in self._users], dtype=np.int64)
        self._opens = [label for label, users in enumerate(self.state_space.network.users) if not users]
        kinds = self.state_space.kinds
        self._kinds = np.array([kind for kind, _ in self._users], dtype=np.int64)
        self._claims = {
            priority: np.array([kinds[kind].claims.get(priority, 0) for kind, _ in self._users], dtype=np.int64)
            for priority in self.goal.floors
        }

    def _values(self, prices: Prices) -> Ints:
        """user -> its worth, less what it costs"""
        costs = np.zeros(len(self.state_space.kinds), dtype=np.int64)
        costs[[*prices.kinds]] = [*prices.kinds.values()]
        values: Ints = self._worth * GRID - costs[self._kinds]
        for priority, price in prices.floors.items():
            values += price * self._claims[priority]
        return values

    def value(self, prices: Prices) -> PathValues:
        values = self._values(prices)
        labels = np.full(len(self.state_space.network.users), FORBIDDEN, dtype=np.int64)
        np.maximum.at(labels, self._labels, values)
        best: dict[int, User] = {}
        for label, user, value in zip(self._labels.tolist(), self._users, values.tolist(), strict=True):
            if label not in best and value == labels[label]:
                best[label] = user
        most = max(0, int(labels.max(initial=0)))
        labels[self._opens] = 0
        worth, arcs = self.state_space.network.best(labels)
        return PathValues(
            self.state_space, worth, arcs, best, dict(zip(self._users, values.tolist(), strict=True)), most
        )

    def bound(self, prices: Prices, valuation: PathValues, supply: Ints, wanted: Sequence[int]) -> int:
        """At least what any solution is worth, in whole claims."""
        network = self.state_space.network
        worth = valuation.worth
        if len(network.unexpanded_states):
            labels = np.full(len(network.users), FORBIDDEN, dtype=np.int64)
            np.maximum.at(labels, self._labels, self._values(prices))
            labels[self._opens] = 0
            worth, _ = network.best(labels, estimate=valuation.most)
        total = sum(price * wanted[kind] for kind, price in prices.kinds.items())
        total -= sum(price * self.goal.floors[priority] for priority, price in prices.floors.items())
        total += sum(int(supply[state]) * int(worth[state]) for state in np.flatnonzero(supply).tolist())
        return total // GRID
