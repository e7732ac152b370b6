"""Verbs that start a program of a cluster, which runs until it is stopped."""

from __future__ import annotations

from devalloc.cli.command import runs, verb
from devalloc.cli.options.common import settings_options
from devalloc.programs.controller_settings import ControllerSettings, PermitProxyOptions


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
