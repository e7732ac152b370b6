"""PCI functions to plug into a fake /sys: what they are (data), and presets of well-known cards.

    host.add(cards.nic("0000:41:00.0", vfs=3))

Every preset takes the fields of `Function` as keywords.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Sriov:
    """The SR-IOV capability of a physical function."""

    total: int
    offset: int = 4
    stride: int = 1
    vf_device: int = 0
    """Device id of the VFs."""
    vf_driver: str | None = None
    """Driver that probes the VFs."""


@dataclass(frozen=True)
class VgpuType:
    """A vGPU profile. The id is `nvidia-746` in the mdev layout, `1145` in the vendor VFIO layout."""

    id: str
    name: str
    framebuffer: int
    """MiB."""
    max_instance: int

    @property
    def description(self) -> str:
        return (
            f"num_heads=4, frl_config=60, framebuffer={self.framebuffer}M, max_resolution=7680x4320, "
            f"max_instance={self.max_instance}"
        )


@dataclass(frozen=True)
class Vgpu:
    """What a vGPU host driver offers on a card: on its VFs (one instance each) or, without SR-IOV, on the PF itself."""

    layout: Literal["mdev", "vfio"]
    framebuffer: int
    """MiB of the whole card."""
    types: tuple[VgpuType, ...]
    one_size: bool = True
    """All live instances of the card have the same framebuffer size."""


@dataclass(frozen=True)
class Function:
    """One PCI function as it is plugged in."""

    address: str
    vendor: int
    device: int
    class_code: int
    native: str | None = None
    """The driver that probes this function by itself."""
    driver: str | None = "native"
    """What it is bound to at first: "native", another driver's name, or None."""
    subsystem: tuple[int, int] = (0x1AF4, 0x1100)
    numa: int = 0
    iommu_group: int | Literal["own"] | None = "own"
    """A number to share a group, "own" for the next free one, None without an IOMMU."""
    ports: tuple[str, ...] | None = None
    """Bridges from the root bus down; None for a root port of its bus on bus 00 (none for bus 00 itself)."""
    netdev: str | None = None
    """Name of the interface while the native driver is bound."""
    mac: str = "52:54:00:12:34:56"
    speed: int = 10_000
    """Mbit/s of the interface; -1 without carrier."""
    nvme: str | None = None
    """Name of the controller (nvme0) while the native driver is bound; its namespace is nvme0n1."""
    drm: str | None = None
    """Name of the DRM device (card0) while the native driver is bound."""
    infiniband: str | None = None
    """Name of the RDMA device (mlx5_0) while the native driver is bound."""
    sriov: Sriov | None = None
    vfs: int = 0
    """VFs that exist at first."""
    vgpu: Vgpu | None = None
    boot_vga: bool | None = None
    link: tuple[str, int] = ("16.0 GT/s PCIe", 16)
    files: Mapping[str, str] = field(default_factory=dict)
    """More files, or other content for those that are there."""


def gpu(address: str = "0000:01:00.0", **changes: Any) -> Function:
    """An NVIDIA L4 without SR-IOV in use, class 0302."""
    return _function(
        address, 0x10DE, 0x27B8, 0x030200, changes, native="nvidia", drm="card0", subsystem=(0x10DE, 0x16CA)
    )


def gpu_audio(address: str = "0000:01:00.1", **changes: Any) -> Function:
    """The HDMI audio function of an NVIDIA card."""
    return _function(address, 0x10DE, 0x22BC, 0x040300, changes, native="snd_hda_intel")


def amd_gpu(address: str = "0000:03:00.0", **changes: Any) -> Function:
    """An AMD Instinct MI210 with 8 possible VFs, class 0380."""
    return _function(
        address,
        0x1002,
        0x740F,
        0x038000,
        changes,
        native="amdgpu",
        drm="card1",
        sriov=Sriov(8, offset=16, stride=1, vf_device=0x7410, vf_driver="amdgpu"),
    )


def intel_gpu(address: str = "0000:00:02.0", **changes: Any) -> Function:
    """An Intel integrated GPU (class 0300) with 7 possible VFs on the same slot."""
    return _function(
        address,
        0x8086,
        0xA780,
        0x030000,
        changes,
        native="i915",
        drm="card2",
        boot_vga=False,
        sriov=Sriov(7, offset=1, stride=1, vf_device=0xA780, vf_driver="i915"),
    )


def nic(address: str = "0000:41:00.0", **changes: Any) -> Function:
    """An Intel 82576 (igb): 7 possible VFs at offset 128, stride 2, as QEMU emulates it."""
    return _function(
        address,
        0x8086,
        0x10C9,
        0x020000,
        changes,
        native="igb",
        netdev="eth0",
        speed=1000,
        sriov=Sriov(7, offset=128, stride=2, vf_device=0x10CA, vf_driver="igbvf"),
    )


def connectx(address: str = "0000:61:00.0", **changes: Any) -> Function:
    """A Mellanox ConnectX-6 Dx port with RDMA and 16 possible VFs."""
    return _function(
        address,
        0x15B3,
        0x101D,
        0x020000,
        changes,
        native="mlx5_core",
        netdev="ens1f0np0",
        speed=100_000,
        infiniband="mlx5_0",
        sriov=Sriov(16, offset=2, stride=1, vf_device=0x101E, vf_driver="mlx5_core"),
    )


def plain_nic(address: str = "0000:05:00.0", **changes: Any) -> Function:
    """A Realtek NIC without SR-IOV."""
    return _function(address, 0x10EC, 0x8168, 0x020000, changes, native="r8169", netdev="eth9", speed=1000)


