"""Whatever searches for a claim has what is left of the deadline, and no loop before a search goes on without it."""

from __future__ import annotations

import math
import random
import time
from typing import Any

import pytest
from ortools.linear_solver import pywraplp
from ortools.sat.python import cp_model

from devalloc_solver import Fleet, solve_manifests
from devalloc_solver.columns import remaining_units, state_space
from devalloc_solver.columns.claim_kinds import group_units
from devalloc_solver.columns.node_geometry import group_nodes
from devalloc_solver.dialects.device_claims.manifest_records import read_documents
from devalloc_solver.dialects.device_claims.problem import prepare
from devalloc_solver.exact.model import build_model
from devalloc_solver.pipeline import narrowing, strategy
from devalloc_solver.place import SearchTimeout
from devalloc_solver.problem.allocations import Usage
from tests.support.call_count import calls
from tests.support.manifests import Manifest, claim, device, device_class, pool

DEADLINE = 5.0
KINDS = 12


def pools(count: int, size: int = 16, parts: bool = False) -> list[Manifest]:
    """No two are alike."""
    rng = random.Random(1)
    made = []
    for number in range(count):
        devices = []
        for one in range(size):
            attributes: dict[str, Any] = {"kind": (number * 7 + one * 3) % KINDS, "id": number * size + one}
            attributes |= {"card": rng.randrange(4), "root": rng.randrange(4), "numa": rng.randrange(2)}
            draws = {"slices": str(1 + rng.randrange(3)), "memory": str(1 + rng.randrange(3))} if parts else None
            devices.append(device(f"d{one}", attributes=attributes, requests=draws))
        resources = {name: str(rng.randrange(7, 12)) for name in ("slices", "memory")} if parts else None
        made.append(pool(f"p{number}", f"n{number}", "g", devices=devices, resources=resources))
    return made


def classes() -> list[Manifest]:
    accepted = [f"device.kind in [{n}, {(n + 1) % KINDS}, {(n + 5) % KINDS}]" for n in range(KINDS)]
    return [device_class(f"c{n}", driver="g", constraints=text) for n, text in enumerate(accepted)]


def entries(seed: int = 0) -> list[dict[str, Any]]:
    """Twelve, each of another class, with relations among the devices of each."""
    match = [["card"], ["root"], ["numa"], ["card", "root"]]
    return [
        {"deviceClass": f"c{n}", "requests": {"count": 1 + (n + seed) % 2}, "matchAttributes": match[(n + seed) % 4]}
        for n in range(KINDS)
    ]


class _Limited:
    """A solver of linear programs that was given a limit, or not."""

    def __init__(self, solver: Any, limits: list[float | None]) -> None:
        self._solver, self._limits, self._limit = solver, limits, None

    def SetTimeLimit(self, milliseconds: int) -> None:  # noqa: N802
        self._limit = milliseconds / 1000
        self._solver.SetTimeLimit(milliseconds)

    def Solve(self, *arguments: Any) -> Any:  # noqa: N802
        self._limits.append(self._limit)
        return self._solver.Solve(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._solver, name)


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[float | None]]:
    """The seconds that each search of a solver was given, by the kind of solver; None for no limit."""
    given: dict[str, list[float | None]] = {"CP-SAT": [], "GLOP": [], "SAT": []}
    solve, create = cp_model.CpSolver.solve, pywraplp.Solver.CreateSolver

    def searched(solver: cp_model.CpSolver, *arguments: Any) -> Any:
        limit = solver.parameters.max_time_in_seconds
        given["CP-SAT"].append(limit if math.isfinite(limit) else None)
        return solve(solver, *arguments)

    monkeypatch.setattr(cp_model.CpSolver, "solve", searched)
    monkeypatch.setattr(pywraplp.Solver, "CreateSolver", lambda kind: _Limited(create(kind), given[kind]))
    return given


