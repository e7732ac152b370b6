"""A solution in states: the path that each bin has gone, and how many of each kind are in.

Bins of one state are interchangeable, so a path belongs to a state it starts in and not to a bin with a name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from devalloc_solver.columns.node_geometry import Ints
from devalloc_solver.columns.state_network import Network, User
from devalloc_solver.columns.state_space import StateSpace

Step = tuple[User | None, int]
"""What is taken in (None for the opening of a card), and the state that the bin is in then."""
Path = tuple[int, tuple[Step, ...]]
"""The state a bin starts in, and the steps from there."""


@dataclass(slots=True, eq=False)
class Packing:
    """A solution that can still grow."""

    state_space: StateSpace
    free: Ints
    """state -> bins that are in it now"""
    gone: Ints
    """state -> bins in it that have gone any way to get there"""
    paths: dict[int, list[Path]] = field(default_factory=dict)
    """state -> the paths of bins in it that have gone any"""
    taken: dict[User, int] = field(default_factory=dict)

    @classmethod
    def empty(cls, state_space: StateSpace, supply: Ints) -> Packing:
        return cls(state_space, supply.copy(), np.zeros_like(supply))

    def copy(self) -> Packing:
        paths = {state: list(through) for state, through in self.paths.items()}
        return Packing(self.state_space, self.free.copy(), self.gone.copy(), paths, dict(self.taken))

    def step(self, source: int, user: User | None, target: int) -> None:
        """Move one bin; the ones that have gone a way already go first."""
        waiting = self.paths.get(source)
        start, steps = waiting.pop() if waiting else (source, ())
        self.gone[source] -= bool(steps)
        self.gone[target] += 1
        self.free[source] -= 1
        self.free[target] += 1
        self.paths.setdefault(target, []).append((start, (*steps, (user, target))))
        if user is not None:
            self.taken[user] = self.taken.get(user, 0) + 1

    def open(self, source: int, target: int, card: int) -> None:
        """Open a card of one bin."""
        self.step(source, None, target)
        self.free[card] += 1

    def add(self, path: Path, count: int) -> None:
        """Send so many bins along a path. Cards that it opens are there from then on."""
        start, steps = path
        end = steps[-1][1]
        self.free[start] -= count
        self.free[end] += count
        self.gone[end] += count
        self.paths.setdefault(end, []).extend([path] * count)
        child_bins = self.state_space.child_bins
        before = start
        for user, target in steps:
            if user is None:
                self.free[child_bins[before, target]] += count
            else:
                self.taken[user] = self.taken.get(user, 0) + count
            before = target

    def all_paths(self) -> Iterator[Path]:
        """Every path of more than no step, in a fixed order."""
        for state in sorted(self.paths):
            yield from self.paths[state]

    def counts(self) -> list[int]:
        """kind -> how many are in"""
        counts = [0] * len(self.state_space.kinds)
        for (kind, _), count in self.taken.items():
            counts[kind] += count
        return counts

    def satisfied(self) -> dict[int, int]:
        """priority -> claims that are in, highest first"""
        satisfied = dict.fromkeys(self.state_space.priorities, 0)
        kinds = self.state_space.kinds
        for (kind, _), count in self.taken.items():
            for priority, claims in kinds[kind].claims.items():
                satisfied[priority] += claims * count
        return satisfied

    def ranks(self) -> int:
        """The sum of the chosen alternatives (S17, goal 2)."""
        return sum(self.state_space.kinds[kind].ways[way].rank * count for (kind, way), count in self.taken.items())


class SortedChoices(NamedTuple):
    """The states that can take a way in, best first."""

    sources: Ints
    targets: Ints
    cards: Ints
    """state of the card to be opened first, or -1"""
    insides: Ints
    """and the state it is in after"""


@dataclass(slots=True, eq=False)
class PackingChoices:
    """For each way, every state that can take it in, best first: what is lost by it is least.

    They are sorted when they are first needed: at the end of a dive there is no room for most ways.
    """

    network: Network
    loss: Ints
    """arc -> what is lost by it"""
    labels: Mapping[User, tuple[int, ...]]
    arcs: Mapping[int, Ints]
    """label -> of each state that can take it in, the best arc"""
    opening: Mapping[int, Sequence[int]]
    """state of a card -> the arcs that open it"""
    _sources: dict[tuple[int, ...], Ints] = field(default_factory=dict)
    _sorted: dict[tuple[int, ...], SortedChoices] = field(default_factory=dict)
    _roomy: dict[tuple[int, ...], Ints] = field(default_factory=dict)

    def is_possible(self, user: User, free: Ints) -> bool:
        """Whether some bin can take it in. ``free``: state -> bins that are in it."""
        labels = self.labels.get(user)
        if labels is None:
            return False
        if self.opening:
            return bool((free[self.of(user).sources] > 0).any())
        if labels not in self._sources:
            self._sources[labels] = np.concatenate([self.network.source[self.arcs[label]] for label in labels])
        return bool((free[self._sources[labels]] > 0).any())

    def of(self, user: User) -> SortedChoices:
        labels = self.labels[user]
        if labels not in self._sorted:
            arcs = [self.arcs[label] for label in labels]
            self._sorted[labels] = _sorted_choices(self.network, self.loss, arcs, self.opening)
        return self._sorted[labels]

    def roomy(self, user: User) -> Ints:
        """Positions in ``sources``, with most room first."""
        labels = self.labels[user]
        if labels not in self._roomy:
            self._roomy[labels] = np.argsort(-self.network.weight[self.of(user).sources], kind="stable")
        return self._roomy[labels]

    @classmethod
    def by_loss(cls, state_space: StateSpace, worth: Ints) -> PackingChoices:
        """``worth``: state (and one more, of none) -> what it is still good for, in any unit."""
        network = state_space.network
        loss = worth[network.source] - worth[network.target] - worth[network.inner]
        # Of each group of arcs of one source and label the first with the least loss.
        groups = network.arc_groups()
        least = loss
        if len(loss):
            least = np.flatnonzero(loss == np.repeat(np.minimum.reduceat(loss, groups.first), groups.sizes))
        best = least[np.searchsorted(least, groups.first)][groups.order]
        opening: dict[int, list[int]] = {}
        for arc in best[network.inner[best] < network.states].tolist():
            opening.setdefault(int(network.inner[arc]), []).append(arc)
        labels_of: dict[User, tuple[int, ...]] = {}
        for label, users in enumerate(network.users):
            for user in users:
                labels_of[user] = (*labels_of.get(user, ()), label)
        arcs = {
            label: best[groups.bounds[label] : groups.bounds[label + 1]]
            for label in {label for labels in labels_of.values() for label in labels}
        }
        return cls(network, loss, labels_of, arcs, opening)


def _sorted_choices(
    network: Network, loss: Ints, arcs_of_labels: Sequence[Ints], opening: Mapping[int, Sequence[int]]
) -> SortedChoices:
    """Of these arcs and of those that open cards for them.

    ``opening``: state of a card -> the arcs that open it. The arcs of each label are in the order of ``ArcGroups``.
    """
    entries: list[tuple[Ints, Ints, Ints, Ints, Ints]] = []
    for arcs in arcs_of_labels:
        none = np.full(len(arcs), -1, dtype=np.int64)
        entries.append((loss[arcs], network.source[arcs], network.target[arcs], none, none))
        for arc in arcs[np.isin(network.source[arcs], [*opening])].tolist() if opening else ():
            card = int(network.source[arc])
            via = np.array(opening[card], dtype=np.int64)
            same = np.full(len(via), card), np.full(len(via), network.target[arc])
            entries.append((loss[via] + loss[arc], network.source[via], network.target[via], *same))
    costs, sources, targets, cards, insides = (np.concatenate(column) for column in zip(*entries, strict=True))
    if len(entries) == 1:
        order = np.argsort(costs, kind="stable")
    else:
        order = np.lexsort((sources, cards, network.weight[sources], costs))
    return SortedChoices(sources[order], targets[order], cards[order], insides[order])


def fill_packing(
    packing: Packing,
    choices: PackingChoices,
    order: Iterable[int],
    wanted: Sequence[int],
    *,
    compact: bool = False,
    frugal: bool = False,
) -> None:
    """Take in kind after kind, each where least is lost, until there are as many as wanted or none fits.

    ``compact``: where something was taken in already, as long as there is room; then where there is most.
    ``frugal``: of the ways of a kind first those that take the fewest devices, not those that it prefers.
    """
    have = packing.counts()
    for kind in order:
        left = wanted[kind] - have[kind]
        ways = packing.state_space.kinds[kind].ways
        for way in sorted(range(len(ways)), key=lambda way: ways[way].devices) if frugal else range(len(ways)):
            if left <= 0:
                break
            left -= _fill_kind(packing, choices, (kind, way), left, compact)


def _fill_kind(packing: Packing, choices: PackingChoices, user: User, wanted: int, compact: bool) -> int:
    """How many went in."""
    if not choices.is_possible(user, packing.free):
        return 0
    sources, targets, cards, insides = choices.of(user)
    for done in range(wanted):
        first = _best_choice(packing, choices, user, sources, compact)
        if first is None:
            return done
        source, target, card = int(sources[first]), int(targets[first]), int(cards[first])
        if card >= 0:
            packing.open(source, target, card)
            packing.step(card, user, int(insides[first]))
        else:
            packing.step(source, user, target)
    return wanted


def _best_choice(packing: Packing, choices: PackingChoices, user: User, sources: Ints, compact: bool) -> int | None:
    """The best choice that there is."""
    if compact:
        there = packing.gone[sources] > 0
        first = int(there.argmax())
        if there[first]:
            return first
        roomy = choices.roomy(user)
        there = packing.free[sources[roomy]] > 0
        first = int(there.argmax())
        return int(roomy[first]) if there[first] else None
    there = packing.free[sources] > 0
    first = int(there.argmax())
    return first if there[first] else None


def max_copies(network: Network) -> Ints:
    """How often each label fits into each state, alone. Shape (states and one more, labels)."""
    counts = np.zeros((network.states + 1, len(network.users)), dtype=np.int64)
    for _, _, start, end in network.sweep:
        source, target, label = (column[start:end] for column in (network.source, network.target, network.label))
        groups = np.flatnonzero(np.diff(source * len(network.users) + label, prepend=-1))
        counts[source[groups], label[groups]] = np.maximum.reduceat(1 + counts[target, label], groups)
    return counts


def state_usefulness(state_space: StateSpace, fits: Ints, wanted: Sequence[int]) -> Ints:
    """state (and one more) -> how many of each kind fit, weighed by size and number. ``fits``: see ``max_copies``."""
    network = state_space.network
    weights = np.array(
        [sum(wanted[kind] * state_space.kinds[kind].fewest for kind, _ in users) for users in network.users],
        dtype=np.int64,
    )
    worth: Ints = fits @ weights
    opening = np.flatnonzero(network.inner < network.states)
    if len(opening):
        source, label = network.source[opening], network.label[opening]
        inside = np.zeros_like(worth)
        # Half of what the cards are good for: they may be of more use whole.
        np.maximum.at(inside, source, fits[source, label] * worth[network.inner[opening]] // 2)
        worth += inside
    return worth
