"""What this host has: GPUs, network cards, accelerators and drives as DevicePools.

- ``sysfs``: the one way to read a host; ``pci``, ``pci_ids``: PCI functions, their IOMMU groups and their names
- ``cards``: which functions belong to one card; ``nic``, ``vgpu``: what is special about them. The table of kinds is
  ``devalloc.device_kinds``
- ``unavailability``, ``device_users`` (also of block devices): why a device is reserved, in use or withheld
- ``discover``, ``pools``, ``attributes``: one pool per card
- ``watch``: discover again when devices may have changed
- ``locate``: from the name of a device back to the hardware
- ``capacity``: what a host has for machines
"""

from devalloc.inventory.config import DeviceRecords, InventoryConfig
from devalloc.inventory.discover import Discovery, discover

__all__ = ["DeviceRecords", "Discovery", "InventoryConfig", "discover"]
