"""Evaluate an expression on many devices, as far as that is free: the budgets are asked for the others only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from devalloc_solver.cel import budget
from devalloc_solver.cel.budget import Budget, BudgetExceeded, check_deadline
from devalloc_solver.cel.errors import EvaluationError

SUBJECTS_PER_CLOCK_CHECK = 128
"""Evaluations after which the clock is looked at: less than a millisecond."""

MAX_DEAR = 8
"""Evaluations one after the other that may turn out not to be free; then those that follow are taken for such, too."""

S = TypeVar("S")
T = TypeVar("T")


def evaluate_free(
    evaluator: Callable[[Budget], Callable[[S], T]], subjects: Iterable[S], base: int, ends: float | None
) -> Iterator[T | str | None]:
    """The outcomes for many subjects, as far as the evaluations are within FREE_STEPS. Each that is not gives None, and
    is to be evaluated alone. The text of an error stands for its outcome.

    Args:
        evaluator: makes what evaluates one subject after the other with one budget.
        base: steps of each evaluation besides those that it counts.
        ends: monotonic time after which nothing is evaluated any more.

    Raises OutOfTime.
    """
    own = Budget(budget.FREE_STEPS - base)
    evaluate, dear = evaluator(own), 0
    for number, subject in enumerate(subjects, 1):
        if ends is not None and number % SUBJECTS_PER_CLOCK_CHECK == 0:  # not before the first: each call comes further
            check_deadline(ends)
        outcome: T | str | None = None
        if own.limit >= 0 and dear < MAX_DEAR:
            own.renew()
            try:
                outcome, dear = evaluate(subject), 0
            except EvaluationError as error:
                outcome, dear = str(error), 0
            except BudgetExceeded:
                dear += 1
        yield outcome
