"""The GPUs of a host as slots: vGPUs by what their cards really have left, whole cards where there are none.

All is taken from the published pools, so that it says what claims could be given. Profiles of one card share its
framebuffer, so what is left of one is counted against that, and never summed over the card's functions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from devalloc.api.meta import COMPATIBILITY_GROUP, UNAVAILABLE
from devalloc.api.pool import AttributeValue, Device, DevicePool
from devalloc.api.quantity import NANO, Quantity
from devalloc.inventory.vgpu import FRAMEBUFFER

Mode = Literal["vgpu", "passthrough"]


@dataclass(frozen=True, slots=True)
class GpuProfile:
    """A kind of vGPU, and how many more of it there can be, when no other is made before."""

    id: str
    name: str
    framebuffer: int | None
    """Bytes; None where nothing tells."""
    available: int


@dataclass(frozen=True, slots=True)
class WholeGpu:
    """A card that is given away as it is."""

    name: str
    model: str
    available: bool
    reason: str = ""
    """Why it is not available."""
    is_used: bool = False
    """It is not available because it is in use, by a claim or by the host."""
    memory: int = 0
    """Bytes; 0 where its driver does not tell."""


@dataclass(frozen=True, slots=True)
class _CreatableVgpu:
    """A vGPU that can be made, on a function of a card."""

    draws: tuple[tuple[str, int], ...]
    group: str | None


@dataclass(frozen=True, slots=True)
class _GpuCard:
    """What is left of a card."""

    left: tuple[tuple[str, int], ...]
    group: str | None
    """Only vGPUs of this compatibility group can be made beside those that claims hold."""
    profiles: tuple[GpuProfile, ...]
    """All that are published, the smallest first."""
    offers: dict[str, list[_CreatableVgpu]]
    """By the id of the profile. Not changed once it is made."""
    slots: int
    used: int
    quarantined: int
    memory: int
    """Bytes that vGPUs of claims can have."""
    memory_left: int


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Bytes of all cards whose drivers tell."""

    total: int
    used: int
    """By claims and the host."""
    available: int
    """To claims: less than what is not used, where cards are unavailable."""


@dataclass(frozen=True, slots=True)
class GpuStatus:
    """The GPUs of a host."""

    mode: Mode
    total: int
    """Functions that can hold a vGPU; cards in passthrough mode."""
    used: int
    """Those that hold one or are promised; cards that are in use. A card that only cannot be given away, because of its
    driver for example, is neither used nor allocatable."""
    allocatable: int
    """How many more there can be at most, of the smallest profile."""
    quarantined: int = 0
    """Functions that are withheld; some may be used as well."""
    disabled: str | None = None
    """Why no vGPU may be made at present."""
    profiles: tuple[GpuProfile, ...] = ()
    """By name. Empty where the drivers list none any more."""
    devices: tuple[WholeGpu, ...] = ()
    """Cards without vGPUs, also beside those with."""
    memory: GpuMemory | None = None
    """None where no driver tells."""
    _cards: tuple[_GpuCard, ...] = field(default=(), repr=False)

    def remaining_gpus(self) -> RemainingGpus:
        """What is left, to try on it what fits together."""
        return RemainingGpus(
            self.mode, [_RemainingCard(card) for card in self._cards], sum(each.available for each in self.devices)
        )


def gpu_status(
    pools: Iterable[DevicePool],
    *,
    held: Collection[str] = (),
    withheld: Collection[str] = (),
    disabled: str | None = None,
) -> GpuStatus | None:
    """The GPUs of a node by its pools; None when it has none.

    ``held``: names of devices that claims hold, which are taken whether or not they are made yet. ``withheld``: names
    of functions and devices that are not to be given away. ``disabled``: why no vGPU may be made at all.
    """
    cards, devices = [], []
    for pool in sorted(pools, key=lambda pool: pool.metadata.name):
        published = [_PublishedGpu.of(pool, device) for device in pool.spec.devices]
        gpus = [device for device in published if device.kind == "gpu"]
        if any(device.function == "mdev" for device in gpus):
            cards.append(_card(pool, gpus, held, withheld))
        else:
            devices += [_whole_gpu(gpu, held) for gpu in gpus if gpu.function in ("whole", "pf")]
    if not cards and not devices:
        return None
    memory = _memory(() if disabled else cards, cards, devices)
    if not cards:
        free, used = sum(device.available for device in devices), sum(device.is_used for device in devices)
        return GpuStatus("passthrough", len(devices), used, free, devices=tuple(devices), memory=memory)
    profiles = _count_profiles(cards)
    rooms = [max((_count([card], profile) for profile in profiles), default=0) for card in cards]
    return GpuStatus(
        mode="vgpu",
        total=sum(card.slots or card.used + room for card, room in zip(cards, rooms, strict=True)),
        used=sum(card.used for card in cards),
        allocatable=0 if disabled else sum(rooms),
        quarantined=0 if disabled else sum(card.quarantined for card in cards),
        disabled=disabled,
        profiles=profiles if not disabled else tuple(_exhausted(profile) for profile in profiles),
        devices=tuple(devices),
        memory=memory,
        _cards=() if disabled else tuple(cards),
    )


