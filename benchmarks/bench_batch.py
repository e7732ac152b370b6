"""How batches are allocated: what is proven, how long it takes, and what a plain first fit finds.

``batch`` is about large ones, level by level; ``batches`` sweeps over sizes and kinds of 10 to 1,000 claims.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from benchmarks.batches import BatchCase, cases
from benchmarks.first_fit import first_fit
from benchmarks.fleets import scenario
from benchmarks.harness import Row, benchmark, timed
from devalloc_solver import dra, solve_manifests
from devalloc_solver.columns import allocate_batch
from devalloc_solver.dialects.device_claims.manifest_records import read_documents
from devalloc_solver.dialects.device_claims.problem import DeviceClaimProblem, prepare
from devalloc_solver.problem.placement import GoalLevel, Placement
from devalloc_solver.problem.placement_policy import PACK
from tests.support.column_batches import Batch

SIZES = ((1000, 1000, 0.6), (1000, 2000, 0.7), (5000, 1000, 0.6))
"""(nodes, claims that wait, mean part of a node that is held already)"""
LONGEST = 1.0
"""Seconds that no batch of ``batches`` may take."""


@benchmark(
    "batch",
    "Joint allocation of large batches",
    method="From the snapshot to allocations with device names: interning, the search with its bounds, names. The "
    "independent check and everything before the snapshot are shown beside it, once. Levels are satisfied claims of "
    "priority 2, 1 and 0, of so many; first fit takes the claims in the same order, node by node, device by device.",
    packages=("ortools", "numpy"),
)
def batch(runs: int) -> Iterator[Row]:
    for nodes, claims, fill in SIZES:
        documents = scenario(nodes, claims, fill=fill)
        start = time.perf_counter()
        problem_input = read_documents(documents)
        decoded = time.perf_counter()
        prepared = prepare(problem_input)
        ready = time.perf_counter()
        placements, levels = solve(prepared)
        begun = time.perf_counter()
        violations = Batch(prepared, placements, levels).violations()
        assert not violations, violations[:3]
        checked = time.perf_counter()
        first = first_fit(prepared)
        fitted = time.perf_counter()
        what: dict[str, str | int] = {
            "nodes": nodes,
            "claims": claims,
            "asked": _counts(Counter(d.claim.priority for unit in prepared.units for d in unit.demands)),
            "satisfied": _counts({level.priority: level.value for level in levels if level.priority is not None}),
            "bounds": _counts({level.priority: level.bound for level in levels if level.priority is not None}),
            "first fit": _counts(first),
            "first fit, s": f"{fitted - checked:.2f}",
            "decoding, s": f"{decoded - start:.2f}",
            "eligibility, s": f"{ready - decoded:.2f}",
            "check, s": f"{checked - begun:.2f}",
        }
        yield Row(what, timed(partial(solve, prepared), min(runs, 3)))


@benchmark(
    "batches",
    "Batches of 10 to 1,000 claims",
    method="One `solve_manifests()` for each batch: decoding, the search, the independent check and the reasons. Ten "
    "kinds of claims (`benchmarks/batches.py`), each with as many nodes as claims and with a tenth of that, so that "
    "all fit or devices are contended for. One column marks what takes more than 1 s. The time is CPU time, so that "
    "other work on the machine hardly counts. Satisfied, pools and devices are what was reached.",
    packages=("ortools", "numpy"),
)
def batches(runs: int) -> Iterator[Row]:
    for case in cases():
        documents = case.documents()
        answer, seconds = _solved(case, documents, min(runs, 3))
        levels = answer["objective"]["levels"]
        counts = [level for level in levels if level["goal"] == "satisfied"]
        reached = {level["goal"]: level["value"] for level in levels}
        yield Row(
            {
                "kind": case.kind,
                "nodes": case.nodes,
                "claims": case.claims,
                "satisfied": sum(level["value"] for level in counts),
                "counts proven": "yes" if answer["optimal"] else "no",
                "choice": "exact" if all(level["choice"] == "exact" for level in counts) else "best effort",
                "pools": reached["pools"],
                "devices": reached["devices"],
                "over 1 s": "yes" if min(seconds) > LONGEST else "",
            },
            seconds,
        )


def _solved(case: BatchCase, documents: list[dict[str, Any]], runs: int) -> tuple[dict[str, Any], tuple[float, ...]]:
    """The answer to a batch, and the CPU seconds of each run after one to warm up."""
    solve_all: Callable[..., Any] = dra.solve_manifests if case.is_resource_claims else solve_manifests
    answer = solve_all(documents)
    seconds = []
    for _ in range(max(1, runs)):
        start = time.process_time()
        solve_all(documents)
        seconds.append(time.process_time() - start)
    return answer, tuple(seconds)


def solve(prepared: DeviceClaimProblem) -> tuple[list[Placement], list[GoalLevel]]:
    return allocate_batch(prepared.snapshot, prepared.allocations, prepared.units, policy=PACK, ends=None)


def _counts(counts: Mapping[int, int]) -> str:
    return " / ".join(str(counts[priority]) for priority in sorted(counts, reverse=True))
