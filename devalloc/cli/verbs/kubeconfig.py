"""``devalloc kubeconfig``: a kubeconfig for a node plugin that runs as a service of the host."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import click

from devalloc.cli.command import BadInput, CommandFailed, verb
from devalloc.cli.render.progress import open_display
from devalloc_node.errors import NodeError


@verb("kubeconfig")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--node-name", required=True, metavar="NAME", help="The node on which this pod runs.")
@click.option(
    "--account-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("/var/run/secrets/kubernetes.io/serviceaccount"),
    metavar="DIR",
    help="Folder of the pod's service account token (token) and the cluster's certificate (ca.crt).",
)
def kubeconfig(folder: Path, node_name: str, account_dir: Path) -> int:
    """Write and renew a kubeconfig in FOLDER for a node plugin that runs outside pods, until Ctrl-C or SIGTERM.

    FOLDER gets the kubeconfig and this pod's token, which is written again whenever the kubelet replaces it. The
    address of the API server comes from KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT. At the end the token is
    removed. The DaemonSet devalloc-node-host runs this command.

    \b
    devalloc kubeconfig /var/lib/devalloc/cluster --node-name node-a
    """
    import signal

    from devalloc_node.kube.credentials import ClusterCredentials
    from devalloc_node.model.grant import is_subdomain

    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
    if not host or not port.isdecimal():
        raise BadInput("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be set; run this command in a pod")
    if not is_subdomain(node_name):
        raise BadInput(f"--node-name: {node_name!r} is not a valid name of a node")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    try:
        with open_display() as display:
            ClusterCredentials(folder.absolute(), account_dir, server, node_name).keep(stop, display.say)
    except NodeError as error:
        raise CommandFailed(error.message) from error
    return 0
