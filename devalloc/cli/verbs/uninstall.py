"""``devalloc uninstall``: remove devalloc from a Kubernetes cluster."""

from __future__ import annotations

import time
from pathlib import Path

import click

from devalloc.cli.cluster_access import connect_as_admin, install_namespace_option, kubeconfig_option
from devalloc.cli.command import CommandFailed, parse_duration, verb


@verb("uninstall")
@kubeconfig_option
@install_namespace_option
@click.option(
    "--crds", is_flag=True, help="Also delete the CRDs, and with them every claim, machine, pool, class and config."
)
@click.option(
    "--force",
    is_flag=True,
    help="Uninstall even if devices are in use: they stay as they are on their nodes, and machines keep running.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted, or what is in use.")
@click.option(
    "--timeout",
    type=parse_duration,
    default="5m",
    metavar="DURATION",
    help="How long to wait for nodes to release devices, and for pods to end.",
)
def uninstall(kubeconfig: Path | None, namespace: str, crds: bool, force: bool, dry_run: bool, timeout: float) -> int:
    """Remove devalloc from a Kubernetes cluster, if `devalloc install` or `kubectl apply` installed it.

    Remove a Helm release with `helm uninstall` instead.

    Refuses, and deletes nothing, while a node has devices prepared for a claim, a machine or a pod: without devalloc on
    the node, nothing would release them. Claims, machines, pools and classes stay, with their CRDs, for a later
    installation; --crds deletes them first, while nodes can still release them, and refuses while pods have devices.
    Journals and machine images stay on the nodes, in /var/lib/devalloc.
    """
    from devalloc.install.apply import NotInstalled
    from devalloc.install.remove import uninstall

    client = connect_as_admin(kubeconfig)
    try:
        uninstall(client, namespace, click.echo, time.monotonic() + timeout, crds=crds, force=force, dry_run=dry_run)
    except NotInstalled as error:
        raise CommandFailed(str(error)) from error
    return 0
