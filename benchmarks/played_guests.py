"""Guests of many machines, played by one process: each at an address of its own, with the monitor's own protocol code.

python -m benchmarks.played_guests COUNT calm|restless

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

from devalloc.scaling import observed
from devalloc.scaling.messages import monitor as wire
from devalloc.scaling.resources import Resources
from devalloc_node.guest.sessions import Sessions
from devalloc_node.plainhttp import Limits, Request, Response, Server
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
    """It needs some compute units, has what it was told, and notes how long it took until it was told enough."""

    def __init__(self, units: int) -> None:
        self.late: list[tuple[float, float]] = []
        """Of each decision: when it was told, and the seconds since it could be known."""
        self._units = units
        self._has = UNIT
        self._said = UNIT
        """What it last said that it needs,"""
        self._since: float | None = None
        """and when, as long as it has not been told that."""
        self._monitor = Sessions(self.handle, lambda: None)
        self._server = Server(self.respond, Limits(body=1 << 20))

    async def listen(self, at: str) -> None:
        await self._monitor.listen(at, MONITOR)
        await self._server.listen(at, METRICS)

    def change(self, rng: random.Random) -> None:
        """Need something else."""
        self._units = rng.choice([units for units in range(1, MOST_UNITS + 1) if units != self._units])

    async def respond(self, request: Request) -> Response:
        """Its metrics."""
        load = (self._units - 0.5) * UNIT.cpu / 1000
        values = {
            "host_load1": load,
            "host_load5": load,
            observed.MEMORY: self._has.memory,
            "host_memory_available_bytes": self._has.memory,
            "host_memory_cached_bytes": 0,
            observed.CPUS: max(1, -(-self._has.cpu // 1000)),
        }
        gauges = "".join(f"# TYPE {name} gauge\n{name} {value}\n" for name, value in values.items())
        if (needs := UNIT * self._units) != self._said:
            if self._since is not None:  # it was never told what it needed before
                self._note(self._since)
            self._said, self._since = needs, None if needs == self._has else time.monotonic()
        return Response(200, (_OTHERS + gauges).encode())

    async def handle(self, message: wire.ToMonitor) -> wire.ToAgent | None:
        """It agrees to whatever it is told or asked."""
        match message:
            case wire.UpscaleNotification(granted):
                self._told(granted)
                return wire.UpscaleConfirmation()
            case wire.DownscaleRequest(target):
                self._told(target)
                return wire.DownscaleResult(True)
            case wire.HealthCheck():
                return wire.HealthCheck()
        return None

    def _told(self, amounts: Resources) -> None:
        self._has = amounts
        if self._since is not None and amounts == self._said:
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
