"""Controllers of a cluster as processes that are killed and stopped, and a supervisor that starts them again."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.kube_api import Cluster
from tests.support.previous import PRESENT

Object = dict[str, Any]
NAMESPACE = "devalloc-system"
DEVMGMT = "/apis/devmgmtproto.k8s.io/v1alpha1"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/devalloc-controller"
PATIENCE = 120.0
"""Seconds that anything may take on a machine that is busy with other things."""


def prepare(cluster: Cluster) -> None:
    """The namespace of the controllers."""
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    answer = cluster.create("/api/v1/namespaces", body)
    assert answer.ok or answer.status == 409, answer.message


class Process:
    """One controller; started again whenever it has ended, as a Deployment would."""

    def __init__(self, cluster: Cluster, folder: Path, name: str, lease: str, *options: str) -> None:
        """``options``: more for the command."""
        self.name = name
        self.log = folder / f"{name}.log"
        self.starts = 0
        self.codes: list[int] = []
        """How it ended each time."""
        self.user = "admin"
        self.kubeconfig: Path | None = None
        """In place of that user's."""
        self.version = PRESENT
        self.skew = 0.0
        """Seconds by which its wall clock is ahead."""
        self._cluster = cluster
        self._lease = lease
        self.options: tuple[str, ...] = options
        """Of the next start."""
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Unless it runs."""
        with self._lock:
            if self._process is not None:
                if self._process.poll() is None:
                    return
                self.codes.append(self._process.returncode)
            self.starts += 1
            kubeconfig = self.kubeconfig or self._cluster.kubeconfig(self.user)
            program = ["tests.support.wrong_clock", str(self.skew)] if self.skew else ["devalloc.cli"]
            command = [
                *self.version.python("-m", *program, "controller", "--kubeconfig"), str(kubeconfig),
                "--name", self.name, "--listen", "", "--lease", self._lease,
                "--availability-interval", "2s", "--log-level", "info", *self.options,
            ]  # fmt: skip
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self.version.environment(),
                )

    @property
    def pid(self) -> int | None:
        """Of the one that was started last."""
        return None if self._process is None else self._process.pid

    def signal(self, number: int) -> None:
        """Send it, where it runs."""
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                self._process.send_signal(number)

    def wait(self, seconds: float = PATIENCE) -> int:
        """Until it has ended; its exit code."""
        assert self._process is not None
        return self._process.wait(seconds)

    def end(self) -> int:
        """Ask it to end; its exit code."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        return self.wait()

    def close(self) -> None:
        """At once."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


@contextmanager
def controllers(
    cluster: Cluster, folder: Path, count: int = 2, *options: str, lease: str = "6s"
) -> Iterator[list[Process]]:
    """So many that run, until the end. ``options``: more for the command."""
    prepare(cluster)
    processes = [Process(cluster, folder, f"controller-{number}", lease, *options) for number in range(count)]
    try:
        for process in processes:
            process.start()
        yield processes
    finally:
        for process in processes:
            process.close()


def lease_holder(cluster: Cluster) -> str:
    """Who has the lease; empty if no process does."""
    return str(cluster.get(LEASE).content.get("spec", {}).get("holderIdentity", ""))


def leader_process(cluster: Cluster, processes: list[Process]) -> Process | None:
    """The process that has the lease."""
    held = lease_holder(cluster)
    return next((process for process in processes if held.startswith(f"{process.name}-")), None)
