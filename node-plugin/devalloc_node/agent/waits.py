"""How long a scaler waits for what, and how often it asks."""

from __future__ import annotations

from dataclasses import dataclass, field

from devalloc.scaling.agentconfig import AgentConfig
from devalloc.scaling.stuck import Limits


@dataclass(frozen=True, slots=True)
class Waits:
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
    """How long a guest may take to bring online what its machine has before that is told."""
    stuck: Limits = field(default_factory=Limits)


def waits_of(config: AgentConfig) -> Waits:
    """What of an agent's configuration is for each of its scalers."""
    return Waits(
        plugin_timeout=config.plugin_timeout,
        metrics_interval=config.system_interval,
        metrics_timeout=config.system_timeout,
        lfc_interval=config.lfc_interval,
        lfc_timeout=config.lfc_timeout,
        stuck=config.limits,
    )
