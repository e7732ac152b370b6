"""What the host has of the kind that preparing makes, and no claim holds: told where nobody knows whose it is."""

from __future__ import annotations

from collections.abc import Collection

from devalloc.inventory import pci
from devalloc.inventory.sysfs import Tree


def strays(tree: Tree, held: Collection[str]) -> list[str]:
    """A sentence for each function that VFIO has, mediated device and vGPU on a VF that none of the keys stands for.

    Some of them an admin made on purpose, before devalloc or beside it: they are told, never touched (T8).
    """
    found = []
    for address, function in sorted(pci.scan(tree).items()):
        nvidia = function.folder.folder("nvidia")
        live = nvidia.number("current_vgpu_type") if nvidia is not None else None
        if f"pci/{address}" in held:
            continue
        if function.on_vfio:
            found.append(f"{address} has the driver {function.driver}, and no claim that is known")
        if live:
            found.append(f"{address} carries a vGPU of type {live}, and no claim that is known")
    mdevs = tree.sys.folder("bus", "mdev", "devices") if tree.sys is not None else None
    for name in mdevs.names() if mdevs is not None else ():
        if f"mdev/{name}" not in held:
            found.append(f"there is a mediated device {name}, and no claim that is known")
    return found
