"""Run this node's agent in a thread of its own, for callers in other threads.

They say so again and again (``keep``, ``drop``), and what is to be begun and left follows from that.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

from aiohttp import ClientSession
from prometheus_client import CollectorRegistry

from devalloc.scaling.agent_config import AgentConfig
from devalloc.scaling.health import ScalingReport
from devalloc.scaling.messages.permits import PodName
from devalloc.scaling.state import ScalingRules
from devalloc_machines.agent.actuator import MachineActuator, MachineExecutors
from devalloc_machines.agent.agent import Agent, ScalingTarget, WakeableRounds, agent_dump_served
from devalloc_machines.agent.channels import Channels, GuestChannel, PermitChannel, ScaledMachine
from devalloc_machines.agent.guest_monitor_client import MonitorConnection, MonitorListener, MonitorTimeouts
from devalloc_machines.agent.http_client import HttpMetrics, new_session
from devalloc_machines.agent.metrics import ScalingMetrics
from devalloc_machines.agent.permit_client import HttpPermits, OwnPermits, PermitEndpoint, StaticEndpoint
from devalloc_machines.agent.scaler import Scaler, scaler_timeouts
from devalloc_machines.agent.settings import ScalingSettings
from devalloc_machines.service.operations import MachineOperations
from devalloc_node.errors import Denied
from devalloc_node.host import linux
from devalloc_node.host.linux import Route

GuestProtocol = Callable[[ScaledMachine, MonitorListener], tuple[GuestChannel, Callable[[], int]]]
"""Makes the channel to a guest that speaks another protocol than that of the monitor, and what tells the port of its
metrics."""


@dataclass(frozen=True, slots=True)
class ChannelFactory:
    """The same for all machines."""

    operations: MachineOperations
    settings: ScalingSettings
    may_ask: Callable[[], bool] = lambda: True
    """Whether the server of permits is who is meant."""
    endpoint: PermitEndpoint | None = None
    """Who is asked for permits; None: whom the settings tell."""
    protocols: Mapping[str, GuestProtocol] = field(default_factory=dict)
    """Those of guests beside the monitor's, by name."""

    def channels(
        self,
        scaled: ScaledMachine,
        scaler: Scaler,
        executors: MachineExecutors,
        permits_session: ClientSession,
        guests: ClientSession,
    ) -> Channels:
        """Those of one machine. ``executors``: where the platform is waited for. Guests that keep connections open must
        not keep those to the server of permits from being made, so each have a session of their own."""
        settings, address = self.settings, scaled.address
        namespace, _, name = scaled.key.partition("/")
        # Without a runner pod it is the machine's name: another devalloc knows it by that.
        pod = PodName(namespace, (settings.asks_pods and scaled.runner_pod) or name)
        endpoint = self.endpoint or StaticEndpoint(settings.url, settings.token)
        permits: PermitChannel = OwnPermits(scaled.bounds)
        if scaled.uid:
            permits = HttpPermits(permits_session, endpoint, pod, settings.unit, self.may_ask)
        body = MachineActuator(self.operations, scaled.key, scaled.uid, scaled.run, executors)

        def metrics(port: int | Callable[[], int]) -> HttpMetrics:
            return HttpMetrics(guests, address, system_port=port, lfc_port=scaled.lfc_port, era=settings.era)

        if scaled.protocol == "monitor":
            monitor = MonitorConnection(scaled.key, address, scaled.monitor_port, scaler, _timers(settings.agent))
            return Channels(permits, body, monitor, metrics(scaled.metrics_port))
        guest, metrics_port = self.protocols[scaled.protocol](scaled, scaler)
        return Channels(permits, body, guest, metrics(metrics_port))


def _timers(config: AgentConfig) -> MonitorTimeouts:
    """What of an agent's configuration is for its connections to monitors."""
    return MonitorTimeouts(
        connect=config.monitor_connect,
        response=config.monitor_response,
        unhealthy=config.monitor_unhealthy,
        reconnect=config.monitor_reconnect,
        failures=config.limits.window,
    )


_log = logging.getLogger("devalloc.agent")
REPORT_SECONDS = 1.0
"""How often it is looked whether there is something to tell."""
WAY_SECONDS, MOST_WAYS = 10.0, 4096
"""How long the way to an address is taken for unchanged, and of how many it is known."""


