"""The exact model of a batch: the rules S5 to S16 of docs/development/spec/claims.md as CP-SAT constraints.

One model contains some units, the devices they may take (in groups of interchangeable ones) and what is in use. It
counts devices and equal claims and does not name them: ``exact.device_naming`` names them afterwards.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import pairwise

from devalloc_solver.exact.builder import ModelBuilder, ShareVariables
from devalloc_solver.exact.claim_groups import add_claim_group, find_claim_groups, group_equal_units
from devalloc_solver.exact.supply_constraints import add_supply
from devalloc_solver.exact.unit_constraints import add_unit
from devalloc_solver.exact.variables import BatchModel, max_bins, sharing_requests
from devalloc_solver.place.step_budget import SearchDeadline
from devalloc_solver.problem.allocations import Holding, Usage
from devalloc_solver.problem.demand import AllocationMode, PlacementUnit
from devalloc_solver.problem.device_groups import Place, make_device_groups
from devalloc_solver.problem.placement_policy import PACK, PlacementPolicy
from devalloc_solver.problem.snapshot import Snapshot

_CP_SAT = "ortools.sat.python.cp_model"


def is_solver_loaded() -> bool:
    """Whether this process has loaded the exact model's solver."""
    return hasattr(sys.modules.get(_CP_SAT), "CpSolver")  # a module that another thread still loads is there already


def load_solver() -> None:
    """Load what solves batches, which takes half a second the first time. It is loaded when it is needed as well; this
    is for callers that others wait for."""
    import_module("devalloc_solver.columns")
    import_module(_CP_SAT)


def model_size(snapshot: Snapshot, usage: Usage, units: Sequence[PlacementUnit], *, enough: int | None = None) -> int:
    """An estimate of the number of variables that the model would have; beyond ``enough`` it need not be precise."""
    if enough is not None and (least := _least_size(snapshot, units)) > enough:
        return least
    device_groups, nodes = make_device_groups(snapshot, usage, units)
    sharing = sharing_requests(units)
    bins = (
        [max_bins(device_group, usage, sharing) for device_group in device_groups]
        if sharing
        else [0] * len(device_groups)
    )
    counted = {number for numbers in find_claim_groups(units, device_groups) for number in numbers[1:]}
    sizes: dict[int, tuple[int, int]] = {}
    """id of candidates -> variables of a request for whole devices, and of one amount of a share"""
    total = len(units)
    for number, unit in enumerate(units):
        if number in counted:
            continue
        for request in unit.requests:
            key = id(request.candidates)
            if key not in sizes:
                accepted = request.candidates.accepted
                eligible = [b for b, group in zip(bins, device_groups, strict=True) if group.one.index in accepted]
                sizes[key] = sum(max(1, b) for b in eligible), sum(eligible)
            whole, share = sizes[key]
            total += (1 + len(request.requests)) * share if request.mode is AllocationMode.SHARE else whole
        total += max(1, len(nodes))
    return total


def _least_size(snapshot: Snapshot, units: Sequence[PlacementUnit]) -> int:
    """A lower bound of the size, by pools alone: if all nodes must stay, each request has variables of each pool."""
    if sum(unit.pin is None for unit in units) < len(snapshot.nodes):
        return 0
    different = [units[numbers[0]] for numbers in group_equal_units(units)]
    pools: dict[int, int] = {}
    total = len(units)
    for request in (request for unit in different for request in unit.requests):
        key = id(request.candidates)
        if key not in pools:
            pools[key] = len({snapshot.devices[index].pool for index in request.candidates.accepted})
        total += pools[key]
    return total


