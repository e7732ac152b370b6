"""Connecting to a cluster's API server."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devalloc.cli.command import CommandFailed

if TYPE_CHECKING:
    from devalloc.store.kubernetes import Client

_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def connect_cluster(kubeconfig: Path | None) -> Client:
    """Connect to the cluster of a kubeconfig, or of the pod in which this runs. Raises Failed."""
    from devalloc.store.kubernetes import ApiError, Client

    try:
        return Client.connect(kubeconfig)
    except ApiError as error:
        raise CommandFailed(f"cannot connect to the API server: {error}") from error


def current_namespace(kubeconfig: Path | None) -> str | None:
    """The namespace of the kubeconfig's current context, or of the pod in which this runs; None if there is none."""
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
        return None  # the error is reported when it is used
    return namespace if isinstance(namespace, str) and namespace else None


def kubeconfig_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--kubeconfig PATH of an administrator, passed as ``kubeconfig: Path | None``."""
    return click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path),  # several paths can be separated by colons, as in KUBECONFIG
        metavar="PATH",
        envvar=["DEVALLOC_KUBECONFIG", "KUBECONFIG"],
        help="Use its current context's cluster [env: DEVALLOC_KUBECONFIG, KUBECONFIG; default: ~/.kube/config].",
    )(function)


def connect_as_admin(kubeconfig: Path | None) -> Client:
    """Connect to the cluster of a kubeconfig, by default kubectl's. Raises Failed."""

    path = kubeconfig or Path(os.environ.get("HOME") or "/") / ".kube" / "config"
    several = [Path(each) for each in str(path).split(os.pathsep)]
    if not any(each.is_file() for each in several):
        if folder := next((each for each in several if each.is_dir()), None):
            raise CommandFailed(f"{folder} is a directory; name a kubeconfig in it with --kubeconfig")
        raise CommandFailed(f"{path} does not exist; name a kubeconfig with --kubeconfig")
    return connect_cluster(path)


def install_namespace_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """-n NAMESPACE, passed as ``namespace: str``."""
    return click.option(
        "-n",
        "--namespace",
        default="devalloc-system",
        metavar="NAME",
        help="Namespace of the pods of the controller and the nodes.",
    )(function)
