"""A store with nodes and a controller of it on this host, each in a process of its own, with real QEMU."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from devalloc_node.net.unix_sockets import has_listener
from tests.support import waiting
from tests.support.images import Image
from tests.support.previous import PRESENT
from tests.support.store_file import machine_statuses

NODES = ("a", "b")


def read_page(path: Path, page: str) -> str:
    """The page that a process serves at a unix socket, without its headers; empty while none does."""
    with socket.socket(socket.AF_UNIX) as connection, suppress(OSError):
        connection.settimeout(60)
        connection.connect(str(path))
        connection.sendall(f"GET {page} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        return b"".join(iter(lambda: connection.recv(65536), b"")).decode().partition("\r\n\r\n")[2]
    return ""


class Fleet:
    """A store, a controller, and two nodes on this host that have one folder of disks."""

    def __init__(self, folder: Path, image: Image) -> None:
        self.folder, self.image = folder, image
        self.disks = folder / "disks"
        self.disks.mkdir()
        (self.disks / "drained.raw").write_bytes(bytes(2**20))
        self.env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "DEVALLOC_STORE": str(folder / "store.db")}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.version = PRESENT
        """Of the processes that are started from now on."""

    def command(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "devalloc.cli", *words]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, env=self.env, timeout=300)

    def run(self, name: str, *words: str, **env: str) -> None:
        own = (
            self.env if self.version is PRESENT else self.version.environment(DEVALLOC_STORE=self.env["DEVALLOC_STORE"])
        )
        with (self.folder / "log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                self.version.devalloc(*words), stdout=log, stderr=log, env={**own, **env}
            )

    def start_controller(self) -> None:
        self.run("controller", "up", "--no-node", "--no-inventory")

    def start_node(self, node: str, *options: str) -> None:
        home = self.folder / node
        home.mkdir(exist_ok=True)
        is_old = self.version.name == "0.1.0"  # in which a folder is everyone's, and no storage is shared
        folders = [str(folder) if is_old else f"{folder}:any" for folder in (self.image.folder, self.disks)]
        images = [word for folder in folders for word in ("--image-folder", folder)]
        shared = ["--host-capacity", "--oversub-cpu", "100"]
        shared += [] if is_old else ["--shared-storage", str(self.disks)]
        machines = ("--qemu", str(self.image.qemu), "--accel", "tcg", "--machine-dir", str(home / "run"))
        self.run(
            node,
            *("node", "--node-name", node, "--state", str(home / "state"), "--socket", str(home / "sock")),
            *("--cdi-dir", str(home / "cdi"), *images, *shared, *machines, *options),
        )
        waiting.until(lambda: has_listener(home / "sock"), "the plugin serves", context=self.log)

    def kill(self, name: str) -> None:
        killed = self.processes.pop(name)
        killed.kill()
        killed.wait()

    def end(self) -> None:
        for one in self.processes.values():
            one.send_signal(signal.SIGTERM)
        for one in self.processes.values():
            one.wait(120)
        for node in NODES:
            for pid in self.qemus(node):
                with suppress(ProcessLookupError):  # it ended meanwhile
                    os.kill(pid, signal.SIGKILL)

    def qemus(self, node: str) -> list[int]:
        """Processes that run in a machine's folder of a node."""
        pids = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and os.readlink(entry / "cwd").startswith(str(self.folder / node / "run")):
                    pids.append(int(entry.name))
        return pids

    def status(self) -> dict[str, Any]:
        return machine_statuses(self.folder / "store.db").get("drained", {})

    def shown(self, node: str, what: str) -> dict[str, Any]:
        """What a node shows at its socket of the scaling agent (``agent``) or of the permit server (``permits``)."""
        content: dict[str, Any] = json.loads(read_page(self.folder / node / f"sock-{what}.sock", "/"))
        return content

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def manifest(self) -> str:
        disks = [{"path": str(self.disks / "drained.raw"), "format": "raw"}]
        content = {
            "cpu": {"min": 1, "max": 2},
            "memory": {"min": "64Mi", "max": "128Mi"},
            "start": {"kernel": str(self.image.folder / "tiny"), "disks": disks},
            "powerdownSeconds": 60,
        }
        metadata = {"name": "drained", "namespace": "default"}
        return yaml.safe_dump(
            {"apiVersion": "devalloc.io/v1alpha1", "kind": "VirtualMachine", "metadata": metadata, "spec": content}
        )
