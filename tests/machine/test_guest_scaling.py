"""Must show: what a guest does decides what its machine has, with the project's own parts from end to end.

In the guest the monitor runs; on the host the plugin, its agent and the server of permits, by the command line.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.machine.test_vm_objects import Host
from tests.support import python_image, scaled_guest, scaling_plot, waiting
from tests.support.cli_shell import Shell
from tests.support.guest import Guest
from tests.support.images import Image
from tests.support.machines import MIB, MICRO_APPEND, short_folder
from tests.support.private_network import HOST, NETWORK, add_tap, private_network
from tests.support.scaling_record import (
    GIB,
    QEMU_TRACE,
    TRACE_FILE,
    Amounts,
    Event,
    Record,
    event_text,
    steps_wait_for_each_other,
)

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="a network of its own is made by root only"),
    pytest.mark.timeout(1200),
]


DISK = "nvme0n1"
TARGET = 1.9
"""Load for each CPU."""
PATIENCE = 300.0
"""Seconds: a machine that is emulated, on a host that others use as well, is slow."""


@pytest.fixture
def host(sriov: Image, python: Image) -> Iterator[Host]:
    with short_folder() as folder, private_network():
        folder.chmod(0o755)
        image = folder / "image"
        image.mkdir()
        # QEMU 10, out of which emulated CPUs can be taken, where the machine's own user can read it.
        subprocess.run(["cp", "-al", str(sriov.folder / "root"), str(image / "root")], check=True)
        launcher = (sriov.folder / "qemu").read_text().replace(str(sriov.folder), str(image))
        # It writes down what it is asked and does, where it runs a machine; so no other record has to be believed.
        traced = f'case "$*" in *-uuid*) set -- "$@" {shlex.join(QEMU_TRACE)};; esac\nexec '
        (image / "qemu").write_text(launcher.replace("exec ", traced, 1))
        (image / "qemu").chmod(0o755)
        (image / "kernel").write_bytes(python.kernel.read_bytes())
        (image / "disk").write_bytes(bytes(MIB))
        (image / "versions.json").write_bytes((python.folder / "versions.json").read_bytes())
        python_image.with_files(python, image / "initrd", scaled_guest.files())
        add_tap("tap0")
        made = Host(folder, Image(image))
        try:
            yield made
        finally:
            for line in made.log().splitlines()[-80:]:
                print(line)
            made.end_machines()


def machine(host: Host, *, most: int = 2, **scaling: Any) -> str:
    """One CPU and 1 GiB, up to ``most`` of each, with a disk and a network card."""
    image = host.image.folder
    start = {"kernel": str(image / "kernel"), "initrd": str(image / "initrd"), "append": MICRO_APPEND}
    return host.manifest(
        cpu={"min": 1, "max": most},
        memory={"min": "1Gi", "max": f"{most}Gi"},
        start={**start, "disks": [{"path": str(image / "disk"), "format": "raw", "device": "nvme"}]},
        nics=[{"backend": "tap", "interface": "tap0"}],
        scaling={"address": scaled_guest.ADDRESS, **scaling},
    )


def status(host: Host, part: str) -> dict[str, Any]:
    amounts: dict[str, Any] = host.status().get(part) or {}
    return amounts


def gauges_are_served() -> bool:
    try:
        with urllib.request.urlopen(f"http://{scaled_guest.ADDRESS}:9100/metrics", timeout=2) as answer:
            return b"host_load1" in answer.read()
    except OSError:
        return False


def until(true: Callable[[], object], what: str, output: Callable[[], str]) -> None:
    waiting.until(true, what, PATIENCE, context=output)


def happens(record: Record, what: str, after: float = 0.0, **amounts: float) -> Event:
    """Wait for an event; AssertionError, with all that has been, where it does not come."""
    deadline = time.monotonic() + PATIENCE
    while record.find(what, after, **amounts) is None and time.monotonic() < deadline:
        time.sleep(0.5)
    return record.first(what, after, **amounts)


def fill(guest: Guest, most: int) -> str:
    """Use so much memory that a unit less would do, were it not for what is to stay free; the file to remove."""
    less = (most - 1) * 1024
    denied_from = (less - 100) * 85 // 100 - 100  # docs/scaling-reference.md, "agrees to less"
    # Little more than that: goals count what the kernel needs as well, and so much is not to be wanted again.
    used = int(guest.check("awk '/[(]anon[)]/ {used += $2} END {print int(used / 1024)}' /proc/meminfo"))
    guest.check("mkdir -p /fill && mount -t tmpfs -o size=90%,huge=always tmpfs /fill")
    guest.check(f"fallocate -l {denied_from + 45 - used}M /fill/file", seconds=PATIENCE)
    return "/fill/file"


class DeviceInUse:
    """The disk, which the guest writes to and reads from again and again, as long as it runs."""

    LOOP = f"""n=0; while sleep 5; do n=$((n+1)); printf '%-512s' "write $n" > /tmp/written
