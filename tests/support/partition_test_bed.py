"""Where a machine that follows its guest is cut off from others: who stands between them, who asks for the same room,
and who watches all the while.

The watcher reads the store's file and a QMP socket of its own, and the rival speaks HTTP byte by byte: none of them has
anything of what is judged.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.permit_bench import Client
from tests.support.qemu import Monitor
from tests.support.store_file import machine_statuses

GIB = 2**30
RIVAL = "rival"
WATCHED = "-chardev socket,id=cuts,path=cuts,server=on,wait=off -mon chardev=cuts,mode=control"
"""Options by which QEMU has a socket for the watcher, in the machine's folder."""


@dataclass(frozen=True, order=True)
class ObservedAmounts:
    """CPUs and bytes."""

    cpus: float
    memory: int

    @classmethod
    def from_status(cls, amounts: Mapping[str, Any]) -> ObservedAmounts:
        """Of a status."""
        return cls(_amount(amounts["cpus"]), int(_amount(amounts["memory"])))

    def exceeds(self, other: ObservedAmounts) -> bool:
        return self.cpus > other.cpus or self.memory > other.memory

    def most(self, other: ObservedAmounts) -> ObservedAmounts:
        return ObservedAmounts(max(self.cpus, other.cpus), max(self.memory, other.memory))


def _amount(value: object) -> float:
    text = str(value)
    for suffix, unit in (("m", 0.001), ("Ki", 2**10), ("Mi", 2**20), ("Gi", GIB)):
        if text.endswith(suffix):
            return float(text.removesuffix(suffix)) * unit
    return float(text)


class PermitServerProcess:
    """The server of permits, in a process of its own that can be killed."""

    def __init__(self, store: Path, limit: ObservedAmounts) -> None:
        self._store, self._limit = store, limit
        self.port = 0
        self.start()

    def start(self) -> None:
        words = (str(self._store), str(int(self._limit.cpus * 1000)), str(self._limit.memory), "here")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.permit_process", *words],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


Look = Callable[[dict[str, Any]], bool]


class PermitProxy:
    """Who stands between the agent and the server of permits, and passes on what they say to each other."""

    def __init__(self, server: PermitServerProcess) -> None:
        self._server = server
        self.before: Look = lambda request: False
        """Called with each request before it is passed on."""
        self.keeps: Look = lambda request: False
        """Whether the answer to this request is kept back: it never arrives."""
        self.was_kept = threading.Event()
        self.let_go = threading.Event()
        between = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                between._pass_on(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.let_go.set()
        self._http.shutdown()
        self._http.server_close()

    def _pass_on(self, incoming: BaseHTTPRequestHandler) -> None:
        body = incoming.rfile.read(int(incoming.headers["Content-Length"]))
        request: dict[str, Any] = json.loads(body)
        self.before(request)
        try:
            server = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=30)
            server.request("POST", "/", body, {"Content-Type": "application/json"})
            answer = server.getresponse()
            content = answer.read()
            server.close()
        except (OSError, http.client.HTTPException):
            incoming.close_connection = True  # as the server's own end of a connection ends with it
            return
        if self.keeps(request):
            self.was_kept.set()
            self.let_go.wait()
            incoming.close_connection = True
            return
        with suppress(OSError):  # who asked has gone
            incoming.send_response(answer.status)
            incoming.send_header("Content-Length", str(len(content)))
            incoming.end_headers()
            incoming.wfile.write(content)


class GreedyAgent:
    """Another machine's agent, which wants all that there is as long as it is greedy."""

    def __init__(self, server: PermitServerProcess, most: ObservedAmounts) -> None:
        self._server, self._most = server, most
        self.greedy = False
        self.answers = 0
        self.last: dict[str, Any] | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def __repr__(self) -> str:
        return f"greedy: {self.greedy}, answers: {self.answers}, the last: {self.last}"

    def _run(self) -> None:
        while not self._over.wait(0.2):
            wants = self._most if self.greedy else ObservedAmounts(1, GIB)
            client = Client(("127.0.0.1", self._server.port), unit={"vCPUs": 1, "mem": "1Gi"})
            with suppress(OSError, http.client.HTTPException):
                message = client.message(RIVAL, wants.cpus, wants.memory, self.last)
                status, _, body = client.post(json.dumps(message).encode())
                if status == 200:
                    self.last, self.answers = json.loads(body)["permit"], self.answers + 1
            client.close()


