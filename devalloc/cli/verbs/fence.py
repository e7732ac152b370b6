"""``devalloc fence`` and ``unfence``: state that a lost node is powered off, and that it is back."""

from __future__ import annotations

import click

from devalloc.cli.command import verb
from devalloc.cli.target import StoreTarget, target_options
from devalloc.cli.verbs.cordon import timeout_option


@verb("fence")
@click.argument("name", metavar="node/NAME")
@click.option(
    "--reason",
    default="",
    metavar="TEXT",
    help="Why; shown with the node. Without it, an earlier reason stays. Not stored if the node has a Node of "
    "Kubernetes: its taint has no reason.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done, but do nothing.")
@click.option("--yes", is_flag=True, help="Do not ask whether the node is powered off.")
@timeout_option
@target_options
def fence(name: str, reason: str, dry_run: bool, yes: bool, timeout: float, place: StoreTarget) -> int:
    """State that a lost node is powered off. Its machines start on other nodes, and its claims get other devices.

    USE IT ONLY IF THE NODE IS POWERED OFF, or cut off from all storage and networks that other nodes use. If its
    machines still run, two guests write to the same disks. A node that only does not answer may still run them.

    On a cluster the Node must not be Ready, and gets the taint node.kubernetes.io/out-of-service, so that its pods and
    volumes are given up, too. Exit code 1 if the controller has not taken everything away in time; it does so later.

    \b
    devalloc fence node/node-a --dry-run
    devalloc fence node/node-a --reason 'mainboard is broken'
    """
    from devalloc.cli.fence_run import fence_node

    return fence_node(name, reason, place, dry_run=dry_run, yes=yes, timeout=timeout)


@verb("unfence")
@click.argument("name", metavar="node/NAME")
@target_options
def unfence(name: str, place: StoreTarget) -> int:
    """State that a fenced node is back: its devices can be allocated again, and machines that wait for it start.

    Start the node and its plugin first. The plugin ends what is left of machines that were taken away before it does
    anything else.

    \b
    devalloc unfence node/node-a
    """
    from devalloc.cli.fence_run import unfence_node

    return unfence_node(name, place)
