"""Find vGPUs, mediated devices and VFIO functions on the host that no claim holds."""

from __future__ import annotations

from collections.abc import Collection

from devalloc.inventory import pci
from devalloc.inventory.sysfs import Tree


def orphaned_devices(tree: Tree, held: Collection[str]) -> list[str]:
    """A sentence for each function that VFIO has, mediated device and vGPU on a VF that none of the keys stands for.

    An admin may have created some of them on purpose: they are reported, never changed (T8).
    """
    messages = []
    for address, function in sorted(pci.scan_functions(tree).items()):
        nvidia = function.folder.folder("nvidia")
        live = nvidia.number("current_vgpu_type") if nvidia is not None else None
        if f"pci/{address}" in held:
            continue
        if function.on_vfio:
            messages.append(f"{address} has the driver {function.driver}, but no claim here uses it")
        if live:
            messages.append(f"{address} carries a vGPU of type {live}, but no claim here uses it")
    mdevs = tree.sys.folder("bus", "mdev", "devices") if tree.sys is not None else None
    for name in mdevs.names() if mdevs is not None else ():
        if f"mdev/{name}" not in held:
            messages.append(f"the mediated device {name} exists, but no claim here uses it")
    return messages
