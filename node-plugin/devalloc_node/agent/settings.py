"""What an administrator sets about the scaling of this node's machines, and the timeouts of a scaler."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from devalloc.scaling.agentconfig import AgentConfig
from devalloc.scaling.config import ScalingConfig
from devalloc.scaling.health import HealthLimits
from devalloc.scaling.resources import Resources
from devalloc.scaling.state import ScalingTiming
from devalloc.scaling.versions import ProtocolEra


@dataclass(frozen=True, slots=True)
class ScalerTimeouts:
    """All in milliseconds."""

    plugin_timeout: int = 2_000
    metrics_interval: int = 5_000
    metrics_timeout: int = 2_000
    lfc_interval: int = 15_000
    lfc_timeout: int = 5_000
    look_interval: int = 30_000
    """The machine is looked at this often even if nothing changed it,"""
    look_retry: int = 2_000
    """and again after this when it could not be."""
    look_timeout: int = 10_000
    patience: int = 300_000
    """How long a guest may keep more than the machine's maximum by not agreeing to less."""
    guest_patience: int = 60_000
    """How long a guest may take to bring online what its machine has before it is reported as behind."""
    stuck: HealthLimits = field(default_factory=HealthLimits)


def scaler_timeouts(config: AgentConfig) -> ScalerTimeouts:
    """What of an agent's configuration is for each of its scalers."""
    return ScalerTimeouts(
        plugin_timeout=config.plugin_timeout,
        metrics_interval=config.system_interval,
        metrics_timeout=config.system_timeout,
        lfc_interval=config.lfc_interval,
        lfc_timeout=config.lfc_timeout,
        stuck=config.limits,
    )


Network = ipaddress.IPv4Network | ipaddress.IPv6Network
SHIPPED = AgentConfig()
PERMITS = f"http://127.0.0.1:{SHIPPED.plugin_port}/"


@dataclass(frozen=True, slots=True)
class ServerPorts:
    """Of a server of permits."""

    requests: int
    """A port of loopback."""
    dump: Path | int | None
    """Where its ledgers are shown: a unix socket, or a port of loopback; None: nowhere."""


@dataclass(frozen=True, slots=True)
class ScalingSettings:
    """All of the agent."""

    permits: str = PERMITS
    """URL of the server of permits."""
    server: ServerPorts | None = None
    """Where the server of permits is to listen that is run beside the agent; None: it is another's."""
    token: str | None = field(default=None, repr=False)
    """What it wants as ``Authorization: Bearer``."""
    has_own_token: bool = False
    """The token belongs to this process; no other one can know it."""
    unit: Resources = SHIPPED.unit
    """The compute unit: machines have whole ones, as far as their bounds allow."""
    agent: AgentConfig = SHIPPED
    """How goals are computed where a machine says nothing else, and how long is waited for what."""
    compat: ProtocolEra | None = None
    """Which releases of peers are followed where they differ; None: the newest, and v0.31 where permits are given."""
    guests: tuple[Network, ...] = ()
    """Networks in which guests may be, besides those behind the TAP interfaces of their own machines. The user who
    writes a machine's object chooses its guest's address, and the plugin must not connect to any other server."""
    dump: Path | int | None = None
    """Where what the agent knows is shown: a unix socket, or a port of loopback; None: nowhere."""
    threads: int = 16
    """Machines that are changed at the same time, and as many that are looked at."""

    @property
    def config(self) -> ScalingConfig:
        """How goals are computed where a machine says nothing else."""
        return self.agent.scaling

    @property
    def timing(self) -> ScalingTiming:
        """The waits of the state machine."""
        return self.agent.timing

    @property
    def era(self) -> ProtocolEra:
        """Whose goals are computed, from the metrics that their guests have."""
        return self.compat or ProtocolEra.NEWEST

    def reaches(self, address: str) -> bool:
        """Whether a guest may be there, by what the admin says."""
        at = ipaddress.ip_address(address)
        if isinstance(at, ipaddress.IPv6Address) and at.ipv4_mapped is not None:
            return False  # IPv4 in other words
        return any(at.version == network.version and at in network for network in self.guests)
