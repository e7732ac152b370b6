"""What a scaler of this node speaks with, made from what is said of its machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import ClientSession

from devalloc.scaling.agentconfig import AgentConfig
from devalloc.scaling.messages.plugin import PodName
from devalloc_node.agent.body import MachineBody
from devalloc_node.agent.channels import Channels
from devalloc_node.agent.informant.connection import InformantConnection
from devalloc_node.agent.lanes import Lanes
from devalloc_node.agent.measure import HttpMetrics
from devalloc_node.agent.monitor import MonitorConnection, Timers
from devalloc_node.agent.permits import HttpPermits
from devalloc_node.agent.scaled import Scaled
from devalloc_node.agent.scaler import Scaler
from devalloc_node.agent.settings import ScalingSettings
from devalloc_node.agent.whom import Told, Whom
from devalloc_node.platform import Platform


@dataclass(frozen=True, slots=True)
class Wiring:
    """The same for all machines. Guests that keep connections open must not keep those to the server of permits from
    being made, so each have a session of their own."""

    platform: Platform
    settings: ScalingSettings
    permits: ClientSession
    guests: ClientSession
    lanes: Lanes
    """Where the platform is waited for."""
    may_ask: Callable[[], bool] = lambda: True
    """Whether the server of permits is who is meant."""
    whom: Whom | None = None
    """Who is asked for permits; None: whom the settings tell."""

    def channels(self, scaled: Scaled, scaler: Scaler) -> Channels:
        """Those of one machine."""
        settings, address = self.settings, scaled.address
        namespace, _, name = scaled.key.partition("/")
        pod = PodName(namespace, name)
        whom = self.whom or Told(settings.permits, settings.token)
        permits = HttpPermits(self.permits, whom, pod, settings.unit, self.may_ask)
        body = MachineBody(self.platform, scaled.key, scaled.uid, scaled.run, self.lanes)

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


def _timers(config: AgentConfig) -> Timers:
    """What of an agent's configuration is for its connections to monitors."""
    return Timers(
        connect=config.monitor_connect,
        response=config.monitor_response,
        unhealthy=config.monitor_unhealthy,
        reconnect=config.monitor_reconnect,
        failures=config.limits.window,
    )
