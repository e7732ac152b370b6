"""Binding ``vgpu``: a vGPU in the vendor VFIO layout (kernel 6.8 and later), one on a VF, told by its type number."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from devalloc.inventory.holders import nodes_of
from devalloc.inventory.locate import Located, ProfileDevice
from devalloc.inventory.pci import PciFunction
from devalloc_node.binding import change, refusals
from devalloc_node.binding.binding import Health, Steps
from devalloc_node.binding.config import BindingConfig
from devalloc_node.binding.find import find
from devalloc_node.binding.handover import place
from devalloc_node.binding.health import HEALTHY, present
from devalloc_node.binding.parents import choose_parent, kept_parent
from devalloc_node.binding.profiles import refuse_other_profile
from devalloc_node.binding.use import own_nodes, refuse_open
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed
from devalloc_node.grant import GrantedDevice
from devalloc_node.host.boundary import Host
from devalloc_node.prepared import PreparedDevice
from devalloc_node.step import Step, Value

_FILE = "current_vgpu_type"
_PREFIX = "nvidia-"


@dataclass(frozen=True, slots=True)
class Vgpu:
    """Makes a vGPU on a VF, which stays with its host driver."""

    host: Host
    config: BindingConfig
    name: str = "vgpu"
    shares: bool = False
    seen: Located | None = None
    """The device as it was when this binding was chosen for it: enough for ``keys``; ``prepare`` looks again."""

    def keys(self, granted: GrantedDevice, owner: str, held: Collection[str]) -> tuple[str, ...]:
        tree = self.host.tree()
        device = find(tree, self.config, granted, ProfileDevice, self.seen)
        return (choose_parent(tree, device, held)[1],)

    def prepare(self, granted: GrantedDevice, keys: Collection[str], deadline: Deadline) -> Steps:
        tree = self.host.tree()
        device = find(tree, self.config, granted, ProfileDevice)
        vf = kept_parent(tree, device, keys)
        refusals.refuse_kind(self.config, device.port, "vgpu")
        refuse_other_profile(granted, vf, device.profile_id)
        refusals.refuse_group(tree, self.config, [vf])
        refusals.refuse_held(tree, device.port, [vf])
        type_id = int(device.profile_id.removeprefix(_PREFIX))
        live = _current(vf)
        if live:
            raise Denied("DeviceInUse", f"{vf.address} carries a vGPU already ({_PREFIX}{live})", retryable=True)
        yield Step("vgpu", str(vf.address), live, type_id)
        after = change.function(self.host.tree(), str(vf.address))
        if _current(after) != type_id or after.iommu_group is None:
            raise Failed("VgpuMissing", f"{vf.address} carries no {device.profile_id} after it was made")
        return PreparedDevice(
            requests=granted.requests,
            pool=granted.pool,
            device=granted.device,
            binding=self.name,
            functions=(str(vf.address),),
            sysfsdev=f"bus/pci/devices/{vf.address}",
            nodes=(f"/dev/vfio/{after.iommu_group}",),
            attributes=place(after),
            share=granted.share,
        )

    def observe(self, device: PreparedDevice) -> Health:
        function = present(self.host.tree(), device.functions[0])
        if isinstance(function, Health):
            return function
        if not function.folder.folder("nvidia"):
            return Health(
                "unhealthy", f"{function.address} has the driver {function.driver or 'none'}, which makes no vGPUs"
            )
        try:
            live = _current(function)
        except Failed as error:
            return Health("unknown", error.message)
        if not live:
            return Health("unhealthy", f"{function.address} carries no vGPU any more")
        if device.nodes != (f"/dev/vfio/{function.iommu_group}",):
            return Health("unhealthy", f"the IOMMU group of {function.address} is {function.iommu_group} now")
        return HEALTHY


@dataclass(frozen=True, slots=True)
class VgpuKind:
    """Steps of kind ``vgpu``: the number of the type that lives on a VF, 0 for none."""

    host: Host

    def read(self, target: str) -> Value:
        return self._read(target)[1]

    def apply(self, target: str, value: Value, deadline: Deadline) -> None:
        change.refuse_unanswered(self.host, target)
        function, now = self._read(target)
        if now == value:
            return
        if now and value:
            raise Denied(
                "DeviceInUse", f"{target} carries the vGPU type {now}, so it cannot take {value}", retryable=True
            )
        if value:
            self._refuse_type(function, value)
        else:
            # A machine that loses its vGPU is lost: not a word is written unless nobody has it open (T8).
            refuse_open(self.host.tree(), _nodes(function), f"the vGPU on {target}", certain=True)
        change.write(self.host, f"bus/pci/devices/{target}/nvidia/{_FILE}", str(value), deadline)
        after = self.read(target)
        if after != value:
            raise Failed("VgpuMissing", f"{target} carries the vGPU type {after} after {value} was written")

    def taken_over(self, step: Step, *, finished: bool) -> str | None:
        """Another type than was asked for was put there by somebody else, perhaps just before."""
        live = self.read(step.target)
        return None if live in (0, step.before, step.after) else f"{step.target} carries the vGPU type {live}"

    def _read(self, target: str) -> tuple[PciFunction, int]:
        function = change.function(self.host.tree(), target)
        current = _current(function)
        if current is None:
            raise Denied("DeviceGone", f"{target} cannot carry vGPUs any more (driver: {function.driver or 'none'})")
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
                         f"create {names or 'nothing'}", retryable=True)  # fmt: skip


def _current(function: PciFunction) -> int | None:
    nvidia = function.folder.folder("nvidia")
    return change.number(nvidia, _FILE) if nvidia else None


def _nodes(function: PciFunction) -> set[str]:
    """What a machine opens of a vGPU; the VF's driver is the vendor's, so it does not look like VFIO's."""
    return {*own_nodes(function), *nodes_of(function)}
