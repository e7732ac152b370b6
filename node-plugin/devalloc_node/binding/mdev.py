"""Binding ``mdev``: a mediated device, made under a UUID of its own; or one that was there before.

Its parent is a function of a card, for vGPUs, or anything else that a driver has registered as a parent. The parent
stays with its driver.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass

from devalloc.inventory.device_parents import ParentDevice
from devalloc.inventory.locate import InstanceDevice, LocatedDevice, ProfileDevice, mdev_folder
from devalloc.inventory.mdev_parents import MdevParentDevice, find_mdev_parent
from devalloc.inventory.pci import Address
from devalloc.inventory.sysfs import Folder, Tree
from devalloc.inventory.vgpu import mdev_nodes, read_parent
from devalloc_node.binding import checks, host_changes
from devalloc_node.binding.binding import BindingConfig, HealthState, Steps
from devalloc_node.binding.checks import locate_device, refuse_open
from devalloc_node.binding.drivers import health_of_nodes, problem_with_function
from devalloc_node.binding.vfio_handover import MDEV_TYPE, pci_location, refuse_rom_file
from devalloc_node.binding.vgpu_parents import choose_parent, choose_place, recorded_parent, refuse_other_profile
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed
from devalloc_node.host.boundary import Host
from devalloc_node.host.files import is_name
from devalloc_node.model.grant import GrantedDevice
from devalloc_node.model.step import NUMA_NODE, Attribute, PreparedDevice, Step, Value

_SPACE = uuid.UUID("5b0f3f4e-8d0c-5e43-9d0e-6f1d1a1d7c55")
"""The name space of our UUIDs: of one claim and device it is always the same."""
_PREFIX = "mdev/"


@dataclass(frozen=True, slots=True)
class Mdev:
    """Makes a mediated device on a parent, which stays with its host driver."""

    host: Host
    config: BindingConfig
    name: str = "mdev"
    shares: bool = False
    located: LocatedDevice | None = None
    """The device as it was when this binding was chosen for it: enough for ``keys``; ``prepare`` looks again."""

    def keys(self, granted: GrantedDevice, owner: str, held: Collection[str]) -> tuple[str, ...]:
        tree = self.host.tree()
        device = self.located or locate_device(tree, self.config, granted)
        match device:
            case InstanceDevice() | MdevParentDevice(uuid=str()):
                return (f"{_PREFIX}{device.uuid}",)
            case ProfileDevice():
                place = choose_parent(tree, device, held)[1]
            case MdevParentDevice():
                place = choose_place(device, held)
            case _:
                raise Denied("DeviceUnknown", f"{granted.device!r} is no longer a vGPU")
        name = f"{owner}/{granted.pool}/{granted.device}/{granted.share or ''}"
        return place, f"{_PREFIX}{uuid.uuid5(_SPACE, name)}"

    def prepare(self, granted: GrantedDevice, keys: Collection[str], deadline: Deadline) -> Steps:
        tree = self.host.tree()
        device = locate_device(tree, self.config, granted)
        refuse_rom_file(granted)
        if isinstance(device, ParentDevice):
            checks.refuse_offer(self.config, device.parent.name, device.parent.kind.name)
        else:
            checks.refuse_kind(self.config, device.port, "vgpu")
        match device:
            case InstanceDevice(uuid=existing) | MdevParentDevice(uuid=str(existing)):
                return self._adopted(tree, granted, existing)
            case ProfileDevice(profile_id=profile):
                parent = self._checked_parent(tree, granted, device, keys)
            case MdevParentDevice(profile_id=str(profile)):
                refuse_other_profile(granted, device.parent.read(profile), profile)
                parent = device.parent.name
            case _:
                raise Denied("DeviceUnknown", f"{granted.device!r} is no longer a vGPU")
        own = next(key.removeprefix(_PREFIX) for key in keys if key.startswith(_PREFIX))
        yield Step("mdev", own, None, {"parent": parent, "type": profile})
        return self._prepared(self.host.tree(), granted, own)

    def _checked_parent(self, tree: Tree, granted: GrantedDevice, device: ProfileDevice, keys: Collection[str]) -> str:
        """The function that was chosen for a vGPU; raises Denied if it must not be used."""
        parent = recorded_parent(tree, device, keys)
        refuse_other_profile(granted, read_parent(parent, device.profile_id), device.profile_id)
        if parent.physfn is not None:
            checks.refuse_group(tree, self.config, [parent])
        checks.refuse_in_use(tree, device.port, [parent] if parent.physfn is not None else [])
        return str(parent.address)

    def observe(self, device: PreparedDevice) -> HealthState:
        tree = self.host.tree()
        for function in device.functions:
            parent = problem_with_function(tree, function)
            if isinstance(parent, HealthState):
                return parent
        folder = mdev_folder(tree, device.mdev_uuid or "")
        if folder is None:
            why = f"the mediated device {device.mdev_uuid} no longer exists"
            return HealthState("unhealthy", why, "DeviceGone")
        if device.nodes != (f"/dev/vfio/{folder.link('iommu_group')}",):
            why = f"the IOMMU group of {device.mdev_uuid} is now {folder.link('iommu_group')}"
            return HealthState("unhealthy", why, "DriverNotBound")
        return health_of_nodes(tree, device)

    def _adopted(self, tree: Tree, granted: GrantedDevice, existing: str) -> PreparedDevice:
        """If the admin asked for that, a vGPU that others made is used and left as it is (T8)."""
        if granted.device not in self.config.adopt:
            raise Denied(
                "DeviceInUse",
                f"the mediated device {existing} was created by another program; `--adopt {granted.device}` offers it",
            )
        folder = mdev_folder(tree, existing)
        refuse_open(tree, mdev_nodes(folder) if folder else (), f"the mediated device {existing}", certain=True)
        return self._prepared(tree, granted, existing)

    def _prepared(self, tree: Tree, granted: GrantedDevice, own: str) -> PreparedDevice:
        folder = mdev_folder(tree, own)
        group = folder.link("iommu_group") if folder else None
        if folder is None or group is None:
            raise Failed("VgpuMissing", f"the mediated device {own} has no IOMMU group, so no machine can use it")
        parent = _parent(folder)
        functions = () if Address.parse(parent) is None else (parent,)
        location: dict[str, Attribute] = {}
        if functions:
            location = pci_location(host_changes.function(tree, parent))
        elif (other := find_mdev_parent(tree, parent)) is not None and other.numa is not None:
            location = {NUMA_NODE: other.numa}
        return PreparedDevice(
            requests=granted.requests,
            pool=granted.pool,
            device=granted.device,
            binding=self.name,
            functions=functions,
            mdev_uuid=own,
            sysfsdev=f"bus/mdev/devices/{own}",
            nodes=(f"/dev/vfio/{group}",),
            attributes={
                **location,
                "mdevUUID": own,
                **({} if (kind := folder.link("mdev_type")) is None else {MDEV_TYPE: kind}),
            },
            share=granted.share,
        )


@dataclass(frozen=True, slots=True)
class MdevKind:
    """Steps of kind ``mdev``: the mediated device of a UUID, as ``{"parent": its name, "type": id}``, or None."""

    host: Host

    def read(self, target: str) -> Value:
        folder = mdev_folder(self.host.tree(), target)
        return {"parent": _parent(folder), "type": folder.link("mdev_type")} if folder else None

    def apply(self, target: str, value: Value, deadline: Deadline) -> None:
        host_changes.refuse_unanswered(self.host, target)
        now = self.read(target)
        if now == value:
            return
        if now is not None:
            tree = self.host.tree()
            folder = mdev_folder(tree, target)
            nodes = mdev_nodes(folder) if folder else set()
            # A machine that loses its vGPU is lost: nothing is written while a process has it open (T8).
            refuse_open(tree, nodes, f"the mediated device {target}", certain=True)
            host_changes.write(self.host, f"bus/mdev/devices/{target}/remove", "1", deadline)
        if value is not None:
            self._create(target, value, deadline)
        after = self.read(target)
        if after != value:
            raise Failed(
                "VgpuMissing", f"the mediated device {target} is {after or 'not there'}, not {value or 'gone'}"
            )

    def _create(self, target: str, value: Value, deadline: Deadline) -> None:
        parent, kind = str(value["parent"]), str(value["type"])
        tree = self.host.tree()
        if Address.parse(parent) is not None:
            folder, path = host_changes.function(tree, parent).folder, f"bus/pci/devices/{parent}"
        else:
            other = find_mdev_parent(tree, parent)
            if other is None:
                raise Denied("DeviceGone", f"{parent} no longer exists")
            folder, path = other.folder, f"class/mdev_bus/{other.name}"
        place = folder.folder("mdev_supported_types", kind) if is_name(kind) else None
        if place is None:
            raise Denied("DeviceGone", f"{parent} no longer offers {kind}")
        if not place.number("available_instances"):
            raise Denied("DeviceExhausted", f"{parent} has no room for {place.text('name') or kind}")
        host_changes.write(self.host, f"{path}/mdev_supported_types/{kind}/create", target, deadline)


def _parent(folder: Folder) -> str:
    """The address or name of its parent: the folder around its own."""
    return folder.path.rpartition("/")[0].rpartition("/")[2]
