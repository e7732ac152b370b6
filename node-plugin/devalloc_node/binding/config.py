"""What the admin decides about devices that go to machines."""

from __future__ import annotations

from dataclasses import dataclass

from devalloc.device_kinds import ALLOWABLE, DEFAULT_ALLOWED, check_names
from devalloc.inventory.config import DevicePolicy


@dataclass(frozen=True, slots=True)
class BindingConfig(DevicePolicy):
    """Settings of the bindings; the defaults touch nothing that the host might miss."""

    node_name: str
    """The name that this node's pools begin with."""
    allowed: frozenset[str] = frozenset(DEFAULT_ALLOWED)
    """What may be taken from the host, of ALLOWABLE; for anything else nothing is written (T4)."""

    def __post_init__(self) -> None:
        DevicePolicy.__post_init__(self)
        check_names(self.allowed, ALLOWABLE)

    def vf_count(self, total: int) -> int:
        """How many VFs the first use of a PF creates that can have ``total``."""
        return total if self.max_vfs is None else min(self.max_vfs, total)
