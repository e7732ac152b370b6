"""What the admin decides about devices that go to machines."""

from __future__ import annotations

from dataclasses import dataclass

from devalloc.device_kinds import ALLOWABLE, DEFAULT_ALLOWED, check_names


@dataclass(frozen=True, slots=True)
class BindingConfig:
    """Settings of the bindings; the defaults touch nothing that the host might miss."""

    node_name: str
    """The name that this node's pools begin with."""
    allowed: frozenset[str] = frozenset(DEFAULT_ALLOWED)
    """What may be taken from the host, of ALLOWABLE; for anything else nothing is written (T4)."""
    allow_shared_groups: bool = False
    """Devices may go whose IOMMU group holds devices of other slots, where no host driver has one of those (T5)."""
    max_vfs: int | None = None
    """Most VFs to create on a port; as the inventory's. Default: as many as it can have."""
    adopt: frozenset[str] = frozenset()
    """Names of vGPUs (``mdev-<uuid>``) that others made, and that may be used as they are (T8); as the
    inventory's."""
    erase_policy: bool = False
    """Storage is erased between its owners by a policy of the admin's; without one it is never taken (T7)."""

    def __post_init__(self) -> None:
        check_names(self.allowed, ALLOWABLE)

    def vf_count(self, total: int) -> int:
        """How many VFs the first use of a PF creates that can have ``total``."""
        return total if self.max_vfs is None else min(self.max_vfs, total)
