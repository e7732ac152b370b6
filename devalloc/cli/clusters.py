"""The way to a cluster's API server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from devalloc.store.kubernetes import Client


def connect(kubeconfig: Path | None) -> Client:
    """The cluster of a kubeconfig, or that of the pod that this runs in. Raises Failed."""
    from devalloc.cli.verb import Failed
    from devalloc.store.kubernetes import ApiError, Client

    try:
        return Client.connect(kubeconfig)
    except ApiError as error:
        raise Failed(f"no way to the API server: {error}") from error
