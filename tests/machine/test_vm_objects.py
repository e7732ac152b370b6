"""Must show: machines as users have them, with the project's own command lines and a real QEMU.

A VirtualMachine is applied, scaled by its spec, survives the plugin, is brought back when it ends, and goes when its
object is deleted.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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


class Host:
    """A store, a plugin in a process of its own, and the command."""

    def __init__(self, folder: Path, image: Image) -> None:
        self.folder, self.image = folder, image
        self.socket = folder / "node.sock"
        self.env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "DEVALLOC_STORE": str(folder / "store.db"),
            "DEVALLOC_NODE_SOCKET": str(self.socket),
            "DEVALLOC_NODE_STATE": str(folder / "state"),
            "DEVALLOC_ACCEL": "tcg",
        }

    def __call__(self, *words: str, stdin: str = "", code: int = 0) -> str:
        command = [sys.executable, "-m", "devalloc.cli", *words]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, env=self.env, timeout=120)
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    @contextmanager
    def plugin(self, *more: str) -> Iterator[subprocess.Popen[str]]:
        images = f"{self.image.folder}:any"
        words = ["--node-name", "here", "--image-folder", images, "--tap", "tap*", "--qemu", str(self.image.qemu)]
        command = [
            sys.executable,
            "-m",
            "devalloc.cli",
            "node",
            *words,
            *more,
            "--machine-dir",
            str(self.folder / "run"),
        ]
        with (self.folder / "node.log").open("a") as log:
            process = subprocess.Popen(
                [*command, "--cdi-dir", str(self.folder / "cdi")], stdout=log, stderr=log, env=self.env, text=True
            )
        try:
            until(lambda: has_listener(self.socket), "the plugin serves", self.log)
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(120)

    def end_machines(self) -> None:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and _is_ours(entry, self.folder):
                with suppress(ProcessLookupError):  # it ended meanwhile
                    os.kill(int(entry.name), signal.SIGKILL)

    def log(self) -> str:
        return (self.folder / "node.log").read_text()

    def status(self) -> dict[str, Any]:
        """From the store's file: who looks again and again by the command keeps a CPU busy with it."""
        return machine_statuses(self.folder / "store.db")["web"]

    def manifest(self, **spec: Any) -> str:
        """A machine with a kernel that is up at once and obeys the power button; what real guests do with CPUs and
        memory is tested elsewhere."""
        content = {
            "nodeName": "here",
            "cpu": {"min": 1, "max": 4},
            "memory": {"min": "64Mi", "max": "256Mi"},
            "start": {"kernel": str(self.image.folder / "tiny")},
            "powerdownSeconds": 20,
            **spec,
        }
        metadata = {"name": "web", "namespace": "default"}
        return yaml.safe_dump(
            {"apiVersion": "devalloc.io/v1alpha1", "kind": "VirtualMachine", "metadata": metadata, "spec": content}
        )


@pytest.fixture
def host(open_image: Image) -> Iterator[Host]:
    (open_image.folder / "tiny").write_bytes(tiny_guest.image())
    with short_folder() as folder:
        made = Host(folder, open_image)
        try:
            yield made
        finally:
            for line in made.log().splitlines():
                print(line)
            made.end_machines()


def _is_ours(entry: Path, folder: Path) -> bool:
    """Whether a process is a machine of this test."""
    try:
        return os.readlink(entry / "cwd").startswith(str(folder / "run"))
    except OSError:
        return False


def until(true: Callable[[], object], what: str, output: Callable[[], str]) -> None:
    waiting.until(true, what, context=output)


def test_a_machine_from_its_manifest_to_its_end(host: Host) -> None:
    with host.plugin():
        host("apply", "-f", "-", stdin=host.manifest())
        until(lambda: host.status().get("phase") == "Running", "it runs", host.log)
        host("apply", "-f", "-", stdin=host.manifest(cpu={"min": 1, "max": 4, "use": 3}))
        until(lambda: host.status().get("observed") == {"cpus": "3", "memory": "64Mi"}, "it has grown", host.log)
        header, row = (re.split(" {2,}", line) for line in host("vm", "top", "--interval", "200ms").splitlines())
        shown = dict(zip(header, row, strict=False))
        assert (shown["NAME"], shown["PHASE"], shown["OBSERVED"]) == ("default/web", "Running", "3 64Mi")
        assert "MachineOfStore" in host("vm", "scale", "web", "--vcpus", "2", code=1)
    assert process(host.status()["pid"]) is not None, "it needs no plugin"
    host("delete", "vm/web")
    with host.plugin():
        until(lambda: host("get", "vms", "-o", "name") == "", "it is gone", host.log)
        assert not list((host.folder / "run").iterdir())
    records = [json.loads(line) for line in (host.folder / "state" / "audit.log").read_text().splitlines()]
    assert [r["done"] for r in records if r["event"] == "machine"] == ["started", "scaled", "deleted"]


def test_a_machine_outlives_a_killed_plugin_and_is_brought_back_when_it_ends(host: Host) -> None:
    with host.plugin() as killed:
        host("apply", "-f", "-", stdin=host.manifest())
        until(lambda: host.status().get("phase") == "Running", "it runs", host.log)
        before = host.status()
        killed.kill()
        killed.wait()
    assert process(before["pid"]) is not None
    assert "no answer at" in host("vm", "list", code=1)
    with host.plugin():
        until(lambda: "Running" in host("vm", "list"), "the next one finds it", host.log)
        assert host.status() == before
        os.kill(before["pid"], signal.SIGKILL)
        until(
            lambda: host.status()["phase"] == "Running" and host.status()["pid"] != before["pid"],
            "it is brought back",
            host.log,
        )
        assert host.status()["machineID"] != before["machineID"]
        host("apply", "-f", "-", stdin=host.manifest(running=False))
        until(lambda: host.status()["phase"] == "Stopped", "it is stopped", host.log)
        host("delete", "vm/web")
        until(lambda: host("get", "vms", "-o", "name") == "", "it is gone", host.log)
