"""vGPU parents in both layouts: which profiles a function offers, and which instances live on it.

Legacy mdev: ``mdev_supported_types/<id>/{name,description,available_instances}``, live instances are folders named by
their UUID. Vendor VFIO (kernel 6.8 and later): ``nvidia/creatable_vgpu_types`` lists what can be created now,
``nvidia/current_vgpu_type`` is what lives there, 0 for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache

from devalloc.inventory.pci import Address, PciFunction
from devalloc.inventory.sysfs import Folder

MIB = 1 << 20
GIB = 1 << 30

_NOT_IN_LABELS = re.compile(r"[^a-z0-9]+", re.ASCII)
_TYPE_ID = re.compile(r"[A-Za-z0-9_.-]{1,80}", re.ASCII)
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)
_NVIDIA_ROW = re.compile(r"\s*([0-9]{1,9})\s*:\s*(\S.*?)\s*", re.ASCII)
_FRAMEBUFFER = re.compile(r"framebuffer=([0-9]{1,9})M\b", re.ASCII)
_MAX_INSTANCE = re.compile(r"max_instance=([0-9]{1,6})\b", re.ASCII)
# "NVIDIA L40S-12Q", "GRID V100D-8Q", MIG-backed "NVIDIA A100-2-10C": the last number is the framebuffer in GiB.
_NVIDIA_NAME = re.compile(r".*?-(?:([1-9])-)?([0-9]{1,4})[ABCQ](?:ME)?[0-9]?", re.ASCII)


@dataclass(frozen=True, slots=True)
class VgpuProfile:
    """A kind of vGPU."""

    id: str
    """``nvidia-746``, in both layouts."""
    name: str
    """``NVIDIA A2-4Q``."""
    framebuffer: int | None
    """Bytes; None where neither description nor name tells."""
    max_instance: int | None
    """Instances that one card can hold; None where the driver does not say."""
    mig: bool
    """Backed by a MIG instance: sizes may differ on one card."""


@dataclass(frozen=True, slots=True)
class VgpuInstance:
    """A vGPU that lives on a parent."""

    parent: Address
    profile_id: str | None
    """None where that cannot be told."""
    uuid: str | None
    """None in the vendor VFIO layout, where a VF has at most one instance."""
    iommu_group: int | None


@dataclass(frozen=True, slots=True)
class VgpuParent:
    """A function that vGPUs can be created on."""

    function: PciFunction
    profiles: tuple[VgpuProfile, ...]
    available: dict[str, int]
    """How many more of each profile id the driver would create now."""
    live: tuple[VgpuInstance, ...]
    holds_one: bool
    """At most one instance at a time: a VF, and every parent of the vendor VFIO layout."""

    @property
    def address(self) -> Address:
        return self.function.address


def profile_label(profile_id: str) -> str:
    """A profile's id as names of devices have it, which are DNS labels: ``i915-gvtg-v5-4`` for ``i915-GVTg_V5_4``."""
    return _NOT_IN_LABELS.sub("-", profile_id.lower()).strip("-")


def profile_ids_by_label(function: PciFunction, labels: Collection[str]) -> dict[str, str] | None:
    """The ids of those profiles with these labels that a function knows, by label; None when it is no vGPU parent."""
    types = _profiles_folder(function)
    if types is not None:
        ids = [*filter(_TYPE_ID.fullmatch, types.names()), *map(_mdev_type, _mdevs(function))]
    else:
        offer = read_parent(function)
        if offer is None:
            return None
        ids = [*(profile.id for profile in offer.profiles), *(live.profile_id for live in offer.live)]
    matching = {each for each in ids if each is not None and profile_label(each) in labels}
    # Of several with one label the device of that name is of the first, as profiles are listed.
    return {profile_label(each): each for each in sorted(matching, key=_by_number, reverse=True)}


