"""The way to a cluster's API server."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from devalloc.store.kubernetes import Client

_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def connect(kubeconfig: Path | None) -> Client:
    """The cluster of a kubeconfig, or that of the pod that this runs in. Raises Failed."""
    from devalloc.cli.verb import Failed
    from devalloc.store.kubernetes import ApiError, Client

    try:
        return Client.connect(kubeconfig)
    except ApiError as error:
        raise Failed(f"no way to the API server: {error}") from error


def namespace_of(kubeconfig: Path | None) -> str | None:
    """The namespace of the kubeconfig's current context, or of the pod that this runs in; None where there is none."""
    if kubeconfig is None:
        try:
            return _POD_NAMESPACE.read_text().strip() or None
        except OSError:
            return None
    from kubernetes.config import ConfigException, list_kube_config_contexts

    try:
        _, context = list_kube_config_contexts(str(kubeconfig))  # type: ignore[no-untyped-call]
        namespace = context["context"].get("namespace")
    except (ConfigException, KeyError, TypeError, AttributeError, ValueError):
        return None  # what is wrong with it is said when it is used
    return namespace if isinstance(namespace, str) and namespace else None


def kubeconfig_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--kubeconfig PATH of an administrator: passed as ``kubeconfig: Path | None``."""
    return click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path),  # several with colons between them, as in KUBECONFIG
        metavar="PATH",
        envvar=["DEVALLOC_KUBECONFIG", "KUBECONFIG"],
        help="The cluster, by its current context [env: DEVALLOC_KUBECONFIG, KUBECONFIG; default: ~/.kube/config].",
    )(function)


def administered(kubeconfig: Path | None) -> Client:
    """The cluster of a kubeconfig, by default that of kubectl. Raises Failed."""
    from devalloc.cli.verb import Failed

    path = kubeconfig or Path(os.environ.get("HOME") or "/") / ".kube" / "config"
    several = [Path(each) for each in str(path).split(os.pathsep)]
    if not any(each.is_file() for each in several):
        if folder := next((each for each in several if each.is_dir()), None):
            raise Failed(f"{folder} is a directory; name a kubeconfig in it with --kubeconfig")
        raise Failed(f"there is no {path}; name a kubeconfig with --kubeconfig")
    return connect(path)


def install_namespace_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """-n NAMESPACE: passed as ``namespace: str``."""
    return click.option(
        "-n", "--namespace", default="devalloc-system", metavar="NAME", help="Where controller and nodes' pods run."
    )(function)
