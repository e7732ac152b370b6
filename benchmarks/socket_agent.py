"""The agent in a process of its own, with sockets to all whom it asks; only its machines are in memory.

python -m benchmarks.socket_agent agent|scrapes COUNT RUNS SECONDS URL

It prints a `ProcessFigures` as JSON. ``scrapes``: instead of the agent a loop that asks each guest for its metrics as
the agent does, and does nothing with them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import resource
import sys
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

from prometheus_client import CollectorRegistry

from benchmarks.fake_guests import METRICS, MONITOR, address, many_files
from devalloc_machines.agent.agent_thread import AgentThread, ChannelFactory
from devalloc_machines.agent.channels import ScaledMachine
from devalloc_machines.agent.http_client import HttpMetrics, new_session
from devalloc_machines.agent.metrics import REQUESTS
from devalloc_machines.agent.settings import ScalingSettings
from devalloc_machines.qemu.records import MachineAmounts, MachineView, State
from devalloc_machines.qemu.spec import whole_cpus
from devalloc_machines.service.operations import MachineOperations
from devalloc_node.deadline import Deadline
from devalloc_node.errors import NodeError
from tests.support.scaler_fakes import BOUNDS
from tests.support.scaling_world import CONFIG, UNIT

SETTLED_SECONDS = 60.0
"""All machines have had what they should have by then, once each."""
_INTERVAL = 5.0


@dataclass(frozen=True)
class ProcessFigures:
    """What one run of the process cost."""

    windows: list[tuple[float, float]]
    """When each began and ended, on the clock that processes share."""
    cpu: list[float]
    """Seconds of CPU time in each, of this process, user and system."""
    memory: int
    """Bytes that all machines together take of this process."""
    failed: int
    """Requests that failed or were not answered in time meanwhile."""


class InMemoryMachines:
    """Machines in memory: what is asked for they have at once."""

    def __init__(self, count: int) -> None:
        has = MachineAmounts(UNIT.cpu, whole_cpus(UNIT.cpu), UNIT.memory)
        self._machines = {
            key: MachineView(key, "", State.RUNNING, applied=has, observed=has, id="run-1")
            for key in map(_key, range(count))
        }

    def machine(self, key: str) -> MachineView:
        return self._machines[key]

    def scale(self, key: str, what: str, amount: int, due: Deadline, *, owner: str = "", caller: str = "") -> None:
        name = {"memory": "memory_bytes", "cpu": "cpu_milli", "vcpus": "vcpus"}[what]
        machine = self._machines[key]
        has = replace(machine.observed, **{name: amount})
        self._machines[key] = replace(machine, applied=has, observed=has)


def _key(number: int) -> str:
    return f"default/vm-{number}"


async def agent(count: int, runs: int, seconds: float, url: str) -> ProcessFigures:
    """As ``devalloc node`` has it, with reports and counters."""
    before, stop, registry = _memory(), threading.Event(), CollectorRegistry()
    settings = ScalingSettings(permits=url, compute_unit=UNIT)
    scalers = AgentThread(ChannelFactory(cast(MachineOperations, InMemoryMachines(count)), settings), registry=registry)
    served = asyncio.create_task(scalers.serve(stop))
    for number in range(count):
        scalers.keep(ScaledMachine(_key(number), "", "run-1", BOUNDS, CONFIG, address(number), MONITOR, METRICS))
    await _settled(scalers, count)
    failed = _failed(registry)
    windows, cpu = await _measured(runs, seconds)
    failed, memory = _failed(registry) - failed, _memory() - before
    stop.set()
    await served
    return ProcessFigures(windows, cpu, memory, failed)


def _failed(registry: CollectorRegistry) -> int:
    """Requests that did not go well, so far."""
    ways = [(request, result) for request in REQUESTS for result in ("denied", "failed", "unknown")]
    name, labels = "devalloc_node_scaling_requests_total", ("request", "result")
    counts = (registry.get_sample_value(name, dict(zip(labels, way, strict=True))) for way in ways)
    return round(sum(count or 0 for count in counts))


async def _settled(scalers: AgentThread, count: int) -> None:
    """Wait until each machine has had what it should have, and its guest has told its load."""
    by, settled = time.monotonic() + SETTLED_SECONDS, [False] * count
    waits: list[str] = []
    while not all(settled) or not settled:
        if time.monotonic() > by:
            raise RuntimeError(f"{settled.count(False)} of {count} machines do not come to what they need: {waits[:3]}")
        await asyncio.sleep(0.5)
        waits = []
        for number in range(count):
            report = scalers.report(_key(number))
            if report is not None and report.load is not None and report.reason is None:
                settled[number] = True
            elif not settled[number]:
                waits.append(f"{_key(number)}: {None if report is None else report.reason}")


async def scrapes(count: int, runs: int, seconds: float) -> ProcessFigures:
    """The least that it can cost with this client."""
    before, failures = _memory(), [0]

    async def ask(guest: HttpMetrics, after: float) -> None:
        await asyncio.sleep(after)
        while True:
            began = time.monotonic()
            try:
                await guest.system()
            except NodeError:
                failures[0] += 1
            await asyncio.sleep(max(0, began + _INTERVAL - time.monotonic()))

    rng = random.Random(1)
    async with new_session() as session:
        guests = [HttpMetrics(session, address(number), system_port=METRICS) for number in range(count)]
        tasks = [asyncio.create_task(ask(guest, rng.uniform(0, _INTERVAL))) for guest in guests]
        await asyncio.sleep(_INTERVAL)
        failures[0] = 0
        windows, cpu = await _measured(runs, seconds)
        memory = _memory() - before
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    return ProcessFigures(windows, cpu, memory, failures[0])


async def _measured(runs: int, seconds: float) -> tuple[list[tuple[float, float]], list[float]]:
    windows, cpu = [], []
    for _ in range(runs):
        began, spent = time.monotonic(), _spent()
        await asyncio.sleep(seconds)
        windows.append((began, time.monotonic()))
        cpu.append(_spent() - spent)
    return windows, cpu


def _spent() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _memory() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(what: str, count: int, runs: int, seconds: float, url: str) -> None:
    many_files()
    logging.basicConfig(level=logging.ERROR)  # that each connection ends in the end is no news
    work = agent(count, runs, seconds, url) if what == "agent" else scrapes(count, runs, seconds)
    print(json.dumps(asdict(asyncio.run(work))))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), sys.argv[5])
