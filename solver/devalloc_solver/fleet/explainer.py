"""What explainers of both dialects keep of a fleet: answers, subsets of it, and when these hold no longer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence, Set
from typing import Generic, TypeVar

from devalloc_solver.fleet.fleet_stats import FleetStats, PoolOrder
from devalloc_solver.fleet.node_index import Holders, NodeIndex
from devalloc_solver.fleet.pool_states import NodeRecord
from devalloc_solver.fleet.subset import FleetSubset, JudgeT, holdings_on, make_subset
from devalloc_solver.problem.allocations import Holding, Key
from devalloc_solver.problem.snapshot import Snapshot

MAX_ANSWERS = 1_000
"""Answers remembered; when there are more, all is forgotten that was found out for them."""
MAX_SUBSETS = 16
"""Parts of the fleet that are kept; the one not asked for longest is forgotten first."""
MAX_KINDS = 64
"""Kinds of nodes that are all looked at."""

RulesT = TypeVar("RulesT")
AnswerT = TypeVar("AnswerT")


class FleetExplainer(ABC, Generic[RulesT, AnswerT, JudgeT]):
    """Explains claims that the index finds no place for, from a part of the fleet: as from all of it, but faster.

    Answers hold until anything changes; all else holds until the rules or the pools change.
    """

    def __init__(self, index: NodeIndex, holders: Holders, is_last: PoolOrder | None = None) -> None:
        """``is_last``: see ``FleetStats``."""
        self.index, self.holders = index, holders
        self.stats = FleetStats(index, holders.on_node, is_last)
        self._rules: RulesT | None = None
        self._layout = -1
        """of ``stats``, when what is kept here began"""
        self._answers: dict[Hashable, tuple[int, AnswerT]] = {}
        """what was asked -> (stamp of ``stats``, answer)"""
        self.given_now: Set[Key] = frozenset()
        """claims that were given their devices together with the one that is explained"""
        self._subsets: dict[tuple[NodeRecord, ...], FleetSubset[JudgeT]] = {}

    @property
    def rules(self) -> RulesT:
        """Those of the claim that is explained."""
        assert self._rules is not None
        return self._rules

    def _catch_up(self, rules: RulesT) -> bool:
        """Take note of all changes; whether pools are among them."""
        self.stats.update()
        is_other_layout = self.stats.layout != self._layout
        if rules is not self._rules or is_other_layout:
            self._rules, self._layout = rules, self.stats.layout
            self._forget()
        return is_other_layout

    def _forget(self) -> None:
        """Whatever is kept here."""
        self._answers.clear()
        self._subsets.clear()

    def _remembered(self, key: Hashable, find: Callable[[], AnswerT | None]) -> AnswerT | None:
        """The answer that was given to the same, or the one that is found now, if any."""
        key = key, self.given_now
        cached = self._answers.get(key)
        if cached is not None and cached[0] == self.stats.stamp:
            return cached[1]
        if len(self._answers) >= MAX_ANSWERS:
            self._forget()
        answer = find()
        if answer is not None and not self.index.allowance.is_over:
            self._answers[key] = self.stats.stamp, answer
        return answer

    def holdings(self, subset: FleetSubset[JudgeT]) -> list[Holding]:
        """What claims hold of a subset, by name of the claim."""
        return holdings_on(self.holders, subset.places, self.given_now)

    def _given_ranks(self) -> set[int]:
        """Ranks of the nodes where claims were given devices now: where these leave, less is lost."""
        items = (item for key in self.given_now for item in self.index.held.get(key, ()))
        return {self.index.records[node].rank for node, *_ in items if node is not None}

    def subset(self, rules: RulesT, records: Sequence[NodeRecord]) -> FleetSubset[JudgeT]:
        """Some nodes, in natural order, as a problem of its own."""
        self._catch_up(rules)
        return self._subset(tuple(records))

    def _subset(self, records: tuple[NodeRecord, ...]) -> FleetSubset[JudgeT]:
        """Some nodes, in natural order, after the network where it is one of them."""
        subset = self._subsets.pop(records, None)
        if subset is None or self._is_spent(subset.judge):
            if len(self._subsets) >= MAX_SUBSETS:
                del self._subsets[next(iter(self._subsets))]
            subset = make_subset(self.stats, records, self._judge)
        self._subsets[records] = subset
        return subset

    def _is_spent(self, judge: JudgeT) -> bool:
        """Whether a judge remembers too much, and another is to be made."""
        return False

    @abstractmethod
    def _judge(self, snapshot: Snapshot) -> JudgeT:
        """Who judges the devices of some nodes."""
