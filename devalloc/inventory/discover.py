"""Discovery: from a host's /sys to its DevicePools."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from devalloc.api.pool import DevicePool
from devalloc.api.problems import Problem
from devalloc.inventory.cards import cards
from devalloc.inventory.config import InventoryConfig
from devalloc.inventory.groups import Groups
from devalloc.inventory.holders import Holders
from devalloc.inventory.pci import scan
from devalloc.inventory.pciids import model_names
from devalloc.inventory.pools import Host, build
from devalloc.inventory.sysfs import Tree

_DEFAULT = InventoryConfig()


@dataclass(frozen=True, slots=True)
class Discovery:
    """What a host has."""

    pools: list[DevicePool]
    """One per card, in the order of their addresses."""
    problems: list[Problem]
    """What could not be read, and what was left out for that; an error only when there is no sysfs at all."""


def discover(root: Path = Path("/"), *, node_name: str, config: InventoryConfig = _DEFAULT) -> Discovery:
    """The devices of the host whose files are below ``root``: the folder that holds ``sys``, or that folder itself.

    Reads only. The same tree gives the same answer. Raises ValueError for an empty ``node_name``, which would make the
    devices reachable from every node.
    """
    if not node_name:
        raise ValueError("node_name must not be empty")
    tree = Tree(root)
    if tree.sys is None:
        return Discovery([], [Problem("holds no sysfs: give the folder that holds sys, or sys itself", path=str(root))])
    functions = scan(tree)
    found = list(cards(functions, config.max_vfs))
    ids = {(function.vendor, function.device) for function in functions.values() if function.device is not None}
    ids |= {
        (function.vendor, function.sriov.vf_device)
        for function in functions.values()
        if function.sriov and function.sriov.vf_device is not None
    }
    host = Host(
        node_name=node_name,
        config=config,
        groups=Groups.of(functions.values(), config.allow_shared_groups),
        holders=Holders.read(tree, functions.values()),
        models=model_names(ids),
    )
    pools = [build(card, host) for card in found if card.ports[0].kind in config.kinds]
    problems = [Problem(fault.reason, path=fault.path, source=str(root), severity="warning") for fault in tree.faults]
    return Discovery(pools, problems)
