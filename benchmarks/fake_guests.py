"""Guests of many machines, played by one process: each at an address of its own, with the monitor's own protocol code.

python -m benchmarks.fake_guests COUNT calm|restless

It says ``ready``, and plays until its input ends. Then it prints, as JSON, how late each decision came.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import resource
import sys
import time

from devalloc.scaling import metrics
from devalloc.scaling.messages import monitor as wire
from devalloc.scaling.resources import Resources
from devalloc_machines.guest.sessions import AgentSessions
from devalloc_node.net.http import HttpLimits, HttpRequest, HttpResponse, HttpServer
from tests.support.scaling_world import UNIT

MONITOR, METRICS = wire.PORT, 9100
MOST_UNITS = 6
NOISE = 2000
"""Lines of other metrics in what a guest tells."""
CHANGE_SECONDS = 5.0
FILES = 65536
_OTHERS = "".join(f'node_cpu_seconds_total{{cpu="{number}",mode="idle"}} {number}\n' for number in range(NOISE))


def address(number: int) -> str:
    """Where the guest of a machine is: on loopback, and nowhere else."""
    return f"127.1.{number // 250}.{number % 250 + 1}"


class Guest:
    """It needs some compute units, has what it was granted, and notes how long it took until it was granted enough."""

    def __init__(self, units: int) -> None:
        self.late: list[tuple[float, float]] = []
        """Of each decision: when it arrived, and the seconds since its cause could be seen."""
        self._units = units
        self._has = UNIT
        self._reported = UNIT
        """The need that it last reported,"""
        self._since: float | None = None
        """and when, until it is granted."""
        self._monitor = AgentSessions(self.handle, lambda: None)
        self._server = HttpServer(self.respond, HttpLimits(body=1 << 20))

    async def listen(self, at: str) -> None:
        await self._monitor.listen(at, MONITOR)
        await self._server.listen(at, METRICS)

    def change(self, rng: random.Random) -> None:
        """Need something else."""
        self._units = rng.choice([units for units in range(1, MOST_UNITS + 1) if units != self._units])

    async def respond(self, request: HttpRequest) -> HttpResponse:
        """Its metrics."""
        load = (self._units - 0.5) * UNIT.cpu / 1000
        values = {
            "host_load1": load,
            "host_load5": load,
            metrics.MEMORY: self._has.memory,
            "host_memory_available_bytes": self._has.memory,
            "host_memory_cached_bytes": 0,
            metrics.CPUS: max(1, -(-self._has.cpu // 1000)),
        }
        gauges = "".join(f"# TYPE {name} gauge\n{name} {value}\n" for name, value in values.items())
        if (needs := UNIT * self._units) != self._reported:
            if self._since is not None:  # what it needed before was never granted
                self._note(self._since)
            self._reported, self._since = needs, None if needs == self._has else time.monotonic()
        return HttpResponse(200, (_OTHERS + gauges).encode())

    async def handle(self, message: wire.ToMonitor) -> wire.ToAgent | None:
        """It agrees to everything."""
        match message:
            case wire.UpscaleNotification(granted):
                self._set_amounts(granted)
                return wire.UpscaleConfirmation()
            case wire.DownscaleRequest(target):
                self._set_amounts(target)
                return wire.DownscaleResult(True)
            case wire.HealthCheck():
                return wire.HealthCheck()
        return None

    def _set_amounts(self, amounts: Resources) -> None:
        self._has = amounts
        if self._since is not None and amounts == self._reported:
            self._note(self._since)

    def _note(self, since: float) -> None:
        now = time.monotonic()
        self.late.append((now, now - since))
        self._since = None


async def play(count: int, restless: bool) -> None:
    """Until standard input ends."""
    rng = random.Random(1)
    guests = [Guest(rng.randint(1, MOST_UNITS)) for _ in range(count)]
    for number, guest in enumerate(guests):
        await guest.listen(address(number))
    print("ready", flush=True)
    end = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    while not end.done():
        await asyncio.wait([end], timeout=CHANGE_SECONDS)
        for guest in rng.sample(guests, -(-count // 3)) if restless else ():
            guest.change(rng)
    print(json.dumps([late for guest in guests for late in guest.late]), flush=True)


def many_files() -> None:
    """Hundreds of connections, and two ports for each guest."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


if __name__ == "__main__":
    many_files()
    logging.basicConfig(level=logging.ERROR)
    asyncio.run(play(int(sys.argv[1]), sys.argv[2] == "restless"))
