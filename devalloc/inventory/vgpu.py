"""vGPU parents in both layouts: which profiles a parent offers, and which instances live on it.

Legacy mdev: ``mdev_supported_types/<id>/{name,description,available_instances}``, live instances are folders named by
their UUID. Vendor VFIO (kernel 6.8 and later): ``nvidia/creatable_vgpu_types`` lists what can be created now,
``nvidia/current_vgpu_type`` is what lives there, 0 for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, count, islice

from devalloc.api.pool import MAX_POOL_DEVICES
from devalloc.api.quantity import NANO, Format, Quantity
from devalloc.inventory.class_devices import DeviceNode
from devalloc.inventory.config import DeviceRecords
from devalloc.inventory.pci import NVIDIA, PciFunction
from devalloc.inventory.sysfs import Folder
from devalloc.inventory.vfio_nodes import device_nodes_in, group_node

MIB = 1 << 20
GIB = 1 << 30

_NOT_IN_LABELS = re.compile(r"[^a-z0-9]+", re.ASCII)
_TYPE_ID = re.compile(r"[A-Za-z0-9_.-]{1,80}", re.ASCII)
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)
_NVIDIA_ROW = re.compile(r"\s*([0-9]{1,9})\s*:\s*(\S.*?)\s*", re.ASCII)
_FRAMEBUFFER = re.compile(r"framebuffer=([0-9]{1,9})M\b", re.ASCII)
_PCI_API = "vfio-pci"
"""What a type says whose devices are PCI devices to a machine."""
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

    parent: str
    """The name of the parent, as names of devices begin with it."""
    profile_id: str | None
    """None where that cannot be told."""
    uuid: str | None
    """None in the vendor VFIO layout, where a VF has at most one instance."""
    iommu_group: int | None


@dataclass(frozen=True, slots=True)
class VgpuParent:
    """What vGPUs can be created on: a PCI function, or another parent of mediated devices."""

    name: str
    """How names of its devices begin: ``0000-08-00-4``, or the label of a parent that is no PCI function."""
    function: PciFunction | None
    profiles: tuple[VgpuProfile, ...]
    available: dict[str, int]
    """How many more of each profile id the driver would create now."""
    live: tuple[VgpuInstance, ...]
    holds_one: bool
    """At most one instance at a time: a VF, and every parent of the vendor VFIO layout."""


def profile_label(profile_id: str) -> str:
    """A profile's id as names of devices have it, which are DNS labels: ``i915-gvtg-v5-4`` for ``i915-GVTg_V5_4``."""
    return _NOT_IN_LABELS.sub("-", profile_id.lower()).strip("-")


def profile_ids_by_label(function: PciFunction, labels: Collection[str]) -> dict[str, str] | None:
    """The ids of those profiles with these labels that a function knows, by label; None when it is no vGPU parent."""
    types = _profiles_folder(function)
    if types is not None:
        ids = [*filter(_TYPE_ID.fullmatch, types.names()), *map(_mdev_type, _mdevs(function))]
        return _ids_by_label(ids, labels)
    offer = read_parent(function)
    return None if offer is None else profile_ids_of(offer, labels)


def profile_ids_of(parent: VgpuParent, labels: Collection[str]) -> dict[str, str]:
    """The ids of those profiles with these labels that a parent offers or carries, by label."""
    return _ids_by_label([*(each.id for each in parent.profiles), *(live.profile_id for live in parent.live)], labels)


def _ids_by_label(ids: Iterable[str | None], labels: Collection[str]) -> dict[str, str]:
    matching = {each for each in ids if each is not None and profile_label(each) in labels}
    # Of several with one label the device of that name is of the first, as profiles are listed.
    return {profile_label(each): each for each in sorted(matching, key=_by_number, reverse=True)}


def read_parent(function: PciFunction, only: str | None = None) -> VgpuParent | None:
    """What a function offers; None when it is no vGPU parent. ``only``: of the mdev profiles read this one alone."""
    name = function.address.device_name
    types, mdevs = _profiles_folder(function), _mdevs(function)
    if types is not None or mdevs:
        profiles, available = _mdev_profiles(types, only)
        return VgpuParent(
            name, function, profiles, available, _instances(name, mdevs), holds_one=function.physfn is not None
        )
    nvidia = function.folder.folder("nvidia") if "nvidia" in function.entries else None
    listing = nvidia.text("creatable_vgpu_types") if nvidia else None
    current = nvidia.number("current_vgpu_type") if nvidia else None
    if listing is None and current is None:
        return None
    rows = [match for row in (listing or "").splitlines() if (match := _NVIDIA_ROW.fullmatch(row))]
    profiles = tuple(_by_id(_profile_from_name(f"nvidia-{row[1]}", row[2]) for row in rows))
    live: tuple[VgpuInstance, ...] = ()
    if current != 0:  # or its content is unknown, so that nothing else may live there
        profile_id = None if current is None else f"nvidia-{current}"
        live = (VgpuInstance(name, profile_id, None, function.iommu_group),)
    return VgpuParent(name, function, profiles, {profile.id: 1 for profile in profiles}, live, holds_one=True)


