"""What the admin decides about the inventory of a node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from devalloc.device_kinds import DEVICE_KINDS, DeviceKind, check_names, kinds_by_name


@dataclass(frozen=True, slots=True)
class VfRefusal:
    """The kernel did not make the VFs of a port."""

    driver: str
    """The driver that the port had."""
    count: int
    """How many VFs were requested."""
    reason: str
    """Why, and what to do."""

    def holds_for(self, driver: str | None, count: int) -> bool:
        """Whether another try would end the same way: the same driver is to make as many VFs."""
        return driver == self.driver and count >= self.count


@dataclass(frozen=True, slots=True)
class DriveOwner:
    """Who has a drive."""

    uid: str
    claim: str
    """namespace/name"""
    device: str
    """The name of the device that the claim got; the drive may have another one now."""


@dataclass(frozen=True, slots=True)
class DeviceRecords:
    """Facts about a node's devices that the host does not show. Devices are identified by their names."""

    held: frozenset[str] = frozenset()
    """Devices that claims hold: their users belong to the claims, not to others."""
    prepared: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Devices that the node plugin has prepared, and what stands behind each (T2): names of functions
    (``0000-08-00-5``) and of mdevs (``mdev-<uuid>``). It need not be what the device is named after."""
    withheld: Mapping[str, str] = field(default_factory=dict)
    """Devices that are not to be given away, and why: ``unhealthy: …``, ``cordoned: …``, ``reset failed: …``. What is
    withheld of a card, as a whole, is withheld of all on it; what is withheld on it, of the card as a whole."""
    made: frozenset[str] = frozenset()
    """Names of ports whose VFs the node plugin made for claims that have some of them now: they go with these claims.
    Other VFs stay until others remove them (T8), so the port as a whole cannot be allocated."""

    refused_vfs: Mapping[str, VfRefusal] = field(default_factory=dict)
    """By name of a port: the kernel did not make its VFs, so they are not offered until something is different."""
    drives: Mapping[str, DriveOwner] = field(default_factory=dict)
    """Which claim has each drive (``devalloc.api.device_identity.drive_of``): its data is on it, wherever it is now."""

    @property
    def backing_devices(self) -> frozenset[str]:
        """What stands behind devices that are prepared."""
        return frozenset[str]().union(*self.prepared.values())

    def moved(self) -> dict[str, str]:
        """Prepared devices that are on another function than they are named after (T2), by the name of that one."""
        return {
            function: name
            for name, behind in self.prepared.items()
            for function in behind
            if name != function and not name.startswith(f"{function}-")
        }

    @property
    def claimed(self) -> frozenset[str]:
        """Devices that claims hold but that are not prepared: which vGPU of their profile is theirs is unknown."""
        return self.held - self.prepared.keys()

    @property
    def claim_users(self) -> frozenset[str]:
        """Names of which all use is the claims' own."""
        return self.held | self.prepared.keys() | self.backing_devices


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePolicy:
    """What the admin allows, for discovery and for bindings alike. The defaults touch nothing that the host might
    miss."""

    allow_shared_groups: bool = False
    """Devices may go whose IOMMU group holds devices of other slots, if no host driver has one of those (T5). They go
    to a machine together, so only the first of a group is offered."""
    bind_shared_groups: bool = False
    """The first device of such a group is offered together with all others of it, and takes them from their drivers."""
    allow_no_reset: bool = False
    """Devices may go that the kernel cannot reset between their owners (T7)."""
    max_vfs: int | None = None
    """Most VFs to create on a port. Default: as many as it can have."""
    device_kinds: tuple[DeviceKind, ...] = ()
    """Kinds of devices beside those of the table (``devalloc.device_kinds.read_added_kinds``)."""
    creatable_vfs: frozenset[str] = frozenset()
    """Kinds of devices whose drivers can make VFs, although nothing else proves it."""
    adopt: frozenset[str] = frozenset()
    """Names of vGPUs (``mdev-<uuid>``) that others made, and that are offered and used as they are (T8)."""
    release_from: frozenset[str] = frozenset()
    """Names of monitors (``devalloc.inventory.monitors``) that let a GPU go when they are asked to."""
    erase_policy: bool = False
    """Storage is erased between its owners by a policy of the admin's; without one it is never offered (T7)."""

    def __post_init__(self) -> None:
        if self.max_vfs is not None and self.max_vfs < 0:
            raise ValueError(f"max_vfs must not be negative, but is {self.max_vfs}")
        check_names(self.creatable_vfs, kinds_by_name(self.device_kinds))

    def vf_count(self, total: int) -> int:
        """How many VFs the first use of a PF creates that can have ``total``."""
        return total if self.max_vfs is None else min(self.max_vfs, total)


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryConfig(DevicePolicy):
    """Settings of ``discover``; the defaults publish everything and offer what is safe."""

    kinds: frozenset[str] = frozenset(DEVICE_KINDS)
    """Kinds of devices to publish. Default: all."""
    allowed: frozenset[str] | None = None
    """What may be taken from the host: kinds of whole cards, ``vf``, ``vgpu`` (T4). None: no node plugin has said."""
    physical_networks: Mapping[str, str] = field(default_factory=dict)
    """By the name of an interface, or the PCI address of a port, what network its cable leads to."""
    records: DeviceRecords = DeviceRecords()
    """What is known of the devices."""

    def __post_init__(self) -> None:
        DevicePolicy.__post_init__(self)
        by_name = kinds_by_name(self.device_kinds)
        if self.kinds == DEVICE_KINDS.keys():
            object.__setattr__(self, "kinds", frozenset(by_name))
        check_names(self.kinds, by_name)
