"""``devalloc drain``: cordon a node, and have its machines and claims leave it."""

from __future__ import annotations

import click

from devalloc.cli.command import verb
from devalloc.cli.target import StoreTarget, target_options
from devalloc.cli.verbs.cordon import timeout_option


@verb("drain")
@click.argument("name", metavar="node/NAME")
@click.option("--reason", default="", metavar="TEXT", help="Why it is cordoned; shown with the node.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, but do nothing.")
@click.option(
    "--force",
    is_flag=True,
    help="Also power down machines that run and cannot move while they do, and take the devices of claims in use "
    "away. MACHINES THAT DO NOT POWER DOWN IN TIME, OR DO NOT GIVE THE DEVICES UP, ARE KILLED.",
)
@timeout_option
@target_options
def drain(name: str, reason: str, dry_run: bool, force: bool, timeout: float, place: StoreTarget) -> int:
    """Cordon a node, move its machines and claims to other nodes, and wait until they have left.

    The command first prints what it will do with each machine. Machines that run move while they run, if no
    part of them exists only on this node. Machines that do not run move if another node reaches their disks. With
    --force, so do machines that cannot move while they run; their guests are powered down first. A machine that cannot
    start on another node stays; with --force it is stopped, and starts again after `devalloc uncordon`. The claims of a
    machine move with it. Other claims are released and allocated again; without --force, those in use stay. The
    command withdraws migrations of other machines to this node.

    If no plugin serves the node, nothing can leave it. With --force the command cordons it and writes the requests,
    which the plugin carries out when it is back; nothing starts elsewhere before that, because the node is not fenced.

    If you stop the command, or the time is up, it withdraws migrations that are not over; machines that it has asked
    to power down still do so. Repeat it to see what is left. `devalloc uncordon` reverses the cordon. Exit code 1 if
    something runs or is in use on the node.

    \b
    devalloc drain node/node-a --dry-run
    devalloc drain node/node-a --reason 'new firmware' --force --timeout 5m
    """
    from devalloc.cli.drain_run import drain_node

    return drain_node(name, reason, place, dry_run=dry_run, force=force, timeout=timeout)
