"""The two recorded vGPU servers with a fake kernel behind them, completed as settled I4 and T20 say.

The same servers are built from presets, which are checked against the recordings.
"""

from __future__ import annotations

import os
import shutil
from functools import lru_cache
from pathlib import Path

from tests.support import pci_cards
from tests.support.fake_host import FakeHost
from tests.support.fake_sysfs import Plugged
from tests.support.fake_vgpu import VgpuInstance
from tests.support.pci_cards import Function, Vgpu
from tests.support.recordings import unpack

A2 = "0000:08:00.0"
A2_VFS = [f"0000:08:{index // 8:02x}.{index % 8}" for index in range(4, 20)]
A2_LIVE = {
    "f715f63c-0d00-4007-9c5a-b07b0c6c05de": ("0000:08:00.4", "nvidia-754"),
    "3deab9a4-200a-4c54-99b1-5eb0722d1d81": ("0000:08:00.6", "nvidia-751"),
    "c728e022-f16f-434b-ad2c-9665ee634d3d": ("0000:08:02.0", "nvidia-746"),
}
"""The vGPUs that lived there: UUID, VF and type, each of 4 GiB; so 4 of the card's 16 are left."""
A2_TYPES = tuple(kind for kind in pci_cards.A2_TYPES if kind.framebuffer == 4096 or kind.id == "nvidia-745")
"""Of the card that is built: its size in use, and another. With all 15 on 16 VFs a tree has two thousand files more."""
L40S = "0000:26:00.0"
L40S_VF = "0000:26:00.4"


def build_a2(root: Path) -> FakeHost:
    host = FakeHost(root)
    host.add(pci_cards.a2_vgpu_card(A2, vfs=16, vgpu=Vgpu("mdev", 16384, A2_TYPES)))
    for uuid, (vf, kind) in A2_LIVE.items():
        host.vgpu.create(vf, kind, uuid)
    return host


def recorded_a2(root: Path) -> FakeHost:
    """The recorded server with its A2, its two ports and its console; the free VFs offer the types that were recorded
    of one of them. The recording has neither `bus/mdev` nor the members of IOMMU groups: those are completed."""
    place = unpack("harvester-vgpu-node", root, only=("0000:08:0", "0000:04:00", "0000:01:00"))
    host = FakeHost(place)
    for function in sorted((host.sys / "bus/pci/devices").iterdir()):
        if (function / "iommu_group").is_symlink():
            group = Path(os.readlink(function / "iommu_group")).name
            host.link(f"kernel/iommu_groups/{group}/devices/{function.name}", _path(host, function))
    for vf in A2_VFS:
        _take_over(host, pci_cards.a2_vgpu_card(vf, sriov=None, vgpu=None), pf=A2)
    _take_over(host, pci_cards.a2_vgpu_card(A2)).vfs.extend(A2_VFS)
    types = {kind.id: kind for kind in pci_cards.A2_TYPES}
    for uuid, (vf, kind) in A2_LIVE.items():
        mdev = host.path(vf, uuid)
        group = Path(os.readlink(host.sys / mdev / "iommu_group")).name
        host.link(f"kernel/iommu_groups/{group}/devices/{uuid}", mdev)
        host.link(f"bus/mdev/devices/{uuid}", mdev)
        host.vgpu.take_over(uuid, VgpuInstance(vf, types[kind]), int(group))
    for vf in A2_VFS:
        host.vgpu.offer(vf)
        for type_id, description in recorded_types(root, "description").items():
            host.write(f"{host.path(vf)}/mdev_supported_types/{type_id}/description", description)
    return host


@lru_cache
def recorded_types(root: Path, name: str) -> dict[str, str]:
    """What one file says in each type folder of VF 0000:08:01.7, as they were recorded. Unpacked below `root`."""
    place = unpack("harvester-pcidevices", root, only=("0000:08:01.7",))
    types = place / "sys/class/mdev_bus/0000:08:01.7/mdev_supported_types"
    return {kind.name: (kind / name).read_text().strip() for kind in types.iterdir()}


def build_l40s(root: Path) -> FakeHost:
    host = FakeHost(root)
    host.add(pci_cards.l40s_vgpu_card(L40S, vfs=32))
    return host


def recorded_l40s(root: Path) -> FakeHost:
    """A card around the files that were recorded of one VF."""
    host = build_l40s(root / "host")
    recorded = unpack("harvester-pcidevices", root) / "sys/bus/pci/devices" / L40S_VF / "nvidia"
    shutil.copytree(recorded, host.sys / host.path(L40S_VF, "nvidia"), dirs_exist_ok=True)
    return host


def _take_over(host: FakeHost, spec: Function, pf: str | None = None) -> Plugged:
    """Let the fake kernel know a function that the tree has already."""
    folder = host.sys / "bus/pci/devices" / spec.address
    function = Plugged(spec, _path(host, folder), pf=pf)
    function.driver = Path(os.readlink(folder / "driver")).name
    function.group = int(Path(os.readlink(folder / "iommu_group")).name)
    host.functions[spec.address] = function
    return function


def _path(host: FakeHost, folder: Path) -> str:
    return str(folder.resolve().relative_to(host.sys.resolve()))