@dataclass
class InvariantWatcher:
    """Looks at the store and at QEMU, over and over. ``wrong`` is what must never be."""

    store: Path
    socket: Path
    machine: str
    limit: ObservedAmounts
    device: str
    pid: int
    """QEMU's."""
    wrong: list[str] = field(default_factory=list)
    looks: int = 0
    has: ObservedAmounts = ObservedAmounts(0, 0)
    """What QEMU had when it was last asked. Of CPUs that a guest keeps it has as much as its cgroup lets it."""
    frozen: bool = False
    """QEMU was stopped, and so has what it had."""

    def __post_init__(self) -> None:
        self._monitor = Monitor(self.socket)
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._every, args=(look,)) for look in (self._machine, self._sum)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._monitor.close()

    def permits(self) -> dict[str, ObservedAmounts]:
        """What is written down, by name."""
        return {
            name: ObservedAmounts.from_status(status["permitted"])
            for name, status in machine_statuses(self.store).items()
            if _is_given(status)
        }

    def _every(self, look: Callable[[], None]) -> None:
        while not self._over.wait(0.02):
            try:
                look()
            except Exception as error:
                if not self._over.is_set():
                    self.wrong.append(f"it cannot be seen: {error!r}")
                return
            self.looks += 1

    def _machine(self) -> None:
        """What QEMU has is permitted, before or after the look: not both are seen at one instant."""
        before = self.permits().get(self.machine)
        slots = self._monitor.execute("query-hotpluggable-cpus")
        memory = self._monitor.execute("query-memory-size-summary")
        there = self._monitor.execute("qom-list", path="/machine/peripheral")
        after = self.permits().get(self.machine)
        vcpus = sum(slot["vcpus-count"] for slot in slots if "qom-path" in slot)
        self.has = ObservedAmounts(
            min(vcpus, quota) if (quota := cpu_quota(self.pid)) is not None else vcpus,
            memory["base-memory"] + memory.get("plugged-memory", 0),
        )
        if before is not None and after is not None and self.has.exceeds(before.most(after)):
            self.wrong.append(f"QEMU has {self.has}, and {before} was permitted, then {after}")
        if not any(self.device in entry["name"] for entry in there):
            self.wrong.append(f"the device {self.device} is not in QEMU")

    def _sum(self) -> None:
        has, permits = self.has, self.permits()
        frozen = self.frozen and self.machine in permits
        if frozen and has.exceeds(permits[self.machine]):
            self.wrong.append(f"QEMU was stopped with {has}, and {permits[self.machine]} is permitted")
        cpus, memory = sum(p.cpus for p in permits.values()), sum(p.memory for p in permits.values())
        if ObservedAmounts(cpus, memory).exceeds(self.limit):
            self.wrong.append(f"{permits} are permitted of {self.limit}")


def cpu_quota(pid: int) -> float | None:
    """CPUs that a process may use; None where its cgroup, of either version, does not say."""
    groups = dict(line.split(":", 2)[1:] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines())
    for controllers, path in groups.items():
        if "cpu" in controllers.split(","):
            folder = Path("/sys/fs/cgroup", controllers + path)
            if not (folder / "cpu.cfs_quota_us").exists():
                return None
            quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
            return None if quota < 0 else quota / period
    limit = Path("/sys/fs/cgroup" + groups.get("", "/")) / "cpu.max"
    quota, period = limit.read_text().split() if limit.exists() else ("max", "1")
    return None if quota == "max" else int(quota) / int(period)


def _is_given(status: Mapping[str, Any]) -> bool:
    permit = status.get("permitted") or {}
    return bool(permit.get("givenBy")) and permit.get("machineID", "") in ("", status.get("machineID"))


@contextmanager
def locked(store: Path) -> Iterator[Callable[[], None]]:
    """A function that keeps all others from writing, from its call until the end of this."""
    connection = sqlite3.connect(store, timeout=30, isolation_level=None, check_same_thread=False)
    try:
        yield lambda: connection.execute("BEGIN IMMEDIATE") and None
    finally:
        connection.close()
