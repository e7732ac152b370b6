"""What `devalloc check-host` says of hosts that have all, and of hosts that have nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from devalloc.cli.host_checks import HostCheck, check_host
from tests.support.cli_shell import Shell

ALL = ["rights", "QEMU", "KVM", "IOMMU", "vfio-pci", "UEFI", "Secure Boot", "swtpm", "nft", "huge pages", "cgroups"]


@pytest.fixture
def qemu(tmp_path: Path) -> Path:
    program = tmp_path / "qemu"
    program.write_text("#!/bin/sh\necho QEMU emulator version 9.9\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """The tree of a host that has all."""
    root = tmp_path / "host"
    for folder in ("sys/kernel/iommu_groups/0", "sys/kernel/iommu_groups/1", "sys/bus/pci/drivers/vfio-pci", "dev"):
        (root / folder).mkdir(parents=True)
    pages = root / "sys/kernel/mm/hugepages/hugepages-2048kB"
    pages.mkdir(parents=True)
    (pages / "nr_hugepages").write_text("512\n")
    (root / "dev/kvm").touch()
    (root / "sys/fs/cgroup").mkdir(parents=True)
    (root / "sys/fs/cgroup/cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    return root


def checks(
    root: Path, qemu: str, *, boots: bool = True, firmware: bool = True, programs: bool = True, uid: int = 0
) -> dict[str, HostCheck]:
    there = {qemu: qemu} | ({"swtpm": "/usr/bin/swtpm", "nft": "/usr/sbin/nft"} if programs else {})
    why = "" if boots else "Permission denied"
    made = check_host(root, qemu, which=there.get, no_boot=lambda _: why, firmware=lambda _: firmware, uid=uid)
    return {one.name: one for one in made}


def test_a_host_that_has_all(prepared: Path, qemu: Path) -> None:
    done = checks(prepared, str(qemu))
    assert list(done) == ALL
    assert {name: one.state for name, one in done.items()} == dict.fromkeys(ALL, "ok")
    assert done["QEMU"].detail == "QEMU emulator version 9.9"
    assert done["IOMMU"].detail == "2 groups"
    assert done["huge pages"].detail == "512 of 2048kB"


def test_a_host_that_has_nothing_says_what_to_do(tmp_path: Path) -> None:
    done = {
        one.name: one for one in check_host(tmp_path, "qemu", which=lambda _: None, firmware=lambda _: False, uid=1000)
    }
    assert {name for name, one in done.items() if one.state == "ok"} == set()
    assert done["rights"].state == "limited"
    assert "intel_iommu=on" in done["IOMMU"].detail
    assert "kvm_intel" in done["KVM"].detail
    assert done["vfio-pci"].detail.startswith("modprobe vfio-pci")
    assert done["cgroups"].detail == "mount the controllers cpu, memory"
    assert [name for name, one in done.items() if one.is_required] == ["QEMU"]


def test_kvm_that_boots_no_guest_is_missing(prepared: Path, qemu: Path) -> None:
    detail = checks(prepared, str(qemu), boots=False)["KVM"].detail
    assert detail.startswith("no guest boots with /dev/kvm (Permission denied); ")


def test_kvm_without_rights_names_the_group(prepared: Path, qemu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "no access to /dev/kvm" in checks(prepared, str(qemu))["KVM"].detail


def test_a_qemu_that_does_not_run_is_missing(prepared: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    assert checks(prepared, str(broken))["QEMU"].state == "missing"


def test_no_huge_pages_and_controllers_of_version_1(prepared: Path, qemu: Path) -> None:
    (prepared / "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages").write_text("0\n")
    (prepared / "sys/fs/cgroup/cgroup.controllers").unlink()
    for name in ("cpu,cpuacct", "memory"):
        (prepared / "sys/fs/cgroup" / name).mkdir()
    done = checks(prepared, str(qemu))
    assert (done["huge pages"].state, done["cgroups"].state) == ("missing", "ok")


def test_the_command_fails_only_if_no_machine_can_start(devalloc: Shell, prepared: Path, qemu: Path) -> None:
    missing = devalloc("check-host", "--qemu", "/nonexistent/qemu", "--sysfs-root", prepared)
    assert (missing.code, "install qemu-system-x86" in missing.out) == (1, True)
    there = devalloc("check-host", "--qemu", qemu, "--sysfs-root", prepared, "-o", "json")
    assert there.code == 0
    assert [one["name"] for one in there.json["items"]] == ALL
