"""VirtualMachines that live in warm setups, with a real QEMU and the command, on a host of their own."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from devalloc.store.sqlite import SQLiteStore
from devalloc_machines.qemu.process import process
from devalloc_machines.qemu.qmp import QmpMonitor
from devalloc_machines.warm import network
from devalloc_node.errors import NodeError
from devalloc_node.host import traffic
from tests.support import tiny_guest, waiting, warm_bed
from tests.support.images import Image
from tests.support.repository import REPO
from tests.support.warm_bed import in_a_bed, snapshot

pytestmark = [warm_bed.needs_root, warm_bed.needs_host_processes]

HOME = Path("/run/home")
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(str(REPO / folder) for folder in (".", "solver", "node-plugin")),
    "DEVALLOC_STORE": str(HOME / "store.db"),
    "DEVALLOC_NODE_SOCKET": "/run/devalloc/node.sock",
    "DEVALLOC_ACCEL": "tcg",
}
ROUNDS = min(int(os.environ.get("DEVALLOC_WARM_ROUNDS", "0")), 10)
"""More kills, at moments that are drawn."""
METADATA = {"name": "web", "namespace": "default"}


def manifest(image: Image, **spec: Any) -> str:
    """A machine whose guest does nothing, and obeys the power button."""
    (image.folder / "tiny").write_bytes(tiny_guest.image())
    content = {
        "nodeName": "here",
        "cpu": {"min": 1, "max": 1},
        "memory": {"min": "64Mi", "max": "64Mi"},
        "start": {"kernel": str(image.folder / "tiny")},
        "nics": [{"backend": "warm", "bandwidth": "1M"}],
        "powerdownSeconds": 20,
        **spec,
    }
    return json.dumps(
        {"apiVersion": "devalloc.io/v1alpha1", "kind": "VirtualMachine", "metadata": METADATA, "spec": content}
    )


class Host:
    """A store, a plugin that is killed now and then, and the command."""

    def __init__(self, image: Image, *more: str) -> None:
        self.words = ["node", "--node-name", "here", "--state", f"{HOME}/state", "--cdi-dir", f"{HOME}/cdi"]
        self.words += ["--image-folder", f"{image.folder}:shared", "--qemu", str(image.qemu), *more]
        self.plugin = self.started()

    def started(self) -> subprocess.Popen[bytes]:
        with open("/run/log", "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "devalloc.cli", *self.words], env=ENVIRONMENT, stdout=log, stderr=log
            )

    def __call__(self, *words: str, stdin: str = "") -> str:
        command = [sys.executable, "-m", "devalloc.cli", *words]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, env=ENVIRONMENT)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def killed(self) -> None:
        self.plugin.kill()
        self.plugin.wait()

    def status(self) -> dict[str, Any]:
        with closing(SQLiteStore(Path(ENVIRONMENT["DEVALLOC_STORE"]))) as store:
            return dict(store.get("VirtualMachine", "default", "web").get("status", {}))

    def taken(self) -> list[dict[str, Any]]:
        with suppress(AssertionError):  # the plugin only just starts
            return list(json.loads(self("warm", "list", "-o", "json")).get("taken", []))
        return [{}]


def until(true: Callable[[], object], what: str) -> None:
    waiting.until(true, what, context=Path("/run/log").read_text)


@contextmanager
def a_host(image: Image, *more: str) -> Iterator[Host]:
    HOME.mkdir()
    host = Host(image, *more)
    try:
        until(lambda: host.taken() == [], "the plugin serves")
        yield host
        host.plugin.send_signal(signal.SIGTERM)
        assert host.plugin.wait() == 0, Path("/run/log").read_text()
    finally:
        host.plugin.kill()
        end_machines()  # which outlive their bed


def end_machines() -> None:
    lives = (HOME / "state" / "machines", Path("/run/devalloc/warm/lives"))
    for life in (life for folder in lives for life in folder.glob("*.life")):
        if len(words := life.read_text().split()) == 2 and process(int(words[0])) is not None:
            with suppress(ProcessLookupError):
                os.kill(int(words[0]), signal.SIGKILL)


def network_of(pid: int) -> int:
    return os.stat(f"/proc/{pid}/ns/net").st_ino


def test_a_machine_lives_in_a_setup_until_it_ends_whatever_becomes_of_the_plugin(open_image: Image) -> None:
    def body() -> None:
        before = snapshot()
        with a_host(open_image, "--warm", "2") as host:
            pinned = {"kernel": f"{open_image.folder}/tiny", "pinned": True}
            host("apply", "-f", "-", stdin=manifest(open_image, start=pinned))
            until(lambda: host.status().get("phase") == "Running", "it runs")
            status, (taken,) = host.status(), host.taken()
            setup = taken["setup"]
            assert (taken["owner"], taken["request"]) == ("machine/default/web", status["machineID"])
            assert network_of(status["pid"]) == os.stat(setup["namespacePath"]).st_ino != network_of(os.getpid())
            assert network.is_tap_used(Path(setup["namespacePath"]), "tap0")
            assert "tap0" in Path(f"/proc/{status['pid']}/net/dev").read_text()
            assert traffic.observe_rates(Path(setup["namespacePath"]), "tap0").are(10**6)
            assert len(setup["cpus"]) == 1
            threads = {*Path(f"/proc/{status['pid']}/task").iterdir()}
            assert {frozenset(os.sched_getaffinity(int(thread.name))) for thread in threads} == {
                frozenset(setup["cpus"])
            }

            host.killed()  # and the machine goes on where it is
            host.plugin = host.started()
            until(lambda: [each.get("setup") for each in host.taken()] == [setup], "the next plugin knows it")
            time.sleep(1)  # in which it looks after what is taken
            assert host.status()["pid"] == status["pid"]
            assert [each["setup"]["id"] for each in host.taken()] == [setup["id"]]

            host.killed()  # and with it, now, the machine: its next run lives elsewhere
            os.kill(status["pid"], signal.SIGKILL)
            until(lambda: process(status["pid"]) is None, "it has ended")
            host.plugin = host.started()
            until(lambda: host.status().get("machineID") != status["machineID"], "it runs again")
            until(lambda: host.status().get("phase") == "Running", "it runs again")
            until(lambda: len(host.taken()) == 1, "its last setup is given back")
            assert host.taken()[0]["setup"]["id"] != setup["id"]
            assert traffic.observe_rates(Path(host.taken()[0]["setup"]["namespacePath"]), "tap0").are(10**6)
            assert not Path(setup["namespacePath"]).exists()

            draw = random.Random(5)
            for _ in range(ROUNDS):  # at any moment of its start, or after that
                time.sleep(draw.uniform(0.0, 3.0))
                host.killed()
                if draw.random() < 0.6:
                    end_machines()
                host.plugin = host.started()
                until(lambda: process(host.status().get("pid", 0)) is not None, "it runs again")
                until(lambda: [each.get("request") for each in host.taken()] == [host.status()["machineID"]], "at home")
                (taken,) = host.taken()
                assert network_of(host.status()["pid"]) == os.stat(taken["setup"]["namespacePath"]).st_ino
            until(lambda: host.status().get("phase") == "Running", "it runs")

            host("apply", "-f", "-", stdin=manifest(open_image, start=pinned, running=False))
            until(lambda: host.status().get("phase") == "Stopped", "it is stopped")
            assert host.taken() == []
            host("delete", "vm/web")
        assert snapshot().namespaces == before.namespaces

    in_a_bed(body)


def test_a_machine_waits_for_a_setup_and_has_it_without_the_machine_that_waited_there(open_image: Image) -> None:
    def body() -> None:
        HOME.parent.mkdir(exist_ok=True)
        template = json.loads(manifest(open_image, nics=[]))
        Path("/run/template.yaml").write_text(json.dumps(template))
        words = ("--warm", "1", "--warm-most", "1", "--warm-machine", "/run/template.yaml")
        with a_host(open_image, *words) as host:
            until(lambda: json.loads(host("warm", "list", "-o", "json")).get("ready") == 1, "one is ready")
            other = json.loads(host("warm", "take", "platform", "-o", "json"))
            host("apply", "-f", "-", stdin=manifest(open_image))
            until(lambda: host.status().get("reason") == "TryAgain", "it waits")
            assert "1 are taken" in host.status()["message"]
            assert host.status()["phase"] in ("Pending", "Failed")
            host("warm", "return", other["id"])
            until(lambda: host.status().get("phase") == "Running", "it runs")
            (taken,) = host.taken()
            assert "qmpSocket" not in taken["setup"]
            assert network_of(host.status()["pid"]) == os.stat(taken["setup"]["namespacePath"]).st_ino
            assert list(Path("/run/devalloc/warm/lives").glob("*.life")) == []
            host("delete", "vm/web")
            until(lambda: host.taken() == [], "it is given back")

    in_a_bed(body)


def test_the_node_can_adopt_a_machine_that_was_taken_from_the_warm_pool(open_image: Image) -> None:
    def body() -> None:
        template = json.loads(manifest(open_image, nics=[], cpu={"min": 1, "max": 2}))
        Path("/run/template.yaml").write_text(json.dumps(template))
        with a_host(open_image, "--warm", "1", "--warm-most", "2", "--warm-machine", "/run/template.yaml") as host:
            until(lambda: json.loads(host("warm", "list", "-o", "json")).get("ready") == 1, "one is ready")
            (waits,) = Path("/run/devalloc/warm/machines").iterdir()

            def adopted(socket: str, **cpu: int) -> str:
                spec = {"start": None, "nics": None, "adopt": {"qmpSocket": socket}}
                content = json.loads(manifest(open_image, cpu={"min": 1, "max": 2, **cpu}, **spec))
                content["spec"] = {name: value for name, value in content["spec"].items() if value is not None}
                return json.dumps(content)

            host("apply", "-f", "-", stdin=adopted(f"{waits}/qmp"))
            until(lambda: host.status().get("reason") == "SetupNotTaken", "no machine has it")
            setup = json.loads(host("warm", "take", "platform", "-o", "json"))
            assert setup["qmpSocket"] == f"{waits}/qmp"
            monitor = QmpMonitor("platform", setup["qmpSocket"])
            monitor.execute("cont", deadline=warm_bed.soon())
            monitor.close()
            until(lambda: host.status().get("phase") == "Running", "it is kept")
            pid = host.status()["pid"]
            assert network_of(pid) == os.stat(setup["namespacePath"]).st_ino
            host("apply", "-f", "-", stdin=adopted(setup["qmpSocket"], use=2))
            until(lambda: host.status().get("observed", {}).get("cpus") == "2", "it is scaled")

            host.killed()
            host.plugin = host.started()
            until(lambda: [each.get("setup", {}).get("id") for each in host.taken()] == [setup["id"]], "it is known")
            assert host.status()["pid"] == pid
            with suppress(AssertionError):
                host("warm", "return", setup["id"], "--timeout", "1s")
                raise RuntimeError("a setup with a machine in it was given back")
            host("delete", "vm/web")
            until(lambda: host("get", "vms", "-o", "name") == "", "the node keeps it no more")
            assert process(pid) is not None, "it is its owner's"
            monitor = QmpMonitor("platform", setup["qmpSocket"])
            with suppress(NodeError):  # its answer is lost with it
                monitor.execute("quit", deadline=warm_bed.soon())
            monitor.close()
            host("warm", "return", setup["id"])

    in_a_bed(body)
