"""Create the channels of a scaler from what is known of its machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import ClientSession

from devalloc.scaling.agentconfig import AgentConfig
from devalloc.scaling.messages.plugin import PodName
from devalloc_node.agent.actuator import MachineActuator
from devalloc_node.agent.channels import Channels
from devalloc_node.agent.executors import MachineExecutors
from devalloc_node.agent.guest_monitor_client import MonitorConnection, MonitorTimeouts
from devalloc_node.agent.informant.connection import InformantConnection
from devalloc_node.agent.metrics_client import HttpMetrics
from devalloc_node.agent.permit_client import HttpPermits
from devalloc_node.agent.permit_endpoint import PermitEndpoint, StaticEndpoint
from devalloc_node.agent.scaled_machine import ScaledMachine
from devalloc_node.agent.scaler import Scaler
from devalloc_node.agent.settings import ScalingSettings
from devalloc_node.operations.node_operations import NodeOperations


@dataclass(frozen=True, slots=True)
class ChannelFactory:
    """The same for all machines. Guests that keep connections open must not keep those to the server of permits from
    being made, so each have a session of their own."""

    operations: NodeOperations
    settings: ScalingSettings
    permits: ClientSession
    guests: ClientSession
    executors: MachineExecutors
    """Where the platform is waited for."""
    may_ask: Callable[[], bool] = lambda: True
    """Whether the server of permits is who is meant."""
    endpoint: PermitEndpoint | None = None
    """Who is asked for permits; None: whom the settings tell."""

    def channels(self, scaled: ScaledMachine, scaler: Scaler) -> Channels:
        """Those of one machine."""
        settings, address = self.settings, scaled.address
        namespace, _, name = scaled.key.partition("/")
        pod = PodName(namespace, name)
        endpoint = self.endpoint or StaticEndpoint(settings.permits, settings.token)
        permits = HttpPermits(self.permits, endpoint, pod, settings.unit, self.may_ask)
        body = MachineActuator(self.operations, scaled.key, scaled.uid, scaled.run, self.executors)

        def metrics(port: int | Callable[[], int]) -> HttpMetrics:
            return HttpMetrics(
                self.guests,
                address,
                system_port=port,
                lfc_port=scaled.lfc_port,
                era=settings.era,
                prefix=settings.agent.metrics_prefix,
            )

        if scaled.protocol == "monitor":
            monitor = MonitorConnection(scaled.key, address, scaled.monitor_port, scaler, _timers(settings.agent))
            return Channels(permits, body, monitor, metrics(scaled.metrics_port))
        informant = InformantConnection(scaled.key, address, scaled.monitor_port, scaler)

        def metrics_port() -> int:
            return scaled.metrics_port if informant.chosen is None else informant.chosen.metrics_port

        return Channels(permits, body, informant, metrics(metrics_port))


def _timers(config: AgentConfig) -> MonitorTimeouts:
    """What of an agent's configuration is for its connections to monitors."""
    return MonitorTimeouts(
        connect=config.monitor_connect,
        response=config.monitor_response,
        unhealthy=config.monitor_unhealthy,
        reconnect=config.monitor_reconnect,
        failures=config.limits.window,
    )
