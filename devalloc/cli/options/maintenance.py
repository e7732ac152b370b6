"""Verbs for those who run devalloc."""

from __future__ import annotations

from pathlib import Path

import click

from devalloc.cli.command import parse_duration, runs, verb
from devalloc.cli.options.common import (
    SolveOptions,
    files_option,
    namespace_option,
    node_state_option,
    settings_options,
    store_option,
)
from devalloc.cli.options.places import complete_claims, target_options, with_store_option

_force_option = click.option(
    "--force",
    is_flag=True,
    help="Also release claims in use: the node takes the devices away. MACHINES THAT DO NOT GIVE THEM UP ARE KILLED.",
)


timeout_option = click.option(
    "--timeout", type=parse_duration, default="60s", metavar="DURATION", help="How long to wait for the node."
)


@verb("release")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_claims)
@_force_option
@click.option(
    "--abandon",
    is_flag=True,
    help="Do not ask the node, because it is gone permanently. A node that is still alive keeps the devices.",
)
@timeout_option
@namespace_option
@target_options
@runs("devalloc.cli.verbs.cordon")
def release() -> None:
    """Take back the devices of claims, but keep the claims: they are allocated again, with their current spec.

    A claim that is prepared on a node, for a machine or a pod, is released only with --force: the command then asks the
    node to release the devices, and waits. Exit code 1 if the node does not do it in time; it does so later.

    \b
    devalloc release train
    """


@verb("uncordon")
@click.argument("names", nargs=-1, required=True, metavar="DEVICE | POOL/DEVICE | pool/NAME | node/NAME...")
@target_options
@runs("devalloc.cli.verbs.cordon")
def uncordon() -> None:
    """Allow allocation again. Use the name that you cordoned; `devalloc cordon` lists what is cordoned.

    Machines that `devalloc drain` asked to leave a node, and that are still there, then stay.

    \b
    devalloc uncordon 0000-08-00-0
    """


@verb("cordon")
@click.argument("names", nargs=-1, metavar="[DEVICE | POOL/DEVICE | pool/NAME | node/NAME]...")
@click.option("--reason", default="", metavar="TEXT", help="Why it is cordoned; shown with the device.")
@target_options
@runs("devalloc.cli.verbs.cordon")
def cordon() -> None:
    """Exclude devices, pools or a whole node from allocation. Without a name: list what is cordoned.

    Claims keep their devices. What is already cordoned keeps its reason unless you give another one. Cordoning a card
    includes its functions and vGPUs; cordoning a node includes cards that are added later. Both stay cordoned if they
    disappear and come back. `devalloc uncordon` reverses it.

    \b
    devalloc cordon 0000-08-00-0 --reason 'replacing the fan'
    devalloc cordon node/node-a
    """


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
@runs("devalloc.cli.verbs.drain")
def drain() -> None:
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
@runs("devalloc.cli.verbs.fence")
def fence() -> None:
    """State that a lost node is powered off. Its machines start on other nodes, and its claims get other devices.

    USE IT ONLY IF THE NODE IS POWERED OFF, or cut off from all storage and networks that other nodes use. If its
    machines still run, two guests write to the same disks. A node that only does not answer may still run them.

    On a cluster the Node must not be Ready, and gets the taint node.kubernetes.io/out-of-service, so that its pods and
    volumes are given up, too. Exit code 1 if the controller has not taken everything away in time; it does so later.

    \b
    devalloc fence node/node-a --dry-run
    devalloc fence node/node-a --reason 'mainboard is broken'
    """


@verb("unfence")
@click.argument("name", metavar="node/NAME")
@target_options
@runs("devalloc.cli.verbs.fence")
def unfence() -> None:
    """State that a fenced node is back: its devices can be allocated again, and machines that wait for it start.

    Start the node and its plugin first. The plugin ends what is left of machines that were taken away before it does
    anything else.

    \b
    devalloc unfence node/node-a
    """


@verb("backup")
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path), metavar="PATH")
@store_option
@node_state_option
@runs("devalloc.cli.verbs.backup")
def backup() -> None:
    """Copy the store to PATH (mode 0600), consistently, even while it is in use.

    If this host's node plugin has a journal that you can read, it is copied to PATH.node. `devalloc restore` puts them
    back.

    \b
    devalloc backup /backups/devalloc-monday.db
    """


@verb("restore")
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path), metavar="PATH")
@click.option(
    "--journal",
    type=click.Choice(["no", "also", "only"]),
    default="no",
    help="Whether to restore the node plugin's journal (PATH.node), too. Do so only if the present journal is lost: it "
    "records changes to this host, and a backup does not know claims that were prepared later.",
)
@store_option
@node_state_option
@runs("devalloc.cli.verbs.backup")
def restore() -> None:
    """Replace the store with a backup. `devalloc up` must not run; nor the node plugin, to restore its journal.

    The old files are kept beside it, under another name. After a restore the node plugin takes no devices away because
    of the store alone: it reports claims that were prepared before, and leaves them.

    \b
    devalloc restore /backups/devalloc-monday.db
    """


@verb("snapshot")
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path), metavar="PATH")
@files_option(required=False, help="Include these manifests, on top of the store or alone (see --no-store).")
@namespace_option
@settings_options(SolveOptions, "options")
@with_store_option
@target_options
@runs("devalloc.cli.verbs.snapshot")
def snapshot() -> None:
    """Write all objects, the options, the version and the answer to the file PATH, for `devalloc replay`.

    The file contains the objects unchanged, with names and annotations. Attach it when you report a wrong answer.

    \b
    devalloc snapshot answer.json
    """


@verb("replay")
@click.argument("path", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="PATH")
@runs("devalloc.cli.verbs.snapshot")
def replay() -> None:
    """Solve the snapshot PATH again, with its options and without a store, and compare byte for byte.

    Only the duration may differ, and if another version wrote the snapshot, the messages. Exit code 1 if anything else
    differs.

    \b
    devalloc replay answer.json
    """
