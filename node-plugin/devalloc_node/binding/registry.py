"""All bindings and kinds of steps of this host, and which binding a device gets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from devalloc.api.device_identity import Identity, difference
from devalloc.inventory.cards import VirtualFunction
from devalloc.inventory.device_parents import ParentDevice
from devalloc.inventory.identity import function_identity, unit_identity
from devalloc.inventory.locate import (
    InstanceDevice,
    LocatedDevice,
    PortDevice,
    ProfileDevice,
    VfDevice,
    existing_vf,
    read_function,
)
from devalloc.inventory.mdev_parents import MdevParentDevice
from devalloc.inventory.pci import Address, PciFunction
from devalloc.inventory.pci_ids import hex_id
from devalloc.inventory.sysfs import Tree
from devalloc_node.binding.binding import Binding, BindingConfig, HealthState, Steps
from devalloc_node.binding.checks import locate_device
from devalloc_node.binding.drivers import HEALTHY, DriverKind, ResetKind, problem_with_function
from devalloc_node.binding.mdev import Mdev, MdevKind
from devalloc_node.binding.monitor_steps import PersistenceKind
from devalloc_node.binding.sriov import Sriov, VfAutoprobeKind, VfCountKind
from devalloc_node.binding.vf_settings import VfSettingsKind
from devalloc_node.binding.vfio import Vfio
from devalloc_node.binding.vfio_handover import pci_location
from devalloc_node.binding.vgpu import Vgpu, VgpuKind
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied
from devalloc_node.host.boundary import Host
from devalloc_node.model.grant import GrantedDevice
from devalloc_node.model.step import PreparedDevice, StepKind


def step_kinds(host: Host) -> Mapping[str, StepKind]:
    """The kinds of steps that bindings yield."""
    return {
        "driver": DriverKind(host),
        "reset": ResetKind(host),
        "vf-autoprobe": VfAutoprobeKind(host),
        "vf-count": VfCountKind(host),
        "vf-settings": VfSettingsKind(host),
        "vgpu": VgpuKind(host),
        "mdev": MdevKind(host),
        "persistence": PersistenceKind(host),
    }


@dataclass(frozen=True, slots=True)
class Bindings:
    """The bindings of a host. Safe for threads."""

    host: Host
    config: BindingConfig

    def choose(self, granted: GrantedDevice) -> Binding:
        """The binding for a device as it is now. Raises Denied ``DeviceUnknown`` or ``DeviceGone``."""
        if granted.admin:
            return AdminAccessBinding(self.host, self.config)
        tree = self.host.tree()
        # To choose, a VF that is there need only be looked at itself: its whole card is when it is prepared.
        if (vf := existing_vf(tree, granted.device)) is not None:
            return Sriov(self.host, self.config, located=vf)
        located = locate_device(tree, self.config, granted)
        match located:
            case PortDevice():
                return Vfio(self.host, self.config, located=located)
            case VfDevice():
                return Sriov(self.host, self.config, located=located.vf)
            case InstanceDevice() | MdevParentDevice():
                return Mdev(self.host, self.config, located=located)
            case ProfileDevice(parent=parent):
                vendor_layout = parent.folder.folder("nvidia") and not parent.folder.folder("mdev_supported_types")
                return (Vgpu if vendor_layout else Mdev)(self.host, self.config, located=located)
            case ParentDevice(parent=other):
                raise Denied("DeviceUnknown", f"this version binds no {other.kind.plural}; upgrade the node plugin")

    def identify(self, binding: Binding) -> Identity:
        """What the device is that a binding was chosen for; nothing for admin access, and for what is no PCI function.
        Reads only."""
        located = binding.located if isinstance(binding, (Vfio, Sriov, Mdev, Vgpu)) else None
        match located:
            case None:
                return {}
            case PciFunction():
                return _identity(self.host.tree(), located)
            case VirtualFunction():
                return _vf_identity(located)
            case _:
                return located_identity(located)

    def observe(self, device: PreparedDevice) -> HealthState:
        """How a prepared device is. Reads only; never raises for the state of the device."""
        bindings: Mapping[str, Binding] = {
            "vfio": Vfio(self.host, self.config),
            "vgpu": Vgpu(self.host, self.config),
            "mdev": Mdev(self.host, self.config),
            "none": AdminAccessBinding(self.host, self.config),
        }
        binding = bindings.get(device.binding)
        if binding is None:
            return HealthState("unknown", f"this version does not support the binding {device.binding!r}")
        health = binding.observe(device)
        if health.code in ("", "DriverNotBound") and (changed := self._changed(device)) is not None:
            return changed
        return health

    def _changed(self, device: PreparedDevice) -> HealthState | None:
        """Unhealthy if another device is where a prepared one was."""
        address = Address.parse(device.functions[0]) if device.identity and device.functions else None
        tree = self.host.tree()
        function = read_function(tree, address) if address is not None else None
        other = None if function is None else difference(device.identity, _identity(tree, function))
        if other is None:
            return None
        return HealthState("unhealthy", f"another device is at {address}: {other}", "DeviceChanged")


def _identity(tree: Tree, function: PciFunction) -> Identity:
    pf = read_function(tree, function.physfn, with_vfs=False) if function.physfn is not None else None
    return function_identity(function, pf)


def _vf_identity(vf: VirtualFunction) -> Identity:
    if vf.function is not None:
        return function_identity(vf.function, vf.pf)
    device = vf.pf.sriov.vf_device if vf.pf.sriov else None
    shown = {"vendorID": hex_id(vf.pf.vendor)} | ({} if device is None else {"deviceID": hex_id(device)})
    return shown | unit_identity(vf.pf)


def located_identity(located: LocatedDevice) -> Identity:
    """The identity of a device as its pool publishes it: of a VF that does not exist yet, what its PF shows."""
    match located:
        case PortDevice(port=port):
            return function_identity(port.function)
        case VfDevice(vf=vf):
            return _vf_identity(vf)
        case ProfileDevice(port=port, parent=parent) | InstanceDevice(port=port, parent=parent):
            pf = next((each for each in port.members if each.address == parent.physfn), None)
            return function_identity(parent, pf)
        case _:
            return {}


@dataclass(frozen=True, slots=True)
class AdminAccessBinding:
    """Admin access (S14): the device is reported; nothing is bound and nothing is locked."""

    host: Host
    config: BindingConfig
    name: str = "none"
    shares: bool = True

    def keys(self, granted: GrantedDevice, owner: str, held: Collection[str]) -> tuple[str, ...]:
        return ()

    def prepare(self, granted: GrantedDevice, keys: Collection[str], deadline: Deadline) -> Steps:
        device = locate_device(self.host.tree(), self.config, granted)
        function = device.vf.function if isinstance(device, VfDevice) else None
        if isinstance(device, PortDevice):
            function = device.port.function
        elif isinstance(device, (ProfileDevice, InstanceDevice)):
            function = device.parent
        address = str(function.address) if function is not None else None
        return PreparedDevice(
            requests=granted.requests,
            pool=granted.pool,
            device=granted.device,
            binding=self.name,
            functions=(address,) if address else (),
            mdev_uuid=device.uuid if isinstance(device, (InstanceDevice, MdevParentDevice)) else None,
            attributes=pci_location(function) if function is not None else {},
            admin=True,
            share=granted.share,
        )
        yield  # makes this a generator, as all bindings' are

    def observe(self, device: PreparedDevice) -> HealthState:
        tree = self.host.tree()
        functions = (problem_with_function(tree, name) for name in device.functions)
        return next((health for health in functions if isinstance(health, HealthState)), HEALTHY)
