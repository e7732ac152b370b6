"""Discovery: from a host's /sys to its DevicePools."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from devalloc.api.pool import DevicePool
from devalloc.api.problems import Problem
from devalloc.inventory import pci_ids
from devalloc.inventory.cards import PciCard, group_cards, stays_in_group, with_shared_group
from devalloc.inventory.config import InventoryConfig
from devalloc.inventory.device_parents import DeviceParent, scan_parents
from devalloc.inventory.device_users import DeviceUsers
from devalloc.inventory.identity import physical_slots
from devalloc.inventory.pci import IommuGroups, PciFunction, scan_functions
from devalloc.inventory.pools import build_pool
from devalloc.inventory.sysfs import Tree
from devalloc.inventory.unavailability import UnavailabilityReasons
from devalloc.inventory.vgpu import TooManyDevices

_DEFAULT = InventoryConfig()


@dataclass(frozen=True, slots=True)
class Discovery:
    """What a host has."""

    pools: list[DevicePool]
    """One per card, in the order of their addresses; then those of other parents (``device_parents``), by name."""
    problems: list[Problem]
    """What could not be read, and what was left out for that; an error only when there is no sysfs at all."""


def discover(root: Path = Path("/"), *, node_name: str, config: InventoryConfig = _DEFAULT) -> Discovery:
    """The devices of the host whose files are below ``root``: the folder that holds ``sys``, or that folder itself.

    Reads only. The same tree gives the same answer. Raises ValueError for an empty ``node_name``, which would make the
    devices reachable from every node.
    """
    if not node_name:
        raise ValueError("node_name must not be empty")
    tree = Tree(root, kinds=config.device_kinds)
    if tree.sys is None:
        return Discovery(
            [], [Problem("contains no sysfs: give the folder that holds sys, or sys itself", path=str(root))]
        )
    functions = scan_functions(tree)
    groups = IommuGroups.of(
        functions.values(),
        config.allow_shared_groups,
        bound_together=config.bind_shared_groups,
        stays=stays_in_group(config.allowed),
    )
    host_cards = [
        PciCard(card.slot, ports)
        for card in group_cards(functions, config.max_vfs)
        if (
            ports := tuple(
                with_shared_group(port, groups, config.allowed) for port in card.ports if port.kind in config.kinds
            )
        )
    ]
    parents = list(scan_parents(tree, config.kinds))
    obstacles = UnavailabilityReasons(
        groups=groups,
        holders=DeviceUsers.read(
            tree,
            _functions(host_cards),
            released=config.release_from,
            mdevs=bool(config.adopt),
            parents=[parent.folder for parent in parents],
        ).read_all(),
        records=config.records,
        policy=config,
        allowed=config.allowed,
    )
    models, slots = pci_ids.device_models(_ids(host_cards), root), physical_slots(tree)

    def build(part: PciCard | DeviceParent) -> DevicePool | None:
        if isinstance(part, DeviceParent):
            return part.build_pool(node_name, obstacles)
        named = models | pci_ids.board_models(models, _subsystems(part))
        return build_pool(part, node_name, obstacles, named, slots.get(part.slot[:3]), config.physical_networks)

    pools: list[DevicePool] = []
    parts: list[PciCard | DeviceParent] = [*host_cards, *parents]
    for part in parts:
        try:
            pools += filter(None, [build(part)])
        except (ValidationError, TooManyDevices) as error:
            _leave_out(tree, part, error)
    problems = [Problem(fault.reason, path=fault.path, source=str(root), severity="warning") for fault in tree.faults]
    return Discovery(pools, problems)


def _leave_out(tree: Tree, part: PciCard | DeviceParent, error: ValidationError | TooManyDevices) -> None:
    what = "card" if isinstance(part, PciCard) else "parent"
    folder = part.ports[0].function.folder if isinstance(part, PciCard) else part.folder
    why = str(error)
    if isinstance(error, ValidationError):
        fault = error.errors()[0]
        why = f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
    tree.fault(folder.path, f"makes no valid pool, so the {what} is left out: {why}")


def _functions(host_cards: Iterable[PciCard]) -> list[PciFunction]:
    ports = [port for card in host_cards for port in card.ports]
    virtual = [vf.function for port in ports for vf in port.vfs if vf.function is not None]
    return [*(member for port in ports for member in port.members), *virtual]


def _subsystems(card: PciCard) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """The IDs of the functions that need their subsystem to be named, and those of the subsystem. A virtual function
    often has none of its own, and takes the name that its physical function has."""
    for function in _functions([card]):
        if function.device is None or not pci_ids.shares_device_id(function.vendor, function.device):
            continue
        vendor, device = function.folder.number("subsystem_vendor"), function.folder.number("subsystem_device")
        if vendor is not None and device is not None:
            yield (function.vendor, function.device), (vendor, device)


def _ids(host_cards: Iterable[PciCard]) -> Iterator[tuple[int, int]]:
    """The vendor and device IDs whose names are published."""
    for function in _functions(host_cards):
        if function.device is not None:
            yield function.vendor, function.device
        if function.sriov is not None and function.sriov.vf_device is not None:
            yield function.vendor, function.sriov.vf_device
