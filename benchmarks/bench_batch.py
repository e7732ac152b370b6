"""How a large batch is allocated jointly: what is proven, how long it takes, and what a plain first fit finds."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial

from benchmarks.first_fit import first_fit
from benchmarks.fleets import scenario
from benchmarks.harness import Row, benchmark, timed
from devalloc_solver.columns import allocate_batch
from devalloc_solver.dialects.devmgmt.manifests import read_documents
from devalloc_solver.exact.goals import GoalLevel
from devalloc_solver.pipeline.devmgmt import PreparedProblem, prepare
from devalloc_solver.problem.placement import Placement
from tests.support.column_batches import Batch

SIZES = ((1000, 1000, 0.6), (1000, 2000, 0.7), (5000, 1000, 0.6))
"""(nodes, claims that wait, mean part of a node that is held already)"""


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
        intake = read_documents(documents)
        decoded = time.perf_counter()
        prepared = prepare(intake)
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


def solve(prepared: PreparedProblem) -> tuple[list[Placement], list[GoalLevel]]:
    return allocate_batch(prepared.snapshot, prepared.holdings, prepared.units, placement="pack", ends=None)


def _counts(counts: Mapping[int, int]) -> str:
    return " / ".join(str(counts[priority]) for priority in sorted(counts, reverse=True))
