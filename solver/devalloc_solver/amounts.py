"""Shares as numbers of blocks, no finer than need be, and in digits where 64 bits are not enough (S4, S11)."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd
from typing import TYPE_CHECKING

from devalloc_solver.batch import Terms
from devalloc_solver.demand import Mode
from devalloc_solver.draft import Draft

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

MOST_UNITS = 2**44
"""What one variable counts up to, so that thousands of them add up in 64 bits; beyond, amounts have several digits."""
LIMB = 2**32
"""The base of these digits."""


@dataclass(slots=True, eq=False)
class Amounts:
    """Makes the variables of shares."""

    draft: Draft
    _measures: dict[str, int] = field(default_factory=dict)

    def new(self, b: int, name: str, amount: int, taken: cp_model.IntVar) -> Terms:
        """Blocks of a resource for a share of up to ``amount`` nano units, none unless ``taken``. Empty: none free."""
        bunch, ledger = self.draft.model.bunches[b], self.draft.model.ledger
        resource = bunch.one.resources.get(name)
        free = ledger.free_blocks(bunch.one, name)
        if resource is None or not free:
            return []
        step = max(1, self.measure(name) // resource.block)
        most = min(free // step, -(-amount // (resource.block * step)))
        terms: Terms = []
        while most:
            upper, most = (most, 0) if most <= MOST_UNITS else (LIMB - 1, most // LIMB)
            variable = self.draft.new_int(upper)
            self.draft.model.cp.add(variable <= upper * taken)
            terms.append((step, variable))
            step *= LIMB
        return terms

    def measure(self, name: str) -> int:
        """Nano units of which all amounts of a resource are multiples, so that shares need not be any finer.

        Exact: with what coarser blocks give set aside, the rest is a flow between capacities and requests that are
        multiples of it, and such a flow need not be finer than they are.
        """
        if name not in self._measures:
            model = self.draft.model
            slots = (slot for unit in model.units for demand in unit.demands for slot in demand.slots)
            amounts = {slot.requests[name] for slot in slots if slot.mode is Mode.SHARE and name in slot.requests}
            blocks = set()
            for bunch in model.bunches:
                if (resource := bunch.one.resources.get(name)) is not None:
                    amounts.add(resource.block * model.ledger.free_blocks(bunch.one, name))
                    blocks.add(resource.block)
            found = gcd(*amounts)
            while odd := next((block for block in blocks if found % block and block % found), 0):
                found = gcd(found, odd)
            self._measures[name] = found
        return self._measures[name]