def read_mdev_parent(name: str, folder: Folder, only: str | None = None) -> VgpuParent:
    """What a parent of mediated devices offers that is no PCI function: the types that QEMU can give to a machine as a
    PCI device. ``name``: how names of its devices begin. ``only``: see ``read_parent``."""
    profiles, available = _mdev_profiles(folder.folder("mdev_supported_types"), only, device_api=_PCI_API)
    return VgpuParent(name, None, profiles, available, _instances(name, _mdevs_in(folder)), holds_one=False)


def mdev_nodes(folder: Folder) -> set[DeviceNode]:
    """The device nodes through which processes use a mediated device: of its group, or (iommufd) its own."""
    group, own = _group(folder), device_nodes_in(folder)
    return own if group is None else {group_node(folder.tree, group), *own}


def mdev_groups(folder: Folder) -> dict[DeviceNode, int]:
    """By each device node the IOMMU group of the mediated device on a parent, in its folder, that it belongs to."""
    groups = ((mdev, _group(mdev)) for mdev in _mdevs_in(folder))
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


def _mdevs_in(folder: Folder) -> list[Folder]:
    names = sorted(filter(_UUID.fullmatch, folder.names()))
    return [mdev for name in names if (mdev := folder.folder(name))]


def _instances(parent: str, mdevs: Iterable[Folder]) -> tuple[VgpuInstance, ...]:
    return tuple(VgpuInstance(parent, _mdev_type(mdev), mdev.name.lower(), _group(mdev)) for mdev in mdevs)


def _mdev_profiles(
    types: Folder | None, only: str | None, device_api: str | None = None
) -> tuple[tuple[VgpuProfile, ...], dict[str, int]]:
    """The profiles in a folder, and how many more of each the driver would create. ``device_api``: only those."""
    names = types.names() if types and only is None else [only] if only else []
    places = [place for name in names if types and _TYPE_ID.fullmatch(name) and (place := types.folder(name))]
    listed = [_mdev_profile(place) for place in places if device_api is None or place.text("device_api") == device_api]
    available = {profile.id: max(count, 0) for profile, count in listed}
    return tuple(_by_id(profile for profile, _ in listed)), available


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


FRAMEBUFFER = "framebuffer"
INSTANCES = "instances"
_COPY = re.compile(r"[1-9][0-9]{0,5}", re.ASCII)


@dataclass(frozen=True, slots=True)
class VgpuOffer:
    """One device of a profile on a parent."""

    name: str
    parent: VgpuParent
    profile: VgpuProfile
    exists: bool
    compatibility: str | None
    obstacle: str | None
    """Why it cannot be had although nothing is wrong with the parent."""
    requests: dict[str, int]


@dataclass(frozen=True, slots=True)
class VgpuSupply:
    """What the vGPU parents of one port offer."""

    total: int | None
    """Framebuffer of the card in bytes; None where nothing proves it."""
    capacity: dict[str, int]
    """Resources, and what is left of them after instances without a claim."""
    offers: tuple[VgpuOffer, ...]
    foreign: tuple[VgpuInstance, ...]
    """Live instances that no claim explains."""
    profiles: dict[str, VgpuProfile]
    """By id."""


class TooManyDevices(ValueError):
    """What a driver reports makes more devices than a pool can have. The message says how many fit."""

    def __init__(self) -> None:
        super().__init__(f"devices: a pool has at most {MAX_POOL_DEVICES}, and its driver reports more")


def binary_quantity(size: int) -> Quantity:
    """Bytes as a quantity with a binary suffix."""
    return Quantity(size * NANO, Format.BINARY_SI)


