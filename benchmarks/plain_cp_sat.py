"""An unaided CP-SAT model: what is measured beside the solver.

The model that one writes first: a Boolean for each claim, alternative and device that may go together, one for each
claim and node, one for each value to match in. The counts are maximised priority by priority, each kept for the next.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass

from ortools.sat.python import cp_model

from devalloc_solver.dialects.device_claims.problem import DeviceClaimProblem
from devalloc_solver.problem.allocations import Usage
from devalloc_solver.problem.demand import AllocationMode
from devalloc_solver.problem.snapshot import Device


@dataclass(frozen=True, slots=True)
class PlainModelResult:
    """What it found within its time: priority -> satisfied claims, and the bound of each."""

    satisfied: dict[int, int]
    bounds: dict[int, int]
    variables: int


def solve_plain(prepared: DeviceClaimProblem, limit: float) -> PlainModelResult:
    """Solve whole devices with attributes to match in, for at most ``limit`` seconds; with CP-SAT's own defaults but
    one worker, as the solver has."""
    model = cp_model.CpModel()
    satisfied = _build(model, prepared)
    ends = time.monotonic() + limit
    by_priority: dict[int, list[cp_model.IntVar]] = defaultdict(list)
    for unit, literal in zip(prepared.units, satisfied, strict=True):
        by_priority[unit.demands[0].claim.priority].append(literal)
    values, bounds = {}, {}
    for priority in sorted(by_priority, reverse=True):
        total = sum(by_priority[priority])
        model.maximize(total)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_time_in_seconds = max(0.01, ends - time.monotonic())
        status = solver.solve(model)
        is_solved = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
        values[priority] = round(solver.objective_value) if is_solved else 0
        bounds[priority] = round(solver.best_objective_bound) if is_solved else len(by_priority[priority])
        model.add(total >= values[priority])
    return PlainModelResult(values, bounds, len(model.proto.variables))


def _build(model: cp_model.CpModel, prepared: DeviceClaimProblem) -> list[cp_model.IntVar]:
    snapshot = prepared.snapshot
    usage = Usage.of(snapshot, prepared.allocations)
    takers: dict[int, list[cp_model.IntVar]] = defaultdict(list)
    satisfied = []
    for unit in prepared.units:
        (demand,) = unit.demands
        literal = model.new_bool_var("")
        satisfied.append(literal)
        places = {node: model.new_bool_var("") for node in snapshot.nodes}
        model.add(sum(places.values()) == literal)
        shared: dict[object, cp_model.IntVar] = {}
        for alternatives in demand.details:
            chosen = [model.new_bool_var("") for _ in alternatives]
            model.add(sum(chosen) == literal)
            for request, picked in zip(alternatives, chosen, strict=True):
                assert request.mode is AllocationMode.WHOLE
                own: dict[object, cp_model.IntVar] = {}
                taken = []
                for index in request.candidates.accepted:
                    device = snapshot.devices[index]
                    node = snapshot.pools[device.pool].node
                    if usage.in_use(device) or node is None:
                        continue
                    use = model.new_bool_var("")
                    taken.append(use)
                    takers[index].append(use)
                    model.add_implication(use, places[node])
                    for names, values in ((demand.match, shared), (request.match, own)):
                        if names:
                            value = tuple(device.attributes.get(name) for name in names)
                            model.add_implication(use, values.setdefault(value, model.new_bool_var("")))
                model.add(sum(taken) == request.min_count * picked)
                if request.match:
                    model.add_at_most_one(own.values())
        if demand.match:
            model.add_at_most_one(shared.values())
    for users in takers.values():
        model.add_at_most_one(users)
    _add_pool_resources(model, usage, [(snapshot.devices[index], users) for index, users in takers.items()])
    return satisfied


def _add_pool_resources(
    model: cp_model.CpModel, usage: Usage, takers: list[tuple[Device, list[cp_model.IntVar]]]
) -> None:
    draws: dict[tuple[int, str], list[cp_model.LinearExprT]] = defaultdict(list)
    for device, users in takers:
        for name, blocks in device.draws:
            draws[device.pool, name] += [blocks * use for use in users]
    for (pool, name), terms in draws.items():
        model.add(sum(terms) <= usage.free_pool_blocks(pool, name))