class AgentThread:
    """``run`` in a thread; the other methods are for any thread."""

    def __init__(
        self,
        channels: ChannelFactory,
        *,
        changed: Callable[[str], None] = lambda key: None,
        registry: CollectorRegistry | None = None,
    ) -> None:
        """``changed`` gets the key of each machine whose report has changed. ``registry``: where the metrics go."""
        self.settings = channels.settings
        self._channels = channels
        self._changed = changed
        self._mutex = threading.Lock()
        self._wanted: dict[str, ScaledMachine] = {}
        self._at: dict[str, str] = {}
        """Whose guest has an address."""
        self._ways: dict[str, tuple[float, Route]] = {}
        self._reports: dict[str, ScalingReport] = {}
        self._rounds = WakeableRounds("scaled machines", REPORT_SECONDS)
        self._metrics = ScalingMetrics(CollectorRegistry() if registry is None else registry, self.reports)

    def keep(self, scaled: ScaledMachine) -> None:
        """Scale this machine, from now on or as before.

        An address is one machine's: what its guest says is not to be heard, nor taken over, by another one. Raises
        Denied (``GuestAddressInUse``) where an older machine has it; a younger one that has it is left.
        """
        with self._mutex:
            current = self._wanted.get(scaled.key)
            if current == scaled:
                return
            other = self._wanted.get(self._at.get(scaled.address, ""))
            if other is not None and other.key != scaled.key:
                if (other.since, other.key) < (scaled.since, scaled.key):
                    raise Denied(
                        "GuestAddressInUse",
                        f"scaling.address {scaled.address} belongs to another machine of this node; correct it",
                    )
                self._forget(other.key)
            if current is not None and current.identity != scaled.identity:
                self._forget(scaled.key)  # of another run, or of another machine of its name
            self._wanted[scaled.key] = scaled
            self._at[scaled.address] = scaled.key
        self._rounds.wake()
        if other is not None and other.key != scaled.key:
            self._changed(other.key)  # its report says why nothing scales it any longer

    def drop(self, key: str) -> None:
        """Leave the machine as it is."""
        with self._mutex:
            if not self._forget(key):
                return
        self._rounds.wake()

    def _forget(self, key: str) -> bool:
        """Under the lock; whether it was to be scaled."""
        self._reports.pop(key, None)
        scaled = self._wanted.pop(key, None)
        if scaled is not None and self._at.get(scaled.address) == key:
            del self._at[scaled.address]
        return scaled is not None

    def way_to(self, address: str) -> Route:
        """How this host gets there, as of some seconds ago at most. Raises OSError."""
        now = time.monotonic()
        with self._mutex:
            seen = self._ways.get(address)
        if seen is None or now - seen[0] > WAY_SECONDS:
            seen = now, linux.route_to(address)
            with self._mutex:
                if len(self._ways) >= MOST_WAYS:
                    self._ways.clear()
                self._ways[address] = seen
        return seen[1]

    def report(self, key: str) -> ScalingReport | None:
        """How far it is; None while that is not known."""
        with self._mutex:
            return self._reports.get(key)

    def reports(self) -> list[ScalingReport]:
        """Those of all machines."""
        with self._mutex:
            return list(self._reports.values())

    def run(self, stop: threading.Event) -> None:
        """Scale until the event is set. Machines stay as they are then."""
        asyncio.run(self.serve(stop))

    async def serve(self, stop: threading.Event) -> None:
        """The same, in an event loop that is there. It is looked every second whether it is to end."""
        async with AsyncExitStack() as stack:
            executors = MachineExecutors(self.settings.threads)
            stack.callback(executors.close)
            permits = await stack.enter_async_context(new_session())
            guests = await stack.enter_async_context(new_session())
            channels = partial(self._channels.channels, executors=executors, permits_session=permits, guests=guests)
            rules = ScalingRules(self.settings.unit, self.settings.timing, self.settings.era)
            agent = Agent(rules, scaler_timeouts(self.settings.agent), meter=self._metrics)
            stack.push_async_callback(agent.close)
            await stack.enter_async_context(agent_dump_served(agent, self.settings.dump))

            async def act() -> None:
                self._tell(agent, await self._match(agent, channels))

            await self._rounds.run(stop, act)

    async def _match(self, agent: Agent, channels: Callable[..., Channels]) -> dict[str, ScaledMachine]:
        """Have the agent scale what is to be scaled, and nothing else; what that is."""
        with self._mutex:
            wanted = dict(self._wanted)
        for key in agent.keys:
            if key not in wanted:
                agent.drop(key)
        for scaled in wanted.values():
            of_it = partial(channels, scaled)
            await agent.scale(ScalingTarget(scaled.key, scaled.identity, scaled.bounds, scaled.config, of_it))
        return wanted

    def _tell(self, agent: Agent, scaled: Mapping[str, ScaledMachine]) -> None:
        """Note what is to be told of each, and say where it is something else than before."""
        news = []
        for key in agent.keys:
            report = agent.report(key)
            with self._mutex:
                wanted = self._wanted.get(key)
                if report is None or wanted is None or wanted.identity != scaled[key].identity:
                    continue
                if self._reports.get(key) != report:
                    news.append(key)
                self._reports[key] = report
        for key in news:
            try:
                self._changed(key)
            except Exception:  # each change is reported once: a failure must not lose those of other machines
                _log.exception("%s: cannot report its changes", key)