def read_parent(function: PciFunction, only: str | None = None) -> VgpuParent | None:
    """What a function offers; None when it is no vGPU parent. ``only``: of the mdev profiles read this one alone."""
    types = _profiles_folder(function)
    live = [
        VgpuInstance(function.address, _mdev_type(mdev), mdev.name.lower(), _group(mdev)) for mdev in _mdevs(function)
    ]
    if types is not None or live:
        names = types.names() if types and only is None else [only] if only else []
        listed = [_mdev_profile(place) for name in names
                 if types and _TYPE_ID.fullmatch(name) and (place := types.folder(name))]  # fmt: skip
        available = {profile.id: max(count, 0) for profile, count in listed}
        profiles = _by_id(profile for profile, _ in listed)
        return VgpuParent(function, tuple(profiles), available, tuple(live), holds_one=function.physfn is not None)
    nvidia = function.folder.folder("nvidia") if "nvidia" in function.entries else None
    listing = nvidia.text("creatable_vgpu_types") if nvidia else None
    current = nvidia.number("current_vgpu_type") if nvidia else None
    if listing is None and current is None:
        return None
    rows = [match for row in (listing or "").splitlines() if (match := _NVIDIA_ROW.fullmatch(row))]
    profiles = _by_id(_profile_from_name(f"nvidia-{row[1]}", row[2]) for row in rows)
    if current != 0:  # or nobody can tell what lives there, so that nothing else may
        profile_id = None if current is None else f"nvidia-{current}"
        live = [VgpuInstance(function.address, profile_id, None, function.iommu_group)]
    return VgpuParent(function, tuple(profiles), {profile.id: 1 for profile in profiles}, tuple(live), holds_one=True)


def mdev_nodes(folder: Folder) -> set[str]:
    """The device nodes through which processes use a mediated device: of its group, or (iommufd) its own."""
    group = _group(folder)
    own = {f"/dev/vfio/devices/{name}" for name in folder.names("vfio-dev")}
    return own if group is None else {f"/dev/vfio/{group}", *own}


def mdev_groups(function: PciFunction) -> dict[str, int]:
    """By each device node the IOMMU group of the mediated device on a function that it belongs to."""
    groups = ((mdev, _group(mdev)) for mdev in _mdevs(function))
    return {node: group for mdev, group in groups if group is not None for node in mdev_nodes(mdev)}


def _profiles_folder(function: PciFunction) -> Folder | None:
    """The profiles. Below class/mdev_bus is the same folder, in a recording perhaps the only one."""
    if "mdev_supported_types" in function.entries:
        return function.folder.folder("mdev_supported_types")
    system = function.folder.tree.sys
    return system.folder("class", "mdev_bus", str(function.address), "mdev_supported_types") if system else None


def _mdevs(function: PciFunction) -> list[Folder]:
    names = sorted(filter(_UUID.fullmatch, function.entries))
    return [mdev for name in names if (mdev := function.folder.folder(name))]


def _mdev_type(mdev: Folder) -> str | None:
    name = mdev.link("mdev_type")
    return name if name is not None and _TYPE_ID.fullmatch(name) else None


def _group(mdev: Folder) -> int | None:
    name = mdev.link("iommu_group")
    return int(name) if name is not None and name.isascii() and name.isdigit() and len(name) < 10 else None


def _mdev_profile(place: Folder) -> tuple[VgpuProfile, int]:
    name, description = place.text("name") or place.name, place.text("description") or ""
    framebuffer, most = _FRAMEBUFFER.search(description), _MAX_INSTANCE.search(description)
    profile = _profile_from_name(place.name, name)
    profile = VgpuProfile(
        id=profile.id,
        name=profile.name,
        framebuffer=int(framebuffer[1]) * MIB if framebuffer else profile.framebuffer,
        max_instance=int(most[1]) if most else None,
        mig=profile.mig,
    )
    return profile, place.number("available_instances") or 0


@lru_cache(maxsize=1024)
def _profile_from_name(profile_id: str, name: str) -> VgpuProfile:
    """A profile as far as its name tells."""
    match = _NVIDIA_NAME.fullmatch(name)
    return VgpuProfile(
        id=profile_id,
        name=name,
        framebuffer=int(match[2]) * GIB if match else None,
        max_instance=None,
        mig=match is not None and match[1] is not None,
    )


def _by_id(profiles: Iterable[VgpuProfile]) -> list[VgpuProfile]:
    """In the order of the number at the end of their ids; of one id the first."""
    unique: dict[str, VgpuProfile] = {}
    for profile in profiles:
        unique.setdefault(profile.id, profile)
    return [unique[profile_id] for profile_id in sorted(unique, key=_by_number)]


@lru_cache(maxsize=1024)
def _by_number(text: str) -> tuple[tuple[int, ...], str]:
    return tuple(int(number) for number in re.findall(r"[0-9]+", text)), text