def _memory(usable: Sequence[_GpuCard], cards: Sequence[_GpuCard], devices: Sequence[WholeGpu]) -> GpuMemory | None:
    total = sum(card.memory for card in cards) + sum(device.memory for device in devices)
    used = sum(card.memory - card.memory_left for card in cards)
    used += sum(device.memory for device in devices if device.is_used)
    available = sum(card.memory_left for card in usable)
    available += sum(device.memory for device in devices if device.available)
    return GpuMemory(total, used, available) if total else None


class RemainingGpus:
    """What is left of a host's GPUs while requests are tried on it, one after the other."""

    def __init__(self, mode: Mode, cards: list[_RemainingCard], devices: int) -> None:
        self._mode, self._cards, self._devices = mode, cards, devices

    def take(self, profile: str | None, count: int = 1) -> int:
        """Take so many of a profile (by name or id), or slots of any kind; returns how many there were."""
        taken = 0
        while taken < count and self._take(profile):
            taken += 1
        return taken

    def _take(self, profile: str | None) -> bool:
        if self._mode == "passthrough":
            self._devices -= 1
            return self._devices >= 0
        # A card that holds vGPUs of some size already first: others stay open for other sizes.
        return any(card.take(profile) for card in sorted(self._cards, key=lambda card: card.group is None))


class _RemainingCard:
    """One card while requests are tried on it."""

    def __init__(self, card: _GpuCard) -> None:
        self._card, self._left, self.group = card, dict(card.left), card.group
        self._offers = {profile: iter(offers) for profile, offers in card.offers.items()}

    def take(self, profile: str | None) -> bool:
        """Make one more, of any profile where none is named: of the smallest, which leaves the most."""
        return any(
            self._made(candidate.id)
            for candidate in self._card.profiles
            if profile in (None, candidate.id, candidate.name)
        )

    def _made(self, profile: str) -> bool:
        # What is passed over is lost to this profile for good: what is left only shrinks, and the group stays.
        for offer in self._offers.get(profile, ()):
            if self._fits(offer):
                for resource, amount in offer.draws:
                    self._left[resource] -= amount
                self.group = self.group or offer.group
                return True
        return False

    def _fits(self, offer: _CreatableVgpu) -> bool:
        if None not in (self.group, offer.group) and self.group != offer.group:
            return False
        return all(self._left.get(resource, 0) >= amount for resource, amount in offer.draws)


@dataclass(frozen=True, slots=True)
class _PublishedGpu:
    """A published device with the attributes that it has from its pool."""

    device: Device
    attributes: dict[str, AttributeValue]

    @classmethod
    def of(cls, pool: DevicePool, device: Device) -> _PublishedGpu:
        own = {attribute.name: attribute.value for attribute in (*pool.spec.attributes, *device.attributes)}
        return cls(device, own)

    def text(self, name: str) -> str:
        return str(self.attributes.get(name, ""))

    @property
    def framebuffer(self) -> int | None:
        """Bytes; None where its driver does not tell."""
        size = self.attributes.get("framebuffer")
        return size.nano // NANO if isinstance(size, Quantity) else None

    @property
    def name(self) -> str:
        return self.device.name

    @property
    def kind(self) -> str:
        return self.text("kind")

    @property
    def function(self) -> str:
        return self.text("function")

    @property
    def place(self) -> str:
        """The name of the function that it is, or is on."""
        return self.text("pciBusID").replace(":", "-").replace(".", "-")

    @property
    def unavailable(self) -> str:
        return self.text(UNAVAILABLE)


