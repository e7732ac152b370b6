"""Hand functions over to VFIO in two passes, so that no IOMMU group is ever half with the host and half with VFIO."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace

from devalloc.inventory.locate import group_members
from devalloc.inventory.pci import BRIDGE, PciFunction
from devalloc.inventory.sysfs import Tree
from devalloc_node.binding import host_changes
from devalloc_node.binding.drivers import state
from devalloc_node.binding.vfio_drivers import vfio_driver
from devalloc_node.errors import Failed
from devalloc_node.host.boundary import Host
from devalloc_node.model.grant import GrantedDevice
from devalloc_node.model.prepared import Attribute, PreparedDevice
from devalloc_node.model.step import Step

_PCI_BUS_ID = "resource.kubernetes.io/pciBusID"
_PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
MAC = "mac"
_NUMA_NODE = "resource.kubernetes.io/numaNode"


def function_key(address: object) -> str:
    """The key of a PCI function in the journal."""
    return f"pci/{address}"


def function_keys(tree: Tree, functions: Sequence[PciFunction]) -> list[str]:
    """The keys of functions, and of all that share their IOMMU groups."""
    addresses = [function.address for function in functions]
    by_address = {function.address: function for function in functions}
    addresses += [peer.address for function in functions for peer in group_members(tree, function, by_address)
              if peer.base_class != BRIDGE]  # fmt: skip
    return [function_key(address) for address in dict.fromkeys(addresses)]


def pci_location(function: PciFunction) -> dict[str, Attribute]:
    """Where a function is, as Kubernetes names that: what of it is known."""
    attributes: dict[str, Attribute] = {_PCI_BUS_ID: str(function.address)}
    attributes |= {} if function.numa is None else {_NUMA_NODE: function.numa}
    return attributes | ({} if function.root is None else {_PCIE_ROOT: function.root})


def handover_steps(tree: Tree, functions: Sequence[PciFunction]) -> Generator[Step, None, None]:
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


def describe_passed_through(host: Host, granted: GrantedDevice, functions: Sequence[PciFunction]) -> PreparedDevice:
    """What functions are that were handed over, as they are read now. Raises Failed where they are not."""
    tree = host.tree()
    now = [host_changes.function(tree, str(function.address)) for function in functions]
    for function in now:
        if not function.on_vfio or function.iommu_group is None:
            raise Failed("DriverNotBound", f"{function.address} has the driver {function.driver}, not a VFIO driver")
    return PreparedDevice(
        requests=granted.requests,
        pool=granted.pool,
        device=granted.device,
        binding="vfio",
        functions=tuple(str(function.address) for function in now),
        nodes=tuple(dict.fromkeys(f"/dev/vfio/{function.iommu_group}" for function in now)),
        attributes=pci_location(now[0]),
        share=granted.share,
    )


def with_mac(device: PreparedDevice, mac: object) -> PreparedDevice:
    """The device with its hardware address among its attributes, where there is one: a VF may have none yet."""
    if not isinstance(mac, str) or not mac.strip("0:"):
        return device
    return replace(device, attributes={**device.attributes, MAC: mac})
