"""Must show: machines as users have them, with the project's own command lines and a real QEMU.

A VirtualMachine is applied, scaled by its spec, survives the plugin, is brought back when it ends, and goes when its
object is deleted. What its guest reports is on its object.
"""

from __future__ import annotations

import base64
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

from devalloc_machines.qemu import seed_disk
from devalloc_machines.qemu.process import process
from devalloc_node.net.unix_sockets import has_listener
from tests.support import tiny_guest, waiting
from tests.support.debian_programs import fsck_vfat
from tests.support.go_build import Unavailable
from tests.support.guest import Guest, GuestGone
from tests.support.images import Image
from tests.support.machines import short_folder
from tests.support.node_fleet import read_page
from tests.support.qemu import QUICK_BOOT
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
        (movable,) = [one for one in host.status()["conditions"] if one["type"] == "LiveMigratable"]
        assert (movable["status"], movable["reason"]) == ("True", "Movable")
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


def kernel_tells_exit_status() -> bool:
    """Linux 6.15 and newer."""
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int(minor)) >= (6, 15)


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
        assert host.status()["restarts"] == 1
        if kernel_tells_exit_status():
            until(lambda: host.status()["lastEnd"].get("signal") == signal.SIGKILL, "how it ended", host.log)
            assert "machine default/web: QEMU ended, killed by signal 9 (SIGKILL)" in host.log()
        assert {"startTime", "restarts", "lastEnd"} <= host.status().keys()
        host("apply", "-f", "-", stdin=host.manifest(running=False))
        until(lambda: host.status()["phase"] == "Stopped", "it is stopped", host.log)
        host("delete", "vm/web")
        until(lambda: host("get", "vms", "-o", "name") == "", "it is gone", host.log)


def test_a_machine_is_paused_resumed_and_restarted_by_verbs(host: Host) -> None:
    with host.plugin() as killed:
        host("apply", "-f", "-", stdin=host.manifest(restartPolicy="Never"))
        assert host("wait", "vm/web") == "virtualmachine/web running\n"
        first = host.status()
        assert host("pause", "vm/web") == "virtualmachine/web paused\n"
        assert (host.status()["phase"], host.status()["reason"]) == ("Paused", "PausedOnRequest")
        killed.kill()
        killed.wait()
    with host.plugin():
        until(lambda: "PausedOnRequest" in host("vm", "list"), "the next plugin finds it paused", host.log)
        assert host.status() == first | {
            name: host.status()[name] for name in ("phase", "reason", "message", "conditions")
        }, "it is the same run"
        assert host("resume", "vm/web") == "virtualmachine/web resumed\n"
        assert host("restart", "vm/web") == "virtualmachine/web restarted\n"
        assert host.status()["machineID"] != first["machineID"]
        host("pause", "vm/web")
        assert host("stop", "vm/web") == "virtualmachine/web stopped\n", "its guest hears the power button all the same"
        assert host.status()["message"] == "it was stopped on request"
        assert host("start", "vm/web") == "virtualmachine/web started\n"
        assert host.status()["phase"] == "Running", "who starts it wants it to run"
        host("delete", "vm/web")
        until(lambda: host("get", "vms", "-o", "name") == "", "it is gone", host.log)


def test_a_guest_sees_the_seed_disk_for_cloud_init(host: Host) -> None:
    append = f"console=ttyS0 quiet shell=ttyS0 {QUICK_BOOT}"
    start = {"kernel": str(host.image.kernel), "initrd": str(host.image.initrd), "append": append}
    start |= {"cloudInit": {"userData": "#cloud-config\nhostname: seeded\n"}}
    spec = {"start": start, "cpu": {"min": 1, "max": 1}, "memory": {"min": "256Mi", "max": "256Mi"}}
    with host.plugin():
        host("apply", "-f", "-", stdin=host.manifest(**spec, powerdownSeconds=1))
        assert host("wait", "vm/web") == "virtualmachine/web running\n"
        (port,) = (host.folder / "run").glob("*/console")
        guest = Guest(port)
        guest.check("until [ -e /dev/vda ]; do sleep 0.1; done")
        assert "CIDATA" in guest.check("head -c 64 /dev/vda | tail -c 21")
        assert "hostname: seeded" in guest.check("strings /dev/vda")
        assert guest.run("echo x > /dev/vda").status != 0, "it is read-only"
        guest.close()
        assert len(list((host.folder / "state" / "machines").glob("*.seed"))) == 1
        host("delete", "vm/web")
        until(lambda: host("get", "vms", "-o", "name") == "", "it is gone", host.log)
        assert not list((host.folder / "state" / "machines").glob("*.seed"))


