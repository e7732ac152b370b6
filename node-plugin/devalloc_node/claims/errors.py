"""Errors of a claim: other exceptions made ours, and several told as one."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from devalloc_node.errors import Failed, NodeError
from devalloc_node.model.grant import ClaimRef

LOG = logging.getLogger(__name__)


def as_node_error(ref: ClaimRef, error: Exception) -> NodeError:
    """The error itself, or an unexpected one wrapped as an error of the claim."""
    if isinstance(error, NodeError):
        return error
    LOG.error("preparing claim %s", ref, exc_info=error)
    return Failed("InternalError", f"preparing claim {ref} failed: {error!r}; see the log")


def joined_errors(errors: Iterable[NodeError]) -> str:
    """All of them, with their codes."""
    return "; ".join(f"{error.code}: {error.message}" for error in errors)
