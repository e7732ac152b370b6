"""Must show: UEFI, Secure Boot and a TPM, as guests see them; large cards below UEFI; nothing left of a machine."""

from __future__ import annotations

import os
import shutil
import signal
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from devalloc.inventory.pci import BarSizes
from devalloc_machines.qemu import confinement, firmware, hotplug, spawn
from devalloc_machines.qemu.lifecycle import MachineLifecycle
from devalloc_machines.qemu.settings import FirmwareFiles, MachineConfig
from devalloc_node.errors import Denied, Failed
from tests.support.deadlines import soon
from tests.support.guest import Guest
from tests.support.images import Image
from tests.support.large_cards import bars, card
from tests.support.machines import (
    config,
    ended,
    open_folder,
    plugin,
    running,
    short_folder,
    tap_interface,
    virtual_machine,
)
from tests.support.node_errors import raises
from tests.support.qemu import MICRO_APPEND
from tests.support.waiting import until

GIB = 1 << 30
KEY = "default/fw"
SMALL = {"cpu": {"min": 1, "max": 2}, "memory": {"min": "512Mi", "max": "512Mi"}}
ZERO = "0" * 64
LONG = 420.0
"""Seconds for a boot of emulated firmware on a busy machine."""


@pytest.fixture
def settings(micro: Image, platform: Image) -> Iterator[MachineConfig]:
    ovmf = platform.folder / "root/usr/share/OVMF"
    with short_folder() as folder:
        disks = folder / "disks"
        disks.mkdir()
        made = config(
            micro,
            folder,
            folders=(open_folder(micro.folder), open_folder(platform.folder), open_folder(disks)),
            users=range(70100, 70110) if os.geteuid() == 0 else None,
            uefi=FirmwareFiles(ovmf / "OVMF_CODE_4M.fd", ovmf / "OVMF_VARS_4M.fd"),
            secure_boot=FirmwareFiles(ovmf / "OVMF_CODE_4M.ms.fd", ovmf / "OVMF_VARS_4M.ms.fd"),
            swtpm=str(platform.folder / "swtpm"),
            devices=lambda: BarSizes(16 * GIB, 1 << 20),
        )
        with ended(made):
            yield made


def start(machines: MachineLifecycle, start: Mapping[str, Any], **spec: Any) -> str:
    """The machine with its CPUs stopped; its id."""
    machines.start(virtual_machine("fw", **{**SMALL, **spec}, start=start), soon(LONG))
    return machines.record_for(KEY).spec.id


def guest_of(machines: MachineLifecycle) -> Guest:
    machines.resume(KEY, soon(LONG))
    folder = machines.config.folder(machines.record_for(KEY).spec.id)
    return Guest(folder / "agent", seconds=LONG, alive=lambda: running(machines, KEY).pid > 0)


def kernel(platform: Image, **more: Any) -> dict[str, Any]:
    return {"kernel": str(platform.kernel), "initrd": str(platform.initrd), "append": MICRO_APPEND, **more}


def swtpms(settings: MachineConfig) -> list[int]:
    """TPMs of this test's machines, by what they hold open."""
    folders = {(info.st_dev, info.st_ino) for path in settings.state.glob("*.tpm") for info in [path.stat()]}
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                is_swtpm = b"--tpmstate" in (entry / "cmdline").read_bytes().split(b"\0")
                held = {(info.st_dev, info.st_ino) for fd in (entry / "fd").iterdir() for info in [fd.stat()]}
            except OSError:
                continue
            if is_swtpm and folders & held:
                pids.append(int(entry.name))
    return pids


def console(settings: MachineConfig, machine: str) -> str:
    path = settings.folder(machine) / "console.log"
    return path.read_text(errors="replace") if path.exists() else ""


def stop_and_forget(machines: MachineLifecycle) -> None:
    machine = machines.record_for(KEY).spec.id
    machines.stop(KEY, 0, True, soon())
    machines.forget(KEY, soon())
    assert swtpms(machines.config) == []
    assert not [path.name for path in machines.config.state.iterdir() if path.name.startswith(f"{machine}.")
                and not path.name.endswith(".lock")]  # fmt: skip
    assert not machines.config.folder(machine).exists()
    assert not confinement.exists(machines.config.cgroups, machines.config.group(machine))


