"""What stays the same from one solve of a fleet to the next, while its pools and classes do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from devalloc.api.problems import Problem
from devalloc_solver.eligibility import Eligibility
from devalloc_solver.intake import Intake
from devalloc_solver.snapshot import Snapshot, take_snapshot

MOST_KEPT = 128
"""Different requests whose candidates are kept; with more, the next solve starts afresh."""
MOST_REMEMBERED = 200_000
"""The same for expressions and their verdicts: a refused claim leaves the error of its expression, and no candidates.
"""


@dataclass(slots=True)
class Standing:
    """The last snapshot and its judge. Pools and classes are compared by identity: objects never change."""

    _pools: Sequence[object] = field(default=(), init=False)
    _classes: Sequence[object] = field(default=(), init=False)
    _found: tuple[Snapshot, list[Problem]] | None = field(default=None, init=False)
    _judge: Eligibility | None = field(default=None, init=False)

    def take(self, intake: Intake) -> tuple[Snapshot, list[Problem], Eligibility]:
        """The snapshot of an intake, its problems, and the judge of its devices."""
        if self._found is None or not _same(self._pools, intake.pools):
            self._pools, self._found, self._judge = intake.pools, take_snapshot(intake.pools), None
        snapshot, problems = self._found
        classes = (*intake.classes.values(),)
        judge = self._judge
        if (
            judge is None
            or not _same(self._classes, classes)
            or judge.invalid_classes != intake.invalid_classes
            or judge.known > MOST_KEPT
            or judge.remembered > MOST_REMEMBERED
        ):
            judge = self._judge = Eligibility(snapshot, intake.classes, intake.invalid_classes)
            self._classes = classes
        return snapshot, problems, judge


def _same(old: Sequence[object], new: Sequence[object]) -> bool:
    return len(old) == len(new) and all(a is b for a, b in zip(old, new, strict=True))