def vgpu_supply(parents: Sequence[VgpuParent], about: DeviceRecords) -> VgpuSupply:
    """The offers of a port's parents. Raises TooManyDevices, before it makes them all."""
    profiles: dict[str, VgpuProfile] = {}
    for parent in parents:
        for profile in parent.profiles:
            profiles.setdefault(profile.id, profile)
    foreign = tuple(instance for parent in parents for instance in _unclaimed_instances(parent, about))
    live = [instance for parent in parents for instance in parent.live]
    card = _CardState(
        profiles=profiles,
        total=_total(profiles),
        free=_free(parents, profiles, live, foreign),
        one_size=_one_size(parents, profiles, live),
        foreign=foreign,
        claimed=len(live) > len(foreign),
    )
    reported = chain.from_iterable(_offers(card, parent, about) for parent in parents)
    offers = tuple(islice(reported, MAX_POOL_DEVICES + 1))
    if len(offers) > MAX_POOL_DEVICES:
        raise TooManyDevices
    # Once something lives, a driver that lists only what can still be created no longer shows how large the card is.
    proven = not live or any(profile.max_instance is not None for profile in profiles.values())
    return VgpuSupply(card.total if proven else None, _capacity(card, offers), offers, foreign, profiles)


@dataclass(frozen=True, slots=True)
class _CardState:
    profiles: dict[str, VgpuProfile]
    total: int | None
    free: int
    one_size: bool
    foreign: tuple[VgpuInstance, ...]
    claimed: bool

    def size(self, instance: VgpuInstance) -> int | None:
        profile = self.profiles.get(instance.profile_id or "")
        return profile.framebuffer if profile else None

    def most(self, profile: VgpuProfile) -> int | None:
        """Instances that are possible at once, where that binds before the framebuffer does."""
        if profile.max_instance is None:
            return None
        bound_by_framebuffer = self.total is not None and profile.framebuffer is not None
        if bound_by_framebuffer and profile.max_instance * (profile.framebuffer or 0) >= (self.total or 0):
            return None
        return profile.max_instance


def _unclaimed_instances(parent: VgpuParent, about: DeviceRecords) -> Iterator[VgpuInstance]:
    """The live instances that stand behind no device, when each claimed one of their profile has been given one."""
    adopted = about.held | about.prepared.keys()
    left = {i.profile_id: len(_held_copies(parent, i.profile_id, about.claimed)) for i in parent.live}
    for instance in sorted(parent.live, key=lambda instance: instance.uuid or ""):
        if instance.uuid and f"mdev-{instance.uuid}" in adopted:
            yield instance
            continue
        if (f"mdev-{instance.uuid}" if instance.uuid else instance.parent) in about.backing_devices:
            continue
        if left[instance.profile_id] > 0:
            left[instance.profile_id] -= 1
        else:
            yield instance


def first_copy_name(parent: str, profile_id: str | None) -> str:
    """What the first device of a profile on a parent is called."""
    return f"{parent}-{profile_label(profile_id or '')}"


def _held_copies(parent: VgpuParent, profile_id: str | None, held: Collection[str]) -> list[int]:
    """Numbers of the devices of a profile on a parent that claims hold; 0 is the one with the plain name."""
    plain = first_copy_name(parent.name, profile_id)
    numbers = [name.removeprefix(f"{plain}-") for name in held if name.startswith(f"{plain}-")]
    return sorted([*([0] if plain in held else []), *(int(n) for n in numbers if _COPY.fullmatch(n))])


def _total(profiles: dict[str, VgpuProfile]) -> int | None:
    """The card's framebuffer as its profiles show it; less than the truth where the largest is not listed."""
    sizes = [p.framebuffer * (p.max_instance or 1) for p in profiles.values() if p.framebuffer is not None]
    return max(sizes, default=None)


def _free(
    parents: Sequence[VgpuParent],
    profiles: dict[str, VgpuProfile],
    live: Sequence[VgpuInstance],
    foreign: Sequence[VgpuInstance],
) -> int:
    """Framebuffer for claims, those included that live already: the better of two lower bounds."""
    sizes = [(profiles[i.profile_id].framebuffer if i.profile_id in profiles else None, i in foreign) for i in live]
    more = [p.framebuffer or 0 for parent in parents for p in parent.profiles if parent.available.get(p.id)]
    # What lives for claims, and one more that the driver would create now.
    proven = sum(size or 0 for size, is_foreign in sizes if not is_foreign) + max(more, default=0)
    if any(size is None for size, _ in sizes):
        return proven
    return max(proven, (_total(profiles) or 0) - sum(size or 0 for size, is_foreign in sizes if is_foreign))


