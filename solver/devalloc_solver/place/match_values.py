"""Choose the values that match constraints agree on, for given alternatives on one node, then find the cover.

Ties are settled one after the other. A value is left out if it has too few devices, if a counting bound refutes it,
or if another value is equivalent.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import le

from devalloc_solver.bounds.minimum_use import count_until
from devalloc_solver.place.components import make_components
from devalloc_solver.place.counting_bounds import CountingBounds
from devalloc_solver.place.cover_dp import Cover, cover
from devalloc_solver.place.demand_vector import DemandVector, make_demand_vector
from devalloc_solver.place.remaining import RemainingSupply, serve_fixed_requests
from devalloc_solver.place.requests import IndexedRequest, MatchConstraint
from devalloc_solver.place.step_budget import POLICY_STEPS, SharesInterfere, StepBudget, StepsExhausted
from devalloc_solver.problem.demand import AllocationMode

MAX_EQUAL = 16
"""Choices of values, all as good, among which the policy chooses."""


@dataclass(frozen=True, slots=True, eq=False)
class MatchedCover:
    """The best way to serve a choice of alternatives on one node."""

    demand_vector: DemandVector
    cover: Cover
    chosen: int

    @property
    def size(self) -> tuple[int, int]:
        """(pools, devices)"""
        stock = self.demand_vector.stock
        seen = sum(stock.node_view.candidate_groups[number].size for number in stock.seen)
        return len(stock.opened) + self.cover.pools, seen + self.demand_vector.constant + self.cover.cost


@dataclass(slots=True)
class MatchValueSearch:
    """Settles choices on one node."""

    counting_bounds: CountingBounds
    steps: StepBudget

    def settle(self, chosen: int, *, any_will_do: bool = False) -> Sequence[MatchedCover]:
        """The best over all values, those that are as good included, or just one with ``any_will_do``."""
        node_view = self.counting_bounds.node_view
        takers = [candidate_group.takers & chosen for candidate_group in node_view.candidate_groups]
        ties = []
        for number, tie in enumerate(node_view.unit_requests.ties):
            if not tie.request_mask & chosen:
                continue
            if self._is_single(tie, chosen):
                values = node_view.tie_values[number]
                takers = [
                    t if values[candidate_group] else t & ~tie.request_mask for candidate_group, t in enumerate(takers)
                ]
            else:
                ties.append(number)
        search = _ValueSearch(self.counting_bounds, self.steps, chosen, any_will_do, is_tied=bool(ties))
        try:
            search.go(ties, takers)
        except StepsExhausted:
            if not search.is_least:
                raise
        if search.is_least:
            self.steps.left -= min(POLICY_STEPS, self.steps.left) - max(0, search.steps.left)
        return search.best

    def _is_single(self, tie: MatchConstraint, chosen: int) -> bool:
        """One device agrees with itself: it must only have the attributes."""
        indexed_requests = [*self.counting_bounds.node_view.unit_requests.of(tie.request_mask & chosen)]
        return len(indexed_requests) == 1 and not indexed_requests[0].is_fixed and indexed_requests[0].is_single


@dataclass(slots=True)
class _ValueSearch:
    """Depth first over the ties."""

    counting_bounds: CountingBounds
    steps: StepBudget
    chosen: int
    any_will_do: bool
    is_tied: bool
    best: list[MatchedCover] = field(default_factory=list)
    """equally good ones"""
    is_least: bool = False
    """whether no value is better than these for certain: the policy may like one that is as good"""
    done: bool = False

    def go(self, ties: list[int], takers: list[int]) -> None:
        self.steps.spend(10 + len(takers))
        if not self.counting_bounds.may_fit(self.chosen, takers):
            return
        if not ties:
            self._cover(takers)
            return
        node_view = self.counting_bounds.node_view
        number = min(ties, key=lambda t: len(self._values(t, takers)))
        tie = node_view.unit_requests.ties[number]
        rest = [other for other in ties if other != number]
        for value in self._distinct_values(number, rest, takers):
            self.steps.spend()
            values = node_view.tie_values[number]
            left = [
                t if value in values[candidate_group] else t & ~tie.request_mask
                for candidate_group, t in enumerate(takers)
            ]
            self.go(rest, left)
            if self.done:
                return

    def _values(self, number: int, takers: list[int]) -> dict[object, int]:
        """The values that every request of the tie has enough devices of -> the first candidate group that has each."""
        node_view = self.counting_bounds.node_view
        indexed_requests = [
            *node_view.unit_requests.of(node_view.unit_requests.ties[number].request_mask & self.chosen)
        ]
        common: dict[object, int] | None = None
        for indexed in indexed_requests:
            sizes: dict[object, int] = defaultdict(int)
            first: dict[object, int] = {}
            for candidate_group in node_view.candidate_groups:
                if takers[candidate_group.number] & indexed.bit:
                    for value in node_view.tie_values[number][candidate_group.number]:
                        sizes[value] += candidate_group.size
                        first.setdefault(value, candidate_group.number)
            enough = {value: first[value] for value, size in sizes.items() if size >= indexed.need}
            common = (
                enough
                if common is None
                else {value: candidate_group for value, candidate_group in common.items() if value in enough}
            )
        return common or {}

    def _first_lots(self, number: int, takers: list[int]) -> dict[object, tuple[bool, int]]:
        """The values -> whether no pool has enough of each, and the first candidate group: of a pool that has, if any.
        Where very many are as good, only the first ones are compared."""
        node_view = self.counting_bounds.node_view
        mask = node_view.unit_requests.ties[number].request_mask
        need = max((indexed.need for indexed in node_view.unit_requests.of(mask & self.chosen)), default=0)
        lots = {value: (True, first) for value, first in self._values(number, takers).items()}
        sizes: Counter[tuple[object, int]] = Counter()
        first_of: dict[tuple[object, int], int] = {}
        for candidate_group in node_view.candidate_groups:
            if takers[candidate_group.number] & mask:
                for value in node_view.tie_values[number][candidate_group.number]:
                    key = value, candidate_group.pool
                    sizes[key] += candidate_group.size
                    first = first_of.setdefault(key, candidate_group.number)
                    if value in lots and sizes[key] >= need:
                        lots[value] = min(lots[value], (False, first))
        return lots

    def _distinct_values(self, number: int, rest: list[int], takers: list[int]) -> Iterator[object]:
        """Values in the order of their devices; of each kind those that come before the others in some pool."""
        node_view = self.counting_bounds.node_view
        own_tie = node_view.unit_requests.ties[number]
        # What another rule reads tells values apart, but for rules on the very same attributes: they see a swap too.
        others = [n for n in rest if node_view.unit_requests.ties[n].names != own_tie.names]
        differing = [n for n, tie in enumerate(node_view.unit_requests.distincts) if tie.names != own_tie.names]
        seen: dict[object, list[tuple[int, ...]]] = defaultdict(list)
        first_lots = self._first_lots(number, takers)
        for value in sorted(first_lots, key=lambda v: (first_lots[v], repr(v))):
            signature: Counter[object] = Counter()
            first_of_pools: dict[int, int] = {}
            for candidate_group in node_view.candidate_groups:
                values = node_view.tie_values[number][candidate_group.number]
                if value not in values:
                    continue
                if takers[candidate_group.number] & own_tie.request_mask:
                    first_of_pools.setdefault(candidate_group.pool, candidate_group.number)
                signature[
                    takers[candidate_group.number],
                    self.counting_bounds.kinds[candidate_group.number],
                    values - {value},
                    tuple(node_view.tie_values[n][candidate_group.number] for n in others),
                    tuple(node_view.distinct_values[n][candidate_group.number] for n in differing),
                ] += candidate_group.size
            same, firsts = seen[frozenset(signature.items())], tuple(first_of_pools.values())
            # One that is like another fits as well: it is of use only if it comes first in a pool.
            wants_equal = self.best and len(self.best) < MAX_EQUAL
            if not same or (wants_equal and not any(all(map(le, before, firsts)) for before in same)):
                same.append(firsts)
                yield value

    def _cover(self, takers: list[int]) -> None:
        stock = serve_fixed_requests(self.counting_bounds.node_view, takers, self.chosen)
        if stock is None:
            return
        most = self.best[0].size[0] - len(stock.opened) if self.best else None
        if most is not None and most < 0:
            return
        try:
            settled = self._served(stock, self.chosen, most)
        except SharesInterfere:
            settled = self._served_unsplit(stock, most)
        if settled is None:
            return
        if not self.best or settled.size < self.best[0].size:
            self.best = [settled]
        elif settled.size == self.best[0].size and len(self.best) < MAX_EQUAL:
            self.best.append(settled)
        bounds, pools = self.counting_bounds, self.best[0].size[0]
        if not self.is_least and bounds.is_constant(self.chosen) and pools <= bounds.fewest_pools(self.chosen):
            self.is_least, self.steps = True, StepBudget(min(POLICY_STEPS, self.steps.left), self.steps.deadline)
        # Before that, a value yet to come may be better than any number of equally good ones.
        self.done = self.any_will_do or (self.is_least and len(self.best) >= MAX_EQUAL)

    def _served(
        self, stock: RemainingSupply, chosen: int, most: int | None, *, unsplit: bool = False
    ) -> MatchedCover | None:
        demand_vector = make_demand_vector(stock, chosen, unsplit=unsplit)
        covered = cover(
            demand_vector,
            make_components(demand_vector, self.steps),
            self.steps,
            most=most,
            any_will_do=self.any_will_do,
        )
        return None if covered is None else MatchedCover(demand_vector, covered, chosen)

    def _served_unsplit(self, stock: RemainingSupply, most: int | None) -> MatchedCover | None:
        """Serve shares that meet, each from one device; None where that cannot be better than the best so far.

        Raises SharesInterfere unless splitting them is known to be no better.
        """
        shares = [
            indexed
            for indexed in self.counting_bounds.node_view.unit_requests.of(self.chosen)
            if indexed.request.mode is AllocationMode.SHARE
        ]
        bounds: list[tuple[int, int]] = []
        for share in shares:
            others = sum(indexed.bit for indexed in shares if indexed is not share)
            alone = self._served(stock, self.chosen & ~others, most)
            if alone is None:
                return None
            bounds.append(alone.size)
        least = self._least_size(stock, shares, max(bounds))
        if self.best and least > self.best[0].size:
            return None
        settled = self._served(stock, self.chosen, most, unsplit=True)
        if settled is None or (settled.size != least and not self.any_will_do):
            error = SharesInterfere("shares of several kinds meet, and splitting them might be better")
            if not self.is_tied:
                error.least = least
            raise error
        return settled

    def _least_size(
        self, stock: RemainingSupply, shares: Sequence[IndexedRequest], alone: tuple[int, int]
    ) -> tuple[int, int]:
        """A lower bound of (pools, devices), by the amounts of all shares together, and by ``alone``: what the share
        that needs most takes if it is the only one."""
        mask = sum(share.bit for share in shares)
        pools, devices = len(stock.opened), 0
        for name in dict.fromkeys(name for share in shares for name in share.request.requests):
            needed = sum(share.request.least_share(name) for share in shares)
            by_pool: Counter[int] = Counter()
            sizes: list[int] = []
            for group in stock.node_view.candidate_groups:
                if stock.takers[group.number] & mask:
                    free = stock.free_nano(group, name)
                    by_pool[group.pool] += free * group.size
                    sizes += [free] * group.size
            open_free = sum(by_pool.pop(pool, 0) for pool in stock.opened)
            pools = max(pools, len(stock.opened) + count_until(needed - open_free, by_pool.values()))
            devices = max(devices, count_until(needed, sizes))
        requests = [indexed.request for indexed in self.counting_bounds.node_view.unit_requests.of(self.chosen)]
        devices += sum(request.min_count for request in requests if request.takes_whole)
        pools = max(pools, alone[0])
        return pools, max(devices, alone[1] if pools == alone[0] else 0)
