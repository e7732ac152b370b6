"""Allocate devices to claims: manifests in, allocations and reasons out.

    solve_manifests(documents)  answers all pending claims of a list of manifests, once
    solve(pools, ...)           does the same for typed objects
    Fleet                       stays in memory, and answers claim after claim
    capacity(documents, claim)  counts how many more copies of a claim fit
    devalloc_solver.dra         allocates ResourceClaims of resource.k8s.io
    devalloc_solver.testing     has builders of manifests for tests

Nothing here reads files or opens sockets, and the clock is only for the deadline that you pass.

A name is loaded when it is first used. No module may have the name of a function here: importing the module would
replace the function.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from devalloc.api.reasons import Reason
    from devalloc.version import VERSION as __version__  # noqa: N811
    from devalloc_solver.errors import AnswerRefused
    from devalloc_solver.fleet.waiting import WaitingBook
    from devalloc_solver.problem.answer import ClaimAnswer, Solution
    from devalloc_solver.public.fleet import Fleet
    from devalloc_solver.public.manifests import solve, solve_manifests
    from devalloc_solver.public.remaining_capacity import Capacity, capacity

__all__ = [
    "AnswerRefused",
    "Capacity",
    "ClaimAnswer",
    "Fleet",
    "Reason",
    "Solution",
    "WaitingBook",
    "__version__",
    "capacity",
    "solve",
    "solve_manifests",
]

_HOMES = {
    "AnswerRefused": ".errors",
    "Capacity": ".public.remaining_capacity",
    "ClaimAnswer": ".problem.answer",
    "Fleet": ".public.fleet",
    "Reason": "devalloc.api.reasons",
    "Solution": ".problem.answer",
    "WaitingBook": ".fleet.waiting",
    "__version__": "devalloc.version",
    "capacity": ".public.remaining_capacity",
    "solve": ".public.manifests",
    "solve_manifests": ".public.manifests",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(_HOMES[name], __name__)
    public = globals()[name] = getattr(home, "VERSION" if name == "__version__" else name)
    return public


def __dir__() -> list[str]:
    """Also the names that are not loaded yet, for ``help()`` and completion."""
    return sorted({*globals(), *__all__})
