"""Errors that end a call: each names the claim, the request, the field, and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from devalloc_solver import errors
from devalloc_solver.cel.budget import Bound


class AllocationError(Exception):
    """The claims cannot be judged on this node: something in the input is wrong.

    ``node_local`` tells that only this node's pools are at fault: other nodes may still do. Every other error would
    come back on every node.
    """

    def __init__(self, message: str, *, node_local: bool = False, exceeded: Bound | None = None) -> None:
        """``exceeded``: by expressions of the claims."""
        super().__init__(message)
        self.message = message
        self.node_local = node_local
        self.exceeded = exceeded


class ResourceAnswerRefused(errors.AnswerRefused):
    """The same for an answer of this dialect, told by its violations."""

    def __init__(self, violations: Sequence[str]) -> None:
        super().__init__("the check refuses this answer (please report it): " + "; ".join(violations[:10]))
