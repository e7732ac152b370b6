"""vGPU profiles as devices: what a card can still hold, told by pool resources and compatibility groups.

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
from devalloc.inventory.config import Known
from devalloc.inventory.pci import NVIDIA, Address
from devalloc.inventory.vgpu import Instance, Parent, Profile, label

FRAMEBUFFER = "framebuffer"
INSTANCES = "instances"
_COPY = re.compile(r"[1-9][0-9]{0,5}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Offer:
    """One device of a profile on a parent."""

    name: str
    parent: Parent
    profile: Profile
    exists: bool
    compatibility: str | None
    obstacle: str | None
    """Why it cannot be had although nothing is wrong with the parent."""
    requests: dict[str, int]


@dataclass(frozen=True, slots=True)
class Stock:
    """What the vGPU parents of one port offer."""

    total: int | None
    """Framebuffer of the card in bytes; None where nothing proves it."""
    capacity: dict[str, int]
    """Resources and what is left of them after instances that nobody claimed."""
    offers: tuple[Offer, ...]
    foreign: tuple[Instance, ...]
    """Live instances that no claim explains."""
    known: dict[str, Profile]
    """By id."""


def quantity(size: int) -> Quantity:
    """Bytes as a quantity with a binary suffix."""
    return Quantity(size * NANO, Format.BINARY_SI)


def stock(parents: Sequence[Parent], about: Known) -> Stock:
    """The offers of a port's parents."""
    known: dict[str, Profile] = {}
    for parent in parents:
        for profile in parent.profiles:
            known.setdefault(profile.id, profile)
    foreign = tuple(instance for parent in parents for instance in _foreign(parent, about))
    live = [instance for parent in parents for instance in parent.live]
    card = _Card(
        known=known,
        total=_total(known),
        free=_free(parents, known, live, foreign),
        one_size=_one_size(parents, known, live),
        foreign=foreign,
        claimed=len(live) > len(foreign),
    )
    offers = tuple(offer for parent in parents for offer in _offers(card, parent, about))
    # Once something lives, a driver that lists only what can still be created no longer shows how large the card is.
    proven = not live or any(profile.max_instance is not None for profile in known.values())
    return Stock(card.total if proven else None, _capacity(card, offers), offers, foreign, known)


@dataclass(frozen=True, slots=True)
class _Card:
    known: dict[str, Profile]
    total: int | None
    free: int
    one_size: bool
    foreign: tuple[Instance, ...]
    claimed: bool

    def size(self, instance: Instance) -> int | None:
        profile = self.known.get(instance.profile_id or "")
        return profile.framebuffer if profile else None

    def most(self, profile: Profile) -> int | None:
        """Instances that are possible at once, where that binds before the framebuffer does."""
        if profile.max_instance is None:
            return None
        bound_by_framebuffer = self.total is not None and profile.framebuffer is not None
        if bound_by_framebuffer and profile.max_instance * (profile.framebuffer or 0) >= (self.total or 0):
            return None
        return profile.max_instance


def _foreign(parent: Parent, about: Known) -> Iterator[Instance]:
    """The live instances that stand behind no device, when each claimed one of their profile has been given one."""
    adopted = about.held | about.prepared.keys()
    left = {i.profile_id: len(_held_copies(parent, i.profile_id, about.claimed)) for i in parent.live}
    for instance in sorted(parent.live, key=lambda instance: instance.uuid or ""):
        if instance.uuid and f"mdev-{instance.uuid}" in adopted:
            yield instance
            continue
        if (f"mdev-{instance.uuid}" if instance.uuid else instance.parent.device_name) in about.backing:
            continue
        if left[instance.profile_id] > 0:
            left[instance.profile_id] -= 1
        else:
            yield instance


def plain_name(function: Address, profile_id: str | None) -> str:
    """What the first device of a profile on a function is called."""
    return f"{function.device_name}-{label(profile_id or '')}"


def _held_copies(parent: Parent, profile_id: str | None, held: Collection[str]) -> list[int]:
    """Numbers of the devices of a profile on a parent that claims hold; 0 is the one with the plain name."""
    plain = plain_name(parent.address, profile_id)
    numbers = [name.removeprefix(f"{plain}-") for name in held if name.startswith(f"{plain}-")]
    return sorted([*([0] if plain in held else []), *(int(n) for n in numbers if _COPY.fullmatch(n))])


def _total(known: dict[str, Profile]) -> int | None:
    """The card's framebuffer as its profiles show it; less than the truth where the largest is not listed."""
    sizes = [p.framebuffer * (p.max_instance or 1) for p in known.values() if p.framebuffer is not None]
    return max(sizes, default=None)


