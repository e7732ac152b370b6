"""The search for one goal after the other in one model, from an incumbent that every step may improve."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from devalloc_solver.deadline import seconds_left
from devalloc_solver.exact.builder import sum_terms
from devalloc_solver.exact.variables import BatchModel, ClaimGroupVars, LinearTerms, RequestVars
from devalloc_solver.problem.demand import Request

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

Limits = Sequence[tuple[float, float]]
"""(variables, CP-SAT's deterministic time, roughly seconds, of one goal in models of at most so many)"""

# Measured on the batches of 10 to 100 claims of the benchmark `batches`.
STEP_LIMIT = 20.0
"""The deterministic time of one goal where nothing else is said: a backstop. The longest of 352 searches took 0.12."""
SMALL_MODEL = 1_000
"""Variables up to which choices get STEP_LIMIT."""
CHOICE_LIMITS: Limits = ((SMALL_MODEL, STEP_LIMIT), (inf, 1.0))
"""For choices among solutions that satisfy equally many (S17): of larger models the longest of 22 took 0.16."""
POOLS_LIMITS: Limits = ((400, STEP_LIMIT), (2 * SMALL_MODEL, 0.5), (inf, 0.2))
"""For pools and devices: ten times as long found no pool less in any batch of 30 or 100 claims."""
PLACED_POOLS_LIMITS: Limits = ((500, 0.25), (1_500, 0.1), (inf, 0.05))
"""The same for what was placed one by one (``warm_start``), which takes few pools already: ten times as long found one
pool less, in one of 40 batches."""
POLICY_LIMITS: Limits = ((400, 0.3), (inf, 0.05))
"""For the placement policy and the order of names, which are preferences: of 73 searches of small models one was cut
short, of 27 of larger ones 16; ten times as long costs a quarter of the time of all."""


@dataclass(slots=True)
class GoalSearch:
    """Solves one model goal by goal."""

    model: BatchModel
    ends: float | None = None
    """monotonic time of the deadline"""
    values: list[int] = field(default_factory=list)
    """the incumbent: a value per variable"""
    is_warm: bool = False
    """whether the incumbent was no empty one at first"""
    is_placed: bool = False
    """whether it still is what was placed one by one, each as the placement policy prefers"""
    is_cut_by_time: bool = False
    """whether the last step ended by the deadline, and not by its own limit"""

    def __post_init__(self) -> None:
        self.values = [0] * len(self.model.cp.proto.variables)

    # -- values of the incumbent ---------------------------------------------------------------------------------------

    def value(self, variable: cp_model.IntVar) -> int:
        """What a variable is in the incumbent."""
        return self.values[variable.index]

    def total(self, terms: LinearTerms) -> int:
        """What a sum is in the incumbent."""
        return sum(weight * self.value(variable) for weight, variable in terms)

    @property
    def choice_limit(self) -> float:
        """Deterministic time of a choice among solutions that satisfy equally many."""
        return self._limit(CHOICE_LIMITS)

    @property
    def pools_limit(self) -> float:
        """The same for goals 3 and 4."""
        return self._limit(PLACED_POOLS_LIMITS if self.is_placed else POOLS_LIMITS)

    @property
    def policy_limit(self) -> float:
        """The same for goals 5 and 6."""
        return self._limit(POLICY_LIMITS)

    def _limit(self, limits: Limits) -> float:
        size = len(self.model.cp.proto.variables)
        return next(limit for variables, limit in limits if size <= variables)

    # -- one step ------------------------------------------------------------------------------------------------------

    def chosen(self) -> list[RequestVars]:
        """The requests of units on their own that the incumbent fills."""
        satisfied = self.model.satisfied
        return [p for p in self.model.requests if self.value(p.chosen) and self.value(satisfied[p.unit])]

    def filled(self) -> Iterator[tuple[Request, int]]:
        """The requests that the incumbent fills, and how many equal ones of each."""
        yield from ((parts.request, 1) for parts in self.chosen())
        for claim_group in self.model.claim_groups:
            details = self.model.units[claim_group.units[0]].demands[0].details
            for pattern, members in self.patterns(claim_group).items():
                yield from ((details[d][a], members) for d, a in enumerate(pattern) if members)

    def patterns(self, claim_group: ClaimGroupVars) -> dict[tuple[int, ...], int]:
        """How many members of a claim group choose which alternatives, in the order of the alternatives."""
        counts: dict[tuple[int, ...], int] = defaultdict(int)
        for site in claim_group.sites:
            for pattern, variable in site.patterns.items():
                counts[pattern] += self.value(variable)
        return dict(sorted(counts.items()))

    def new_int(self, upper: int, value: int) -> cp_model.IntVar:
        """A variable that is made during the search, with its value in the incumbent."""
        variable = self.model.cp.new_int_var(0, upper, "")
        self.values.append(value)
        return variable

    def minimize(
        self, terms: LinearTerms, *, best: int | None = 0, limit: float = STEP_LIMIT, is_kept: bool = True
    ) -> tuple[int, int]:
        """Minimise, keep what was reached as a constraint, and return (value, bound).

        ``best`` is a bound known beforehand: an incumbent that reaches it needs no search. ``is_kept``: False for
        what is no goal of its own, and must not bind the goals to come.
        """
        if not terms:
            return 0, 0
        self.values += [0] * (len(self.model.cp.proto.variables) - len(self.values))
        best = _trivial_bound(terms) if best is None else best
        value, bound = self.total(terms), best
        if value > best:
            lower = self._solve(terms, limit)
            value = self.total(terms)
            bound = best if lower is None else max(best, min(lower, value))
        if is_kept:
            self.model.cp.add(sum_terms(terms) <= value)
        return value, bound

    def maximize(
        self, terms: LinearTerms, *, best: int, limit: float = STEP_LIMIT, is_kept: bool = True
    ) -> tuple[int, int]:
        """The same for the largest value."""
        value, bound = self.minimize([(-weight, v) for weight, v in terms], best=-best, limit=limit, is_kept=is_kept)
        return -value, -bound

    def _solve(self, terms: LinearTerms, limit: float) -> int | None:
        """Improve the incumbent; returns a lower bound of the objective, or None when none was found."""
        from ortools.sat.python import cp_model

        solver = self._solver(limit)
        self.is_cut_by_time = solver is None
        if solver is None:
            return None
        self.model.cp.minimize(sum_terms(terms))
        status = self._run(solver, enumerate(self.values))
        if status == cp_model.INFEASIBLE:
            # The incumbent satisfies the model, so this is an error of CP-SAT's presolve.
            solver.parameters.cp_model_presolve = False
            status = self._run(solver, enumerate(self.values))
        has_steps_left = solver.response_proto.deterministic_time < limit
        self.is_cut_by_time = has_steps_left and status in (cp_model.FEASIBLE, cp_model.UNKNOWN)
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            solved = list(solver.response_proto.solution)
            if self.improves(solved, terms):
                self.values, self.is_placed = solved, False
            # The response's objective is a float; the bound of an optimal answer is recomputed in integers.
            if status == cp_model.OPTIMAL:
                return self.total(terms)
            return round(solver.best_objective_bound)
        if status != cp_model.UNKNOWN:
            name, problem = solver.status_name(status), self.model.cp.validate()
            raise AssertionError(f"a model with a known solution is {name}: {problem}")
        return None

    def complete(self, hints: Mapping[int, int], *, limit: float) -> None:
        """Make a solution with these values of variables the incumbent, if there is one."""
        from ortools.sat.python import cp_model

        solver = self._solver(limit)
        if solver is None:
            return
        model = self.model
        solver.parameters.fix_variables_to_their_hinted_value = True
        model.cp.minimize(sum(model.pools_used.values()) + sum(model.devices_used.values()))
        if self._run(solver, hints.items()) in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            self.values = list(solver.response_proto.solution)
            self.is_warm = self.is_placed = True

    def is_late(self) -> bool:
        """Whether the deadline is over."""
        return self.ends is not None and time.monotonic() >= self.ends

    def _solver(self, limit: float) -> cp_model.CpSolver | None:
        """CP-SAT for one step, or None when the deadline is over."""
        from ortools.sat.python import cp_model

        if self.is_late():
            return None
        solver = cp_model.CpSolver()
        parameters = solver.parameters
        parameters.num_workers = 1
        parameters.random_seed = 1
        # Counting problems are refuted by their linear relaxation: with all of it, in milliseconds instead of minutes.
        parameters.linearization_level = 2
        # CP-SAT 9.15's probing ends the whole process on some small models ("Check failed: VarToConstraints"),
        # and calls others infeasible that are not: both seen in 15,000 random joint calls. It makes no search faster.
        parameters.cp_model_probing_level = 0
        # Its handler would stay as the default action after the search: Ctrl-C would kill the host program unasked.
        parameters.catch_sigint_signal = False
        parameters.max_deterministic_time = limit
        return solver

    def _run(self, solver: cp_model.CpSolver, hints: Iterable[tuple[int, int]]) -> cp_model.CpSolverStatus:
        cp = self.model.cp
        cp.clear_hints()  # type: ignore[no-untyped-call]  # OR-Tools left out its types
        for index, value in hints:
            cp.add_hint(cp.get_int_var_from_proto_index(index), value)
        if (left := seconds_left(self.ends)) is not None:
            solver.parameters.max_time_in_seconds = left
        return solver.solve(cp)

    def improves(self, solved: Sequence[int], terms: LinearTerms) -> bool:
        """Whether values of all variables are better than the incumbent's. In larger models one that is as good stays:
        it may be better in goals to come."""
        new = sum(weight * solved[v.index] for weight, v in terms)
        return new < self.total(terms) or (new == self.total(terms) and not self.is_warm)

    def fix(self, variable: cp_model.IntVar, value: int) -> None:
        """Keep the value from now on."""
        self.model.cp.add(variable == value)


def _trivial_bound(terms: LinearTerms) -> int:
    """Holds for 0/1 variables with negative weights and any variables with positive ones."""
    return sum(weight for weight, _ in terms if weight < 0)
