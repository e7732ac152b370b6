"""Whether what was prepared is still there as it was left."""

from __future__ import annotations

from devalloc.inventory.locate import function_folder, read_function
from devalloc.inventory.pci import Address, PciFunction
from devalloc.inventory.sysfs import Tree
from devalloc_node.binding.binding import HealthState
from devalloc_node.binding.drivers import is_responsive
from devalloc_node.model.step import PreparedDevice

HEALTHY = HealthState("healthy")


def health_of_functions(tree: Tree, device: PreparedDevice) -> HealthState:
    """Of functions that were passed through."""
    functions = []
    for name in device.functions:
        function = problem_with_function(tree, name)
        if isinstance(function, HealthState):
            return function
        if not function.on_vfio:
            return HealthState("unhealthy", f"{name} has the driver {function.driver or 'none'} now, not a VFIO driver")
        functions.append(function)
    nodes = {f"/dev/vfio/{function.iommu_group}" for function in functions}
    if nodes != set(device.nodes):
        return HealthState("unhealthy", f"the IOMMU group has changed: {_listed(device.nodes)} became {_listed(nodes)}")
    return HEALTHY


def problem_with_function(tree: Tree, name: str) -> PciFunction | HealthState:
    """A function that is there and answers, or why it is not well."""
    address = Address.parse(name)
    function = read_function(tree, address) if address is not None else None
    if function is None:
        return HealthState("unhealthy", f"{name} no longer exists")
    if not is_responsive(function):
        return HealthState("unhealthy", f"{name} does not respond: its configuration space reads as all ones")
    return function


def is_there(tree: Tree, name: str) -> bool:
    address = Address.parse(name)
    return address is not None and function_folder(tree, address) is not None


def _listed(nodes: object) -> str:
    assert isinstance(nodes, (set, tuple))
    return ", ".join(sorted(nodes)) or "none"
