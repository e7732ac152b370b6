"""The health of the node's devices at one moment, as its readers see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from devalloc_node.binding.binding import HealthState


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """How one published device was when it was last looked at."""

    pool: str
    device: str
    health: HealthState
    seen: float
    """When that was, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class HealthSnapshot:
    """All devices of the node at one moment."""

    version: int
    """Grows whenever the state or the message of a device changes, or a device comes or goes."""
    devices: tuple[DeviceHealth, ...]


class HealthFeed(Protocol):
    """Where the state of the devices is read. Safe for threads."""

    def snapshot(self) -> HealthSnapshot:
        """What is known now; at once."""

    def wait(self, version: int, timeout: float) -> bool:
        """Wait until there is something newer than ``version``, at most ``timeout`` seconds; whether there is."""