def test_cards_of_16_gib_get_addresses_below_uefi_cold_and_hot_and_its_tpm_is_measured_into(
    settings: MachineConfig, platform: Image
) -> None:
    numbers = count()
    with plugin(settings) as machines:
        machine = start(machines, kernel(platform, firmware={"type": "uefi"}, tpm=True), pciSlots=4)
        with machines.line(machines.record_for(KEY)) as line:
            cold = [card(f"claim-{number:016x}", 16 * GIB) for number in (next(numbers), next(numbers))]
            for each in cold:
                hotplug.plug_device(line, KEY, each, soon())
        guest = guest_of(machines)
        with machines.line(machines.record_for(KEY)) as line:
            for _ in range(2):
                hot = card(f"claim-{next(numbers):016x}", 16 * GIB)
                hotplug.plug_device(line, KEY, hot, soon())
                hotplug.await_addresses(line, KEY, {hot.function_id(0): hot.id}, soon(LONG))
        placed = sorted(bars(guest))
        assert [last - first + 1 for first, last in placed] == [16 * GIB] * 4
        assert all(first % (16 * GIB) == 0 and first > 4 * GIB for first, _ in placed)
        assert all(end < begin for (_, end), (begin, _) in pairwise(placed)), "none overlaps"

        assert guest.check("cat /sys/firmware/efi/fw_platform_size") == "64"
        for register in (0, 4, 7):  # firmware code, what it started, its Secure Boot policy
            assert guest.check(f"cat /sys/class/tpm/tpm0/pcr-sha256/{register}") not in ("", ZERO)
        variables = firmware.variable_store(machines.record_for(KEY).spec, settings)
        assert settings.uefi is not None
        assert variables.read_bytes() != settings.uefi.variables.read_bytes(), "it writes its own variables"
        _check_confinement(machines, machine)
        _check_it_lives_as_its_machine(machines, platform, guest)
        stop_and_forget(machines)


def _check_confinement(machines: MachineLifecycle, machine: str) -> None:
    (tpm,) = swtpms(machines.config)
    record = machines.record_for(KEY)
    qemu = running(machines, KEY).pid
    status = Path(f"/proc/{tpm}/status").read_text()
    assert f"PPid:\t{qemu}\n" in status
    assert stat.S_IMODE(machines.config.tpm(machine).stat().st_mode) == 0o700
    assert stat.S_IMODE(machines.config.firmware(machine).stat().st_mode) == 0o700
    assert confinement.group_of(machines.config.cgroups, tpm) == confinement.group_of(machines.config.cgroups, qemu)
    listening = {path.name for path in machines.config.folder(machine).iterdir() if path.is_socket()}
    assert listening == {"qmp", "console", "agent", "events"}, "no one else can reach the TPM"
    if os.geteuid() == 0:
        users = {line.split()[1] for line in status.splitlines() if line.startswith("Uid:")}
        assert users == {str(record.tpm_user)}
        assert record.tpm_user not in (None, record.user, 0), "a guest that takes over QEMU does not get its secrets"
        own, host = (os.stat(f"/proc/{pid}/ns/net").st_ino for pid in (tpm, os.getpid()))
        assert own != host, "it has a network namespace of its own"
        assert [line.split(":")[0].strip() for line in Path(f"/proc/{tpm}/net/dev").read_text().splitlines()[2:]] == [
            "lo"
        ]
        root = Path(f"/proc/{tpm}/root")
        assert not (root / "etc/passwd").exists()
        assert not (root / machines.config.folder(machine).relative_to("/")).exists()
        assert not (Path(f"/proc/{qemu}/root") / machines.config.tpm(machine).relative_to("/")).exists()
        assert "CapEff:\t0000000000000000\n" in status


