"""``devalloc permit-proxy``: be the pod that Neon's agents ask for permits."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from devalloc.cli.command import BadInput, CommandFailed, verb
from devalloc.cli.options.common import settings_options
from devalloc.cli.render.output import open_display
from devalloc.program import Control, Program, run
from devalloc.programs.scaling_options import parse_networks
from devalloc.programs.settings import host_and_port
from devalloc.settings import EXISTING_FILE, setting
from devalloc.worker import when_set

if TYPE_CHECKING:
    from devalloc.controller.permits.proxy import PermitProxy


@dataclass(frozen=True, slots=True, kw_only=True)
class PermitProxyOptions:
    """A proxy of the permit server."""

    kubeconfig: Path | None = setting(
        "Work for the cluster of this kubeconfig.", type=EXISTING_FILE, metavar="PATH", env="DEVALLOC_KUBECONFIG"
    )
    in_cluster: bool = setting("Work for this pod's cluster, with the pod's service account.", default=False)
    namespace: str = setting("Namespace of the controller.", default="devalloc-system", metavar="NAME")
    listen: str = setting(
        "Admit agents here, by plain HTTP. One address of this host.",
        metavar="ADDRESS:PORT",
        env="DEVALLOC_PROXY_LISTEN",
        default="",
        unset="port 10297 of POD_IP",
    )
    agents: tuple[str, ...] = setting(
        "Network of the agents, which may connect to --listen. Repeatable.",
        default=(),
        metavar="CIDR",
        env="DEVALLOC_NEON_AGENTS",
    )
    health_listen: str = setting(
        "Serve /healthz and /readyz here, by plain HTTP. Ready: the controller that leads answers. Empty: not at all.",
        default="",
        metavar="HOST:PORT",
    )


@verb("permit-proxy")
@settings_options(PermitProxyOptions, "options")
def permit_proxy(options: PermitProxyOptions) -> int:
    """Forward requests of agents that speak plain HTTP to the permit server of the controller that leads, until Ctrl-C
    or SIGTERM.

    Neon's agents look for their server among the pods of kube-system; `devalloc install --neon-agents` runs this
    command there. The controller admits its token for machines that are named by their runner pods.
    """
    from devalloc.cli.target import connect_cluster
    from devalloc.controller.permits.leader_server import in_url
    from devalloc.controller.permits.proxy import PermitProxy
    from devalloc.controller.permits.settings import PlainListener, UnsafeSettings
    from devalloc.programs.permit_endpoint import published_endpoint

    if options.kubeconfig is None and not options.in_cluster:
        raise BadInput("name the cluster with --kubeconfig or --in-cluster")
    if not options.agents:
        raise BadInput("name the networks of the agents with --agents: anyone who can connect gets permits")
    address = os.environ.get("POD_IP", "")
    listen = options.listen or (f"{address}:10297" if address else "")
    at = host_and_port(listen, "--listen", "10.0.0.7:10297")
    if at is None:
        raise BadInput("name the address for agents with --listen; in a pod, POD_IP has it")
    try:
        plain = PlainListener(*at, parse_networks("--agents", options.agents))
    except UnsafeSettings as error:
        raise BadInput(f"--listen {listen}, --agents: {error}") from None
    client = connect_cluster(options.kubeconfig)
    with open_display() as display:
        proxy = PermitProxy(
            published_endpoint(client, options.namespace),
            plain,
            host_and_port(options.health_listen, "--health-listen", "0.0.0.0:10302"),
            on_ready=lambda address: display.say(f"permits for agents at http://{in_url(address[0])}:{address[1]}/"),
        )
        try:
            control = Control()
            with control.signals():
                run(Program(loops=[partial(_forward, proxy)], rescan=proxy.rescan), control)
        except OSError as error:
            raise CommandFailed(f"cannot listen at {listen}: {os.strerror(error.errno or 0)}") from error
    return 0


def _forward(proxy: PermitProxy, stop: threading.Event) -> None:
    when_set(stop, proxy.stop)
    proxy.run()
