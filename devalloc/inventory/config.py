"""What the admin decides about the inventory of a node."""

from __future__ import annotations

from dataclasses import dataclass

from devalloc.inventory.cards import KINDS


@dataclass(frozen=True, slots=True)
class InventoryConfig:
    """Settings of ``discover``; the defaults publish everything and offer what is safe."""

    kinds: frozenset[str] = KINDS
    """Kinds of devices to publish: gpu, nic, accelerator, storage, display. Default: all."""
    allow_shared_groups: bool = False
    """Offer devices whose IOMMU group holds devices of other slots. They go to a machine together, so only the first of
    a group is offered, and none while a host driver has one of the others. Default: not offered."""
    max_vfs: int | None = None
    """Most VFs to offer per port where none exist yet, and so to create. Default: as many as the port can have."""
    erase_policy: bool = False
    """A policy is set by which storage is erased between its owners. Default: none is, so storage is never offered."""
    held: frozenset[str] = frozenset()
    """Names of this node's devices that claims hold: what lives on these is the claims' own, not somebody else's."""

    def __post_init__(self) -> None:
        unknown = sorted(self.kinds - KINDS)
        if unknown:
            raise ValueError(f"no such kind of device: {', '.join(unknown)} (there are {', '.join(sorted(KINDS))})")
        if self.max_vfs is not None and self.max_vfs < 0:
            raise ValueError(f"max_vfs must not be negative, and is {self.max_vfs}")
