"""Find the processes that use a device before a binding takes it away or takes it back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from devalloc.inventory.device_users import device_node_paths, visibility_problem
from devalloc.inventory.locate import mdev_folder, read_function
from devalloc.inventory.pci import Address, PciFunction
from devalloc.inventory.sysfs import Tree, open_device_nodes
from devalloc.inventory.vgpu import mdev_nodes
from devalloc_node.errors import Denied
from devalloc_node.host import block_devices
from devalloc_node.model.prepared import PreparedDevice

_BY_IOMMUFD = "/dev/vfio/devices/"


def refuse_open(tree: Tree, nodes: Iterable[str], what: str, *, certain: bool) -> None:
    """Raises Denied ``DeviceInUse`` when a process has one of the nodes open.

    ``certain``: also when that cannot be told for all processes (``InUseUnknown``); else the kernel has the last word.
    """
    wanted = set(nodes)
    if not wanted:
        return
    blind = visibility_problem(tree)
    if blind is not None and certain:
        raise Denied("InUseUnknown", f"cannot check whether {what} is in use: {blind}", retryable=True)
    users = open_device_nodes(tree.proc, wanted, ()) if tree.proc else {}
    if users:
        node, user = min(users.items())
        raise Denied("DeviceInUse", f"{what} is in use: {user} has {node} open", retryable=True)


def refuse_kernel_use(tree: Tree, block: str, what: str) -> None:
    """Raises Denied ``DeviceReserved`` when the kernel keeps a disk for itself, ``InUseUnknown`` where it cannot be
    asked."""
    try:
        is_reserved = block_devices.is_used_by_host(tree.root / "dev" / block)
    except FileNotFoundError as error:
        why = f"/dev/{block} not found (does this process see the host's /dev?)"
        raise Denied("InUseUnknown", f"cannot check whether the host needs {what}: {why}", retryable=True) from error
    except OSError as error:
        why = f"cannot open {block}: {error.strerror}"
        raise Denied("InUseUnknown", f"cannot check whether the host needs {what}: {why}") from error
    if is_reserved:
        raise Denied("DeviceReserved", f"{what} is reserved for the host: {block} is in use")


def current_nodes(tree: Tree, device: PreparedDevice) -> set[str]:
    """The nodes of a prepared device that are still its own: the number of an IOMMU group that went is used again."""
    if device.mdev_uuid is not None:
        folder = mdev_folder(tree, device.mdev_uuid)
        now = mdev_nodes(folder) if folder is not None else set()
    else:
        now = {node for function in _functions(tree, device.functions) for node in own_nodes(function)}
    return {node for node in now if node in device.nodes or node.startswith(_BY_IOMMUFD)}


def process_using(tree: Tree, device: PreparedDevice) -> str | None:
    """Who has a prepared device open, such as ``qemu (1234)``. Where others' processes cannot be seen, kernel and
    bindings have the last word."""
    nodes = current_nodes(tree, device)
    if tree.proc is None or not nodes:
        return None
    return next(iter(open_device_nodes(tree.proc, nodes, ()).values()), None)


def _functions(tree: Tree, addresses: Iterable[str]) -> Iterator[PciFunction]:
    for text in addresses:
        address = Address.parse(text)
        function = read_function(tree, address) if address is not None else None
        if function is not None:
            yield function


def own_nodes(function: PciFunction) -> set[str]:
    """What a machine opens of a function; of a vGPU on it too, while the function has the vendor's driver."""
    own = {f"{_BY_IOMMUFD}{name}" for name in function.folder.names("vfio-dev")}
    return own if function.iommu_group is None else {f"/dev/vfio/{function.iommu_group}", *own}


def vfio_nodes(functions: Iterable[PciFunction]) -> set[str]:
    """The nodes of those functions that VFIO has."""
    return {node for function in functions if function.on_vfio for node in device_node_paths(function)}
