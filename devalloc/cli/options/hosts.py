"""Verbs of this host: the node plugin, which runs until it is stopped, and what it finds here."""

from __future__ import annotations

from pathlib import Path

import click

from devalloc.cli.command import runs, verb
from devalloc.cli.options.common import option_of, output_option, settings_options
from devalloc.programs.inventory_options import InventoryOptions
from devalloc.programs.options import NodeOptions, UpOptions
from devalloc_machines.qemu.settings import MachineConfig


@verb("up")
@settings_options(UpOptions, "options")
@runs("devalloc.cli.verbs.up")
def up() -> None:
    """Publish this host's devices, allocate claims, and run the node plugin, until Ctrl-C or SIGTERM.

    Only one `devalloc up` can run on a store. You can kill it at any moment and start it again; machines keep running.
    SIGHUP makes it check the devices at once. Exit code 0 after a clean stop.
    """


@verb("node")
@settings_options(NodeOptions, "options")
@runs("devalloc.cli.verbs.node")
def node() -> None:
    """Bind the devices of this host's claims and pass them to machines and pods, until Ctrl-C or SIGTERM.

    Without a cluster it publishes DevicePools to the store and serves the store's DeviceClaims. With --kubeconfig or
    --in-cluster it serves the ResourceClaims of pods, or with --publish pools the DeviceClaims and VirtualMachines of
    the cluster. Prepared claims and machines stay as they are when it ends; you can kill it at any moment and start it
    again. SIGHUP makes it check devices and claims at once. Exit code 0 after a clean stop.
    """


@verb("check-host")
@option_of(MachineConfig, "qemu")
@click.option(
    "--sysfs-root", default="/", type=click.Path(path_type=Path), metavar="DIR", help="Where /sys and /dev are."
)
@output_option("table", "json", "yaml")
@runs("devalloc.cli.verbs.check_host")
def check_host() -> None:
    """Show what this host has for machines and devices: QEMU, KVM, IOMMU, VFIO, UEFI firmware, TPM, nft, huge pages.

    Each line says what the part is needed for. The command changes nothing. Exit code 1 if no machine can start.

    \b
    devalloc check-host
    sudo devalloc check-host -o json
    """


@verb("discover")
@settings_options(InventoryOptions, "inventory")
@output_option()
@runs("devalloc.cli.verbs.discover")
def discover() -> None:
    """List this host's devices as DevicePools, with their functions and profiles.

    \b
    devalloc discover
    devalloc discover -o json | jq '.items[].metadata.name'
    """
