"""``devalloc permit-proxy``: the pod that Neon's agents ask for permits."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from devalloc.machines.permits.leader_server import in_url
from devalloc.machines.permits.settings import UnsafeSettings
from devalloc.program import Program, ProgramFailed, ProgressDisplay
from devalloc.programs.controller_settings import PermitProxyOptions
from devalloc.programs.permit_endpoint import published_endpoint
from devalloc.settings import BadSetting
from devalloc.store.kubernetes import Client
from devalloc.worker import when_set
from devalloc_neon.permit_proxy import PermitProxy
from devalloc_neon.plain_port import PlainListener


def permit_proxy(options: PermitProxyOptions, connect: Callable[[], Client], display: ProgressDisplay) -> Program:
    """Forward requests of agents that speak plain HTTP to the permit server of the controller that leads. Raises
    BadSetting. The program ends with ProgramFailed if it cannot listen."""
    if not options.agents:
        raise BadSetting("--agents", "must name the networks of the agents: anyone who can connect gets permits")
    address = os.environ.get("POD_IP", "")
    at = options.listen or ((address, 10297) if address else None)
    if at is None:
        raise BadSetting("--listen", "must name the address for agents; in a pod, POD_IP has it")
    try:
        plain = PlainListener(*at, options.agents)
    except UnsafeSettings as error:
        raise BadSetting("--listen", f"{at[0]}:{at[1]}, --agents: {error}") from None
    proxy = PermitProxy(
        published_endpoint(connect(), options.namespace),
        plain,
        options.health_listen,
        on_ready=lambda address: display.say(f"permits for agents at http://{in_url(address[0])}:{address[1]}/"),
    )

    def forward(stop: threading.Event) -> None:
        when_set(stop, proxy.stop)
        try:
            proxy.run()
        except OSError as error:
            raise ProgramFailed(f"cannot listen at {at[0]}:{at[1]}: {os.strerror(error.errno or 0)}") from error

    return Program(loops=[forward], rescan=proxy.rescan)