dd if=/tmp/written of=/dev/{DISK} bs=512 oflag=direct
dd if=/dev/{DISK} bs=512 count=1 iflag=direct | cmp - /tmp/written && echo $n > /tmp/good || echo $n >> /tmp/bad
done"""

    def __init__(self, host: Host, guest: Guest, record: Record) -> None:
        self._guest, self._file, self._record = guest, host.image.folder / "disk", record
        self.place = self._guest.until(f"readlink -f /sys/block/{DISK}/device", seconds=PATIENCE)
        guest.check(f"({self.LOOP}) > /dev/null 2>&1 &")
        self._last = 0

    def check(self) -> None:
        """It is where it was, and since the last time it has been written to and read, all without a mistake."""
        assert self._guest.check(f"readlink -f /sys/block/{DISK}/device") == self.place
        more = f'n=$(cat /tmp/good) && [ "${{n:-0}}" -gt {self._last} ] && echo $n'
        self._last = int(self._guest.until(more, seconds=PATIENCE))
        assert self._guest.run("cat /tmp/bad").status != 0, "none went wrong"
        assert int(self._file.read_bytes()[:512].split()[1]) >= self._last, "it is the host's file"
        self._record.note("device", writes=self._last)


def test_a_machine_follows_its_guest_up_and_down(host: Host) -> None:
    """With ``DEVALLOC_UPDATE_DOCS`` it goes further up, and is drawn (``make timeline``)."""
    drawn = bool(os.environ.get("DEVALLOC_UPDATE_DOCS"))
    record = Record(GIB)
    try:
        follow(host, record, most=3 if drawn else 2)
    finally:
        print("\n".join(map(event_text, record.events())))
    if drawn:
        scaling_plot.save(record.content(), versions(host))


def versions(host: Host) -> str:
    """Of what the picture is of."""
    qemu = subprocess.run([host.image.qemu, "--version"], capture_output=True, text=True, check=True).stdout
    guest = json.loads((host.image.folder / "versions.json").read_text())
    kernel = next(version for name, version in guest.items() if name.startswith("linux-image-6"))
    return f"QEMU {qemu.split()[3]} (TCG), guest Linux {kernel}, Python {guest['python3.11-minimal']}"


def follow(host: Host, record: Record, most: int) -> None:
    """A machine of 1 CPU and 1 GiB becomes one of ``most`` CPUs and as many GiB, and small again."""
    small, large = Amounts(1, GIB), Amounts(most, most * GIB)
    trace = lambda: next((host.folder / "run").glob(f"*/{TRACE_FILE}"), None)  # noqa: E731
    options = ("--scaling", "--guest-network", NETWORK, "--compute-unit", "1,1Gi")
    with record.running(trace), host.plugin(*options), record.following(host.folder / "store.db"):
        targets = {"loadAverageFractionTarget": str(TARGET), "memoryUsageFractionTarget": "990m"}
        host("apply", "-f", "-", stdin=machine(host, most=most, **targets))
        until(lambda: status(host, "permitted").get("givenBy"), "it runs and has a permit", host.log)
        (shell,) = (host.folder / "run").glob("*/agent")
        with Guest(shell, seconds=PATIENCE) as guest:
            record.phase("idle")
            disk = DeviceInUse(host, guest, record)
            guest.check(scaled_guest.start(HOST))
            until(gauges_are_served, "the monitor runs", host.log)
            assert guest.check("cat /sys/devices/system/cpu/online") == "0"
            disk.check()

            # Load: more is requested, permitted, plugged, and the monitor learns of it, in this order.
            # What is left of it then is little above what is too much for less: the average is soon there.
            begun = record.phase("load")
            keeps = 2 * most - 1
            guest.check(scaled_guest.load(most_of_it=20 - keeps, all_of_it=keeps))
            assert (most - 0.5) * TARGET < keeps < most * TARGET
            happens(record, "asked", begun, **large.named)
            guest.check("touch /tmp/most_of_it")
            heard = happens(record, "heard", begun, **large.named).at
            asked_at = record.first("asked", begun, **large.named).at
            permitted = record.first("permitted", asked_at, **large.named).at
            plugged = [
                record.first("has", permitted, cpus=most).at,
                record.first("has", permitted, memory=large.memory).at,
            ]
            notified_at = record.first("told", begun, **large.named).at
            assert begun < asked_at < permitted < min(plugged) < max(plugged) < notified_at < heard
            assert record.last("load", asked_at).more["host_load1"] >= (most - 0.5) * TARGET, "why it was asked for"
            guest.until(f"[ $(cat /sys/devices/system/cpu/online) = 0-{most - 1} ]", seconds=PATIENCE)
            guest.until(f"[ $(awk '/MemTotal/ {{print $2}}' /proc/meminfo) -gt {most * 900_000} ]", seconds=PATIENCE)
            until(lambda: status(host, "observed") == large.as_status, "it says so", host.log)
            assert status(host, "permitted").items() >= large.as_status.items()
            disk.check()

            # No load, but the memory is in use: the monitor is asked for less, denies, and all stays.
            filled = fill(guest, most)
            idle = record.phase("memory in use")
            guest.check("touch /tmp/all_of_it")
            denied = happens(record, "denied", idle).at
            assert idle < record.first("may", idle).at < denied
            denied = happens(record, "denied", denied).at
            before = [event.what for event in record.events() if event.at < denied]
            assert {"unplugging", "agreed"} & set(before[before.index("heard") :]) == set()
            assert status(host, "observed") == large.as_status
            assert status(host, "permitted").items() >= large.as_status.items()
            disk.check()

            # Free again: the monitor agrees, memory goes and then CPUs, and the permit is given back.
            freed = record.phase("memory free")
            guest.check(f"rm {filled}")
            given_back = happens(record, "permitted", freed, **small.named).at
            may, agreed = (record.first(what, freed).at for what in ("may", "agreed"))
            leaving = [event for event in record.events() if event.at > freed and event.what == "unplugging"]
            assert may < agreed < leaving[0].at
            assert leaving[0].memory is not None, "CPUs leave last"
            agreed_to_all = record.first("agreed", freed, **small.named).at
            gone = [record.first("has", freed, cpus=1).at, record.first("has", freed, memory=GIB).at]
            asked_at = record.first("asked", freed, **small.named).at
            assert agreed_to_all < min(gone) <= max(gone) < asked_at < given_back
            guest.until("[ $(cat /sys/devices/system/cpu/online) = 0 ]", seconds=PATIENCE)
            until(lambda: status(host, "observed") == small.as_status, "it says so", host.log)
            until(
                lambda: status(host, "permitted").items() >= small.as_status.items(), "and what it may have", host.log
            )
            disk.check()
        steps_wait_for_each_other(record.events(), small)


def test_a_machine_that_was_created_by_grpc_follows_its_guest_without_an_object(host: Host) -> None:
    options = ("--scaling", "--guest-network", NETWORK, "--compute-unit", "1,1Gi", "--enforce-capacity")

    devalloc = Shell(host.folder / "store.db")  # in this process: it is asked again and again

    def shown() -> dict[str, Any]:
        answer = devalloc("vm", "get", "web", "-o", "json", "--socket", host.socket)
        assert answer.code == 0, answer.err
        return dict(answer.json)

    targets = {"loadAverageFractionTarget": "900m", "memoryUsageFractionTarget": "990m"}
    with host.plugin(*options):
        host("vm", "create", "-f", "-", stdin=machine(host, **targets))
        assert host("get", "vms", "-o", "name") == "", "it has no object"
        (shell,) = (host.folder / "run").glob("*/agent")
        with Guest(shell, seconds=PATIENCE) as guest:
            guest.until("true", seconds=PATIENCE)
            guest.check(scaled_guest.start(HOST))
            guest.check(scaled_guest.load(enough=6))
            until(lambda: shown()["observed"].get("vcpus") == 2, "it has grown", host.log)
            until(lambda: shown()["observed"]["memoryBytes"] == 2 * GIB, "in both", host.log)
            assert shown()["spec"]["scaling"]["loadAverageFractionTarget"] == 0.9
            guest.until("[ $(cat /sys/devices/system/cpu/online) = 0-1 ]", seconds=PATIENCE)
            guest.check("touch /tmp/enough")
        host("vm", "delete", "web", "--force")
