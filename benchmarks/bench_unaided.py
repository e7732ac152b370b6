"""The solver beside a plain first fit and an unaided CP-SAT model, on the same batches in one run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from benchmarks.first_fit import first_fit
from benchmarks.fleets import scenario
from benchmarks.harness import Row, benchmark
from benchmarks.plain_cp_sat import solve_plain
from devalloc_solver.dialects.device_claims.manifest_records import read_documents
from devalloc_solver.dialects.device_claims.problem import DeviceClaimProblem, prepare
from devalloc_solver.pipeline.strategy import search_parts
from devalloc_solver.problem.placement_policy import PACK

SIZES = ((5, 10), (10, 30), (20, 60), (50, 100))
"""(nodes, claims that wait)"""
LIMIT = 20.0
"""Seconds that the unaided model may take."""

Counts = Mapping[int, int]


@benchmark(
    "unaided",
    "The solver, a first fit and an unaided CP-SAT model",
    method="The same batch for each: fleets of which 70 % is held already, claims of three priorities. Satisfied and "
    f"bounds are by priority, highest first. The unaided model has {LIMIT:.0f} s and one worker.",
    packages=("ortools",),
)
def rows(runs: int) -> Iterator[Row]:
    for nodes, claims in SIZES:
        prepared = prepare(read_documents(scenario(nodes, claims, fill=0.7)))
        requested = Counter(demand.claim.priority for unit in prepared.units for demand in unit.demands)
        ways: tuple[tuple[str, Callable[[DeviceClaimProblem], tuple[Counts, Counts | None]]], ...] = (
            ("devalloc", _ours),
            ("first fit", lambda prepared: (first_fit(prepared), None)),
            (f"unaided, {LIMIT:.0f} s", _unaided),
        )
        for name, solve in ways:
            seconds = []
            for _ in range(min(runs, 1 if solve is _unaided else 3)):  # the unaided model takes all its time
                start = time.perf_counter()
                satisfied, bounds = solve(prepared)
                seconds.append(time.perf_counter() - start)
            what: dict[str, str | int] = {
                "nodes": nodes,
                "claims": claims,
                "way": name,
                "asked": _shown(requested),
                "satisfied": _shown(satisfied),
                "bounds": "" if bounds is None else _shown(bounds),
            }
            yield Row(what, tuple(seconds))


def _ours(prepared: DeviceClaimProblem) -> tuple[Counts, Counts]:
    problem = prepared.snapshot, prepared.allocations, prepared.units
    levels = search_parts(*problem, policy=PACK, ends=None).levels
    counts = [level for level in levels if level.priority is not None]
    return {level.priority or 0: level.value for level in counts}, {
        level.priority or 0: level.bound for level in counts
    }


def _unaided(prepared: DeviceClaimProblem) -> tuple[Counts, Counts]:
    solution = solve_plain(prepared, LIMIT)
    return solution.satisfied, solution.bounds


def _shown(counts: Counts) -> str:
    return " / ".join(str(counts[priority]) for priority in sorted(counts, reverse=True))