def _free(
    parents: Sequence[Parent], known: dict[str, Profile], live: Sequence[Instance], foreign: Sequence[Instance]
) -> int:
    """Framebuffer for claims, those included that live already: the better of two lower bounds."""
    sizes = [(known[i.profile_id].framebuffer if i.profile_id in known else None, i in foreign) for i in live]
    more = [p.framebuffer or 0 for parent in parents for p in parent.profiles if parent.available.get(p.id)]
    # What lives for claims, and one more that the driver would create now.
    proven = sum(size or 0 for size, is_foreign in sizes if not is_foreign) + max(more, default=0)
    if any(size is None for size, _ in sizes):
        return proven
    return max(proven, (_total(known) or 0) - sum(size or 0 for size, is_foreign in sizes if is_foreign))


def _one_size(parents: Sequence[Parent], known: dict[str, Profile], live: Sequence[Instance]) -> bool:
    """NVIDIA cards hold one size at a time unless they are seen to do otherwise."""
    if not any(parent.function.vendor == NVIDIA for parent in parents):
        return False
    sizes = {known[i.profile_id].framebuffer for i in live if i.profile_id in known}
    creatable = {p.framebuffer for parent in parents for p in parent.profiles if parent.available.get(p.id)}
    return not (len(sizes) > 1 or (sizes and creatable - sizes))


def _offers(card: _Card, parent: Parent, about: Known) -> Iterator[Offer]:
    taken = parent.holds_one and any(instance in card.foreign for instance in parent.live)
    profiles = {profile.id: profile for profile in parent.profiles}
    for instance in parent.live:  # a claimed instance keeps its device, whatever the driver lists at the moment
        known = card.known.get(instance.profile_id or "")
        if instance.profile_id is not None and instance not in card.foreign:
            unknown = Profile(instance.profile_id, instance.profile_id, None, None, mig=False)
            profiles.setdefault(instance.profile_id, known or unknown)
    for profile in card.known.values():  # so does one that is prepared on another function of the card
        if _held_copies(parent, profile.id, about.prepared):
            profiles.setdefault(profile.id, profile)
    for profile in profiles.values():
        if taken and not _held_copies(parent, profile.id, about.prepared):
            continue  # what is prepared lives on another function, and keeps its name
        living = sum(i.profile_id == profile.id for i in parent.live if i not in card.foreign)
        mine = _held_copies(parent, profile.id, about.held | about.prepared.keys())
        room = int(not taken) if parent.holds_one else max(1, living + parent.available.get(profile.id, 0))
        free = (number for number in count() if number not in mine)
        for number in sorted([*mine, *islice(free, max(0, room - len(mine)))]):
            plain = plain_name(parent.address, profile.id)
            name = f"{plain}-{number}" if number else plain
            yield Offer(
                name=name,
                parent=parent,
                profile=profile,
                exists=number in mine[:living] or name in about.prepared,
                compatibility=_compatibility(card, profile),
                obstacle=None if number in mine else _obstacle(card, parent, profile),
                requests=_requests(card, profile),
            )


def _compatibility(card: _Card, profile: Profile) -> str | None:
    if profile.id not in card.known:
        return None  # claimed and no longer listed: what the lists still offer goes with it
    if profile.framebuffer is None:
        return profile.id  # what instances of two such profiles cost together is not known
    if not card.one_size:
        return None
    return "mig" if profile.mig else str(quantity(profile.framebuffer))


def _obstacle(card: _Card, parent: Parent, profile: Profile) -> str | None:
    sizes = {card.size(instance) for instance in card.foreign}
    if card.one_size and sizes and not profile.mig and profile.framebuffer not in sizes:
        held = ", ".join(sorted(str(quantity(size)) for size in sizes if size is not None)) or "another size"
        return f"in use: the card holds vGPUs of {held} only"
    if profile.framebuffer is not None and profile.framebuffer > card.free:
        return f"in use: {quantity(card.free)} of the card's framebuffer are left"
    if not card.claimed and not parent.available.get(profile.id):
        return "in use: the driver has no instance to give at present"
    return None


def _requests(card: _Card, profile: Profile) -> dict[str, int]:
    if profile.id not in card.known:
        return {}  # nor is it part of what is free
    requests = {} if profile.framebuffer is None else {FRAMEBUFFER: profile.framebuffer}
    if profile.framebuffer is None or card.most(profile) is not None:
        requests[f"{INSTANCES}-{profile.id}"] = 1
    return requests


def _capacity(card: _Card, offers: Sequence[Offer]) -> dict[str, int]:
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
