"""``devalloc controller``: allocate the claims of a cluster."""

from __future__ import annotations

import os
import sys
from functools import partial

from devalloc.cli.command import BadInput, CommandFailed
from devalloc.cli.options.common import tracing
from devalloc.cli.render.output import open_display
from devalloc.cli.target import connect_cluster
from devalloc.controller.leader.lease import LeaseLost
from devalloc.program import Control, run
from devalloc.programs import controller as program
from devalloc.programs.controller_settings import ControllerSettings


def controller(options: ControllerSettings) -> int:
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
