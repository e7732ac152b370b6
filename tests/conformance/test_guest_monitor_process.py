"""The guest monitor as a process, on this machine's own kernel: from its start to a signal."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from devalloc.scaling.resources import Resources
from devalloc_machines.guest.memory import read_memory
from devalloc_machines.guest.system import GuestSystem
from tests.support.guest_monitor_peers import connected, watched

REPO = Path(__file__).resolve().parents[2]
PATHS = {"PYTHONPATH": ":".join(str(REPO / part) for part in ("", "solver", "node-plugin")), "PATH": "/usr/bin:/bin"}
HERE = ["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--cpus", "leave", "--memory", "leave"]
WAYS = {"by itself": ["-m", "devalloc.programs.guest_monitor"], "as a verb": ["-m", "devalloc.cli", "guest-monitor"]}


@contextmanager
def started(way: str, *options: str) -> Iterator[tuple[subprocess.Popen[str], int, int]]:
    """The process, and its two ports."""
    command = [sys.executable, *WAYS[way], *HERE, *options]
    with subprocess.Popen(command, env=PATHS, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            ports = re.search(r"listens at 127.0.0.1 port (\d+), metrics at port (\d+)", line)
            assert ports, line
            yield process, int(ports[1]), int(ports[2])
        finally:
            process.kill()


@pytest.mark.parametrize("way", WAYS)
def test_it_serves_an_agent_and_gauges_and_ends_with_a_signal(way: str) -> None:
    total = read_memory(GuestSystem()).total

    async def ask(port: int) -> tuple[bool, bool]:
        async with watched(port) as (monitor, _):
            await connected(monitor)
            await asyncio.sleep(0.3)
            agreed = await monitor.downscale(Resources(250, total))
            denied = await monitor.downscale(Resources(250, 64 * 2**20))
            return agreed.ok, denied.ok

    with started(way) as (process, port, metrics):
        assert asyncio.run(ask(port)) == (read_memory(GuestSystem()).used < 0.8 * total, False)
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics") as page:
            gauges = dict(line.split(" ") for line in page.read().decode().splitlines() if not line.startswith("#"))
        assert int(gauges["host_memory_total_bytes"]) == total
        assert float(gauges["host_load1"]) >= 0
        process.terminate()
        assert process.wait(60) == 0


def test_it_imports_little() -> None:
    program = (
        "import sys, json, devalloc.programs.guest_monitor\n"
        "ours = [name for name in sys.modules if name.startswith('devalloc')]\n"
        "heavy = {'click', 'grpc', 'pydantic', 'yaml', 'rich', 'sqlite3', 'prometheus_client', 'numpy'}\n"
        "print(json.dumps([sorted(ours), sorted(heavy & set(sys.modules))]))"
    )
    done = subprocess.run([sys.executable, "-c", program], env=PATHS, capture_output=True, text=True, check=True)
    ours, heavy = json.loads(done.stdout)
    assert heavy == []
    others = [name for name in ours if not name.startswith("devalloc_machines.guest")]
    assert others == [
        "devalloc", "devalloc.net", "devalloc.net.rate", "devalloc.printable", "devalloc.programs",
        "devalloc.programs.guest_monitor", "devalloc.scaling",
        "devalloc.scaling.messages",
        "devalloc.scaling.messages.monitor",
        "devalloc.scaling.metrics", "devalloc.scaling.resources",
        "devalloc.scaling.versions", "devalloc.settings", "devalloc_machines", "devalloc_node", "devalloc_node.net",
        "devalloc_node.net.websocket",
    ]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--listen", "nowhere"], 2, "--listen: 'nowhere' is not ADDRESS:PORT"),
        (["--measure", "cgroup:no/such/group"], 2, "no cgroup 'no/such/group'"),
        (["--listen", "127.0.0.1:1", "--metrics-listen", "192.0.2.1:9100"], 1, "the guest monitor cannot run"),
        (["--root", "/nowhere"], 1, "/nowhere/proc/meminfo"),
    ],
)
def test_a_monitor_that_cannot_run_reports_the_cause(way: str, options: list[str], code: int, words: str) -> None:
    command = [sys.executable, *WAYS[way], *HERE, *options]
    done = subprocess.run(command, env=PATHS, capture_output=True, text=True, timeout=60)
    assert (done.returncode, words in done.stderr) == (code, True), done.stderr
