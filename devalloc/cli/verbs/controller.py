"""``devalloc controller``: allocate the claims of a cluster."""

from __future__ import annotations

import os
import sys
from functools import partial

from devalloc.cli.command import BadInput, CommandFailed, verb
from devalloc.cli.options.common import settings_options, tracing
from devalloc.cli.render.output import open_display
from devalloc.program import Control, run
from devalloc.programs.controller_settings import ControllerSettings


@verb("controller")
@settings_options(ControllerSettings, "options")
def controller(options: ControllerSettings) -> int:
    """Allocate the DeviceClaims of a cluster and place its VirtualMachines, until Ctrl-C or SIGTERM.

    Several can run: one leads, the others stand by. A leader that loses its lease ends at once with exit code 1 and
    must be started again. Exit code 0 after a clean stop.
    """
    from devalloc.cli.target import connect_cluster
    from devalloc.controller.leader.lease import LeaseLost
    from devalloc.programs import controller as program

    if options.kubeconfig is None and not options.in_cluster:
        raise BadInput("name the cluster with --kubeconfig or --in-cluster; for this machine alone: devalloc up")
    control = Control()
    traced = tracing(options.otlp_endpoint, "devalloc-controller", options.instance)
    with open_display() as display, traced, control.signals():
        try:
            run(program.controller(options, partial(connect_cluster, options.kubeconfig), display), control)
        except LeaseLost as lost:
            CommandFailed(f"{lost}; start it again, because what it has in memory may be stale").show()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)  # at once: threads may be in the middle of a solve, or wait for an answer
        display.say("stopped")
    return 0
