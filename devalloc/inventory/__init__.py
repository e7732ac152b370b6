"""What this host has: GPUs, network cards, accelerators and drives as DevicePools."""

from devalloc.inventory.config import InventoryConfig, Known
from devalloc.inventory.discover import Discovery, discover

__all__ = ["Discovery", "InventoryConfig", "Known", "discover"]
