"""Handing functions over to VFIO: two passes, so that no moment sees a group half with the host, half with VFIO."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace

from devalloc.inventory.locate import group_members
from devalloc.inventory.pci import BRIDGE, PciFunction
from devalloc.inventory.sysfs import Tree
from devalloc_node.binding import change
from devalloc_node.binding.drivers import state
from devalloc_node.binding.variants import vfio_driver
from devalloc_node.errors import Failed
from devalloc_node.grant import GrantedDevice
from devalloc_node.host.boundary import Host
from devalloc_node.prepared import Attribute, PreparedDevice
from devalloc_node.step import Step

_PCI_BUS_ID = "resource.kubernetes.io/pciBusID"
_PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
MAC = "mac"
_NUMA_NODE = "resource.kubernetes.io/numaNode"


def key(address: object) -> str:
    """The key of a PCI function in the journal."""
    return f"pci/{address}"


def keys_of(tree: Tree, functions: Sequence[PciFunction]) -> list[str]:
    """The keys of functions, and of all that share their IOMMU groups."""
    found = [function.address for function in functions]
    known = {function.address: function for function in functions}
    found += [peer.address for function in functions for peer in group_members(tree, function, known)
              if peer.base_class != BRIDGE]  # fmt: skip
    return [key(address) for address in dict.fromkeys(found)]


def place(function: PciFunction) -> dict[str, Attribute]:
    """Where a function is, as Kubernetes names that: what of it is known."""
    found: dict[str, Attribute] = {_PCI_BUS_ID: str(function.address)}
    found |= {} if function.numa is None else {_NUMA_NODE: function.numa}
    return found | ({} if function.root is None else {_PCIE_ROOT: function.root})


def handed_over(tree: Tree, functions: Sequence[PciFunction]) -> Generator[Step, None, None]:
    """The steps that give functions to their VFIO drivers. What VFIO has already is adopted, and stays there (T8)."""
    moving = [(function, vfio_driver(tree, function)) for function in functions if not function.on_vfio]
    apart, bound = [], []
    theirs = sorted({function.driver for function, _ in moving if function.driver is not None})
    for function, driver in moving:
        before, after = state(function.folder), {"driver": driver, "override": driver}
        if len(moving) > 1:
            alone = {"driver": None, "override": driver, "next": theirs}
            apart.append(Step("driver", str(function.address), before, alone))
            before = alone
        bound.append(Step("driver", str(function.address), before, after))
    # Each pass is written down at once, and only when the one before it is done: see ``Step.more``.
    for steps in (apart, bound):
        for number, step in enumerate(steps, 1):
            yield replace(step, more=number < len(steps))
    # A function beside the main one may have no reset of its own: it is reset with the slot.
    for function in functions:
        if function is functions[0] or "reset" in function.folder.names():
            yield Step("reset", str(function.address), "clean", "used", noted=True)


def passed_through(host: Host, granted: GrantedDevice, functions: Sequence[PciFunction]) -> PreparedDevice:
    """What functions are that were handed over, as they are read now. Raises Failed where they are not."""
    tree = host.tree()
    now = [change.function(tree, str(function.address)) for function in functions]
    for function in now:
        if not function.on_vfio or function.iommu_group is None:
            raise Failed("DriverNotBound", f"{function.address} has the driver {function.driver}, none of VFIO's")
    return PreparedDevice(
        requests=granted.requests,
        pool=granted.pool,
        device=granted.device,
        binding="vfio",
        functions=tuple(str(function.address) for function in now),
        nodes=tuple(dict.fromkeys(f"/dev/vfio/{function.iommu_group}" for function in now)),
        attributes=place(now[0]),
        share=granted.share,
    )


def with_mac(device: PreparedDevice, mac: object) -> PreparedDevice:
    """The device with its hardware address among its attributes, where there is one: a VF may have none yet."""
    if not isinstance(mac, str) or not mac.strip("0:"):
        return device
    return replace(device, attributes={**device.attributes, MAC: mac})
