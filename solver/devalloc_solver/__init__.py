"""The claim solver: objects in, allocations and reasons out. No I/O, and no clock but its deadline."""

from devalloc_solver.capacity import Capacity, capacity
from devalloc_solver.fleet import Fleet
from devalloc_solver.reasons import Reason
from devalloc_solver.solution import ClaimAnswer, Solution
from devalloc_solver.stages import AnswerRefused, solve, solve_manifests

__all__ = [
    "AnswerRefused",
    "Capacity",
    "ClaimAnswer",
    "Fleet",
    "Reason",
    "Solution",
    "capacity",
    "solve",
    "solve_manifests",
]
