"""What a host has for machines and their devices: one check each, with what is missing and what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from devalloc_machines.qemu.firmware import described_firmware
from devalloc_machines.qemu.preflight import why_no_boot

CheckState = Literal["ok", "missing", "limited"]
"""``limited``: it is there, and not of full use."""


@dataclass(frozen=True, slots=True)
class HostCheck:
    """The result of one check."""

    name: str
    state: CheckState
    detail: str
    """What there is; or what to do."""
    needed_for: str
    is_required: bool = False
    """No machine starts without it."""


def check_host(
    root: Path,
    qemu: str,
    *,
    which: Callable[[str], str | None] = shutil.which,
    no_boot: Callable[[str], str] | None = None,
    firmware: Callable[[bool], bool] | None = None,
    uid: int | None = None,
) -> Iterator[HostCheck]:
    """All checks, in the order in which a host is prepared. ``root``: where its /sys and /dev are. ``no_boot``: why no
    guest boots with KVM, empty if one does. ``firmware``: whether there is UEFI firmware, with Secure Boot or
    without."""
    yield _rights(os.geteuid() if uid is None else uid)
    binary = which(qemu)
    yield _qemu(binary)
    yield _kvm(root, binary, no_boot or _why_no_boot)
    yield _iommu(root)
    yield _vfio(root)
    yield from _firmware(firmware or _has_firmware)
    yield _program("swtpm", which, "TPMs", "install swtpm")
    yield _program("nft", which, "warm networks", "install nftables")
    yield _huge_pages(root)
    yield _cgroups(root)


def _rights(uid: int) -> HostCheck:
    what = "devices, TAPs, isolation"
    if uid == 0:
        return HostCheck("rights", "ok", "root", what)
    return HostCheck("rights", "limited", "machines run as your own user; for devices run devalloc as root", what)


def _qemu(binary: str | None) -> HostCheck:
    if binary is None:
        return HostCheck("QEMU", "missing", "install qemu-system-x86, or name it with --qemu", "all machines", True)
    try:
        shown = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return HostCheck("QEMU", "missing", f"{binary} does not run: {error}", "all machines", True)
    return HostCheck("QEMU", "ok", shown.partition("\n")[0], "all machines", True)


def _kvm(root: Path, binary: str | None, no_boot: Callable[[str], str]) -> HostCheck:
    device, what = root / "dev/kvm", "full speed"
    if not device.exists():
        how = "switch on virtualization in the firmware, and load kvm_intel or kvm_amd"
        return HostCheck("KVM", "missing", how, what)
    if not os.access(device, os.R_OK | os.W_OK):
        return HostCheck("KVM", "missing", "no access to /dev/kvm: add your user to its group (kvm), or use root", what)
    if binary is not None and (why := no_boot(binary)):
        how = f"no guest boots with /dev/kvm ({why}); on a virtual host, switch on nested virtualization"
        return HostCheck("KVM", "missing", how, what)
    return HostCheck("KVM", "ok", "a guest boots" if binary else "/dev/kvm", what)


def _iommu(root: Path) -> HostCheck:
    groups = _listed(root / "sys/kernel/iommu_groups")
    what = "devices"
    if not groups:
        how = "switch on VT-d or AMD-Vi in the firmware; on Intel, add intel_iommu=on to the kernel's command line"
        return HostCheck("IOMMU", "missing", how, what)
    return HostCheck("IOMMU", "ok", f"{len(groups)} groups", what)


def _vfio(root: Path) -> HostCheck:
    what = "devices"
    if (root / "sys/bus/pci/drivers/vfio-pci").is_dir():
        return HostCheck("vfio-pci", "ok", "loaded", what)
    return HostCheck("vfio-pci", "missing", "modprobe vfio-pci; to keep it: /etc/modules-load.d", what)


def _firmware(has: Callable[[bool], bool]) -> Iterator[HostCheck]:
    for is_secure, name, what in ((False, "UEFI", "UEFI machines"), (True, "Secure Boot", "Secure Boot")):
        if has(is_secure):
            yield HostCheck(name, "ok", "firmware is there", what)
        else:
            yield HostCheck(name, "missing", "install ovmf (Debian, Ubuntu) or edk2-ovmf (Fedora)", what)


def _program(name: str, which: Callable[[str], str | None], what: str, how: str) -> HostCheck:
    path = which(name)
    return HostCheck(name, "missing", how, what) if path is None else HostCheck(name, "ok", path, what)


def _huge_pages(root: Path) -> HostCheck:
    what, reserved = "memory.hugePages", []
    for folder in _listed(root / "sys/kernel/mm/hugepages"):
        try:
            number = int((folder / "nr_hugepages").read_text())
        except (OSError, ValueError):
            continue
        if number:
            reserved.append(f"{number} of {folder.name.removeprefix('hugepages-')}")
    if reserved:
        return HostCheck("huge pages", "ok", ", ".join(reserved), what)
    return HostCheck(
        "huge pages", "missing", "none is set aside; 4 GiB in pages of 2 MiB: sysctl vm.nr_hugepages=2048", what
    )


def _cgroups(root: Path) -> HostCheck:
    what = "limits"
    try:
        names = set((root / "sys/fs/cgroup/cgroup.controllers").read_text().split())
    except OSError:
        names = {folder.name.partition(",")[0] for folder in _listed(root / "sys/fs/cgroup")}
    lacks = sorted({"cpu", "memory"} - names)
    if lacks:
        return HostCheck("cgroups", "missing", f"mount the controllers {', '.join(lacks)}", what)
    return HostCheck("cgroups", "ok", "cpu, memory", what)


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _why_no_boot(binary: str) -> str:
    return why_no_boot(binary, "kvm")


def _has_firmware(is_secure: bool) -> bool:
    return described_firmware(secure_boot=is_secure) is not None
