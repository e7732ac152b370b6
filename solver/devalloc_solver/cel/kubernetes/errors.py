"""What can go wrong with a selector: it does not compile, or a device cannot be judged by it."""

from __future__ import annotations

from devalloc_solver.cel.devmgmt.errors import CompileError

__all__ = ["CompileError", "EvaluationError", "ExhaustedError"]


class EvaluationError(Exception):
    """The expression has no answer for this device: a missing key, types that do not go together, an overflow."""


class ExhaustedError(EvaluationError):
    """The evaluation costs more than it may. Most likely it does for every other device too."""
