"""Must show: a machine takes its UEFI variables and its TPM along when it moves, and no copy of them stays behind."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from devalloc.api.virtual_machine import VirtualMachine
from devalloc_machines.qemu import firmware, migration
from devalloc_machines.qemu.lifecycle import MachineLifecycle
from devalloc_machines.qemu.settings import FirmwareFiles, MachineConfig
from devalloc_node.errors import Denied
from tests.machine.test_firmware import starts_of
from tests.support.deadlines import soon
from tests.support.guest import Guest, moved_guest
from tests.support.images import Image
from tests.support.machines import config, ended, open_folder, plugin, running, short_folder, virtual_machine
from tests.support.node_errors import raises
from tests.support.qemu import MICRO_APPEND
from tests.support.waiting import until

KEY = "default/fw"
HERE = "127.0.0.1"
LONG = 420.0
"""Seconds for a boot of emulated firmware on a busy machine."""
VARIABLE = "/sys/firmware/efi/efivars/{}-7d3c2f3e-0000-4000-8000-00000000a001"


@dataclass(frozen=True)
class TwoNodes:
    """Two plugins on this host with nothing in common but the firmware's images and the disks."""

    first: MachineConfig
    second: MachineConfig
    disks: Path


@pytest.fixture
def nodes(micro: Image, platform: Image) -> Iterator[TwoNodes]:
    ovmf = platform.folder / "root/usr/share/OVMF"
    with short_folder() as folder, ExitStack() as stack:
        disks = folder / "disks"
        disks.mkdir()
        both = []
        for number, name in enumerate(("a", "b")):
            (folder / name).mkdir()
            (folder / name).chmod(0o711)
            users = range(70100 + 10 * number, 70110 + 10 * number) if os.geteuid() == 0 else None
            made = config(
                micro,
                folder / name,
                folders=(open_folder(micro.folder), open_folder(platform.folder), open_folder(disks)),
                users=users,
                uefi=FirmwareFiles(ovmf / "OVMF_CODE_4M.fd", ovmf / "OVMF_VARS_4M.fd"),
                secure_boot=FirmwareFiles(ovmf / "OVMF_CODE_4M.ms.fd", ovmf / "OVMF_VARS_4M.ms.fd"),
                swtpm=str(platform.folder / "swtpm"),
            )
            stack.enter_context(ended(made))
            both.append(made)
        yield TwoNodes(both[0], both[1], disks)


def machine_of(start: Mapping[str, Any]) -> VirtualMachine:
    small: dict[str, Any] = {"cpu": {"min": 1, "max": 2}, "memory": {"min": "512Mi", "max": "512Mi"}}
    return virtual_machine("fw", **small, start={"tpm": True, **start}, nics=[{}])


def shell_of(machines: MachineLifecycle) -> Path:
    return machines.config.folder(machines.record_for(KEY).spec.id) / "agent"


def started(machines: MachineLifecycle, machine: VirtualMachine) -> Guest:
    machines.start(machine, soon(LONG))
    machines.resume(KEY, soon(LONG))
    return Guest(shell_of(machines), seconds=LONG, alive=lambda: running(machines, KEY).pid > 0)


def send(source: MachineLifecycle, target: MachineLifecycle, machine: VirtualMachine, uid: str) -> None:
    """All of it, until the target may be told to run it."""
    offered = migration.offer(source, KEY, uid, soon())
    to = migration.receive(target, machine, uid, offered, HERE, soon(LONG))
    migration.send(source, KEY, uid, to, soon())
    migration.await_sent(source, KEY, soon(LONG))
    variables = [firmware.variable_store(one.record_for(KEY).spec, one.config) for one in (source, target)]
    for _ in range(2):  # a plugin that was killed does it again
        migration.store_firmware(target, KEY, uid, soon())
        assert variables[1].read_bytes() == variables[0].read_bytes()
    assert [path.name for path in target.config.tpm(target.record_for(KEY).spec.id).glob("*.permall")]


def nothing_left(settings: MachineConfig) -> bool:
    return not [path for path in settings.state.iterdir() if path.suffix in (".tpm", ".firmware")]


