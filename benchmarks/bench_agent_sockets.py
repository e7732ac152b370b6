"""What the agent costs a node with all its sockets: guests' metrics, their monitors, and the server of permits."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal

from benchmarks.fake_guests import CHANGE_SECONDS, MOST_UNITS, NOISE
from benchmarks.harness import Row, benchmark
from benchmarks.socket_agent import ProcessFigures
from devalloc.store.sqlite import SQLiteStore
from tests.support.permit_bench import machine, running
from tests.support.scaler_fakes import BOUNDS

MACHINES = 500
SECONDS = 5.0
"""Of a run: each guest is asked for its metrics once, and its monitor for its health."""
Loads = Literal["calm", "restless"]
_ROOM = (str(10**7), str(2**50))
"""Thousandths of CPUs and bytes that the node has: permits are never short."""


@benchmark(
    "agent_sockets",
    "The agent with its sockets: what scaling the machines of a node costs",
    method=f"CPU time, user and system, of the agent's process alone, in {SECONDS:g} seconds of real time with its own "
    "intervals: it asks each guest for its metrics over HTTP, keeps a WebSocket to its monitor, and asks a server of "
    "permits in a process of its own, with the store on disk. Another process plays the guests, each at an address of "
    f"its own, with the guest monitor's protocol code; a guest's metrics have {NOISE} other lines, and each scrape is "
    "a connection of its own, as our guest monitor has it. Machines are in memory and are changed at once: QEMU is "
    f"not in it. `calm`: loads stay. `restless`: every {CHANGE_SECONDS:g} s a third of the guests need another one of "
    f"{MOST_UNITS} sizes. `only scrapes`: no agent, but a loop that asks for the metrics as often, with the same "
    "client, and reads them: the least it can cost. Memory is what the process has more than before it knew of "
    "machines. `late`: milliseconds from the instant a guest tells another load until its monitor is asked or told "
    "what follows from that, with the permit and the change of the machine; of how many decisions. `failed`: requests "
    "that did not go well. All processes share the cores, and so does the kernel's part of their connections.",
    packages=("aiohttp", "websockets"),
)
def agent_sockets(runs: int) -> Iterator[Row]:
    yield measured("scrapes", "calm", MACHINES, runs)
    yield measured("agent", "calm", MACHINES, runs)
    yield measured("agent", "restless", MACHINES, runs)


def measured(what: Literal["scrapes", "agent"], loads: Loads, count: int, runs: int, seconds: float = SECONDS) -> Row:
    """A row: all processes are begun for it, and end with it."""
    with _permits(count) as url, _guests(count, loads) as guests:
        figures = _agent(what, count, runs + 1, seconds, url)
        late = [took for at, took in _decision_times(guests) if figures.windows[1][0] <= at <= figures.windows[-1][1]]
    cpu = tuple(figures.cpu[1:])
    columns: dict[str, str | int] = {
        "machines": count,
        "what": "only scrapes" if what == "scrapes" else loads,
        "µs a machine and second": f"{statistics.median(cpu) / seconds / count * 1e6:.0f}",
        "KiB a machine": f"{figures.memory / 1024 / count:.0f}",
        "decisions": len(late),
        "late, median": _part(late, 50),
        "late, p99": _part(late, 99),
        "late, most": _part(late, 100),
        "failed": figures.failed,
    }
    return Row(columns, cpu)


def _part(seconds: list[float], percent: int) -> str:
    """Milliseconds that so many of them do not exceed."""
    return f"{sorted(seconds)[(len(seconds) * percent - 1) // 100] * 1000:.1f}" if seconds else "-"


@contextmanager
def _permits(count: int) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "store.db"
        with closing(SQLiteStore(path)) as store:
            for number in range(count):
                running(store, machine(f"vm-{number}", least=BOUNDS.min, most=BOUNDS.max))
        process = _begin("tests.support.permit_process", str(path), *_ROOM)
        try:
            yield f"http://127.0.0.1:{int(_line(process))}/"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


@contextmanager
def _guests(count: int, loads: Loads) -> Iterator[subprocess.Popen[str]]:
    process = _begin("benchmarks.fake_guests", str(count), loads)
    try:
        _line(process)
        yield process
    finally:
        process.kill()
        process.wait(30)


def _decision_times(guests: subprocess.Popen[str]) -> list[tuple[float, float]]:
    """When each decision was told, and how late."""
    output, _ = guests.communicate(timeout=30)  # the end of its input is its end
    return [(at, took) for at, took in json.loads(output)]


def _agent(what: str, count: int, runs: int, seconds: float, url: str) -> ProcessFigures:
    process = _begin("benchmarks.socket_agent", what, str(count), str(runs), str(seconds), url)
    try:
        output, _ = process.communicate()
    finally:
        process.kill()
    if process.returncode != 0:
        raise RuntimeError("the process that is measured did not end well; it says why above")
    return ProcessFigures(**json.loads(output))


def _begin(module: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("a process of the benchmark did not begin; it says why above")
    return line
