"""The model under construction: what the requests take of each device group, as the supply constraints need it.

Shares of devices are counted in blocks, and in digits where 64 bits are not enough (S4, S11).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import TYPE_CHECKING

from devalloc_solver.exact.variables import BatchModel, DeviceBin, LinearTerms, Target, max_bins, sharing_requests
from devalloc_solver.place.step_budget import SearchDeadline
from devalloc_solver.problem.demand import AllocationMode, Request
from devalloc_solver.problem.device_groups import Portion, may_take

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    IntVar = cp_model.IntVar


def _dict_of_lists() -> defaultdict[int, LinearTerms]:
    return defaultdict(list)


@dataclass(slots=True, eq=False)
class ModelBuilder:
    """The model so far."""

    model: BatchModel
    weighs_loads: bool = False
    """whether the placement policy asks how much of devices comes into use"""
    deadline: SearchDeadline | None = None
    """when the model must be there"""
    uppers: dict[int, int] = field(default_factory=dict)
    """variable index -> upper bound, where it is not 1"""
    takers: dict[int, LinearTerms] = field(default_factory=_dict_of_lists)
    """device group -> whole takers"""
    portions: dict[int, LinearTerms] = field(default_factory=_dict_of_lists)
    """device group whose portions are all alike -> takes"""
    distinct_device_takes: dict[int, list[IntVar]] = field(default_factory=lambda: defaultdict(list))
    """the same -> takes that are each of another device"""
    covers: dict[int, list[IntVar]] = field(default_factory=lambda: defaultdict(list))
    """the same -> literals that hold if a claim takes a portion of each device"""
    bin_portions: dict[DeviceBin, list[tuple[Portion, IntVar]]] = field(default_factory=lambda: defaultdict(list))
    """one device -> portions taken of it"""
    bin_takers: dict[DeviceBin, list[IntVar]] = field(default_factory=lambda: defaultdict(list))
    """one device -> shares and portions of it"""
    bin_blocks: dict[tuple[int, int, str], LinearTerms] = field(default_factory=lambda: defaultdict(list))
    """(device group, bin, resource) -> blocks that shares take"""
    watchers: dict[int, list[LinearTerms]] = field(default_factory=lambda: defaultdict(list))
    """device group -> for each admin detail, or claim with such, how many of its devices it looks at"""
    sharing: Sequence[Request] = field(init=False)
    _by_set: dict[int, list[int]] = field(default_factory=dict)
    _bin_counts: dict[int, int] = field(default_factory=dict)
    _distinct_portions: dict[int, set[Portion]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sharing = sharing_requests(self.model.units)

    # -- what requests may take ----------------------------------------------------------------------------------------

    def accepted(self, request: Request) -> list[int]:
        """The device groups of a request's candidates, in use or not."""
        key = id(request.candidates)
        if key not in self._by_set:
            accepted = request.candidates.accepted
            self._by_set[key] = [i for i, b in enumerate(self.model.device_groups) if b.one.index in accepted]
        return self._by_set[key]

    def eligible(self, request: Request) -> list[int]:
        """The device groups of which a request may take devices."""
        return [b for b in self.accepted(request) if may_take(request, self.model.device_groups[b], self.model.usage)]

    def bin_count(self, b: int) -> int:
        """How many devices of a group are modelled one by one."""
        if b not in self._bin_counts:
            self._bin_counts[b] = max_bins(self.model.device_groups[b], self.model.usage, self.sharing)
        return self._bin_counts[b]

    def portions_are_alike(self, b: int) -> bool:
        """Whether everybody takes the same portion of a device group: then its devices need not be told apart."""
        device = self.model.device_groups[b].one
        if b not in self._distinct_portions:
            portions = (request.portions.get(device.index) for request in self.sharing)
            self._distinct_portions[b] = {portion for portion in portions if portion is not None}
        return len(self._distinct_portions[b]) == 1

    def portion_of(self, b: int) -> Portion:
        """The portion that everybody takes of a device group."""
        self.portions_are_alike(b)
        (portion,) = self._distinct_portions[b]
        return portion

    def room(self, request: Request, b: int, members: int = 1) -> int:
        """How many devices or portions of a group equal requests may take, each of them a device at most once."""
        device_group = self.model.device_groups[b]
        most = device_group.size if request.max_count is None else min(request.max_count, device_group.size)
        if not device_group.one.shareable:
            return min(members * most, device_group.size)
        times = (
            None
            if request.mode.is_admin
            else self.model.usage.portions_left(device_group.one, request.portions[device_group.one.index])
        )
        return members * most if times is None else min(members * most, times * device_group.size)

    def spend(self) -> None:
        """Count a variable or a constraint. Raises SearchTimeout after the deadline."""
        if self.deadline is not None:
            self.deadline.spend(1)

    # -- variables -----------------------------------------------------------------------------------------------------

    def new_takes(self, request: Request, b: int, members: int = 1) -> dict[Target, IntVar]:
        """Variables for the non-admin takes of a device group by equal requests, known to the supply side."""
        device_group = self.model.device_groups[b]
        if not device_group.one.shareable or self.portions_are_alike(b):
            count = self.new_int(self.room(request, b, members))
            (self.portions if device_group.one.shareable else self.takers)[b].append((1, count))
            if device_group.one.shareable and members == 1:
                self.distinct_device_takes[b].append(count)
            return {b: count}
        portion = request.portions[device_group.one.index]
        times = self.model.usage.portions_left(device_group.one, portion)
        variables: dict[Target, IntVar] = {}
        for number in range(self.bin_count(b)):
            variables[b, number] = self.new_int(members if times is None else min(members, times))
            self.take_portion((b, number), portion, variables[b, number])
        return variables

    def take_every(self, request: Request, b: int, here: IntVar) -> None:
        """A literal takes all devices of a device group, or a portion of each."""
        device_group = self.model.device_groups[b]
        if request.mode.is_admin:
            self.watchers[b].append([(device_group.size, here)])
        elif not device_group.one.shareable:
            self.takers[b].append((device_group.size, here))
        elif self.portions_are_alike(b):
            self.portions[b].append((device_group.size, here))
            self.covers[b].append(here)
        else:
            for number in range(device_group.size):
                self.take_portion((b, number), request.portions[device_group.one.index], here)

    def take_portion(self, place: DeviceBin, portion: Portion, count: IntVar) -> None:
        self.bin_takers[place].append(count)
        self.bin_portions[place].append((portion, count))

    def new_int(self, upper: int) -> IntVar:
        """A variable from 0 to ``upper``; CP-SAT's own domain is slow to read back. Raises SearchTimeout."""
        self.spend()
        variable = self.model.cp.new_bool_var("") if upper == 1 else self.model.cp.new_int_var(0, upper, "")
        self.uppers[variable.index] = upper
        return variable

    def upper(self, variable: IntVar) -> int:
        return self.uppers.get(variable.index, 1)

    def imply_positive(self, variable: IntVar, *literals: IntVar) -> None:
        """variable > 0 implies one of the literals. Raises SearchTimeout."""
        self.spend()
        upper = self.upper(variable)
        if not literals:
            self.model.cp.add(variable == 0)
        elif upper == 1:
            self.model.cp.add_bool_or(variable.negated(), *literals)
        else:
            self.model.cp.add(variable <= upper * sum(literals))


def sum_terms(terms: Sequence[tuple[int, IntVar]]) -> cp_model.LinearExprT:
    """The sum as an expression; 0 when empty."""
    from ortools.sat.python import cp_model

    return cp_model.LinearExpr.weighted_sum([v for _, v in terms], [a for a, _ in terms])


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
            requests = (request for unit in model.units for request in unit.requests)
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