def nvme(address: str = "0000:42:00.0", **changes: Any) -> Function:
    """An NVMe drive without SR-IOV."""
    return _function(address, 0x144D, 0xA80A, 0x010802, changes, native="nvme", nvme="nvme0")


def accelerator(address: str = "0000:71:00.0", **changes: Any) -> Function:
    """A Habana Gaudi2, class 1200."""
    return _function(address, 0x1DA3, 0x1020, 0x120000, changes, native="habanalabs")


def bmc_vga(address: str = "0000:04:00.0", **changes: Any) -> Function:
    """The ASPEED VGA of a server's BMC: the boot console."""
    return _function(address, 0x1A03, 0x2000, 0x030000, changes, native="ast", drm="card3", boot_vga=True)


def bridge(address: str, **changes: Any) -> Function:
    """A PCIe root port or switch port."""
    return _function(address, 0x8086, 0x3C04, 0x060400, changes, native="pcieport")


def a2_vgpu_card(address: str = "0000:08:00.0", **changes: Any) -> Function:
    """An NVIDIA A2 with the vGPU host driver, mdev layout: 16 VFs at offset 4, the profiles of the recorded server."""
    return _function(
        address,
        0x10DE,
        0x25B6,
        0x030200,
        changes,
        native="nvidia",
        subsystem=(0x10DE, 0x157E),
        ports=("0000:00:03.0",),
        sriov=Sriov(16, 4, 1, vf_device=0x25B6, vf_driver="nvidia"),
        vgpu=Vgpu("mdev", 16384, A2_TYPES),
    )


def t4_vgpu_card(address: str = "0000:3b:00.0", **changes: Any) -> Function:
    """An NVIDIA T4 with the vGPU host driver: no SR-IOV, the profiles are offered by the PF itself."""
    return _function(
        address,
        0x10DE,
        0x1EB8,
        0x030200,
        changes,
        native="nvidia",
        subsystem=(0x10DE, 0x12A2),
        vgpu=Vgpu("mdev", 16384, T4_TYPES),
    )


_MTTY_TYPES = VgpuType("mtty-1", "Single port serial", 1, 24), VgpuType("mtty-2", "Dual port serial", 2, 12)
MTTY = Vgpu("mdev", 24, _MTTY_TYPES, one_size=False)
"""What the kernel's sample driver of mediated devices offers: 24 ports, in types of one and of two."""


def l40s_vgpu_card(address: str = "0000:26:00.0", **changes: Any) -> Function:
    """An NVIDIA L40S with the vGPU host driver, vendor VFIO layout: 32 VFs at offset 4, mixed sizes allowed."""
    return _function(
        address,
        0x10DE,
        0x26B9,
        0x030200,
        changes,
        native="nvidia",
        subsystem=(0x10DE, 0x1851),
        sriov=Sriov(32, 4, 1, vf_device=0x26B9, vf_driver="nvidia"),
        vgpu=Vgpu("vfio", 49152, L40S_TYPES, one_size=False),
    )


def ports_above(address: str) -> tuple[str, ...]:
    """The bridges above a function, unless its card says otherwise."""
    domain, bus, _ = address.split(":")
    number = int(bus, 16)
    return (f"{domain}:00:{number >> 3:02x}.{number & 7}",) if number else ()


def root_of(address: str) -> str:
    """The root complex of a function."""
    domain, bus, _ = address.split(":")
    return f"pci{domain}:{bus}"


def vf_addresses(pf: str, sriov: Sriov) -> list[str]:
    """Where every VF of a PF is or would be, in order of their index."""
    domain, bus, rest = pf.split(":")
    slot, function = rest.split(".")
    first = (int(bus, 16) << 8) + (int(slot, 16) << 3) + int(function) + sriov.offset
    ids = [first + sriov.stride * index for index in range(sriov.total)]
    return [f"{domain}:{i >> 8:02x}:{i >> 3 & 31:02x}.{i & 7}" for i in ids]


def _function(
    address: str, vendor: int, device: int, class_code: int, changes: dict[str, Any], **preset: Any
) -> Function:
    return Function(address, vendor, device, class_code, **{**preset, **changes})


def _types(model: str, first_id: int, total_gib: int, series: str, *, prefix: str = "") -> tuple[VgpuType, ...]:
    """`series` such as "1B 2B 1Q": size in GiB and letter; ids are consecutive."""
    return tuple(
        VgpuType(f"{prefix}{first_id + i}", f"{model}-{size}", int(size[:-1]) * 1024, total_gib // int(size[:-1]))
        for i, size in enumerate(series.split())
    )


A2_TYPES = _types("NVIDIA A2", 742, 16, "1B 2B 1Q 2Q 4Q 8Q 16Q 1A 2A 4A 8A 16A 4C 8C 16C", prefix="nvidia-")
T4_TYPES = _types("GRID T4", 222, 16, "1B 2B 1Q 2Q 4Q 8Q 16Q", prefix="nvidia-")
L40S_TYPES = (
    *_types("NVIDIA L40S", 1145, 48, "1B 2B 1Q 2Q 3Q 4Q 6Q 8Q 12Q 16Q 24Q 48Q 1A 2A 3A 4A 6A 8A 12A 16A 24A 48A"),
    VgpuType("2164", "NVIDIA L40S-3B", 3072, 16),
)
GVT_TYPES = (VgpuType("i915-GVTg_V5_4", "GVTg_V5_4", 128, 1), VgpuType("i915-GVTg_V5_8", "GVTg_V5_8", 64, 2))
"""Of Intel's kvmgt: ids that are no labels."""
