"""What this host has: GPUs, network cards, accelerators and drives as DevicePools.

- ``sysfs``: the one way to read a host; ``pci``, ``pci_ids``: PCI functions, their IOMMU groups and their names
- ``cards``: which functions belong to one card; ``nic``, ``vgpu``: what is special about them. The table of kinds is
  ``devalloc.device_kinds``
- ``class_devices``: what drivers have made of a function, wherever it hangs below it; ``kfd``, ``vfio_nodes``: what
  hangs elsewhere
- ``unavailability``, ``device_users``: why a device is reserved, in use or withheld. ``network_use`` and
  ``network_namespaces``: what interfaces are used for; ``open_nodes``, ``monitors``: who has a device open
- ``discover``, ``pools``, ``attributes``: one pool per card
- ``watch``: discover again when devices may have changed
- ``locate``: from the name of a device back to the hardware
- ``capacity``: what a host has for machines
"""
