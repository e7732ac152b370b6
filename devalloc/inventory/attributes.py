"""What is published of a PCI function: short names for expressions, and the ecosystem's names beside them."""

from __future__ import annotations

from collections.abc import Mapping

from devalloc.api.pool import AttributeValue
from devalloc.api.quantity import NANO, Format, Quantity
from devalloc.device_kinds import NIC
from devalloc.inventory import nic
from devalloc.inventory.cards import PciPort, VirtualFunction
from devalloc.inventory.identity import unit_identity
from devalloc.inventory.pci import Address, PciFunction
from devalloc.inventory.pci_ids import DeviceModel, hex_id, vendor_name

Attributes = dict[str, AttributeValue]
Models = Mapping[tuple[int, int], DeviceModel]
"""By vendor and device ID."""

_SHARED_WITH_VFS = frozenset({"linkType", "linkSpeed", "rdma"})
_XILINX = 0x10EE
_STANDARD = {
    "pciBusID": "resource.kubernetes.io/pciBusID",
    "pcieRoot": "resource.kubernetes.io/pcieRoot",
    "numa": "resource.kubernetes.io/numaNode",
}


def port_attributes(port: PciPort, models: Models) -> Attributes:
    """The attributes of a port as a whole."""
    return (
        _common(port, port.role, "exists")
        | function_attributes(port.function, models)
        | unit_identity(port.function)
        | _kind_attributes(port, port.function)
        | (_interface(port.function) if port.kind == NIC.name else {})
        | _group_size(port)
    )


def _group_size(port: PciPort) -> Attributes:
    """How many devices of our kinds a port has that takes all of its IOMMU group along."""
    size = len(port.functions_to_reset)
    return {"groupDevices": size} if size > 1 else {}


def inherited_attributes(port: PciPort) -> dict[Address, Attributes]:
    """By the address of the PF: what its VFs have of it unless they show their own."""
    pfs = {vf.pf.address: vf.pf for vf in port.vfs}
    return {address: {**unit_identity(pf), **_shared_with_vfs(port, pf)} for address, pf in pfs.items()}


def _shared_with_vfs(port: PciPort, pf: PciFunction) -> Attributes:
    if port.kind != "nic":
        return {}
    shared = {name: value for name, value in nic.nic_attributes(pf).items() if name in _SHARED_WITH_VFS}
    return shared | _interface(pf)


def _interface(port: PciFunction) -> Attributes:
    """The name of the network interface of a port, as long as the host has it. Its VFs have it, too."""
    interface = nic.own_interface(port.below)
    return {} if interface is None else {"interface": interface.name}


def vf_attributes(port: PciPort, vf: VirtualFunction, models: Models, from_pf: Attributes) -> Attributes:
    """The attributes of a VF; of one that does not exist yet as far as its PF tells them."""
    attributes = _common(port, "vf", "exists" if vf.function else "creatable")
    if vf.function is not None:
        attributes |= function_attributes(vf.function, models)
    else:
        attributes |= _identity(vf.pf.vendor, vf.pf.sriov.vf_device if vf.pf.sriov else None, models)
        attributes |= _topology_attributes(str(vf.address), vf.pf)
    attributes |= from_pf
    if vf.function is not None:
        attributes |= _kind_attributes(port, vf.function)
    return attributes | _vf_position(vf)


def vgpu_attributes(port: PciPort, parent: PciFunction, state: str, models: Models) -> Attributes:
    """The attributes of a vGPU, but for its profile: those of the function it is on."""
    attributes = _common(port, "mdev", state) | function_attributes(parent, models)
    vf = next((vf for vf in port.vfs if vf.address == parent.address), None)
    attributes |= unit_identity(parent if vf is None else vf.pf)
    return attributes | _vf_position(vf) if vf else attributes


def function_attributes(function: PciFunction, models: Models) -> Attributes:
    """What every PCI function has; what is not known is left out."""
    attributes = _identity(function.vendor, function.device, models)
    if function.driver is not None:
        attributes["driver"] = function.driver
    if function.iommu_group is not None:
        attributes["iommuGroup"] = function.iommu_group
    return attributes | _topology_attributes(str(function.address), function)


def _common(port: PciPort, role: str, state: str) -> Attributes:
    return {"kind": port.kind, "function": role, "state": state}


def _identity(vendor: int, device: int | None, models: Models) -> Attributes:
    attributes: Attributes = {"vendor": vendor_name(vendor), "vendorID": hex_id(vendor)}
    if device is not None:
        attributes |= {"model": hex_id(device), "deviceID": hex_id(device)}
        if (model := models.get((vendor, device))) is not None:
            attributes |= {"model": model.name, "pciModel": model.pci_name}
    return attributes


def _topology_attributes(bus_id: str, function: PciFunction) -> Attributes:
    place: Attributes = {"pciBusID": bus_id}
    if function.root is not None:
        place["pcieRoot"] = function.root
    if (numa := function.numa) is not None:
        place["numa"] = numa
    return with_standard(place)


def with_standard(place: Attributes) -> Attributes:
    """Where a device is, also by the ecosystem's names."""
    return place | {_STANDARD[name]: value for name, value in place.items()}


def _vf_position(vf: VirtualFunction) -> Attributes:
    return {"pfPciBusID": str(vf.pf.address), "vfIndex": vf.index}


def _kind_attributes(port: PciPort, function: PciFunction) -> Attributes:
    match port.kind:
        case "nic":
            own = nic.nic_attributes(function)
            if function.physfn is not None and function.driver in (None, "vfio-pci"):
                del own["rdma"]  # without its network driver a VF does not show what it can do; its PF does
            return own
        case "gpu":
            return _gpu_attributes(function)
        case "accelerator" if function.vendor == _XILINX and port.role == "pf":
            return {"fpgaFunction": "management" if function.address.function == 0 else "user"}
        case _:
            return {}


def _gpu_attributes(function: PciFunction) -> Attributes:
    """The framebuffer, if the driver reports it (amdgpu)."""
    memory = function.folder.number("mem_info_vram_total")
    return {"framebuffer": Quantity(memory * NANO, Format.BINARY_SI)} if memory is not None and memory > 0 else {}
