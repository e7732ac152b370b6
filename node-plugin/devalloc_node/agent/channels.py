"""The four channels of a scaler: permits, the machine, the guest monitor and the guest's metrics.

All of them are coroutines of one event loop. What blocks belongs into a thread of its own and ends by itself; what
fails raises a NodeError, and `Unknown` where it may have been done all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, Protocol

from devalloc.scaling.messages.monitor import DownscaleResult
from devalloc.scaling.metrics import LfcMetrics, SystemMetrics
from devalloc.scaling.resources import Resources
from devalloc_node.agent.guest_monitor_client import MonitorStatus


class PermitChannel(Protocol):
    """Who gives permits for the node's CPU and memory."""

    async def ask(self, last: Resources | None, target: Resources, metrics: SystemMetrics | None) -> Resources:
        """What the machine may have in all, when it would like to have ``target`` and was permitted ``last``."""
        ...


@dataclass(frozen=True, slots=True)
class ChangeRefused:
    """A change that the machine or its guest did not go along with."""

    reached: Resources
    """What was read back."""
    code: str
    why: str
    max_cpu: int | None = None
    """Thousandths of a CPU that this run of it can have at most; None: it may have more when it is asked again."""


class Actuator(Protocol):
    """The machine itself."""

    async def change(self, target: Resources) -> Resources | ChangeRefused:
        """Have it come to ``target``, and read back what it has then. It ends by itself."""
        ...

    async def look(self) -> Resources:
        """What it has, or may come to have by what it was told before: then it is not less than that."""
        ...


class GuestChannel(Protocol):
    """The monitor in its guest. It notifies a `devalloc_node.agent.guest_monitor_client.MonitorListener`."""

    async def run(self) -> NoReturn:
        """Keep the connection up until cancelled."""
        ...

    async def upscale(self, granted: Resources) -> None:
        """Tell it what the machine has now, in all."""
        ...

    async def downscale(self, target: Resources) -> DownscaleResult:
        """Ask it whether the machine may be made this small; not ok is its refusal."""
        ...

    def status(self) -> MonitorStatus:
        """How the connection is now, and how it did lately."""
        ...


class MetricsChannel(Protocol):
    """What its guest tells of its load."""

    async def system(self) -> SystemMetrics: ...

    async def lfc(self) -> LfcMetrics: ...


@dataclass(frozen=True, slots=True)
class Channels:
    """All that one scaler speaks with."""

    permits: PermitChannel
    body: Actuator
    guest: GuestChannel
    metrics: MetricsChannel
