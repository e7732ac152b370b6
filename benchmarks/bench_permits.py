"""What a permit costs: an agent's request, from the first byte sent until the answer has been read."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, benchmark
from devalloc.store.sqlite import SQLiteStore
from tests.support.permit_bench import GIB, machine, running

MACHINES = 500
"""On one node."""
REQUESTS = 2000
"""In a run."""
AT_ONCE = (1, 16, 64)


@benchmark(
    "permits",
    "Permits: requests per second, and how long one takes",
    method=f"The server in a process of its own, {MACHINES} machines on one node, agents of version v5.0 on kept "
    "connections, on loopback. `same`: an agent wants what it was told last, which is what most say; nothing is "
    "written. `other`: each request changes the permit, so that the answer waits until it is written (SQLite, WAL, "
    "synchronous=FULL); what comes in meanwhile is written together. The store is on disk, or in memory (tmpfs), where "
    "a write waits for nothing. Median, min and max are those of the runs' median latencies. "
    f"A run is {REQUESTS} requests. The agents are one more Python process, and share the cores with the server.",
    packages=("aiohttp",),
)
def permits(runs: int) -> Iterator[Row]:
    for where, folder in (("disk", None), ("memory", "/dev/shm")):
        with tempfile.TemporaryDirectory(dir=folder) as name:
            path = Path(name) / "store.db"
            with closing(SQLiteStore(path)) as store:
                for number in range(MACHINES):
                    running(store, machine(f"vm-{number}"))
            port, process = _server(path)
            try:
                for kind in ("same", "other"):
                    for at_once in AT_ONCE:
                        rounds = [asyncio.run(_run(port, kind, at_once, n)) for n in range(runs + 1)][1:]
                        yield _row({"store": where, "wants": kind, "at once": at_once}, rounds)
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(30)


@dataclass(frozen=True)
class _Round:
    latencies: list[float]
    seconds: float


def _row(what: dict[str, str | int], rounds: list[_Round]) -> Row:
    per_second = statistics.median(len(each.latencies) / each.seconds for each in rounds)
    all_of_them = sorted(latency for each in rounds for latency in each.latencies)
    p99 = all_of_them[(len(all_of_them) * 99 - 1) // 100] * 1000
    medians = tuple(statistics.median(each.latencies) for each in rounds)
    return Row({**what, "requests/s": f"{per_second:.0f}", "p99": f"{p99:.1f}"}, medians)


def _server(path: Path) -> tuple[int, subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.permit_process", str(path), str(10**7), str(2**50)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    return int(process.stdout.readline()), process


async def _run(port: int, kind: str, at_once: int, number: int) -> _Round:
    """As many agents, each with machines of its own, one request after the other."""
    agents = [_Agent(port, first, at_once, kind, number) for first in range(at_once)]
    await asyncio.gather(*(agent.prepare() for agent in agents))
    began = time.perf_counter()
    latencies = await asyncio.gather(*(agent.ask(REQUESTS // at_once) for agent in agents))
    seconds = time.perf_counter() - began
    for agent in agents:
        agent.close()
    return _Round([latency for each in latencies for latency in each], seconds)


class _Agent:
    def __init__(self, port: int, first: int, step: int, kind: str, number: int) -> None:
        self._port = port
        self._names = [f"vm-{n}" for n in range(first, MACHINES, step)]
        self._kind = kind
        self._round = number

    async def prepare(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        if self._kind == "same":
            for name in self._names:
                await self._exchange(_request(name, 1000, None))

    async def ask(self, count: int) -> list[float]:
        latencies = []
        for turn in range(count):
            name = self._names[turn % len(self._names)]
            other = 1000 + 250 * ((turn // len(self._names) + self._round) % 2 + 1)
            request = _request(name, other if self._kind == "other" else 1000, 1000)
            began = time.perf_counter()
            await self._exchange(request)
            latencies.append(time.perf_counter() - began)
        return latencies

    async def _exchange(self, request: bytes) -> None:
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(head.decode())
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        await self._reader.readexactly(length)

    def close(self) -> None:
        self._writer.close()


def _request(name: str, milli: int, last: int | None) -> bytes:
    last_permit: Any = None if last is None else {"vCPUs": f"{last}m", "mem": 2 * GIB}
    body = json.dumps(
        {
            "protoVersion": 7,
            "pod": {"namespace": "default", "name": name},
            "computeUnit": {"vCPUs": "250m", "mem": "1Gi"},
            "resources": {"vCPUs": f"{milli}m", "mem": "2Gi"},
            "lastPermit": last_permit,
            "metrics": {"loadAvg1M": 0.5},
        }
    ).encode()
    return b"POST / HTTP/1.1\r\nHost: permits\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
