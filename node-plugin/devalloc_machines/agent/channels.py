"""The four channels of a scaler: permits, the machine, the guest monitor and the guest's metrics.

All of them are coroutines of one event loop. What blocks belongs into a thread of its own and ends by itself; what
fails raises a NodeError, and `Unknown` where it may have been done all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NoReturn, Protocol

from devalloc.scaling.config import ScalingConfig
from devalloc.scaling.messages.monitor import DownscaleResult
from devalloc.scaling.metrics import LfcMetrics, SystemMetrics
from devalloc.scaling.resources import Resources, ScalingBounds
from devalloc_machines.agent.guest_monitor_client import MonitorStatus


@dataclass(frozen=True, slots=True)
class ScaledMachine:
    """A machine that is scaled."""

    key: str
    """``namespace/name``"""
    uid: str
    """Of its object; empty where it has none."""
    run: str
    """Which run of it: the next one is scaled from the start."""
    bounds: ScalingBounds
    config: ScalingConfig
    address: str
    """Of its guest."""
    monitor_port: int
    metrics_port: int
    lfc_port: int = 9499
    protocol: Literal["monitor", "informant"] = "monitor"
    """What is spoken at the monitor's port."""
    since: str = ""
    """When its object was made, as API servers write it: the oldest one has an address that several name."""
    runner_pod: str = ""
    """The pod that its object names as its runner, in its namespace: permit servers of others know machines by that."""

    @property
    def identity(self) -> str:
        """What cannot change while it is scaled: its run, where its guest is, and what permit servers know it by."""
        ports = f"{self.monitor_port} {self.metrics_port} {self.lfc_port}"
        return f"{self.uid} {self.run} {self.address} {self.protocol} {ports} {self.runner_pod}"


@dataclass(frozen=True, slots=True)
class RunnerAddress:
    """Where a controller sets the CPU time of a machine."""

    key: str
    """``namespace/name`` of its machine."""
    uid: str
    run: str
    """Which run of the machine."""
    address: str
    port: int


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
    """The monitor in its guest. It notifies a `devalloc_machines.agent.guest_monitor_client.MonitorListener`."""

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
