"""``devalloc permit-proxy``: be the pod that Neon's agents ask for permits."""

from __future__ import annotations

from functools import partial

from devalloc.cli.command import BadInput, verb
from devalloc.cli.options.common import settings_options
from devalloc.cli.render.output import open_display
from devalloc.program import Control, run
from devalloc.programs import permit_proxy as program
from devalloc.programs.permit_proxy import PermitProxyOptions


@verb("permit-proxy")
@settings_options(PermitProxyOptions, "options")
def permit_proxy(options: PermitProxyOptions) -> int:
    """Forward requests of agents that speak plain HTTP to the permit server of the controller that leads, until Ctrl-C
    or SIGTERM.

    Neon's agents look for their server among the pods of kube-system; `devalloc install --neon-agents` runs this
    command there. The controller admits its token for machines that are named by their runner pods.
    """
    from devalloc.cli.target import connect_cluster

    if options.kubeconfig is None and not options.in_cluster:
        raise BadInput("name the cluster with --kubeconfig or --in-cluster")
    control = Control()
    with open_display() as display, control.signals():
        run(program.permit_proxy(options, partial(connect_cluster, options.kubeconfig), display), control)
    return 0
