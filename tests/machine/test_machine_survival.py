"""Must show: machines outlive the plugin however it ends, and a plugin finds them as they are."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from devalloc.api.virtual_machine import VirtualMachine
from devalloc_machines.qemu.process import process
from devalloc_machines.qemu.records import MACHINES, State
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_machines.qemu.spec import EmulatedDevice, Nic
from devalloc_node.errors import Denied, Unknown
from tests.support.deadlines import soon
from tests.support.guest import Guest
from tests.support.images import Image
from tests.support.machines import MIB, plugin, running, view, virtual_machine
from tests.support.vm_rounds import to_begin
from tests.support.waiting import until

KEY = "default/m"


@pytest.fixture
def settings(settings: MachineConfig, platform: Image) -> MachineConfig:
    return replace(settings, swtpm=str(platform.folder / "swtpm"))


def with_tpm(image: Image) -> VirtualMachine:
    plain = virtual_machine("m", image).to_manifest()
    start = {**plain["spec"]["start"], "kernel": str(image.folder / "vmlinuz"), "tpm": True}
    return virtual_machine("m", start=start)


def plugin_to_kill(settings: MachineConfig, image: Image, *where: str) -> subprocess.Popen[str]:
    words = {"state": str(settings.state), "run": str(settings.run), "binary": settings.binary, "accel": "tcg"}
    plan = {**words, "folders": [str(folder.path) for folder in settings.folders], "users": None, "systemd": False}
    plan["swtpm"] = settings.swtpm
    machine = json.dumps(with_tpm(image).to_manifest())
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.machine_plugin", json.dumps(plan), machine, *where],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def qemus(settings: MachineConfig) -> list[int]:
    """All processes on this host whose command line has to do with this test's machines."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                folder = os.readlink(entry / "cwd")
            except OSError:
                continue
            if b"-sandbox" in words and folder.startswith(str(settings.run)):
                pids.append(int(entry.name))
    return pids


def tpms(settings: MachineConfig) -> list[int]:
    """All TPMs of this test's machines, by the folder that they are in."""
    pids = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            is_tpm = entry.name.isdigit() and b"--tpmstate" in (entry / "cmdline").read_bytes().split(b"\0")
            if is_tpm and os.readlink(entry / "cwd").startswith(str(settings.state)):
                pids.append(int(entry.name))
    return pids


def test_a_machine_runs_on_with_its_devices_through_kill_restart_and_upgrade(
    settings: MachineConfig, micro: Image
) -> None:
    first = plugin_to_kill(settings, micro)
    assert first.stdout is not None
    assert first.stdout.readline() == "ready\n"
    with plugin(settings) as second:  # a rolling update: both are there
        before, (tpm,) = running(second), tpms(settings)
        assert process(before.pid) is not None
        card = second.plug_in(KEY, EmulatedDevice("n", Nic()), soon())
        guest = Guest(settings.folder(second.record_for(KEY).spec.id) / "agent")
        guest.until("[ -e /sys/class/net/eth0 ]")
        guest.check("echo a mark in its memory > /tmp/mark")

        first.send_signal(signal.SIGKILL)
        first.wait()
        second.scale(KEY, "memory", 768 * MIB, soon())

    changed: list[str] = []
    with plugin(settings, changed=changed.append) as third:
        after = running(third)
        assert (after.pid, after.id) == (before.pid, before.id)
        assert after.plain == (card,)
        assert (after.observed.memory_bytes, after.applied.memory_bytes) == (768 * MIB, 768 * MIB)
        assert guest.check("cat /tmp/mark && ls -d /sys/class/net/eth0") == "a mark in its memory\n/sys/class/net/eth0"
        third.start(with_tpm(micro), soon())
        assert (qemus(settings), tpms(settings)) == ([before.pid], [tpm]), "there is never a second one"
        third.unplug(KEY, "n", soon())
        guest.until("[ ! -e /sys/class/net/eth0 ]")

        # A journal that is lost: machines that live are reported all the same.
        content = third.records.record(MACHINES, KEY)
        assert content is not None
        third.records.drop(MACHINES, KEY)
        assert [(lost.key, lost.pid) for lost in third.all_lost()] == [(KEY, before.pid)]
        # By the run that its object names it is known again, as what it was started as.
        third.take_up(KEY, with_tpm(micro), before.id, soon())
        again = third.records.record(MACHINES, KEY)
        assert again is not None
        since = {"applied", "asked", "cpus_left"}
        assert {name: again[name] for name in again.keys() - since} == {
            name: content[name] for name in content.keys() - since
        }
        third.records.put(MACHINES, KEY, content)

        # It hangs: unknown, told within seconds, and nothing is taken for gone.
        os.kill(before.pid, signal.SIGSTOP)
        hung = view(third)
        assert (hung.phase, hung.reason, hung.pid) == ("Unknown", "MonitorSilent", before.pid)
        with pytest.raises(Unknown):
            third.scale(KEY, "memory", 512 * MIB, soon(0.5))
        with pytest.raises(Denied, match="--force"):
            third.stop(KEY, 0.2, False, soon(2))
        os.kill(before.pid, signal.SIGCONT)
        third.resume(KEY, soon())  # it is wanted again
        third.scale(KEY, "memory", 512 * MIB, soon())

        # It dies: noticed without being asked for, and by its policy it is to be started again.
        changed.clear()
        os.kill(before.pid, signal.SIGKILL)
        until(lambda: KEY in changed and third.record_for(KEY).state == "stopped", "the death is noticed")
        dead = view(third)
        assert (dead.phase, dead.reason) == ("Stopped", "MachineEnded")
        assert [machine.key for machine in to_begin(third)] == [("default", "m")]
        third.start(to_begin(third)[0], soon())
        later = view(third)
        assert later.id != before.id
        third.stop(KEY, 0, True, soon())
        assert to_begin(third) == [], "what was stopped on request stays so"
        third.forget(KEY, soon())
        assert third.list() == []
    guest.close()
    assert qemus(settings) + tpms(settings) == []
    assert not list(settings.state.glob("*.tpm"))
    assert not list(settings.run.iterdir())


WHERE = [
    *(f"{when} record {number}" for number in range(3) for when in ("before", "after")),
    *(f"{when} {command}" for command in ("query-status", "query-uuid", "cont") for when in ("before", "after")),
]
"""All that starting a machine changes or asks."""


@pytest.mark.parametrize("where", WHERE)
def test_a_plugin_that_is_killed_while_it_starts_a_machine_leaves_one_that_the_next_finds(
    settings: MachineConfig, micro: Image, where: str
) -> None:
    killed = plugin_to_kill(settings, micro, where)
    assert killed.wait() == -signal.SIGKILL
    with plugin(settings) as machines:
        machines.start(with_tpm(micro), soon())
        machines.resume(KEY, soon())
        seen = running(machines)
        assert (seen.state, seen.applied.vcpus) == (State.RUNNING, 1)
        assert (qemus(settings), len(tpms(settings))) == ([seen.pid], 1)
        machines.stop(KEY, 0, True, soon())
        machines.forget(KEY, soon())
    assert qemus(settings) + tpms(settings) == []
    assert not list(settings.state.glob("*.tpm"))
