"""The claim solver: objects in, allocations and reasons out. No I/O, and no clock but its deadline.

Names are loaded when they are first asked for: a program pays for what it uses. No module may bear the name of a
function here, or whoever imports the module would take its place.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from devalloc_solver.copies import Capacity, capacity
    from devalloc_solver.errors import AnswerRefused
    from devalloc_solver.fleet import Fleet
    from devalloc_solver.reasons import Reason
    from devalloc_solver.solution import ClaimAnswer, Solution
    from devalloc_solver.stages import solve, solve_manifests

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

_HOMES = {
    "AnswerRefused": "errors",
    "Capacity": "copies",
    "ClaimAnswer": "solution",
    "Fleet": "fleet",
    "Reason": "reasons",
    "Solution": "solution",
    "capacity": "copies",
    "solve": "stages",
    "solve_manifests": "stages",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found
