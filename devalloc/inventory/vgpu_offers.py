"""vGPUs that can be offered: what a card can still hold, as pool resources and compatibility groups.

What profiles cost is counted per card, never summed over its VFs: they share the framebuffer, a profile may have a most
number of instances, a VF holds one instance, and many cards hold instances of one size at a time. Live instances that
no claim explains are taken off the capacities; those that a claim holds are drawn by the claim's device.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice

from devalloc.api.quantity import NANO, Format, Quantity
from devalloc.inventory.config import DeviceRecords
from devalloc.inventory.pci import NVIDIA, Address
from devalloc.inventory.vgpu import VgpuInstance, VgpuParent, VgpuProfile, profile_label

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
    """Resources and what is left of them after instances that nobody claimed."""
    offers: tuple[VgpuOffer, ...]
    foreign: tuple[VgpuInstance, ...]
    """Live instances that no claim explains."""
    profiles: dict[str, VgpuProfile]
    """By id."""


def binary_quantity(size: int) -> Quantity:
    """Bytes as a quantity with a binary suffix."""
    return Quantity(size * NANO, Format.BINARY_SI)


def vgpu_supply(parents: Sequence[VgpuParent], about: DeviceRecords) -> VgpuSupply:
    """The offers of a port's parents."""
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
    offers = tuple(offer for parent in parents for offer in _offers(card, parent, about))
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
        if (f"mdev-{instance.uuid}" if instance.uuid else instance.parent.device_name) in about.backing_devices:
            continue
        if left[instance.profile_id] > 0:
            left[instance.profile_id] -= 1
        else:
            yield instance


def first_copy_name(function: Address, profile_id: str | None) -> str:
    """What the first device of a profile on a function is called."""
    return f"{function.device_name}-{profile_label(profile_id or '')}"


def _held_copies(parent: VgpuParent, profile_id: str | None, held: Collection[str]) -> list[int]:
    """Numbers of the devices of a profile on a parent that claims hold; 0 is the one with the plain name."""
    plain = first_copy_name(parent.address, profile_id)
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
    if not any(parent.function.vendor == NVIDIA for parent in parents):
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
        free = (number for number in count() if number not in held)
        for number in sorted([*held, *islice(free, max(0, room - len(held)))]):
            plain = first_copy_name(parent.address, profile.id)
            name = f"{plain}-{number}" if number else plain
            yield VgpuOffer(
                name=name,
                parent=parent,
                profile=profile,
                exists=number in held[:living] or name in about.prepared,
                compatibility=_compatibility(card, profile),
                obstacle=None if number in held else _obstacle(card, parent, profile),
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