def _card(
    pool: DevicePool, gpus: Sequence[_PublishedGpu], held: Collection[str], withheld: Collection[str]
) -> _GpuCard:
    vgpus = [gpu for gpu in gpus if gpu.function == "mdev"]
    vfs = {gpu.place: gpu for gpu in gpus if gpu.function == "vf" and gpu.text("state") == "exists"}
    promised = [gpu for gpu in vgpus if gpu.name in held]
    # A live one that no claim holds keeps nothing of what is published as left; its function is taken all the same.
    busy = [gpu for gpu in vgpus if gpu.name in held or gpu.text("state") == "exists"]
    quarantined = {name for name in vfs if name in withheld} | {
        gpu.place for gpu in vgpus if gpu.name in withheld and gpu.place in vfs
    }
    taken = {gpu.place for gpu in busy if gpu.place in vfs} | {name for name, vf in vfs.items() if _is_taken(vf, held)}
    unfit = quarantined | set(withheld) | set(held)
    left = {resource.name: resource.capacity.nano for resource in pool.spec.resources}
    for gpu in gpus:
        for resource, amount in gpu.device.requests.items() if gpu.name in held else ():
            left[resource] = left.get(resource, 0) - amount.nano
    profiles = {gpu.text("profileID"): _profile(gpu) for gpu in vgpus if gpu.text("profileID")}
    offers = dict[str, list[_CreatableVgpu]]()
    for gpu in vgpus:
        if gpu.text("state") != "creatable" or gpu.unavailable or {gpu.name, gpu.place} & (taken | unfit):
            continue
        draws = tuple((resource, amount.nano) for resource, amount in gpu.device.requests.items())
        offer = _CreatableVgpu(draws, gpu.text(COMPATIBILITY_GROUP) or None)
        offers.setdefault(gpu.text("profileID"), []).append(offer)
    on_vfs = any(gpu.place in vfs for gpu in vgpus)
    memory = next((each.capacity.nano // NANO for each in pool.spec.resources if each.name == FRAMEBUFFER), 0)
    return _GpuCard(
        left=tuple(left.items()),
        group=next((gpu.text(COMPATIBILITY_GROUP) for gpu in promised if gpu.text(COMPATIBILITY_GROUP)), None),
        profiles=tuple(sorted(profiles.values(), key=lambda profile: (profile.framebuffer or 0, profile.id))),
        offers=offers,
        slots=len(vfs) if on_vfs else 0,
        used=len(taken) if on_vfs else len(busy),
        quarantined=len(quarantined),
        memory=memory,
        memory_left=max(0, left.get(FRAMEBUFFER, 0) // NANO),
    )


def _is_taken(vf: _PublishedGpu, held: Collection[str]) -> bool:
    return vf.name in held or vf.unavailable.startswith("in use:")


def _whole_gpu(gpu: _PublishedGpu, held: Collection[str]) -> WholeGpu:
    reason = "in use: a claim holds it" if gpu.name in held else gpu.unavailable
    is_used = reason.startswith("in use:")
    return WholeGpu(gpu.name, gpu.text("model"), not reason, reason, is_used, gpu.framebuffer or 0)


def _profile(gpu: _PublishedGpu) -> GpuProfile:
    return GpuProfile(gpu.text("profileID"), gpu.text("profile") or gpu.text("profileID"), gpu.framebuffer, 0)


def _count_profiles(cards: Sequence[_GpuCard]) -> tuple[GpuProfile, ...]:
    """The profiles that are published, with how many more of each there can be."""
    by_id = {profile.id: profile for card in cards for profile in card.profiles}
    return tuple(
        GpuProfile(profile.id, profile.name, profile.framebuffer, _count(cards, profile))
        for profile in sorted(by_id.values(), key=lambda profile: (profile.name, profile.id))
    )


def _exhausted(profile: GpuProfile) -> GpuProfile:
    return GpuProfile(profile.id, profile.name, profile.framebuffer, 0)


def _count(cards: Sequence[_GpuCard], profile: GpuProfile) -> int:
    count = 0
    for card in cards:
        room = _RemainingCard(card)
        while room.take(profile.id):
            count += 1
    return count
