"""``devalloc warm``: setups that are ready for machines."""

from __future__ import annotations

import click

from devalloc.cli.command import VerbGroup, WholeNumber, runs, verb
from devalloc.cli.options.common import namespace_option, output_option, store_option
from devalloc.cli.options.places import plugin_options

MAX_VCPUS = 1 << 16
"""The node plugin's maximum."""


@click.group("warm", cls=VerbGroup)
def warm() -> None:
    """Use warm setups: network namespaces with a TAP interface and a folder, created before a machine needs them.

    `devalloc node --warm NUMBER` keeps that many ready. Platforms take them with gRPC (devalloc.node.v1.WarmPool),
    people with these commands.
    """


@verb("list")
@output_option("table", "json", "yaml")
@plugin_options
@runs("devalloc.cli.verbs.warm")
def list_setups() -> None:
    """Show how many setups there are, and the owners of those that are taken.

    \b
    devalloc warm list
    """


@verb("take")
@click.argument("owner", metavar="OWNER")
@click.option(
    "--request", default="", metavar="NAME", help="Name of this request; repeating it returns the same setup."
)
@click.option(
    "--vcpus",
    type=WholeNumber(0, MAX_VCPUS),
    metavar="NUMBER",
    default=0,
    help="Number of host CPUs to choose, the least loaded ones.",
)
@click.option("--one-numa-node", is_flag=True, help="Choose all CPUs from one NUMA node.")
@output_option("table", "json", "yaml")
@plugin_options
@runs("devalloc.cli.verbs.warm")
def take() -> None:
    """Take a setup. It belongs to OWNER until it is returned.

    \b
    devalloc warm take web-7 --vcpus 2
    """


@verb("return")
@click.argument("setup", metavar="SETUP")
@plugin_options
@runs("devalloc.cli.verbs.warm")
def give_back() -> None:
    """Wait until no process runs in a setup any more, then return it; the plugin removes it.

    \b
    devalloc warm return warm-4f2b9c3d5e6a7b8c9d0e --timeout 5s
    """


@verb("replica")
@click.option("-f", "--file", required=True, metavar="FILE", help="A function's deployment, as YAML or JSON.")
@click.option(
    "--replicas", type=WholeNumber(0), metavar="NUMBER", help="Number of replicas, within the bounds of its labels."
)
@click.option(
    "--requests",
    type=WholeNumber(0),
    metavar="NUMBER",
    help="As many replicas as serve this number of concurrent requests.",
)
@click.option(
    "--clone",
    type=click.Choice(["overlay", "copy"]),
    default="overlay",
    show_default=True,
    help="Without an initrd: how each replica gets a disk of its own from the image.",
)
@click.option(
    "--disk",
    metavar="SIZE",
    help="Without an initrd: the most that a replica's disk can take. By default, what the image needs, if it can be "
    "read here.",
)
@click.option("--node", default="", metavar="NODE", help="The node that runs them.")
@click.option(
    "--guest-reports",
    is_flag=True,
    help="A replica is ready when its guest reports so on its second serial port, and not as soon as it runs.",
)
@click.option("--apply", "applies", is_flag=True, help="Create or update the set in the store, instead of printing it.")
@namespace_option
@output_option("json", "yaml", default="yaml")
@store_option
@runs("devalloc.cli.verbs.warm_replica")
def replica() -> None:
    """Print the VirtualMachineReplicaSet of a function, each replica in a warm setup, or create it with --apply.

    FILE contains `service`, `image`, `labels` and `envVars`, as in OpenFaaS. The number of replicas is the minimum of
    the labels, unless --replicas or --requests is higher.

    \b
    devalloc warm replica -f resize.yaml --requests 23 --apply
    devalloc warm replica -f resize.yaml --disk 2Gi | kubectl apply -f -
    """


for _verb in (list_setups, take, give_back, replica):
    warm.add_command(_verb)
