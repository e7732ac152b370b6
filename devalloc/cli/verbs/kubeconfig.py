"""``devalloc kubeconfig``: a kubeconfig of this pod's account, which stays valid."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

from devalloc.api.fields import is_subdomain_name
from devalloc.cli.command import BadInput, CommandFailed
from devalloc.cli.render.output import open_display
from devalloc_node.errors import NodeError
from devalloc_node.kube.credentials import ClusterCredentials


def kubeconfig(folder: Path, node_name: str, account_dir: Path) -> int:
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
    if not host or not port.isdecimal():
        raise BadInput("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be set; run this command in a pod")
    if not is_subdomain_name(node_name):
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