def write_variable(guest: Guest, name: str) -> None:
    """A new one, whose content is its name: Linux lets no one change one that it does not know."""
    guest.check(f"printf '\\7\\0\\0\\0{name}' > {VARIABLE.format(name)}")


def variable(guest: Guest, name: str) -> str:
    return guest.check(f"dd if={VARIABLE.format(name)} bs=1 skip=4 2>/dev/null")


def registers(guest: Guest) -> str:
    return guest.check("cat /sys/class/tpm/tpm0/pcr-sha256/*")


def test_a_machine_with_uefi_takes_its_variables_and_its_tpm_along(nodes: TwoNodes, platform: Image) -> None:
    kernel = {"kernel": str(platform.kernel), "initrd": str(platform.initrd), "append": MICRO_APPEND}
    machine = machine_of({**kernel, "firmware": {"type": "uefi"}})
    with plugin(nodes.first) as first, plugin(nodes.second) as second:
        guest = started(first, machine)
        write_variable(guest, "first")
        before, starts = registers(guest), starts_of(guest)
        guest.close()

        # Other firmware is refused, and the machine goes on where it is.
        offered = migration.offer(first, KEY, "other", soon())
        code = nodes.disks / "CODE.fd"
        assert nodes.second.uefi is not None
        shutil.copyfile(nodes.second.uefi.code, code)
        with code.open("r+b") as file:
            file.write(b"another")
        changed = replace(nodes.second, uefi=replace(nodes.second.uefi, code=code))
        second.config, same = changed, second.config
        with raises(Denied, "FirmwareDiffers"):
            migration.receive(second, machine, "other", offered, HERE, soon())
        second.config = same
        migration.cancel(first, KEY, "other", soon())

        send(first, second, machine, "there")
        assert migration.take_over(second, KEY, "there", soon())
        migration.hand_over(first, KEY, "there", soon())
        assert nothing_left(nodes.first), "there is no second copy of its keys"
        guest = moved_guest(shell_of(second))
        assert (variable(guest, "first"), registers(guest), starts_of(guest)) == ("first", before, starts)
        write_variable(guest, "second")
        guest.close()

        # A machine that was cancelled has all of it where it is.
        send(second, first, machine, "cancelled")
        migration.cancel(second, KEY, "cancelled", soon())
        migration.discard(first, KEY, "cancelled", soon())
        assert nothing_left(nodes.first)
        guest = moved_guest(shell_of(second))
        assert (variable(guest, "second"), registers(guest), starts_of(guest)) == ("second", before, starts)
        guest.close()

        # The target's QEMU ends when the machine is the target's, before its CPUs have run.
        send(second, first, machine, "back")
        process = first.process_of(first.record_for(KEY))
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        until(lambda: first.process_of(first.record_for(KEY)) is None, "it has ended")
        assert not migration.take_over(first, KEY, "back", soon())
        migration.hand_over(second, KEY, "back", soon())
        assert nothing_left(nodes.second)
        guest = started(first, machine)
        assert variable(guest, "second") == "second"
        assert starts_of(guest) > starts, "it is the same TPM, started once more"
        guest.close()
        first.stop(KEY, 0, True, soon())
        first.forget(KEY, soon())
        assert nothing_left(nodes.first)


def test_a_machine_with_secure_boot_moves(nodes: TwoNodes, platform: Image) -> None:
    """Its variables are written by code in system management mode, which runs on the target too."""
    disk = nodes.disks / "signed.img"
    shutil.copyfile(platform.folder / "signed.img", disk)
    secure = {"type": "uefi", "secureBoot": True}
    machine = machine_of({"firmware": secure, "disks": [{"path": str(disk), "format": "raw"}]})
    with plugin(nodes.first) as first, plugin(nodes.second) as second:
        guest = started(first, machine)
        write_variable(guest, "first")
        before = registers(guest)
        guest.close()
        send(first, second, machine, "there")
        assert migration.take_over(second, KEY, "there", soon())
        migration.hand_over(first, KEY, "there", soon())
        assert nothing_left(nodes.first)
        guest = moved_guest(shell_of(second))
        assert (variable(guest, "first"), registers(guest)) == ("first", before)
        write_variable(guest, "second")
        assert variable(guest, "second") == "second"
        guest.close()
        second.stop(KEY, 0, True, soon())
        second.forget(KEY, soon())