def test_each_search_of_a_solver_is_given_what_is_left_of_the_deadline(
    monkeypatch: pytest.MonkeyPatch, limits: dict[str, list[float | None]]
) -> None:
    """Of batches as exact models, of batches by columns, of single claims beyond their steps, and of explanations."""
    for module in (strategy, remaining_units):
        monkeypatch.setattr(module, "DEFAULT_STEPS", 3)
    monkeypatch.setattr(narrowing, "UNIT_STEPS", 0)  # else no search is asked of what fits nowhere
    documents = [*classes(), *pools(6), *pools_of_parts(6)]
    hard = [claim(f"x{n}", *entries(n)) for n in range(3)]
    small = [claim(f"s{n}", {"deviceClass": f"c{n % KINDS}", "requests": {"count": 2 + n % 3}}) for n in range(20)]
    for exact_size in (strategy.EXACT_SIZE, 0):
        monkeypatch.setattr(strategy, "EXACT_SIZE", exact_size)
        for wanted in (hard[:1], hard, [*small, *hard]):
            solve_manifests([*documents, *wanted], deadline=DEADLINE)
            for given in limits.values():
                assert all(limit is not None and 0 <= limit <= DEADLINE + 0.1 for limit in given)
    Fleet.from_manifests(documents).allocate(hard[0], DEADLINE)
    assert all(limit is not None and limit <= DEADLINE + 0.1 for given in limits.values() for limit in given)
    assert len(limits["CP-SAT"]) > 3
    assert limits["GLOP"]


def pools_of_parts(count: int) -> list[Manifest]:
    return [
        {**one, "metadata": {"name": f"q{number}"}, "spec": {**one["spec"], "nodeName": f"m{number}"}}
        for number, one in enumerate(pools(count, parts=True))
    ]


def test_a_model_is_not_built_beyond_the_deadline() -> None:
    prepared = prepare(read_documents([*classes(), *pools(140), claim("x", *entries())]))
    arguments = prepared.snapshot, prepared.allocations, prepared.units
    whole = calls(lambda: build_model(*arguments))

    def cut() -> None:
        with pytest.raises(SearchTimeout):
            build_model(*arguments, ends=time.monotonic())

    assert calls(cut) < whole / 2


def test_templates_of_nodes_that_all_differ_are_compared_for_a_bounded_time() -> None:
    """Of 1,500 pools of which no two are alike, each pair was compared cell by cell: 20 s with a deadline of 3."""
    wanted = [claim("x", *entries()), claim("y", *entries())]

    def compare(nodes: int, ends: float | None = None) -> int:
        prepared = prepare(read_documents([*classes(), *pools(nodes), *wanted]))
        usage = Usage.of(prepared.snapshot, prepared.allocations)
        kinds, _ = group_units(prepared.snapshot, prepared.units)
        templates = group_nodes(prepared.snapshot, usage, kinds).templates
        assert len(templates) > nodes * 0.9
        return calls(lambda: state_space.merge_templates(templates, ends))

    assert compare(240) < 2.5 * compare(120), "nothing is looked for once the pairs of cells are spent"
    assert compare(120, time.monotonic()) < 40 * 120


def test_a_chain_of_64_entries_beside_another_claim_is_placed_without_a_search_for_more(
    limits: dict[str, list[float | None]],
) -> None:
    """Entry k wants a device whose number is k or more, of 64. The first incumbent has both claims: the only search
    fills in what follows from it."""
    chain = claim("vm", *({"deviceClass": "gpu", "constraints": f"device.i >= {k}"} for k in range(64)))
    other = claim("other", {"deviceClass": "gpu", "constraints": "device.i == 1"}, node="n2")
    many = pool("root", "n1", "g", devices=[device(f"d{i}", attributes={"i": i}) for i in range(64)])
    one = pool("q", "n2", "g", devices=[device("x", attributes={"i": 1})])
    answer = solve_manifests([device_class("gpu", driver="g"), many, one, chain, other])
    assert [each["allocated"] for each in answer["claims"]] == [True, True]
    assert {kind: len(given) for kind, given in limits.items()} == {"CP-SAT": 1, "GLOP": 0, "SAT": 0}
