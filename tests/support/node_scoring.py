"""How good a place a node is for one more machine: the fuller the better up to a peak, and large nodes before small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from devalloc.scaling.permits.ledger import MachineAccount, NodeLedger
from devalloc.scaling.resources import NO_RESOURCES, Resources

BEST = 100


@dataclass(frozen=True, slots=True)
class Curve:
    """The score of a node by the part of it that is used: a line up to the peak, and one down from there."""

    empty: float = 0.5
    """The score of an empty node, of 1."""
    full: float = 0.0
    """The score of a full one."""
    peak: float = 0.8
    """The part that is used where the score is 1."""

    def at(self, used: float) -> float:
        """``used``: 0 to 1."""
        if used < self.peak:
            return self.empty + (1 - self.empty) / self.peak * used
        if used > self.peak:
            return self.full + (1 - self.full) / (1 - self.peak) * (1 - used)
        return 1.0


def shortfall(node: NodeLedger, machine: MachineAccount) -> Resources:
    """What a node is short of for one more machine; nothing where it fits."""
    return (node.counted + machine.counted + machine.overhead).excess_over(node.total)


def score(node: NodeLedger, machine: MachineAccount, largest: Resources, curve: Curve | None = None) -> int:
    """0 (no room for it) to 100, by what is used of the node now. ``largest``: the largest total of all nodes."""
    curve = curve or Curve()
    if shortfall(node, machine) != NO_RESOURCES or node.total.cpu == 0 or node.total.memory == 0:
        return 0
    parts = (
        curve.at(node.counted.cpu / node.total.cpu) * node.total.cpu / largest.cpu,
        curve.at(node.counted.memory / node.total.memory) * node.total.memory / largest.memory,
    )
    return min(BEST, max(0, int(BEST * min(parts))))


def spread(score: int, draw: Callable[[int, int], int]) -> int:
    """A score drawn evenly from 1 to what it was, so that not all machines go to one node; 0 stays 0.

    ``draw(low, high)`` gives a number of both ends and all between, as ``random.randint`` does.
    """
    return draw(1, score) if score > 0 else score
