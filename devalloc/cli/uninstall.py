"""``devalloc uninstall``: off a Kubernetes cluster."""

from __future__ import annotations

import time
from pathlib import Path

import click

from devalloc.cli.clusters import administered, install_namespace_option, kubeconfig_option
from devalloc.cli.options import duration
from devalloc.cli.verb import Failed, verb


@verb("uninstall")
@kubeconfig_option
@install_namespace_option
@click.option(
    "--crds", is_flag=True, help="Delete the CRDs too, and with them every claim, machine, pool, class and config."
)
@click.option(
    "--force",
    is_flag=True,
    help="Also while devices are in use: they stay as they are on their nodes, and machines go on running.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted, or what is in use.")
@click.option(
    "--timeout",
    type=duration,
    default="5m",
    metavar="DURATION",
    help="How long is waited for nodes to put devices back, and for pods to end.",
)
def uninstall(kubeconfig: Path | None, namespace: str, crds: bool, force: bool, dry_run: bool, timeout: float) -> int:
    """Take devalloc off a Kubernetes cluster, however it was installed.

    Refuses while a node has devices prepared for a claim, a machine or a pod, and deletes nothing then: without
    devalloc on their nodes nobody would put them back. Claims, machines, pools and classes stay, with their CRDs, for
    a later installation; --crds deletes them first, while nodes are there to release them, and refuses while pods
    have devices. Journals and machine images stay on the nodes, in /var/lib/devalloc.
    """
    from devalloc.install.apply import NotInstalled
    from devalloc.install.remove import uninstall

    client = administered(kubeconfig)
    try:
        uninstall(client, namespace, click.echo, time.monotonic() + timeout, crds=crds, force=force, dry_run=dry_run)
    except NotInstalled as error:
        raise Failed(str(error)) from error
    return 0
