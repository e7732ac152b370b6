"""Constraints of one unit: its node, its alternatives, and what each request takes (S7 to S11, S14 to S16)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from devalloc_solver.exact.builder import ModelBuilder, ShareVariables, sum_terms
from devalloc_solver.exact.linear_constraints import add_at_least, add_at_most
from devalloc_solver.exact.variables import LinearTerms, RequestVars
from devalloc_solver.problem.demand import AllocationMode, Demand, PlacementUnit, Request
from devalloc_solver.problem.device_groups import DeviceGroup, Place

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    IntVar = cp_model.IntVar

Values = Callable[[DeviceGroup], frozenset[object]]
"""The values that a device may stand for; none when it may not be taken at all."""


def add_attribute_constraints(
    draft: ModelBuilder, demand: Demand, requests: Sequence[RequestVars], satisfied: IntVar
) -> None:
    """All rules on the attributes of the devices of one claim, whose requests these are."""
    for parts in requests:
        _add_common(draft, [parts], _values_of(parts.request.match), parts.chosen)
    _add_common(draft, requests, _values_of(demand.match), satisfied)
    for relation in demand.relations:
        bound = [parts for parts in requests if parts.request.label in relation.labels]
        if relation.distinct:
            _add_distinct(draft, bound, _members_of(relation.attribute))
        else:
            _add_common(draft, bound, _members_of(relation.attribute), satisfied)


def add_agreement(draft: ModelBuilder, name: str, requests: Sequence[RequestVars], satisfied: IntVar) -> None:
    """An attribute has one value on the devices of several claims of a unit, whose requests these are."""
    _add_common(draft, requests, _values_of((name,)), satisfied)


def _values_of(names: Sequence[str]) -> Values | None:
    """The values of several attributes as one, all of which must be there."""
    if not names:
        return None

    def values(device_group: DeviceGroup) -> frozenset[object]:
        matched = device_group.match_value(names)
        return frozenset() if matched is None else frozenset((matched,))

    return values


def _members_of(attribute: str) -> Values:
    return lambda device_group: device_group.one.values(attribute)


def _add_common(draft: ModelBuilder, requests: Sequence[RequestVars], values: Values | None, active: IntVar) -> None:
    """One value is on all devices, while ``active``."""
    if values is None:
        return
    cp, device_groups = draft.model.cp, draft.model.device_groups
    literals: dict[object, IntVar] = {}

    def any_of(choices: frozenset[object]) -> list[IntVar]:
        for value in _sorted_values(choices):
            if value not in literals:
                literals[value] = cp.new_bool_var("")
        return [literals[value] for value in _sorted_values(choices)]

    for parts in requests:
        for b, terms in _terms_by_group(parts).items():
            allowed = any_of(values(device_groups[b]))
            for _, variable in terms:
                draft.imply_positive(variable, *allowed)
        for members, here in parts.every.values():
            common = frozenset.intersection(*(values(device_groups[b]) for b in members))
            cp.add_bool_or(here.negated(), *any_of(common))
    if literals:
        cp.add(sum(literals.values()) == active)


def _add_distinct(draft: ModelBuilder, requests: Sequence[RequestVars], values: Values) -> None:
    """No value is on two devices; no device is taken twice."""
    device_groups = draft.model.device_groups
    takes: dict[object, LinearTerms] = defaultdict(list)
    for parts in requests:
        taken = _terms_by_group(parts)
        for members, here in parts.every.values():
            for b in members:
                taken[b].append((device_groups[b].size, here))
        for b, terms in taken.items():
            own_values = values(device_groups[b])
            for value in _sorted_values(own_values):
                takes[value] += terms
            if not own_values:
                draft.model.cp.add(sum_terms(terms) == 0)
    for terms in takes.values():
        draft.model.cp.add(sum_terms(terms) <= 1)


def _sorted_values(values: frozenset[object]) -> list[object]:
    """Sets have no order that is the same in every process."""
    return sorted(values, key=repr)


def _terms_by_group(parts: RequestVars) -> dict[int, LinearTerms]:
    """device group -> takes and shares of it"""
    amounts: dict[int, LinearTerms] = defaultdict(list)
    for target, variable in parts.takes.items():
        amounts[target if isinstance(target, int) else target[0]].append((1, variable))
    for (b, _), (taken, _) in parts.shares.items():
        amounts[b].append((1, taken))
    return amounts


def add_unit(
    draft: ModelBuilder, amounts: ShareVariables, number: int, unit: PlacementUnit, places: Sequence[Place]
) -> None:
    """Add a unit that may be at one of these places; ``model.satisfied`` has its literal already."""
    model = draft.model
    literals: dict[Place, IntVar] = {place: model.cp.new_bool_var("") for place in places}
    model.places[number] = literals
    model.cp.add(sum(literals.values()) == model.satisfied[number])
    builder = _UnitBuilder(draft, amounts, number, literals)
    requests = [(demand, builder.add_demand(demand)) for demand in unit.demands]
    for name in dict.fromkeys(name for demand in unit.demands for name in demand.shared):
        bound = [parts for demand, request_vars in requests if name in demand.shared for parts in request_vars]
        add_agreement(draft, name, bound, builder.satisfied)


class _UnitBuilder:
    """Adds the demands of one unit; lives only while the model is being built."""

    def __init__(
        self, draft: ModelBuilder, amounts: ShareVariables, number: int, places: Mapping[Place, IntVar]
    ) -> None:
        self.draft, self.amounts, self.number, self.places = draft, amounts, number, places
        self.model, self.cp = draft.model, draft.model.cp
        self.satisfied = self.model.satisfied[number]

    def add_demand(self, demand: Demand) -> list[RequestVars]:
        requests: list[RequestVars] = []
        for alternatives in demand.details:
            chosen = [self.satisfied]
            if len(alternatives) > 1:
                chosen = [self.cp.new_bool_var("") for _ in alternatives]
                self.cp.add(sum(chosen) == self.satisfied)
            requests += [
                self.add_request(demand, request, literal)
                for request, literal in zip(alternatives, chosen, strict=True)
            ]
        add_attribute_constraints(self.draft, demand, requests, self.satisfied)
        if demand.most is not None:
            self.cp.add(sum_terms([term for parts in requests for term in self.entries(parts)]) <= demand.most)
        if demand.once and any(parts.request.mode.is_admin for parts in requests):
            self.add_once(requests)
        return requests

    def add_request(self, demand: Demand, request: Request, chosen: IntVar) -> RequestVars:
        parts = RequestVars(self.number, demand, request, chosen)
        self.model.requests.append(parts)
        if request.mode in (AllocationMode.EVERY, AllocationMode.ADMIN_ALL):
            self.add_every(parts)
            return parts
        usable = [b for b in self.draft.eligible(request) if self.literals_of(b)]
        if request.mode is AllocationMode.SHARE:
            self.add_shares(parts, usable)
        else:
            self.add_counts(parts, usable)
        for b, variable in _variables(parts):
            literals = self.literals_of(b)
            if len(literals) < len(self.places):
                self.draft.imply_positive(variable, *literals)
        return parts

    def literals_of(self, b: int) -> list[IntVar]:
        """The places that reach a device group."""
        device_group = self.model.device_groups[b]
        if device_group.node is not None:
            return [self.places[device_group.node]] if device_group.node in self.places else []
        return [literal for place, literal in self.places.items() if device_group.is_reached_from(place)]

    # -- counts --------------------------------------------------------------------------------------------------------

    def add_counts(self, parts: RequestVars, usable: Sequence[int]) -> None:
        request, cp = parts.request, self.cp
        for b in usable:
            if request.mode.is_admin:
                count = parts.takes[b] = self.draft.new_int(self.draft.room(request, b))
                self.draft.watchers[b].append([(1, count)])
            else:
                parts.takes |= self.draft.new_takes(request, b)
        cap = sum(self.draft.upper(variable) for variable in parts.takes.values())
        cap = cap if request.max_count is None else min(cap, request.max_count)
        if not parts.takes or cap < request.min_count:
            cp.add(parts.chosen == 0)
            return
        total = sum(parts.takes.values())
        cp.add(total >= request.min_count * parts.chosen)
        cp.add(total <= cap * parts.chosen)
        for name, amount in request.requests.items():
            add_at_least(cp, [*parts.takes.values()], self.capacities(parts, name), amount, parts.chosen)
        for name, amount in request.limits.items():
            add_at_most(cp, [*parts.takes.values()], self.capacities(parts, name), amount)

    def capacities(self, parts: RequestVars, name: str) -> list[int]:
        """What one take of each target gives: full capacity, rounded down to blocks (S10), or a portion."""
        amounts = []
        for target in parts.takes:
            device = self.model.device_groups[_group_of(target)].one
            if device.shareable:
                amounts.append(dict(parts.request.portions.get(device.index, ())).get(name, 0))
            else:
                amounts.append(device.resources[name].nano if name in device.resources else 0)
        return amounts

    # -- shares --------------------------------------------------------------------------------------------------------

    def add_shares(self, parts: RequestVars, usable: Sequence[int]) -> None:
        request, cp = parts.request, self.cp
        supply: dict[str, tuple[list[IntVar], list[int]]] = {name: ([], []) for name in request.requests}
        for b in usable:
            resources = self.model.device_groups[b].one.resources
            if not any(
                self.model.usage.free_blocks(self.model.device_groups[b].one, name) for name in request.requests
            ):
                continue
            for number in range(self.draft.bin_count(b)):
                taken = cp.new_bool_var("")
                blocks = {name: self.amounts.new(b, name, amount, taken) for name, amount in request.requests.items()}
                cp.add_implication(taken, parts.chosen)
                parts.shares[b, number] = (taken, blocks)
                self.draft.bin_takers[b, number].append(taken)
                for name, terms in blocks.items():
                    self.draft.bin_blocks[b, number, name] += terms
                    supply[name][0].extend(variable for _, variable in terms)
                    supply[name][1].extend(resources[name].block * weight for weight, _ in terms)
        for name, amount in request.requests.items():
            add_at_least(cp, *supply[name], amount, parts.chosen)
        if request.max_count is not None and parts.shares:
            cp.add(sum(taken for taken, _ in parts.shares.values()) <= min(request.max_count, len(parts.shares)))

    # -- all devices ---------------------------------------------------------------------------------------------------

    def add_every(self, parts: RequestVars) -> None:
        """All candidates the node reaches: at least one, within the limit, and each of them to be had."""
        request = parts.request
        eligible = {*self.draft.eligible(request)}
        for place, literal in self.places.items():
            reached = (b for b in self.draft.accepted(request) if self.model.device_groups[b].is_reached_from(place))
            own_bunches = [*reached] if place not in request.candidates.barred else []
            count = sum(self.model.device_groups[b].size for b in own_bunches)
            too_many = request.max_count is not None and count > request.max_count
            if not own_bunches or too_many or not eligible.issuperset(own_bunches):
                self.cp.add_bool_or(literal.negated(), parts.chosen.negated())
                continue
            here = literal
            if parts.chosen is not self.satisfied:
                here = self.cp.new_bool_var("")
                self.cp.add_bool_or(literal.negated(), parts.chosen.negated(), here)
            parts.every[place] = (tuple(own_bunches), here)
            for b in own_bunches:
                self.draft.take_every(request, b, here)

    # -- rules of the whole claim --------------------------------------------------------------------------------------

    def entries(self, parts: RequestVars) -> LinearTerms:
        """How many entries a request has in the answer."""
        sizes = [
            (sum(self.model.device_groups[b].size for b in members), here) for members, here in parts.every.values()
        ]
        return [*sizes, *((1, variable) for _, variable in _variables(parts))]

    def add_once(self, requests: Sequence[RequestVars]) -> None:
        """No device twice in the claim, whether an admin detail has it or another; shareable ones may be."""
        uses: dict[int, LinearTerms] = {}
        for parts in requests:
            for b, variable in _variables(parts):
                uses.setdefault(b, []).append((1, variable))
            for members, here in parts.every.values():
                for b in members:
                    uses.setdefault(b, []).append((self.model.device_groups[b].size, here))
        for b, terms in uses.items():
            device_group = self.model.device_groups[b]
            if len(terms) > 1 and not device_group.one.shareable:
                self.cp.add(sum_terms(terms) <= device_group.size)
                self.draft.watchers[b].append(terms)


def _group_of(target: int | tuple[int, int]) -> int:
    return target if isinstance(target, int) else target[0]


def _variables(parts: RequestVars) -> Iterable[tuple[int, IntVar]]:
    """(device group, variable) of all takes and shares"""
    for target, variable in parts.takes.items():
        yield _group_of(target), variable
    for (b, _), (taken, _) in parts.shares.items():
        yield b, taken
