"""What one solve of a fleet can reuse from the last one, as long as pools and classes stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from devalloc.api.problems import Problem
from devalloc_solver.dialects.device_claims.candidates import CandidateFinder
from devalloc_solver.dialects.device_claims.manifests import ProblemInput
from devalloc_solver.problem.snapshot import Snapshot, take_snapshot

MAX_CACHED = 128
"""Different requests whose candidates are kept; with more, the next solve starts afresh."""
MAX_VERDICTS = 200_000
"""The same for expressions and their verdicts: a refused claim leaves the error of its expression, and no candidates.
"""


@dataclass(slots=True)
class SolveCache:
    """The last snapshot and its judge. Pools and classes are compared by identity: objects never change."""

    _pools: Sequence[object] = field(default=(), init=False)
    _classes: Sequence[object] = field(default=(), init=False)
    _snapshot: tuple[Snapshot, list[Problem]] | None = field(default=None, init=False)
    _judge: CandidateFinder | None = field(default=None, init=False)

    def take(self, problem_input: ProblemInput) -> tuple[Snapshot, list[Problem], CandidateFinder]:
        """The snapshot of a problem input, its problems, and the judge of its devices."""
        if self._snapshot is None or not _is_unchanged(self._pools, problem_input.pools):
            self._pools, self._snapshot, self._judge = problem_input.pools, take_snapshot(problem_input.pools), None
        snapshot, problems = self._snapshot
        classes = (*problem_input.classes.values(),)
        judge = self._judge
        if (
            judge is None
            or not _is_unchanged(self._classes, classes)
            or judge.invalid_classes != problem_input.invalid_classes
            or judge.cached_requests > MAX_CACHED
            or judge.remembered > MAX_VERDICTS
        ):
            judge = self._judge = CandidateFinder(snapshot, problem_input.classes, problem_input.invalid_classes)
            self._classes = classes
        return snapshot, problems, judge


def _is_unchanged(old: Sequence[object], new: Sequence[object]) -> bool:
    return len(old) == len(new) and all(a is b for a, b in zip(old, new, strict=True))