def _one_size(parents: Sequence[VgpuParent], profiles: dict[str, VgpuProfile], live: Sequence[VgpuInstance]) -> bool:
    """NVIDIA cards hold one size at a time unless they are seen to do otherwise."""
    if not any(parent.function is not None and parent.function.vendor == NVIDIA for parent in parents):
        return False
    sizes = {profiles[i.profile_id].framebuffer for i in live if i.profile_id in profiles}
    creatable = {p.framebuffer for parent in parents for p in parent.profiles if parent.available.get(p.id)}
    return not (len(sizes) > 1 or (sizes and creatable - sizes))


def _offers(card: _CardState, parent: VgpuParent, about: DeviceRecords) -> Iterator[VgpuOffer]:
    taken = parent.holds_one and any(instance in card.foreign for instance in parent.live)
    profiles = {profile.id: profile for profile in parent.profiles}
    for instance in parent.live:  # a claimed instance keeps its device, whatever the driver lists at the moment
        listed = card.profiles.get(instance.profile_id or "")
        if instance.profile_id is not None and instance not in card.foreign:
            unknown = VgpuProfile(instance.profile_id, instance.profile_id, None, None, mig=False)
            profiles.setdefault(instance.profile_id, listed or unknown)
    for profile in card.profiles.values():  # so does one that is prepared on another function of the card
        if _held_copies(parent, profile.id, about.prepared):
            profiles.setdefault(profile.id, profile)
    for profile in profiles.values():
        if taken and not _held_copies(parent, profile.id, about.prepared):
            continue  # what is prepared lives on another function, and keeps its name
        living = sum(i.profile_id == profile.id for i in parent.live if i not in card.foreign)
        held = _held_copies(parent, profile.id, about.held | about.prepared.keys())
        room = int(not taken) if parent.holds_one else max(1, living + parent.available.get(profile.id, 0))
        used, existing = {*held}, {*held[:living]}
        free = (number for number in count() if number not in used)
        more = min(max(0, room - len(held)), MAX_POOL_DEVICES + 1)  # with one too many the parent is left out
        for number in sorted([*held, *islice(free, more)]):
            plain = first_copy_name(parent.name, profile.id)
            name = f"{plain}-{number}" if number else plain
            yield VgpuOffer(
                name=name,
                parent=parent,
                profile=profile,
                exists=number in existing or name in about.prepared,
                compatibility=_compatibility(card, profile),
                obstacle=None if number in used else _obstacle(card, parent, profile),
                requests=_requests(card, profile),
            )


def _compatibility(card: _CardState, profile: VgpuProfile) -> str | None:
    if profile.id not in card.profiles:
        return None  # claimed and no longer listed: what the lists still offer goes with it
    if profile.framebuffer is None:
        return profile.id  # what instances of two such profiles cost together is not known
    if not card.one_size:
        return None
    return "mig" if profile.mig else str(binary_quantity(profile.framebuffer))


def _obstacle(card: _CardState, parent: VgpuParent, profile: VgpuProfile) -> str | None:
    sizes = {card.size(instance) for instance in card.foreign}
    if card.one_size and sizes and not profile.mig and profile.framebuffer not in sizes:
        held = ", ".join(sorted(str(binary_quantity(size)) for size in sizes if size is not None)) or "another size"
        return f"in use: the card holds vGPUs of {held} only"
    if profile.framebuffer is not None and profile.framebuffer > card.free:
        return f"in use: {binary_quantity(card.free)} of the card's framebuffer are left"
    if not card.claimed and not parent.available.get(profile.id):
        return "in use: the driver has no instance to give at present"
    return None


def _requests(card: _CardState, profile: VgpuProfile) -> dict[str, int]:
    if profile.id not in card.profiles:
        return {}  # nor is it part of what is free
    requests = {} if profile.framebuffer is None else {FRAMEBUFFER: profile.framebuffer}
    if profile.framebuffer is None or card.most(profile) is not None:
        requests[f"{INSTANCES}-{profile.id}"] = 1
    return requests


def _capacity(card: _CardState, offers: Sequence[VgpuOffer]) -> dict[str, int]:
    capacity = {}
    for profile in {offer.profile.id: offer.profile for offer in offers}.values():
        for resource in _requests(card, profile):
            if resource == FRAMEBUFFER:
                capacity[resource] = card.free
            elif (most := card.most(profile)) is not None:
                taken = sum(instance.profile_id == profile.id for instance in card.foreign)
                capacity[resource] = max(0, most - taken)
            else:
                capacity[resource] = sum(offer.profile.id == profile.id for offer in offers)
    return capacity
