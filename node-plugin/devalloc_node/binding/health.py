"""Whether what was prepared is still there as it was left."""

from __future__ import annotations

from devalloc.inventory.locate import function_folder, read_function
from devalloc.inventory.pci import Address, PciFunction
from devalloc.inventory.sysfs import Tree
from devalloc_node.binding.binding import Health
from devalloc_node.binding.drivers import answers
from devalloc_node.prepared import PreparedDevice

HEALTHY = Health("healthy")


def health_of_functions(tree: Tree, device: PreparedDevice) -> Health:
    """Of functions that were passed through."""
    found = []
    for name in device.functions:
        function = present(tree, name)
        if isinstance(function, Health):
            return function
        if not function.on_vfio:
            return Health("unhealthy", f"{name} has the driver {function.driver or 'none'} now, none of VFIO's")
        found.append(function)
    nodes = {f"/dev/vfio/{function.iommu_group}" for function in found}
    if nodes != set(device.nodes):
        return Health("unhealthy", f"the IOMMU group has changed: {_listed(device.nodes)} became {_listed(nodes)}")
    return HEALTHY


def present(tree: Tree, name: str) -> PciFunction | Health:
    """A function that is there and answers, or why it is not well."""
    address = Address.parse(name)
    function = read_function(tree, address) if address is not None else None
    if function is None:
        return Health("unhealthy", f"{name} is not there any more")
    if not answers(function):
        return Health("unhealthy", f"{name} does not answer: its configuration space reads as ones")
    return function


def is_there(tree: Tree, name: str) -> bool:
    address = Address.parse(name)
    return address is not None and function_folder(tree, address) is not None


def _listed(nodes: object) -> str:
    assert isinstance(nodes, (set, tuple))
    return ", ".join(sorted(nodes)) or "none"
