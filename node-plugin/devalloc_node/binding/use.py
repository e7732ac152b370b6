"""Who uses a device that a binding is about to take away or to take back."""

from __future__ import annotations

from collections.abc import Iterable

from devalloc.inventory.holders import nodes_of
from devalloc.inventory.pci import PciFunction
from devalloc.inventory.sight import blind_spot
from devalloc.inventory.sysfs import Tree, openers
from devalloc_node.errors import Denied


def refuse_open(tree: Tree, nodes: Iterable[str], what: str, *, certain: bool) -> None:
    """Raises Denied ``DeviceInUse`` when a process has one of the nodes open.

    ``certain``: also when that cannot be told for all processes (``InUseUnknown``); else the kernel has the last word.
    """
    wanted = set(nodes)
    if not wanted:
        return
    blind = blind_spot(tree)
    if blind is not None and certain:
        raise Denied("InUseUnknown", f"whether {what} is in use cannot be told: {blind}", retryable=True)
    found = openers(tree.proc, wanted, ()) if tree.proc else {}
    if found:
        node, user = min(found.items())
        raise Denied("DeviceInUse", f"{what} is in use: {user} has {node} open", retryable=True)


def vfio_nodes(functions: Iterable[PciFunction]) -> set[str]:
    """The nodes of those functions that VFIO has."""
    return {node for function in functions if function.on_vfio for node in nodes_of(function)}
