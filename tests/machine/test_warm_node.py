"""`devalloc node --warm` as a process, asked by the command, killed and started again, on a host of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from devalloc_machines.qemu.qmp import QmpMonitor
from tests.support import warm_bed
from tests.support.deadlines import soon
from tests.support.images import Image
from tests.support.machines import virtual_machine
from tests.support.repository import REPO
from tests.support.warm_bed import in_a_bed, snapshot

pytestmark = [warm_bed.needs_root, warm_bed.needs_host_processes]

HOME = Path("/run/home")
SOCKET = Path("/run/devalloc/node.sock")
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(str(REPO / folder) for folder in (".", "solver", "node-plugin")),
    "DEVALLOC_STORE": str(HOME / "store.db"),
    "DEVALLOC_NODE_SOCKET": str(SOCKET),
    "DEVALLOC_ACCEL": "tcg",
}
SETUPS = 8


def started(*more: str, setups: int = SETUPS) -> subprocess.Popen[bytes]:
    words = ["node", "--state", f"{HOME}/state", "--cdi-dir", f"{HOME}/cdi", "--warm", str(setups), *more]
    words += ["--metrics", f"unix:{HOME}/metrics.sock"]
    with open("/run/log", "ab") as log:
        return subprocess.Popen([sys.executable, "-m", "devalloc.cli", *words], env=ENVIRONMENT, stdout=log, stderr=log)


def ready(plugin: subprocess.Popen[bytes], setups: int = SETUPS) -> set[str]:
    """The lines of its metrics, once its pool is full."""
    while True:
        assert plugin.poll() is None, Path("/run/log").read_text()
        with suppress(OSError):  # it is not served yet
            lines = set(metrics().splitlines())
            if f'devalloc_node_warm_setups{{state="ready"}} {setups}.0' in lines:
                return lines
        time.sleep(0.02)


def run_warm(*words: str) -> subprocess.CompletedProcess[str]:
    words = ("warm", *words)
    return subprocess.run(
        [sys.executable, "-m", "devalloc.cli", *words], env=ENVIRONMENT, capture_output=True, text=True
    )


def taken(owner: str) -> dict[str, Any]:
    done = run_warm("take", owner, "-o", "json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def metrics() -> str:
    with socket.socket(socket.AF_UNIX) as scraper:
        scraper.connect(f"{HOME}/metrics.sock")
        scraper.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        return b"".join(iter(lambda: scraper.recv(1 << 16), b"")).decode()


def test_the_setup_of_a_machine_outlives_a_plugin_that_is_killed_and_nothing_else_does() -> None:
    def body() -> None:
        HOME.mkdir()
        before = snapshot()
        plugin = started()
        ready(plugin)
        setup = taken("web-7")
        ready(plugin)
        # A machine that lives in it: what it is does not matter here.
        words = ["nsenter", f"--net={setup['namespacePath']}", "sleep", "600"]
        machine = subprocess.Popen(words)
        while Path(f"/proc/{machine.pid}/comm").read_text() != "sleep\n":
            time.sleep(0.001)
        plugin.send_signal(signal.SIGKILL)
        plugin.wait()

        plugin = started()
        lines = ready(plugin)
        assert {
            'devalloc_node_warm_setups{state="taken"} 1.0',
            'devalloc_node_warm_setups{state="making"} 0.0',
            'devalloc_node_warm_setups{state="removing"} 0.0',
            "devalloc_node_warm_setups_made_total 0.0",  # those of the killed one were ready still
            "devalloc_node_warm_setup_failures_total 0.0",
        } <= lines, sorted(line for line in lines if "warm" in line)
        listed = json.loads(run_warm("list", "-o", "json").stdout)
        assert [(each["setup"]["id"], each["owner"]) for each in listed["taken"]] == [(setup["id"], "web-7")]
        refused = run_warm("return", setup["id"], "--timeout", "1s")
        assert (refused.returncode, f"process {machine.pid} (sleep)" in refused.stderr) == (1, True), refused.stderr
        machine.kill()
        machine.wait()
        assert run_warm("return", setup["id"]).returncode == 0
        assert run_warm("return", setup["id"]).returncode == 1

        plugin.send_signal(signal.SIGTERM)
        assert plugin.wait() == 0, Path("/run/log").read_text()
        assert snapshot() == before

    in_a_bed(body)


def test_a_machine_that_waits_is_taken_by_the_command(open_image: Image) -> None:
    def body() -> None:
        HOME.mkdir()
        waiting = virtual_machine("any", open_image, memory={"min": "64Mi", "max": "64Mi"}).to_manifest()
        (HOME / "machine.yaml").write_text(json.dumps(waiting))
        more = ["--warm-machine", f"{HOME}/machine.yaml", "--qemu", str(open_image.qemu)]
        plugin = started(*more, "--image-folder", f"{open_image.folder}:shared", setups=1)
        ready(plugin, 1)
        setup = taken("a")
        line = QmpMonitor("a", setup["qmpSocket"])
        assert line.execute("query-status", deadline=soon())["status"] == "prelaunch"
        line.execute("cont", deadline=soon())
        assert line.execute("query-status", deadline=soon())["status"] == "running"
        line.execute("quit", deadline=soon())
        line.close()
        assert run_warm("return", setup["id"]).returncode == 0
        plugin.send_signal(signal.SIGTERM)
        assert plugin.wait() == 0, Path("/run/log").read_text()
        assert list(Path("/run/devalloc/warm/machines").iterdir()) == []

    in_a_bed(body)
