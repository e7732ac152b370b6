"""Binding ``vgpu``: a vGPU in the vendor VFIO layout (kernel 6.8 and later), one on a VF, told by its type number."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from devalloc.inventory.class_devices import DeviceNode
from devalloc.inventory.device_users import device_nodes
from devalloc.inventory.locate import LocatedDevice, ProfileDevice
from devalloc.inventory.pci import PciFunction
from devalloc.inventory.vfio_nodes import function_nodes
from devalloc.inventory.vgpu import read_parent
from devalloc_node.binding import checks, host_changes
from devalloc_node.binding.binding import BindingConfig, HealthState, Steps
from devalloc_node.binding.checks import locate_device_of_kind, refuse_open
from devalloc_node.binding.drivers import health_of_nodes, problem_with_function
from devalloc_node.binding.vfio_handover import VGPU_TYPE, pci_location, refuse_rom_file
from devalloc_node.binding.vgpu_parents import choose_parent, recorded_parent, refuse_other_profile
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed
from devalloc_node.host.boundary import Host
from devalloc_node.model.grant import GrantedDevice
from devalloc_node.model.step import PreparedDevice, Step, Value

_FILE = "current_vgpu_type"
_PREFIX = "nvidia-"


@dataclass(frozen=True, slots=True)
class Vgpu:
    """Makes a vGPU on a VF, which stays with its host driver."""

    host: Host
    config: BindingConfig
    name: str = "vgpu"
    shares: bool = False
    located: LocatedDevice | None = None
    """The device as it was when this binding was chosen for it: enough for ``keys``; ``prepare`` looks again."""

    def keys(self, granted: GrantedDevice, owner: str, held: Collection[str]) -> tuple[str, ...]:
        tree = self.host.tree()
        device = locate_device_of_kind(tree, self.config, granted, ProfileDevice, self.located)
        return (choose_parent(tree, device, held)[1],)

    def prepare(self, granted: GrantedDevice, keys: Collection[str], deadline: Deadline) -> Steps:
        tree = self.host.tree()
        device = locate_device_of_kind(tree, self.config, granted, ProfileDevice)
        refuse_rom_file(granted)
        vf = recorded_parent(tree, device, keys)
        checks.refuse_kind(self.config, device.port, "vgpu")
        refuse_other_profile(granted, read_parent(vf, device.profile_id), device.profile_id)
        checks.refuse_group(tree, self.config, [vf])
        checks.refuse_in_use(tree, device.port, [vf])
        type_id = int(device.profile_id.removeprefix(_PREFIX))
        live = _current(vf)
        if live:
            raise Denied("DeviceInUse", f"{vf.address} already carries a vGPU ({_PREFIX}{live})")
        yield Step("vgpu", str(vf.address), live, type_id)
        after = host_changes.function(self.host.tree(), str(vf.address))
        if _current(after) != type_id or after.iommu_group is None:
            raise Failed("VgpuMissing", f"{vf.address} does not carry {device.profile_id} although it was created")
        return PreparedDevice(
            requests=granted.requests,
            pool=granted.pool,
            device=granted.device,
            binding=self.name,
            functions=(str(vf.address),),
            sysfsdev=f"bus/pci/devices/{vf.address}",
            nodes=(f"/dev/vfio/{after.iommu_group}",),
            attributes={**pci_location(after), VGPU_TYPE: device.profile_id},
            share=granted.share,
        )

    def observe(self, device: PreparedDevice) -> HealthState:
        function = problem_with_function(self.host.tree(), device.functions[0])
        if isinstance(function, HealthState):
            return function
        if not function.folder.folder("nvidia"):
            why = f"{function.address} has the driver {function.driver or 'none'}, which does not create vGPUs"
            return HealthState("unhealthy", why, "DeviceGone")
        try:
            live = _current(function)
        except Failed as error:
            return HealthState("unknown", error.message)
        if not live:
            return HealthState("unhealthy", f"{function.address} no longer carries a vGPU", "DeviceGone")
        if device.nodes != (f"/dev/vfio/{function.iommu_group}",):
            why = f"the IOMMU group of {function.address} is now {function.iommu_group}"
            return HealthState("unhealthy", why, "DriverNotBound")
        return health_of_nodes(self.host.tree(), device)


@dataclass(frozen=True, slots=True)
class VgpuKind:
    """Steps of kind ``vgpu``: the number of the type that lives on a VF, 0 for none."""

    host: Host

    def read(self, target: str) -> Value:
        return self._read(target)[1]

    def apply(self, target: str, value: Value, deadline: Deadline) -> None:
        host_changes.refuse_unanswered(self.host, target)
        function, now = self._read(target)
        if now == value:
            return
        if now and value:
            raise Denied("DeviceInUse", f"{target} carries the vGPU type {now}, so it cannot take {value}")
        if value:
            self._refuse_type(function, value)
        else:
            # A machine that loses its vGPU is lost: nothing is written while a process has it open (T8).
            refuse_open(self.host.tree(), _nodes(function), f"the vGPU on {target}", certain=True)
        host_changes.write(self.host, f"bus/pci/devices/{target}/nvidia/{_FILE}", str(value), deadline)
        after = self.read(target)
        if after != value:
            raise Failed("VgpuMissing", f"{target} carries the vGPU type {after} after {value} was written")

    def taken_over(self, step: Step, *, finished: bool) -> str | None:
        """Others put another type there than was requested, perhaps just before."""
        live = self.read(step.target)
        return None if live in (0, step.before, step.after) else f"{step.target} carries the vGPU type {live}"

    def _read(self, target: str) -> tuple[PciFunction, int]:
        function = host_changes.function(self.host.tree(), target)
        current = _current(function)
        if current is None:
            raise Denied("DeviceGone", f"{target} can no longer carry vGPUs (driver: {function.driver or 'none'})")
        return function, current

    def _refuse_type(self, function: PciFunction, value: int) -> None:
        nvidia = function.folder.folder("nvidia")
        rows = (nvidia.text("creatable_vgpu_types") if nvidia else None) or ""
        creatable = {
            number.strip(): name.strip() for number, _, name in (row.partition(":") for row in rows.splitlines())
        }
        if str(value) not in creatable:
            names = ", ".join(name for number, name in creatable.items() if number.isdecimal())
            raise Denied("DeviceExhausted", f"{function.address} has no room for vGPU type {value}; the driver would "
                         f"create {names or 'nothing'}")  # fmt: skip


def _current(function: PciFunction) -> int | None:
    nvidia = function.folder.folder("nvidia")
    return host_changes.number(nvidia, _FILE) if nvidia else None


def _nodes(function: PciFunction) -> set[DeviceNode]:
    """What a machine opens of a vGPU; the VF's driver is the vendor's, so it does not look like VFIO's."""
    return {*function_nodes(function), *device_nodes(function)}
