"""Constraints on attributes that the devices of a claim have in common, or must not have (S15)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from devalloc_solver.exact.builder import ModelBuilder, sum_terms
from devalloc_solver.exact.variables import LinearTerms, RequestVars
from devalloc_solver.problem.demand import Demand
from devalloc_solver.problem.device_groups import DeviceGroup

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