def build_model(
    snapshot: Snapshot,
    allocations: Iterable[Holding],
    units: Sequence[PlacementUnit],
    *,
    policy: PlacementPolicy = PACK,
    ends: float | None = None,
) -> BatchModel:
    """Build the model of a batch. ``allocations`` are what is in use, and stays so.

    Raises SearchTimeout if a model that is not small is not there at the monotonic time ``ends``.
    """
    from ortools.sat.python import cp_model

    usage = Usage.of(snapshot, allocations)
    device_groups, nodes = make_device_groups(snapshot, usage, units, policy=policy)
    cp = cp_model.CpModel()
    satisfied = [cp.new_bool_var("") for _ in units]
    model = BatchModel(snapshot, usage, units, device_groups, nodes, cp, satisfied)
    draft = ModelBuilder(model, policy.weighs_loads, SearchDeadline(ends))
    amounts = ShareVariables(draft)
    for numbers in group_equal_units(units):
        for earlier, later in pairwise(numbers):
            cp.add_implication(satisfied[later], satisfied[earlier])
    claim_groups = find_claim_groups(units, device_groups)
    for numbers in claim_groups:
        add_claim_group(draft, amounts, numbers, _possible_nodes(draft, units[numbers[0]]))
    counted = {number for numbers in claim_groups for number in numbers}
    for number, unit in enumerate(units):
        if number not in counted:
            add_unit(draft, amounts, number, unit, _possible_nodes(draft, unit))
    add_supply(draft)
    _add_nodes(draft)
    return model


def _possible_nodes(draft: ModelBuilder, unit: PlacementUnit) -> list[Place]:
    """Where every detail has some candidate. A unit is always on some node, where there is any (S7).

    Places that have no candidates of their own, and are reached by the same network devices, differ in nothing: the
    first of them is enough.
    """
    if unit.pin is not None:
        return [] if _is_barred(unit, unit.pin) else [unit.pin]
    model = draft.model
    network: list[set[int]] = []
    own: list[set[Place]] = []
    for alternatives in (detail for demand in unit.demands for detail in demand.details):
        eligible = {b for request in alternatives for b in draft.eligible(request)}
        network.append({b for b in eligible if model.device_groups[b].node is None})
        own.append({model.device_groups[b].node for b in eligible})
    every_network, any_own = set[int]().union(*network), set[Place]().union(*own)
    requests = [*unit.requests]
    barred = [*dict.fromkeys(request.candidates.barred for request in requests if request.candidates.barred)]
    places: list[Place] = []
    seen: set[object] = set()
    for place in model.nodes if model.snapshot.nodes else [None]:
        reached = frozenset(b for b in every_network if model.device_groups[b].is_reached_from(place))
        if place is None or place not in any_own:
            signature = reached, tuple(place in nodes for nodes in barred)
            if signature in seen:
                continue
            seen.add(signature)
        if all(place in nodes or reached & device_groups for nodes, device_groups in zip(own, network, strict=True)):
            places.append(place)
    return [place for place in places if not _is_barred(unit, place)] if barred else places


def _is_barred(unit: PlacementUnit, place: Place) -> bool:
    """Whether a detail has no candidates at a place, whatever reaches it."""
    details = (detail for demand in unit.demands for detail in demand.details)
    return any(all(place in request.candidates.barred for request in detail) for detail in details)


def _add_nodes(draft: ModelBuilder) -> None:
    """Whether a node is used at all, for the placement policy: claims with network devices alone may be on none."""
    model = draft.model
    is_networked = any(device_group.node is None for device_group in model.device_groups)
    on_nodes = [number for number, unit in enumerate(model.units) if not (is_networked and unit.group is None)]
    pairs = [(place, literal) for number in on_nodes for place, literal in model.places.get(number, {}).items()]
    pairs += [
        (site.place, count)
        for claim_group in model.claim_groups
        if claim_group.units[0] in on_nodes
        for site in claim_group.sites
        for count in site.patterns.values()
    ]
    if is_networked:
        pairs += [(model.snapshot.pools[pool].node, used) for pool, used in model.pools_used.items()]
    for place, variable in pairs:
        if place is not None:
            if place not in model.nodes_used:
                model.nodes_used[place] = model.cp.new_bool_var("")
            draft.imply_positive(variable, model.nodes_used[place])
