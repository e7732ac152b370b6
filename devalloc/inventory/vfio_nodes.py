"""The device nodes of VFIO: of IOMMU groups (``/dev/vfio/15``), and of devices (``/dev/vfio/devices/vfio3``)."""

from __future__ import annotations

from devalloc.inventory.class_devices import DeviceNode, device_number
from devalloc.inventory.pci import PciFunction
from devalloc.inventory.sysfs import Folder, Tree

BY_IOMMUFD = "/dev/vfio/devices/"
"""How the nodes of devices begin."""


def group_node(tree: Tree, group: int) -> DeviceNode:
    """The node of an IOMMU group."""
    folder = tree.sys.folder("class", "vfio", str(group)) if tree.sys is not None else None
    return DeviceNode(f"/dev/vfio/{group}", device_number(folder))


def device_nodes_in(folder: Folder) -> set[DeviceNode]:
    """The nodes of the device in a folder: a PCI function, or a mediated device."""
    names = folder.names("vfio-dev")
    return {DeviceNode(f"{BY_IOMMUFD}{name}", device_number(folder.folder("vfio-dev", name))) for name in names}


def function_nodes(function: PciFunction) -> set[DeviceNode]:
    """The nodes through which machines use a function."""
    own, group = device_nodes_in(function.folder), function.iommu_group
    return own if group is None else {group_node(function.folder.tree, group), *own}
