"""Obedient stand-ins for everything around one scaler, unless a test wants otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NoReturn

from devalloc.scaling.messages.monitor import DownscaleResult
from devalloc.scaling.metrics import GuestReport, LfcMetrics, SystemMetrics
from devalloc.scaling.resources import Resources, ScalingBounds
from devalloc_machines.agent.channels import ChangeRefused, Channels
from devalloc_machines.agent.guest_monitor_client import MonitorStatus
from devalloc_machines.agent.scaler import Scaler
from tests.support.scaling_world import UNIT

BOUNDS = ScalingBounds(UNIT, UNIT * 6)


class ScalerFakes:
    """``load`` in compute units; ``failing`` by the name of a call; what is done is noted in ``did``."""

    def __init__(self, has: Resources = UNIT, load: float = 0.0) -> None:
        self.has, self.load = has, load
        self.room = UNIT * 100
        self.failing: dict[str, Exception] = {}
        self.agrees = True
        self.connects = True
        self.guest: GuestReport | None = None
        self.falls_short: Callable[[Resources], Resources] = lambda target: target
        self.refuses: Callable[[Resources], ChangeRefused] | None = None
        """More CPUs."""
        self.did: list[str] = []
        self.scaler: Scaler | None = None

    def channels(self, scaler: Scaler) -> Channels:
        self.scaler = scaler
        return Channels(self, self, self, self)

    def _do(self, what: str) -> None:
        self.did.append(what)
        if (error := self.failing.get(what.split()[0])) is not None:
            raise error

    async def ask(self, last: Resources | None, target: Resources, metrics: SystemMetrics | None) -> Resources:
        self._do("ask")
        return target.least(self.room.most(last or target.least(self.has)))

    async def change(self, target: Resources) -> Resources | ChangeRefused:
        self._do(f"change {target.cpu // 250}")
        if self.refuses is not None and target.cpu > self.has.cpu:
            return self.refuses(target)
        self.has = self.falls_short(target)
        return self.has

    async def look(self) -> Resources:
        self._do("look")
        return self.has

    async def run(self) -> NoReturn:
        assert self.scaler is not None
        if self.connects:
            self.scaler.monitor_connected()
        else:
            self.scaler.monitor_disconnected("the port is closed")
        await asyncio.Event().wait()
        raise AssertionError

    async def upscale(self, granted: Resources) -> None:
        self._do("upscale")

    async def downscale(self, target: Resources) -> DownscaleResult:
        self._do("downscale")
        return DownscaleResult(self.agrees, "")

    def status(self) -> MonitorStatus:
        now = int(asyncio.get_running_loop().time() * 1000)
        return MonitorStatus(self.connects, "", 0, now if self.connects else None, 0, 0)

    async def system(self) -> SystemMetrics:
        self._do("measure")
        return SystemMetrics(self.load * UNIT.cpu / 1000, guest=self.guest)

    async def lfc(self) -> LfcMetrics:
        self._do("cache")  # only where its machine's configuration wants it
        return LfcMetrics(0, 0, 0, (0.0,) * 20)
