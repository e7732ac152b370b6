"""Timeouts and intervals of a scaler."""

from __future__ import annotations

from dataclasses import dataclass, field

from devalloc.scaling.agentconfig import AgentConfig
from devalloc.scaling.health import HealthLimits


@dataclass(frozen=True, slots=True)
class ScalerTimeouts:
    """All in milliseconds."""

    plugin_timeout: int = 2_000
    metrics_interval: int = 5_000
    metrics_timeout: int = 2_000
    lfc_interval: int = 15_000
    lfc_timeout: int = 5_000
    look_interval: int = 30_000
    """The machine is looked at this often though nobody changed it,"""
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
