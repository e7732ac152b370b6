"""Verbs that start a program, which runs until it is stopped."""

from __future__ import annotations

from devalloc.cli.command import SettingOption, runs, verb
from devalloc.cli.options.common import settings_options
from devalloc.programs.controller_settings import ControllerSettings, PermitProxyOptions
from devalloc.programs.node import NodeOptions
from devalloc.programs.up import UpOptions
from devalloc_machines.guest.settings import ABOUT, OPTIONS


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


@verb("controller")
@settings_options(ControllerSettings, "options")
@runs("devalloc.cli.verbs.controller")
def controller() -> None:
    """Allocate the DeviceClaims of a cluster and place its VirtualMachines, until Ctrl-C or SIGTERM.

    Several can run: one leads, the others stand by. A leader that loses its lease ends at once with exit code 1 and
    must be started again. Exit code 0 after a clean stop.
    """


@verb("permit-proxy")
@settings_options(PermitProxyOptions, "options")
@runs("devalloc.cli.verbs.permit_proxy")
def permit_proxy() -> None:
    """Forward requests of agents that speak plain HTTP to the permit server of the controller that leads, until Ctrl-C
    or SIGTERM.

    Neon's agents look for their server among the pods of kube-system; `devalloc install --neon-agents` runs this
    command there. The controller admits its token for machines that are named by their runner pods.
    """


@verb("guest-monitor", help=ABOUT)
@runs("devalloc.cli.verbs.guest_monitor")
def guest_monitor() -> None:
    pass


guest_monitor.params[:0] = [
    # As texts: the settings report all problems together.
    SettingOption([each.flag], metavar=each.metavar, default=each.default, help=each.help, usual=each.usual)
    for each in OPTIONS
]
