"""What the agent costs a node: CPU time for all machines that it scales."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator

from benchmarks.harness import Row, benchmark
from devalloc.scaling.metrics import SystemMetrics, read_system_metrics
from devalloc.scaling.state import ScalingRules
from devalloc_machines.agent.agent import Agent, ScalingTarget
from tests.support.scaler_fakes import BOUNDS, ScalerFakes
from tests.support.scaling_world import CONFIG, UNIT
from tests.support.virtual_time import run

MACHINES = (1, 50, 500)
SECONDS = 60
NOISE = 2000
"""Lines of other metrics in what a guest tells."""


@benchmark(
    "agent",
    "The agent: what scaling the machines of a node costs",
    method=f"CPU time of {SECONDS} seconds of scaling, on a clock that jumps: what the agent does by itself. Each "
    f"guest's metrics are read each 5 s from a text with {NOISE} other lines; all whom the agent asks are in the same "
    "process and answer at once, so that no sockets are in it (`agent_sockets` has them). `calm`: loads stay. "
    "`restless`: every 5 s a third of the machines get another load, so that permits, machines and guests are asked "
    "all the time. The figures are those of all machines.",
)
def agent(runs: int) -> Iterator[Row]:
    for count in MACHINES:
        for loads in ("calm", "restless"):
            seconds = tuple(run(_minute(count, loads == "restless"), sockets=False) for _ in range(runs + 1))[1:]
            each = sorted(seconds)[len(seconds) // 2] / SECONDS / count
            yield Row({"machines": count, "loads": loads, "µs a machine and second": f"{each * 1e6:.0f}"}, seconds)


class _Guest(ScalerFakes):
    """It tells its load in a text, as guests do."""

    async def system(self) -> SystemMetrics:
        values = {
            "load1": self.load * UNIT.cpu / 1000,
            "load5": self.load * UNIT.cpu / 1000,
            "memory_total_bytes": self.has.memory,
            "memory_available_bytes": self.has.memory,
            "memory_cached_bytes": 0,
        }
        gauges = "".join(f"# TYPE host_{name} gauge\nhost_{name} {value}\n" for name, value in values.items())
        return read_system_metrics(_OTHERS + gauges)


_OTHERS = "".join(f'node_cpu_seconds_total{{cpu="{number}",mode="idle"}} {number}\n' for number in range(NOISE))


async def _minute(count: int, restless: bool) -> float:
    """CPU seconds of the minute after the first half of one."""
    rng = random.Random(1)
    scaled, guests = Agent(ScalingRules(UNIT), rng=rng), [_Guest(UNIT, rng.uniform(1, 6)) for _ in range(count)]
    for number, guest in enumerate(guests):
        await scaled.scale(ScalingTarget(f"vm-{number}", "run", BOUNDS, CONFIG, guest.channels))
    await asyncio.sleep(30)
    began = time.process_time()
    for _ in range(SECONDS // 5):
        await asyncio.sleep(5)
        for guest in rng.sample(guests, -(-count // 3)) if restless else ():
            guest.load = rng.uniform(1, 6)
    seconds = time.process_time() - began
    await scaled.close()
    return seconds
