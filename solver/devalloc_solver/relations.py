"""What the devices of a claim must have in common, or must not: match attributes and relations (S15)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from devalloc_solver.batch import SlotVars, Terms
from devalloc_solver.bunches import Bunch
from devalloc_solver.demand import Demand
from devalloc_solver.draft import Draft, add_terms

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    IntVar = cp_model.IntVar

Values = Callable[[Bunch], frozenset[object]]
"""The values that a device may stand for; none when it may not be taken at all."""


def add_relations(draft: Draft, demand: Demand, slots: Sequence[SlotVars], satisfied: IntVar) -> None:
    """All rules on the attributes of the devices of one claim, whose slots these are."""
    for parts in slots:
        _add_common(draft, [parts], _values_of(parts.slot.match), parts.chosen)
    _add_common(draft, slots, _values_of(demand.match), satisfied)
    for relation in demand.relations:
        bound = [parts for parts in slots if parts.slot.label in relation.labels]
        if relation.distinct:
            _add_distinct(draft, bound, _members_of(relation.attribute))
        else:
            _add_common(draft, bound, _members_of(relation.attribute), satisfied)


def add_agreement(draft: Draft, name: str, slots: Sequence[SlotVars], satisfied: IntVar) -> None:
    """An attribute has one value on the devices of several claims of a unit, whose slots these are."""
    _add_common(draft, slots, _values_of((name,)), satisfied)


def _values_of(names: Sequence[str]) -> Values | None:
    """The values of several attributes as one, all of which must be there."""
    if not names:
        return None

    def values(bunch: Bunch) -> frozenset[object]:
        found = bunch.match_value(names)
        return frozenset() if found is None else frozenset((found,))

    return values


def _members_of(attribute: str) -> Values:
    return lambda bunch: bunch.one.values(attribute)


def _add_common(draft: Draft, slots: Sequence[SlotVars], values: Values | None, active: IntVar) -> None:
    """One value is on all devices, while ``active``."""
    if values is None:
        return
    cp, bunches = draft.model.cp, draft.model.bunches
    literals: dict[object, IntVar] = {}

    def any_of(found: frozenset[object]) -> list[IntVar]:
        for value in _ordered(found):
            if value not in literals:
                literals[value] = cp.new_bool_var("")
        return [literals[value] for value in _ordered(found)]

    for parts in slots:
        for b, terms in _taken(parts).items():
            allowed = any_of(values(bunches[b]))
            for _, variable in terms:
                draft.imply_positive(variable, *allowed)
        for mine, here in parts.every.values():
            common = frozenset.intersection(*(values(bunches[b]) for b in mine))
            cp.add_bool_or(here.negated(), *any_of(common))
    if literals:
        cp.add(sum(literals.values()) == active)


def _add_distinct(draft: Draft, slots: Sequence[SlotVars], values: Values) -> None:
    """No value is on two devices; no device is taken twice."""
    bunches = draft.model.bunches
    takes: dict[object, Terms] = defaultdict(list)
    for parts in slots:
        taken = _taken(parts)
        for mine, here in parts.every.values():
            for b in mine:
                taken[b].append((bunches[b].size, here))
        for b, terms in taken.items():
            found = values(bunches[b])
            for value in _ordered(found):
                takes[value] += terms
            if not found:
                draft.model.cp.add(add_terms(terms) == 0)
    for terms in takes.values():
        draft.model.cp.add(add_terms(terms) <= 1)


def _ordered(values: frozenset[object]) -> list[object]:
    """Sets have no order that is the same in every process."""
    return sorted(values, key=repr)


def _taken(parts: SlotVars) -> dict[int, Terms]:
    """bunch -> takes and shares of it"""
    amounts: dict[int, Terms] = defaultdict(list)
    for target, variable in parts.takes.items():
        amounts[target if isinstance(target, int) else target[0]].append((1, variable))
    for (b, _), (taken, _) in parts.shares.items():
        amounts[b].append((1, taken))
    return amounts
