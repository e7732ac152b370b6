"""One bad file costs at most its own device: never a crash, never another card (the whole tree, file by file)."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from devalloc.api.decode import decode
from tests.support import pci_cards
from tests.support.discovery_view import DiscoveredPools
from tests.support.examples import examples
from tests.support.fake_sysfs import FakeSysfs
from tests.support.pci_cards import Vgpu

BYSTANDER = "0000-71-00-0"
TYPES = tuple(kind for kind in pci_cards.A2_TYPES if kind.id in {"nvidia-746", "nvidia-747"})
L40S = tuple(kind for kind in pci_cards.L40S_TYPES if kind.id in {"1150", "1156"})
UUID = "00000000-0000-0000-0000-000000000001"


def nic_with_vfs(host: FakeSysfs) -> str:
    return host.add(pci_cards.nic(vfs=2))


def mdev_card(host: FakeSysfs) -> str:
    address = host.add(pci_cards.a2_vgpu_card(vfs=2, vgpu=Vgpu("mdev", 16384, TYPES)))
    host.vgpu.create("0000:08:00.4", "nvidia-746", UUID)
    return address


def vendor_vfio_card(host: FakeSysfs) -> str:
    address = host.add(pci_cards.l40s_vgpu_card(vfs=2, vgpu=Vgpu("vfio", 49152, L40S)))
    host.vgpu.set_type("0000:26:00.4", "1150")
    return address


def drive(host: FakeSysfs) -> str:
    return host.add(pci_cards.nvme())


def spoilt(path: Path, number: int) -> Iterator[Callable[[], object]]:
    """Ways in which a file or a link can be bad: missing, garbage, and the others in turn to save time."""
    yield lambda: None
    yield lambda: path.write_bytes(b"\xff\xfe\x00 not what you want \x80\n")
    others: list[Callable[[], object]] = [
        lambda: path.write_bytes(b""),
        path.mkdir,
        lambda: path.write_bytes(b"-1"),
        lambda: path.symlink_to("/etc"),
        lambda: path.write_bytes(b"99999999999999999999"),
        lambda: path.symlink_to(path.name),
    ]
    yield others[number % 6]


@contextmanager
def without(path: Path) -> Iterator[None]:
    """The place of a file or link is empty, and afterwards as it was."""
    aside = path.with_name(path.name + ".aside")
    path.rename(aside)
    try:
        yield
    finally:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        aside.rename(path)


@pytest.mark.parametrize("card", [nic_with_vfs, mdev_card, vendor_vfio_card, drive])
def test_any_one_bad_file_is_survived(tmp_path: Path, card: Callable[[FakeSysfs], str]) -> None:
    host = FakeSysfs(tmp_path)
    card(host)
    host.add(pci_cards.accelerator())
    good = DiscoveredPools.on(host.root)
    assert good.problems == []
    bystander = good.devices[BYSTANDER]
    touched = {str(place) for place in host.sys.rglob("*") if "0000:71" not in str(place)}
    read = [Path(p) for p in sorted(touched) if Path(p).name in READ or Path(p).name.startswith("virtfn")]
    assert len(read) > 20
    for number, path in enumerate(read):
        for spoil in spoilt(path, number):
            if path.is_dir() and not path.is_symlink():
                break
            with without(path):
                spoil()
                inventory = DiscoveredPools.on(host.root)
                assert inventory.devices[BYSTANDER] == bystander, path
                for manifest in inventory.manifests:
                    assert decode(manifest).problems == [], path


READ = {
    "class", "vendor", "device", "numa_node", "driver", "iommu_group", "physfn", "sriov_totalvfs", "sriov_numvfs",
    "sriov_offset", "sriov_stride", "sriov_vf_device", "speed", "address", "type", "name", "description", "mdev_type",
    "available_instances", "creatable_vgpu_types", "current_vgpu_type", "boot_vga", "boot_display",
    "dev", "holders",
    "phys_port_name", "subsystem", "subsystem_vendor", "subsystem_device", "reset_method", "serial", "wwid", "uevent",
}  # fmt: skip
"""The names that discovery reads; what it never opens cannot harm it."""


def test_the_list_of_read_files_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = FakeSysfs(tmp_path)
    for card in (nic_with_vfs, mdev_card, vendor_vfio_card, drive):
        card(host)
    opened: set[str] = set()
    really = os.open

    def recorded(path: str, flags: int, *rest: int) -> int:
        if not flags & os.O_PATH:  # which finds a place and reads nothing
            opened.add(os.path.basename(path))
        return really(path, flags, *rest)

    monkeypatch.setattr(os, "open", recorded)
    DiscoveredPools.on(host.root)
    in_proc = {
        "route", "ipv6_route", "if_inet6", "pppoe", "packet", "ptype", "iomem", "mounts", "swaps", "mountinfo", "comm",
        "information",
    }  # fmt: skip
    not_in_these = {"config", "boot_vga", "mem_info_vram_total"}
    assert opened - in_proc - not_in_these - {"pci.ids.gz"} <= READ


@pytest.fixture
def plain(tmp_path: Path) -> FakeSysfs:
    host = FakeSysfs(tmp_path)
    host.add(pci_cards.plain_nic())
    return host


@pytest.mark.parametrize("name", ["net/route", "net/ipv6_route", "net/if_inet6", "mounts", "swaps", "self/mountinfo"])
@given(content=st.binary(max_size=200))
@settings(max_examples=examples(2, 0.025), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_content_of_proc_is_survived(plain: FakeSysfs, name: str, content: bytes) -> None:
    host = plain
    host.proc(name, "")
    (host.root / "proc" / name).write_bytes(content)
    assert list(DiscoveredPools.on(host.root).devices) == ["0000-05-00-0"]


def test_a_function_without_class_is_left_out_and_is_a_problem(tmp_path: Path) -> None:
    host = FakeSysfs(tmp_path)
    host.add(pci_cards.nic())
    host.add(pci_cards.gpu())
    host.spoil(host.path("0000:41:00.0", "class"), "garbage")
    inventory = DiscoveredPools.on(host.root)
    assert list(inventory.devices) == ["0000-01-00-0"]
    assert [problem.path.rpartition("/")[2] for problem in inventory.problems] == ["class", "0000:41:00.0"]
    assert not any(problem.is_error for problem in inventory.problems)


def test_a_vgpu_parent_without_class_is_known_by_its_nvidia_folder(tmp_path: Path) -> None:
    host = FakeSysfs(tmp_path)
    host.add(pci_cards.l40s_vgpu_card(vfs=1, vgpu=Vgpu("vfio", 49152, L40S)))
    for name in ("class", "vendor", "device"):
        host.spoil(host.path("0000:26:00.4", name), "missing")
    inventory = DiscoveredPools.on(host.root)
    assert inventory.names(function="mdev") == ["0000-26-00-4-nvidia-1150", "0000-26-00-4-nvidia-1156"]
    assert "taken for an NVIDIA GPU" in inventory.problems[0].message


def test_vfs_of_an_unreadable_port_are_problems(tmp_path: Path) -> None:
    host = FakeSysfs(tmp_path)
    host.add(pci_cards.nic(vfs=2))
    host.spoil(host.path("0000:41:00.0", "vendor"), "folder")
    inventory = DiscoveredPools.on(host.root)
    assert inventory.devices == {}
    assert sum("is a VF of 0000:41:00.0" in problem.message for problem in inventory.problems) == 2


@pytest.mark.parametrize("name", ["a\x1b[31mb", "x" * 3000, "tab\there", "\N{WATER BUFFALO}"])
def test_a_profile_of_any_name_makes_a_valid_pool(tmp_path: Path, name: str) -> None:
    host = FakeSysfs(tmp_path)
    mdev_card(host)
    host.write(f"{host.path('0000:08:00.5')}/mdev_supported_types/nvidia-747/name", name)
    for manifest in DiscoveredPools.on(host.root).manifests:
        assert decode(manifest).problems == []


@pytest.mark.parametrize(
    ("path", "content"), [("sriov_totalvfs", "10000"), ("mdev_supported_types/nvidia-747/name", "x" * 5000)]
)
def test_a_card_beyond_what_a_pool_can_hold_costs_itself_only(tmp_path: Path, path: str, content: str) -> None:
    host = FakeSysfs(tmp_path)
    host.add(pci_cards.accelerator())
    host.add(pci_cards.nic())
    mdev_card(host)
    spoilt_card = "0000:41:00.0" if path == "sriov_totalvfs" else "0000:08:00.5"
    host.write(f"{host.path(spoilt_card)}/{path}", content)
    inventory = DiscoveredPools.on(host.root)
    assert BYSTANDER in inventory.devices
    assert len(inventory.pools) == 2
    assert "makes no valid pool, so the card is left out" in inventory.problems[-1].message


@pytest.mark.parametrize("instances", [9_000, 10_000_000])
@pytest.mark.parametrize("parent", ["mtty", "0000:3b:00.0"])
def test_a_parent_that_offers_more_instances_than_a_pool_can_hold_is_left_out_before_they_are_made(
    tmp_path: Path, parent: str, instances: int
) -> None:
    host = FakeSysfs(tmp_path)
    host.add(pci_cards.accelerator())
    host.vgpu.add_parent("mtty", pci_cards.MTTY)
    host.add(pci_cards.t4_vgpu_card())
    types = host.sys / "class/mdev_bus" / parent / "mdev_supported_types"
    for count in types.glob("*/available_instances"):
        count.write_text(str(instances))
    inventory = DiscoveredPools.on(host.root)
    assert BYSTANDER in inventory.devices
    assert len(inventory.pools) == 2
    (problem,) = inventory.problems
    assert str(problem.path).endswith(parent)
    what = "card" if ":" in parent else "parent"
    assert problem.message == (
        f"makes no valid pool, so the {what} is left out: devices: a pool has at most 8192, and its driver reports more"
    )


def test_virtual_functions_that_can_have_no_address_are_one_problem(tmp_path: Path) -> None:
    host = FakeSysfs(tmp_path)
    host.write(f"{host.path(host.add(pci_cards.nic()))}/sriov_totalvfs", "65535")
    placed, left_out = DiscoveredPools.on(host.root).problems
    assert "would have its VF 24384 and 41150 more where another function is, so they are left out" in placed.message
    assert "makes no valid pool" in left_out.message


def test_what_users_may_not_read_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = FakeSysfs(tmp_path)
    host.add(pci_cards.nic())
    really = os.open

    def refused(path: str, *rest: int) -> int:
        if path.endswith("/numa_node"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return really(path, *rest)

    monkeypatch.setattr(os, "open", refused)
    inventory = DiscoveredPools.on(host.root)
    assert "numa" not in inventory.attributes("0000-41-00-0")
    assert "Permission denied" in inventory.problems[0].message
