"""Binding ``vfio``: a whole card or port, with all functions of its slot, for a machine of its own."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from devalloc.inventory import nic
from devalloc.inventory.cards import PciPort
from devalloc.inventory.locate import LocatedDevice, PortDevice
from devalloc.inventory.pci import Address
from devalloc.inventory.sysfs import Tree
from devalloc_node.binding import checks
from devalloc_node.binding.binding import BindingConfig, HealthState, Steps
from devalloc_node.binding.checks import locate_device_of_kind
from devalloc_node.binding.drivers import health_of_functions
from devalloc_node.binding.monitor_steps import release_steps
from devalloc_node.binding.vfio_handover import (
    describe_passed_through,
    function_key,
    function_keys,
    handover_steps,
    rom_file,
    with_network,
)
from devalloc_node.binding.vgpu_parents import part_keys
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied
from devalloc_node.host.boundary import Host
from devalloc_node.model.grant import GrantedDevice
from devalloc_node.model.step import PreparedDevice


@dataclass(frozen=True, slots=True)
class Vfio:
    """Passes a port through. Its VFs and vGPUs go with it, so none may exist."""

    host: Host
    config: BindingConfig
    name: str = "vfio"
    shares: bool = False
    located: LocatedDevice | None = None
    """The device as it was when this binding was chosen for it: enough for ``keys``; ``prepare`` looks again."""

    def keys(self, granted: GrantedDevice, owner: str, held: Collection[str]) -> tuple[str, ...]:
        tree = self.host.tree()
        port = locate_device_of_kind(tree, self.config, granted, PortDevice, self.located).port
        port = checks.with_group(tree, self.config, port)
        keys = function_keys(tree, port.members)
        keys += [function_key(address) for address in _vf_addresses(port)]
        keys += [part for member in port.members for part in part_keys(member)]
        return tuple(dict.fromkeys(keys))

    def prepare(self, granted: GrantedDevice, keys: Collection[str], deadline: Deadline) -> Steps:
        tree = self.host.tree()
        port = locate_device_of_kind(tree, self.config, granted, PortDevice).port
        port = checks.with_group(tree, self.config, port)
        checks.refuse_kind(self.config, port, port.kind)
        checks.refuse_in_use(tree, port, port.members, released=self.config.release_from)
        checks.refuse_disks(self.config, port, port.members)
        _refuse_parts(tree, port)
        checks.refuse_useless(port.members)
        checks.refuse_group(tree, self.config, port.members)
        for function in port.functions_to_reset:
            checks.refuse_without_reset(self.config, function)
        rom_file(granted)
        functions = [port.function, *(member for member in port.members if member is not port.function)]
        mac = nic.mac_address(port.function) if nic.is_nic(port.function) else None  # unreadable once VFIO has it
        if self.config.release_from:
            yield from release_steps(self.host, tree, functions)
            checks.refuse_in_use(self.host.tree(), port, port.members)  # any program can have the name of a monitor
        yield from handover_steps(tree, functions)
        return with_network(describe_passed_through(self.host, granted, functions), mac)

    def observe(self, device: PreparedDevice) -> HealthState:
        return health_of_functions(self.host.tree(), device)


def _vf_addresses(port: PciPort) -> list[Address]:
    """Every VF that the port has or could have: none of them may have an owner."""
    addresses = [address for pf in port.members for _, address in pf.virtfns]
    for pf in port.members:
        if pf.sriov is not None:
            possible = (pf.sriov.address(pf.address, index) for index in range(pf.sriov.total))
            addresses += [address for address in possible if address is not None]
    return addresses


def _refuse_parts(tree: Tree, port: PciPort) -> None:
    for member in port.members:
        if member.has_vfs:
            raise Denied("VfsEnabled", f"{member.address} has {len(member.virtfns)} VFs, which would be lost with it")
    for member in port.members:
        checks.refuse_vgpus(member)