def _check_it_lives_as_its_machine(machines: MachineLifecycle, platform: Image, guest: Guest) -> None:
    starts, (tpm,) = starts_of(guest), swtpms(machines.config)
    guest.close()
    os.kill(running(machines, KEY).pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{tpm}").exists(), "the TPM ends with its QEMU")
    until(lambda: machines.record_for(KEY).state == "stopped", "the death is noticed")

    # It keeps its content, also with other firmware.
    start(machines, kernel(platform, tpm=True))
    guest = guest_of(machines)
    assert guest.check("cat /sys/class/tpm/tpm0/tpm_version_major") == "2"
    assert starts_of(guest) > starts > 0
    guest.close()

    # It dies alone: the machine runs on without it.
    (tpm,) = swtpms(machines.config)
    os.kill(tpm, signal.SIGKILL)
    until(lambda: swtpms(machines.config) == [], "it is gone")
    assert running(machines, KEY).phase == "Running"


READ_CLOCK = (
    r"exec 4<>/dev/tpm0; printf '\200\1\0\0\0\12\0\0\1\201' >&4; dd bs=64 count=1 <&4 2>/dev/null | od -An -tu1 -v"
)
"""TPM2_ReadClock; its answer has, after 26 bytes, how often the TPM was started, which begins with 0 in a new one."""


def starts_of(guest: Guest) -> int:
    answer = [int(word) for word in guest.check(READ_CLOCK).split()]
    return int.from_bytes(answer[26:30], "big")


def test_with_secure_boot_only_signed_kernels_start(settings: MachineConfig, platform: Image) -> None:
    """Its first disk has, where firmware looks for a loader, the unsigned kernel that other tests start without Secure
    Boot. From its second one GRUB tries that kernel first."""
    disks = [disk_of(settings, platform, name) for name in ("bare", "signed")]
    with ExitStack() as stack:
        tap = stack.enter_context(tap_interface(queues=True)) if os.geteuid() == 0 else None
        machines = stack.enter_context(plugin(settings))
        nics = [{} if tap is None else {"backend": "tap", "interface": tap}]
        secure = {"type": "uefi", "secureBoot": True}
        machine = start(machines, {"firmware": secure, "tpm": True, "disks": disks}, nics=nics)
        guest = guest_of(machines)
        assert "kernel=signed" in guest.check("cat /proc/cmdline")
        output = console(settings, machine)
        assert "failed to load Boot0001" in output
        assert "Access Denied" in output
        assert "bad shim signature" in output
        value = guest.check("od -An -tu1 /sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c")
        assert value.split()[-1] == "1"
        assert "Secure boot enabled" in guest.check("dmesg")
        assert guest.check("cat /sys/class/tpm/tpm0/pcr-sha256/7") != ZERO
        assert len(guest.check("ls -d /sys/block/vda/mq/*").splitlines()) == 2, "a queue for each CPU it can have"
        if tap is not None:
            assert "input.1" in guest.check("cat /proc/interrupts"), "so does its card"
            for _ in range(2):  # a machine of several queues is the only one on its interface
                with pytest.raises(OSError, match="busy"):
                    spawn.open_tap(tap)
        with pytest.raises(Denied, match="Secure Boot") as denied:
            machines.scale(KEY, "vcpus", 2, soon())  # without KVM its firmware would wait for that CPU, and it for ever
        assert (denied.value.code, guest.check("cat /sys/devices/system/cpu/online")) == ("CpusEmulated", "0")
        guest.close()
        machines.stop(KEY, 0, True, soon())
        if tap is not None:
            first, second = spawn.open_tap(tap), spawn.open_tap(tap, 2)
            with pytest.raises(OSError, match="busy"):
                spawn.open_tap(tap, 2)
            os.close(first)
            os.close(second)

        stop_and_forget(machines)


def disk_of(settings: MachineConfig, platform: Image, name: str) -> dict[str, str]:
    """A copy that the machine can write."""
    path = settings.state.parent / f"disks/{name}.img"
    shutil.copyfile(platform.folder / f"{name}.img", path)
    return {"path": str(path), "format": "raw"}


def test_without_its_program_or_firmware_a_machine_is_refused_with_what_to_install(
    settings: MachineConfig, platform: Image
) -> None:
    missing = FirmwareFiles(Path("/none/CODE.fd"), Path("/none/VARS.fd"))
    for changed, of, code, what in (
        ({"swtpm": "no-such-swtpm"}, {"tpm": True}, "SwtpmMissing", "install swtpm"),
        ({"uefi": missing}, {"firmware": {"type": "uefi"}}, "FirmwareMissing", "--uefi-firmware"),
    ):
        with plugin(replace(settings, **changed)) as machines:
            with pytest.raises(Denied, match=what) as denied:
                start(machines, kernel(platform, **of))
            assert (denied.value.code, denied.value.retryable, machines.list()) == (code, True, [])
    if not (Path("/usr/share/qemu/firmware").exists() or Path("/etc/qemu/firmware").exists()):
        with plugin(replace(settings, uefi=None)) as machines, pytest.raises(Denied, match="install ovmf"):
            start(machines, kernel(platform, firmware={"type": "uefi"}))


def test_a_tpm_that_does_not_come_up_fails_the_start_with_its_words_and_leaves_nothing(
    settings: MachineConfig, platform: Image
) -> None:
    with plugin(settings) as machines:
        machine = start(machines, kernel(platform, tpm=True))
        machines.stop(KEY, 0, True, soon())
        content = settings.tpm(machine) / "tpm2-00.permall"
        content.write_bytes(b"no state of a TPM")
        with raises(Failed, "MachineDidNotStart") as failed:
            start(machines, kernel(platform, tpm=True))
        assert "tpm" in failed.value.message.lower()
        assert swtpms(settings) == []
        machines.forget(KEY, soon())
        assert not settings.tpm(machine).exists()


def test_the_descriptors_of_debians_packages_name_their_files(platform: Image) -> None:
    folder = platform.folder / "root/usr/share/qemu/firmware"
    plain = firmware.described_firmware(secure_boot=False, folders=(folder,))
    secure = firmware.described_firmware(secure_boot=True, folders=(folder,))
    assert (plain, secure) == (
        FirmwareFiles(Path("/usr/share/OVMF/OVMF_CODE_4M.fd"), Path("/usr/share/OVMF/OVMF_VARS_4M.fd")),
        FirmwareFiles(Path("/usr/share/OVMF/OVMF_CODE_4M.ms.fd"), Path("/usr/share/OVMF/OVMF_VARS_4M.ms.fd")),
    )
