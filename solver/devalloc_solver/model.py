"""The exact model of a batch: every rule of claim-semantics S5 to S16 as CP-SAT constraints.

One model holds some units, the devices they may take (as bunches of interchangeable ones) and what is in use. Devices
are counted, not named, and so are equal claims: names are given afterwards (assignment.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import pairwise

from devalloc_solver.amounts import Amounts
from devalloc_solver.batch import BatchModel, bin_count, sharing_slots
from devalloc_solver.bunches import Place, make_bunches
from devalloc_solver.crowd import add_crowd, equal_units, find_crowds
from devalloc_solver.demand import Mode, Unit
from devalloc_solver.draft import Draft
from devalloc_solver.holdings import Holding, Ledger
from devalloc_solver.single import add_unit
from devalloc_solver.snapshot import Snapshot
from devalloc_solver.supply import add_supply

_CP_SAT = "ortools.sat.python.cp_model"


def is_loaded() -> bool:
    """Whether this process has loaded the exact model's solver."""
    return hasattr(sys.modules.get(_CP_SAT), "CpSolver")  # a module that another thread still loads is there already


def load() -> None:
    """Load what solves batches, which takes half a second the first time. It is loaded when it is needed as well; this
    is for callers that others wait for."""
    import_module("devalloc_solver.columns")
    import_module(_CP_SAT)


def model_size(snapshot: Snapshot, ledger: Ledger, units: Sequence[Unit], *, enough: int | None = None) -> int:
    """An estimate of the number of variables that the model would have; beyond ``enough`` it need not be precise."""
    if enough is not None and (least := _least_size(snapshot, units)) > enough:
        return least
    bunches, nodes = make_bunches(snapshot, ledger, units)
    sharing = sharing_slots(units)
    bins = [bin_count(bunch, ledger, sharing) for bunch in bunches] if sharing else [0] * len(bunches)
    counted = {number for numbers in find_crowds(units, bunches) for number in numbers[1:]}
    of_set: dict[int, list[int]] = {}
    total = len(units)
    for number, unit in enumerate(units):
        if number in counted:
            continue
        for slot in (slot for demand in unit.demands for slot in demand.slots):
            key = id(slot.candidates)
            if key not in of_set:
                of_set[key] = [b for b, bunch in enumerate(bunches) if bunch.one.index in slot.candidates.accepted]
            if slot.mode is Mode.SHARE:
                total += (1 + len(slot.requests)) * sum(bins[b] for b in of_set[key])
            else:
                total += sum(max(1, bins[b]) for b in of_set[key])
        total += max(1, len(nodes))
    return total


def _least_size(snapshot: Snapshot, units: Sequence[Unit]) -> int:
    """What there is at least, by pools alone: where no node can be left out, each slot has variables of each pool."""
    if sum(unit.pin is None for unit in units) < len(snapshot.nodes):
        return 0
    different = [units[numbers[0]] for numbers in equal_units(units)]
    pools: dict[int, int] = {}
    total = len(units)
    for slot in (slot for unit in different for demand in unit.demands for slot in demand.slots):
        key = id(slot.candidates)
        if key not in pools:
            pools[key] = len({snapshot.devices[index].pool for index in slot.candidates.accepted})
        total += pools[key]
    return total


def build_model(
    snapshot: Snapshot, holdings: Iterable[Holding], units: Sequence[Unit], *, placement: str = "pack"
) -> BatchModel:
    """Build the model of a batch. ``holdings`` are what is in use, and stays so."""
    from ortools.sat.python import cp_model

    ledger = Ledger.of(snapshot, holdings)
    bunches, nodes = make_bunches(snapshot, ledger, units, placement=placement)
    cp = cp_model.CpModel()
    satisfied = [cp.new_bool_var("") for _ in units]
    model = BatchModel(snapshot, ledger, units, bunches, nodes, cp, satisfied)
    draft = Draft(model)
    amounts = Amounts(draft)
    for numbers in equal_units(units):
        for earlier, later in pairwise(numbers):
            cp.add_implication(satisfied[later], satisfied[earlier])
    crowds = find_crowds(units, bunches)
    for numbers in crowds:
        add_crowd(draft, amounts, numbers, _places_of(draft, units[numbers[0]]))
    counted = {number for numbers in crowds for number in numbers}
    for number, unit in enumerate(units):
        if number not in counted:
            add_unit(draft, amounts, number, unit, _places_of(draft, unit))
    add_supply(draft)
    _add_nodes(draft)
    return model


def _places_of(draft: Draft, unit: Unit) -> list[Place]:
    """Where every detail has some candidate. A unit is always on some node, where there is any (S7).

    Places that have no candidates of their own, and are reached by the same network devices, differ in nothing: the
    first of them is enough.
    """
    if unit.pin is not None:
        return [unit.pin]
    model = draft.model
    network: list[set[int]] = []
    own: list[set[Place]] = []
    for alternatives in (detail for demand in unit.demands for detail in demand.details):
        found = {b for slot in alternatives for b in draft.eligible(slot)}
        network.append({b for b in found if model.bunches[b].node is None})
        own.append({model.bunches[b].node for b in found})
    every_network, any_own = set[int]().union(*network), set[Place]().union(*own)
    slots = [slot for demand in unit.demands for slot in demand.slots]
    barred = [*dict.fromkeys(slot.candidates.barred for slot in slots if slot.candidates.barred)]
    places: list[Place] = []
    seen: set[object] = set()
    for place in model.nodes if model.snapshot.nodes else [None]:
        reached = frozenset(b for b in every_network if model.bunches[b].is_reached_from(place))
        if place is None or place not in any_own:
            look = reached, tuple(place in nodes for nodes in barred)
            if look in seen:
                continue
            seen.add(look)
        if all(place in nodes or reached & bunches for nodes, bunches in zip(own, network, strict=True)):
            places.append(place)
    return places


def _add_nodes(draft: Draft) -> None:
    """Whether a node is used at all, for the placement policy."""
    model = draft.model
    found = [(place, literal) for places in model.places.values() for place, literal in places.items()]
    found += [(site.place, count) for crowd in model.crowds for site in crowd.sites for count in site.patterns.values()]
    for place, variable in found:
        if place is not None:
            if place not in model.nodes_used:
                model.nodes_used[place] = model.cp.new_bool_var("")
            draft.imply_positive(variable, model.nodes_used[place])
