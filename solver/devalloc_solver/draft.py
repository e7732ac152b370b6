"""A model that is being built: what the slots take of each bunch, as the rules of the supply side need it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from devalloc_solver.batch import BatchModel, Terms

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    IntVar = cp_model.IntVar


def _lists() -> defaultdict[int, Terms]:
    return defaultdict(list)


@dataclass(slots=True, eq=False)
class Draft:
    """The model so far."""

    model: BatchModel
    uppers: dict[int, int] = field(default_factory=dict)
    """variable index -> upper bound, where it is not 1"""
    takers: dict[int, Terms] = field(default_factory=_lists)
    """bunch -> whole takers"""
    watchers: dict[int, Terms] = field(default_factory=_lists)
    """bunch -> admin details that look at its devices"""
    bin_takers: dict[tuple[int, int], list[IntVar]] = field(default_factory=lambda: defaultdict(list))
    """(bunch, bin) -> shares of that device"""
    bin_blocks: dict[tuple[int, int, str], Terms] = field(default_factory=lambda: defaultdict(list))
    """(bunch, bin, resource) -> blocks that shares take"""

    def imply_positive(self, variable: IntVar, literal: IntVar) -> None:
        """variable > 0 implies literal."""
        upper = self.uppers.get(variable.index, 1)
        if upper == 1:
            self.model.cp.add_implication(variable, literal)
        else:
            self.model.cp.add(variable <= upper * literal)

    def new_int(self, upper: int) -> IntVar:
        """A variable from 0 to ``upper``; CP-SAT's own domain is slow to read back."""
        variable = self.model.cp.new_bool_var("") if upper == 1 else self.model.cp.new_int_var(0, upper, "")
        self.uppers[variable.index] = upper
        return variable
