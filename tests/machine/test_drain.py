"""Must show: a machine with a disk leaves a node that is drained and runs on another one, with real QEMU, two plugins
and a controller, each in a process of its own, and one of them killed on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from devalloc_node.machine.process import process
from devalloc_node.net.unix_sockets import has_listener
from tests.support import tiny_guest, waiting
from tests.support.images import Image
from tests.support.machines import short_folder
from tests.support.store_file import machine_statuses

NODES = ("a", "b")


class Fleet:
    """A store, a controller, and two nodes on this host that have one folder of disks."""

    def __init__(self, folder: Path, image: Image) -> None:
        self.folder, self.image = folder, image
        self.disks = folder / "disks"
        self.disks.mkdir()
        (self.disks / "drained.raw").write_bytes(bytes(2**20))
        self.env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "DEVALLOC_STORE": str(folder / "store.db")}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def command(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "devalloc.cli", *words]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, env=self.env, timeout=300)

    def run(self, name: str, *words: str, **env: str) -> None:
        with (self.folder / "log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "devalloc.cli", *words], stdout=log, stderr=log, env={**self.env, **env}
            )

    def start_controller(self) -> None:
        self.run("controller", "up", "--no-node", "--no-inventory")

    def start_node(self, node: str) -> None:
        home = self.folder / node
        home.mkdir(exist_ok=True)
        images = ("--image-folder", f"{self.image.folder}:any", "--image-folder", f"{self.disks}:any")
        shared = ("--host-capacity", "--oversub-cpu", "100", "--shared-storage", str(self.disks))
        machines = ("--qemu", str(self.image.qemu), "--accel", "tcg", "--machine-dir", str(home / "run"))
        self.run(
            node,
            *("node", "--node-name", node, "--state", str(home / "state"), "--socket", str(home / "sock")),
            *("--cdi-dir", str(home / "cdi"), *images, *shared, *machines),
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


@pytest.fixture
def fleet(open_image: Image) -> Iterator[Fleet]:
    (open_image.folder / "tiny").write_bytes(tiny_guest.image())
    with short_folder() as folder:
        made = Fleet(folder, open_image)
        try:
            yield made
        finally:
            made.end()
            print(made.log())


def test_a_machine_leaves_its_node_and_starts_where_its_disk_is(fleet: Fleet) -> None:
    fleet.start_node("a")
    fleet.start_controller()
    fleet.command("apply", "-f", "-", stdin=fleet.manifest())
    waiting.until(lambda: fleet.status().get("phase") == "Running", "it runs", context=fleet.log)
    before = fleet.status()
    assert before["nodeName"] == "a"
    fleet.start_node("b")
    shown = fleet.command("drain", "node/a", "--timeout", "1s")
    assert (shown.returncode, "stays: it runs (--force stops it)" in shown.stdout) == (1, True)

    fleet.kill("a")
    requested = fleet.command("drain", "node/a", "--force", "--timeout", "0s")
    assert requested.returncode == 1
    assert process(before["pid"]) is not None, "no one can stop it"
    assert fleet.status()["nodeName"] == "a"
    fleet.kill("controller")
    fleet.start_node("a")
    waiting.until(lambda: not fleet.qemus("a"), "it was powered down", context=fleet.log)
    assert not fleet.qemus("b")
    fleet.start_controller()
    drained = fleet.command("drain", "node/a", "--force", "--timeout", "5m")
    assert drained.returncode == 0, drained.stdout + drained.stderr
    waiting.until(lambda: fleet.status().get("phase") == "Running", "it runs elsewhere", context=fleet.log)
    after = fleet.status()
    assert (after["nodeName"], after["machineID"] != before["machineID"]) == ("b", True)
    assert after["pid"] in fleet.qemus("b")
    waiting.until(lambda: not list((fleet.folder / "a" / "run").iterdir()), "nothing of it is left", context=fleet.log)
    assert not fleet.qemus("a")
