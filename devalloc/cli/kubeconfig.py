"""``devalloc kubeconfig``: what a node plugin that is a service of the host reaches its cluster by."""

from __future__ import annotations

import os
from pathlib import Path

import click

from devalloc.cli.verb import BadInput, Failed, verb


@verb("kubeconfig")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--node-name", required=True, metavar="NAME", help="The node that this pod is on.")
@click.option(
    "--account-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("/var/run/secrets/kubernetes.io/serviceaccount"),
    metavar="DIR",
    help="Where the pod has the token of its service account (token), and the cluster's certificate (ca.crt).",
)
def kubeconfig(folder: Path, node_name: str, account_dir: Path) -> int:
    """Keep in FOLDER what a plugin outside pods needs to work for the cluster that this pod is in, until Ctrl-C
    (SIGTERM does the same): a kubeconfig, and the pod's token, written anew whenever the kubelet replaces it.

    The DaemonSet devalloc-node-host runs it. The address of the API server is what pods are told:
    KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT. At the end the token is taken away again.

    \b
    devalloc kubeconfig /var/lib/devalloc/cluster --node-name node-a
    """
    import signal
    import threading

    from devalloc.cli.display import displayed
    from devalloc_node.errors import NodeError
    from devalloc_node.kube.access import Access
    from devalloc_node.names import is_subdomain

    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
    if not host or not port.isdecimal():
        raise BadInput("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT say where the API server is: not in a pod?")
    if not is_subdomain(node_name):
        raise BadInput(f"--node-name: a node of a cluster cannot be called {node_name!r}")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    try:
        with displayed() as display:
            Access(folder.absolute(), account_dir, server, node_name).keep(stop, display.say)
    except NodeError as error:
        raise Failed(error.message) from error
    return 0
