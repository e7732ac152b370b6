"""Variables for shares of devices: amounts as blocks, and in digits where 64 bits are not enough (S4, S11)."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd
from typing import TYPE_CHECKING

from devalloc_solver.exact.builder import ModelBuilder
from devalloc_solver.exact.variables import LinearTerms
from devalloc_solver.problem.demand import AllocationMode

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

MAX_UNITS = 2**44
"""What one variable counts up to, so that thousands of them add up in 64 bits; beyond, amounts have several digits."""
LIMB = 2**32
"""The base of these digits."""


@dataclass(slots=True, eq=False)
class ShareVariables:
    """Makes the variables of shares."""

    draft: ModelBuilder
    _measures: dict[str, int] = field(default_factory=dict)

    def new(self, b: int, name: str, amount: int, taken: cp_model.IntVar) -> LinearTerms:
        """Blocks of a resource for a share of up to ``amount`` nano units, none unless ``taken``. Empty: none free."""
        device_group, usage = self.draft.model.device_groups[b], self.draft.model.usage
        resource = device_group.one.resources.get(name)
        free = usage.free_blocks(device_group.one, name)
        if resource is None or not free:
            return []
        step = max(1, self.measure(name) // resource.block)
        most = min(free // step, -(-amount // (resource.block * step)))
        terms: LinearTerms = []
        while most:
            upper, most = (most, 0) if most <= MAX_UNITS else (LIMB - 1, most // LIMB)
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
            requests = (request for unit in model.units for demand in unit.demands for request in demand.requests)
            amounts = {
                request.requests[name]
                for request in requests
                if request.mode is AllocationMode.SHARE and name in request.requests
            }
            blocks = set()
            for device_group in model.device_groups:
                if (resource := device_group.one.resources.get(name)) is not None:
                    amounts.add(resource.block * model.usage.free_blocks(device_group.one, name))
                    blocks.add(resource.block)
            divisor = gcd(*amounts)
            while odd := next((block for block in blocks if divisor % block and block % divisor), 0):
                divisor = gcd(divisor, odd)
            self._measures[name] = divisor
        return self._measures[name]
