"""Options of verbs that speak to a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from devalloc.store.kubernetes.client import Client

IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


def kubeconfig_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--kubeconfig PATH: passed as ``kubeconfig: Path | None``."""
    return click.option(
        "--kubeconfig",
        type=click.Path(dir_okay=False, exists=True, path_type=Path),
        metavar="PATH",
        envvar=["DEVALLOC_KUBECONFIG", "KUBECONFIG"],
        help="The cluster, by its current context [env: DEVALLOC_KUBECONFIG, KUBECONFIG; default: ~/.kube/config, else "
        "the cluster of the pod that this runs in].",
    )(function)


def client_of(kubeconfig: Path | None) -> Client:
    """Raises Failed."""
    from devalloc.cli.verb import Failed
    from devalloc.store.kubernetes.client import ApiError, Client

    usual = Path(os.environ.get("HOME") or "/") / ".kube" / "config"
    try:
        return Client.connect(kubeconfig or (usual if usual.exists() and not IN_CLUSTER.exists() else None))
    except ApiError as error:
        raise Failed(f"no way to the API server: {error}; name a kubeconfig with --kubeconfig") from error


def install_namespace_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """-n NAMESPACE: passed as ``namespace: str``."""
    return click.option(
        "-n", "--namespace", default="devalloc-system", metavar="NAME", help="Where controller and nodes' pods run."
    )(function)
