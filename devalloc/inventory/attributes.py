"""What is published of a PCI function: short names for expressions, and the ecosystem's names beside them."""

from __future__ import annotations

from collections.abc import Mapping

from devalloc.api.pool import AttributeValue
from devalloc.inventory import gpu, nic
from devalloc.inventory.cards import Port, VirtualFunction
from devalloc.inventory.pci import Address, PciFunction
from devalloc.inventory.pciids import Model, hex_id, vendor_name

Attributes = dict[str, AttributeValue]
Models = Mapping[tuple[int, int], Model]
"""By vendor and device ID."""

_SHARED_WITH_VFS = frozenset({"linkType", "linkSpeed", "rdma"})
_STANDARD = {
    "pciBusID": "resource.kubernetes.io/pciBusID",
    "pcieRoot": "resource.kubernetes.io/pcieRoot",
    "numa": "resource.kubernetes.io/numaNode",
}


def of_port(port: Port, models: Models) -> Attributes:
    """The attributes of a port as a whole."""
    return _common(port, port.role, "exists") | of_function(port.function, models) | _of_kind(port, port.function)


def inherited(port: Port) -> dict[Address, Attributes]:
    """By the address of the PF: what its VFs have of it unless they show their own."""
    if port.kind != "nic":
        return {}
    pfs = {vf.pf.address: vf.pf for vf in port.vfs}
    return {
        address: {name: value for name, value in nic.attributes(pf).items() if name in _SHARED_WITH_VFS}
        for address, pf in pfs.items()
    }


def of_vf(port: Port, vf: VirtualFunction, models: Models, from_pf: Attributes) -> Attributes:
    """The attributes of a VF; of one that does not exist yet as far as its PF tells them."""
    found = _common(port, "vf", "exists" if vf.function else "creatable")
    if vf.function is not None:
        found |= of_function(vf.function, models)
    else:
        found |= _identity(vf.pf.vendor, vf.pf.sriov.vf_device if vf.pf.sriov else None, models)
        found |= _place(str(vf.address), vf.pf)
    found |= from_pf
    if vf.function is not None:
        found |= _of_kind(port, vf.function)
    return found | _vf_position(vf)


def of_vgpu(port: Port, parent: PciFunction, state: str, models: Models) -> Attributes:
    """The attributes of a vGPU, but for its profile: those of the function it is on."""
    found = _common(port, "mdev", state) | of_function(parent, models)
    vf = next((vf for vf in port.vfs if vf.address == parent.address), None)
    return found | _vf_position(vf) if vf else found


def of_function(function: PciFunction, models: Models) -> Attributes:
    """What every PCI function has; what is not known is left out."""
    found = _identity(function.vendor, function.device, models)
    if function.driver is not None:
        found["driver"] = function.driver
    if function.iommu_group is not None:
        found["iommuGroup"] = function.iommu_group
    return found | _place(str(function.address), function)


def _common(port: Port, role: str, state: str) -> Attributes:
    return {"kind": port.kind, "function": role, "state": state}


def _identity(vendor: int, device: int | None, models: Models) -> Attributes:
    attributes: Attributes = {"vendor": vendor_name(vendor), "vendorID": hex_id(vendor)}
    if device is not None:
        attributes |= {"model": hex_id(device), "deviceID": hex_id(device)}
        if (model := models.get((vendor, device))) is not None:
            attributes |= {"model": model.name, "pciModel": model.pci_name}
    return attributes


def _place(bus_id: str, function: PciFunction) -> Attributes:
    place: Attributes = {"pciBusID": bus_id}
    if function.root is not None:
        place["pcieRoot"] = function.root
    if function.numa is not None:
        place["numa"] = function.numa
    return place | {_STANDARD[name]: value for name, value in place.items()}


def _vf_position(vf: VirtualFunction) -> Attributes:
    return {"pfPciBusID": str(vf.pf.address), "vfIndex": vf.index}


def _of_kind(port: Port, function: PciFunction) -> Attributes:
    match port.kind:
        case "nic":
            own = nic.attributes(function)
            if function.physfn is not None and function.driver in (None, "vfio-pci"):
                del own["rdma"]  # without its network driver a VF does not show what it can do; its PF does
            return own
        case "gpu":
            return gpu.attributes(function)
        case _:
            return {}
