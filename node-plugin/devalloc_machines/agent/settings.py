"""Settings of the scaling agent."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from devalloc.scaling.agent_config import AgentConfig
from devalloc.scaling.config import ScalingConfig
from devalloc.scaling.health import HealthLimits
from devalloc.scaling.permits.arithmetic import DEFAULT_ARITHMETIC, PermitArithmetic
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
    """Take what of an agent's configuration is for each of its scalers."""
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
    """Where the local permit server listens."""

    requests: int
    """Port of loopback for requests."""
    dump: Path | int | None
    """Where it shows its ledgers: a unix socket, or a port of loopback; None: nowhere."""
    arithmetic: PermitArithmetic = DEFAULT_ARITHMETIC
    """How it counts."""
    migration_seconds: float = 3600.0
    """How long a migration may take before the permit server withdraws it."""


@dataclass(frozen=True, slots=True)
class ScalingSettings:
    """All settings of the agent."""

    permits: str = PERMITS
    """URL of the permit server."""
    server: ServerPorts | None = None
    """The permit server that runs beside the agent; None: another process serves permits."""
    token: str | None = field(default=None, repr=False)
    """The token that the permit server expects as ``Authorization: Bearer``."""
    has_own_token: bool = False
    """Whether this process made the token, so that no other process has it."""
    unit: Resources = SHIPPED.unit
    """The compute unit: machines have whole units, as far as their bounds allow."""
    agent: AgentConfig = SHIPPED
    """Parameters of goals for machines that set none, and the delays."""
    compat: ProtocolEra | None = None
    """Which releases of peers to follow if they differ; None: the newest, and v0.31 for granting permits."""
    guests: tuple[Network, ...] = ()
    """Networks in which guests may have addresses, besides those behind a TAP interface of their own machine. A user
    who writes a VirtualMachine chooses its guest's address, and the plugin must not connect to other servers."""
    asks_pods: bool = False
    """Whether the permit server is another program's (``--permits``), which knows machines by their runner pods and
    writes no ``status.permitted``."""
    dump: Path | int | None = None
    """Where the agent shows its state: a unix socket, or a port of loopback; None: nowhere."""
    threads: int = 16
    """Maximum number of machines that it changes at the same time, and that it reads at the same time."""

    @property
    def config(self) -> ScalingConfig:
        """Parameters of goals for machines that set none."""
        return self.agent.scaling

    @property
    def timing(self) -> ScalingTiming:
        """The delays of the state machine."""
        return self.agent.timing

    @property
    def era(self) -> ProtocolEra:
        """The release whose goals the agent computes."""
        return self.compat or ProtocolEra.NEWEST

    def reaches(self, address: str) -> bool:
        """Whether a guest may have this address, by ``guests``."""
        at = ipaddress.ip_address(address)
        if isinstance(at, ipaddress.IPv6Address) and at.ipv4_mapped is not None:
            return False  # IPv4 in other words
        return any(at.version == network.version and at in network for network in self.guests)