def test_other_programs_find_no_fault_in_a_seed_disk(tmp_path: Path) -> None:
    try:
        fsck = fsck_vfat()
    except Unavailable as reason:
        pytest.skip(f"no fsck.vfat: {reason}")
    path = tmp_path / "seed"
    texts = {"user-data": b"#cloud-config\nusers: [{name: ops}]\n" * 50, "meta-data": b"{}", "network-config": b""}
    path.write_bytes(seed_disk.image(texts))
    done = subprocess.run([fsck, "-n", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_machine_whose_disk_is_full_is_paused_at_once(host: Host, full_disk: Path) -> None:
    image = full_disk / "data.raw"
    with image.open("wb") as file:
        file.truncate(64 << 20)
    image.chmod(0o666)
    append = f"console=ttyS0 quiet shell=ttyS0 {QUICK_BOOT}"
    start = {"kernel": str(host.image.kernel), "initrd": str(host.image.initrd), "append": append}
    start |= {"disks": [{"path": str(image), "format": "raw"}]}
    spec = {"start": start, "cpu": {"min": 1, "max": 1}, "memory": {"min": "256Mi", "max": "256Mi"}}
    # Nothing is looked at again by itself: only QEMU's own word can bring this about.
    with host.plugin("--image-folder", f"{full_disk}:any", "--resync", "1h"):
        host("apply", "-f", "-", stdin=host.manifest(**spec, powerdownSeconds=1))
        assert host("wait", "vm/web") == "virtualmachine/web running\n"
        (port,) = (host.folder / "run").glob("*/console")
        guest = Guest(port)
        guest.check("until [ -e /dev/vda ]; do sleep 0.1; done")
        guest.check("dd if=/dev/zero of=/dev/vda bs=1M > /dev/null 2>&1 &")
        until(lambda: host.status()["phase"] == "Paused", "QEMU says so", host.log)
        assert host.status()["reason"] == "DiskFailed"
        assert host.log().count("machine default/web stands still: DiskFailed: ") == 1
        guest.close()
        host("delete", "vm/web")
        until(lambda: host("get", "vms", "-o", "name") == "", "it is gone", host.log)


@pytest.fixture
def full_disk() -> Iterator[Path]:
    """A small file system, which a guest can fill."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    with short_folder() as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(folder)], check=True)
        try:
            folder.chmod(0o711)
            yield folder
        finally:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def test_the_console_and_the_logs_of_a_guest(host: Host) -> None:
    append = f"console=ttyS0 quiet shell=ttyS0 {QUICK_BOOT}"
    start = {"kernel": str(host.image.kernel), "initrd": str(host.image.initrd), "append": append}
    spec = {"start": start, "cpu": {"min": 1, "max": 1}, "memory": {"min": "256Mi", "max": "256Mi"}}
    with host.plugin():
        host("apply", "-f", "-", stdin=host.manifest(**spec, powerdownSeconds=1))
        until(lambda: host.status().get("phase") == "Running", "it runs", host.log)
        until(lambda: "READY" in host("logs", "vm/web", "--tail", "3"), "its shell is up", host.log)
        (port,) = (host.folder / "run").glob("*/console")
        other = Guest(port)
        refused = host("console", "vm/web", code=1)
        assert "ConsoleInUse" in refused, "QEMU would let the second one wait without a word"
        other.check("echo from another program")
        other.close()
        command = base64.b64encode(b"echo six times seven is $((6 * 7))").decode()
        assert "six times seven is 42" in host("console", "vm/web", stdin=f"mark {command}\n")
        assert "six times seven is 42" in host("logs", "vm/web"), "the log has it, too"
        assert host("logs", "vm/web", "--qemu") == ""
        host("delete", "vm/web")
        until(lambda: host("get", "vms", "-o", "name") == "", "it is gone", host.log)


def test_a_guest_reports_that_it_is_ready_beyond_a_killed_plugin_and_that_it_has_finished(host: Host) -> None:
    metrics = host.folder / "metrics"

    def ready() -> tuple[str, str]:
        one = next((one for one in host.status().get("conditions", ()) if one["type"] == "Ready"), {})
        return one.get("status", ""), one.get("reason", "")

    def say(line: str) -> str:
        return f"echo '{line}' > /dev/ttyS1"

    start = {
        "kernel": str(host.image.kernel),
        "initrd": str(host.image.initrd),
        "append": f"quiet shell=ttyS0 {QUICK_BOOT}",
    }
    spec = {"start": start, "cpu": {"min": 1, "max": 1}, "memory": {"min": "256Mi", "max": "256Mi"}}
    spec |= {"guestReports": True, "restartPolicy": "Never", "powerdownSeconds": 1}
    with host.plugin("--metrics", f"unix:{metrics}") as killed:
        host("apply", "-f", "-", stdin=host.manifest(**spec))
        until(lambda: ready() == ("False", "GuestNotReported"), "it runs, and is not ready", host.log)
        (console,) = (host.folder / "run").glob("*/console")
        guest = Guest(console)
        guest.check("stty -F /dev/ttyS1 raw -echo")
        guest.check(say('{"status": "ready", "message": "up", "metrics": {"queue_length": 3}}'))
        until(lambda: ready() == ("True", "GuestReady"), "it is ready", host.log)
        sample = 'devalloc_node_guest_metric{machine="default/web",name="queue_length"} 3.0'
        until(lambda: sample in read_page(metrics, "/metrics"), "its metric is served", host.log)
        killed.kill()
        killed.wait()
    guest.check(say('{"status": "not-ready"}'))  # QEMU throws it away, and the guest does not wait
    with host.plugin():
        guest.check("head -c 20000 /dev/zero > /dev/ttyS1; echo > /dev/ttyS1")
        guest.check(say('{"metrics": {"queue_length": 0}}'))
        assert ready() == ("True", "GuestReady"), "the next plugin knows of no other status"
        # As guests do: perhaps the plugin was not connected yet.
        repeated = 'while sleep 1; do echo \'{"status": "not-ready"}\'; done > /dev/ttyS1 2>&1 & echo $! > /tmp/repeats'
        guest.check(repeated)
        until(lambda: ready() == ("False", "GuestUnready"), "the next plugin hears of a change", host.log)
        with suppress(GuestGone):  # it may be ended before it answers
            guest.check("kill $(cat /tmp/repeats); " + say('{"status": "finished", "message": "42 pages"}'))
        until(lambda: host.status()["phase"] == "Stopped", "it is powered down", host.log)
        guest.close()
        status = host.status()
        reported = "its guest reported that it has finished: 42 pages"
        assert (status["reason"], status["message"]) == ("GuestFinished", reported)
        assert ready() == ("False", "MachineNotRunning")
        host("delete", "vm/web")
        until(lambda: host("get", "vms", "-o", "name") == "", "it is gone", host.log)
