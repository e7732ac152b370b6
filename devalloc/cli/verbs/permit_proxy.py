"""``devalloc permit-proxy``: be the pod that Neon's agents ask for permits."""

from __future__ import annotations

from functools import partial

from devalloc.cli.command import BadInput
from devalloc.cli.render.output import open_display
from devalloc.cli.target import connect_cluster
from devalloc.program import Control, run
from devalloc.programs import permit_proxy as program
from devalloc.programs.controller_settings import PermitProxyOptions


def permit_proxy(options: PermitProxyOptions) -> int:
    if options.kubeconfig is None and not options.in_cluster:
        raise BadInput("name the cluster with --kubeconfig or --in-cluster")
    control = Control()
    with open_display() as display, control.signals():
        run(program.permit_proxy(options, partial(connect_cluster, options.kubeconfig), display), control)
    return 0
