"""The vGPU half of the fake kernel: mdev instances, and the vendor VFIO layout (`nvidia/current_vgpu_type`).

A card's framebuffer is shared by all its parents (its VFs, or the PF itself on cards without SR-IOV). After every
change the numbers of all parents that are others now are written, as the driver computes them when they are read.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.fake_tree import fail
from tests.support.pci_cards import Vgpu, VgpuType

if TYPE_CHECKING:
    from tests.support.fake_sysfs import FakeSysfs

_HEADER = "ID    : vGPU Name\n"


@dataclass(frozen=True)
class VgpuInstance:
    """A live vGPU: on which parent, of which type."""

    parent: str
    type: VgpuType


class VgpuKernel:
    """mdev and vendor VFIO for the cards of one host."""

    def __init__(self, host: FakeSysfs) -> None:
        self._host = host
        self._groups: dict[str, int] = {}
        self._shown: dict[str, dict[str, str]] = {}
        """What the files of a parent say that change by what others do: by address and path."""
        self.mdevs: dict[str, VgpuInstance] = {}
        """By UUID."""
        self.parents: dict[str, Vgpu] = {}
        """Parents that are no functions, by name."""
        self.current: dict[str, VgpuType] = {}
        """By address of the VF, in the vendor VFIO layout."""

    def offer(self, address: str) -> None:
        """The driver has bound a function: if it can be a parent, its profile files appear."""
        vgpu = self._card(address)
        if vgpu is None or not self._is_parent(address):
            return
        path = self._host.path(address)
        if vgpu.layout == "vfio":
            for name in ("gpu_instance_id", "placement_id", "vgpu_params", "warm_update"):
                self._host.write(f"{path}/nvidia/{name}", "")
        else:
            for folder in ("drivers/nvidia-vgpu-vfio", "devices"):
                (self._host.sys / "bus/mdev" / folder).mkdir(parents=True, exist_ok=True)
            for kind in vgpu.types:
                folder = f"{path}/mdev_supported_types/{kind.id}"
                self._host.write(f"{folder}/name", kind.name)
                self._host.write(f"{folder}/description", kind.description)
                self._host.write(f"{folder}/device_api", "vfio-pci")
                self._host.touch(f"{folder}/create")
                (self._host.sys / folder / "devices").mkdir(exist_ok=True)
            self._host.link(f"class/mdev_bus/{address}", path)
        self._shown.pop(address, None)
        self._show(address, self._live(address))

    def add_parent(self, name: str, offered: Vgpu, device_api: str = "vfio-pci") -> None:
        """A driver registers a parent that is not a PCI function. Its types share its size, like ports of a card."""
        self.parents[name] = offered
        path = self._path(name)
        for folder in ("drivers", "devices"):
            (self._host.sys / "bus/mdev" / folder).mkdir(parents=True, exist_ok=True)
        for kind in offered.types:
            folder = f"{path}/mdev_supported_types/{kind.id}"
            self._host.write(f"{folder}/name", kind.name)
            self._host.write(f"{folder}/device_api", device_api)
            self._host.touch(f"{folder}/create")
            (self._host.sys / folder / "devices").mkdir(exist_ok=True)
        self._host.link(f"class/mdev_bus/{name}", path)
        self._show(name, self._live(name))

    def _path(self, parent: str) -> str:
        return f"devices/virtual/{parent}/{parent}" if parent in self.parents else self._host.path(parent)

    def withdraw(self, address: str) -> None:
        """The driver leaves a function: its instances and profile files go."""
        vgpu = self._card(address)
        if vgpu is None or not self._is_parent(address):
            return
        for uuid in [uuid for uuid, instance in self.mdevs.items() if instance.parent == address]:
            self.remove(uuid)
        for name in ("nvidia", "mdev_supported_types"):
            if (self._host.sys / self._host.path(address, name)).exists():
                self._host.remove(self._host.path(address, name))
        self._host.remove(f"class/mdev_bus/{address}")
        if self.current.pop(address, None):
            self._refresh(address)

    def take_over(self, uuid: str, instance: VgpuInstance, group: int) -> None:
        """An mdev that the tree has already."""
        self.mdevs[uuid] = instance
        self._groups[uuid] = group
        path = self._host.path(instance.parent)
        self._host.link(f"{path}/mdev_supported_types/{instance.type.id}/devices/{uuid}", f"{path}/{uuid}")
        self._host.touch(f"{path}/{uuid}/remove")
        self._host.vfio_group(group, present=True)

    def create(self, parent: str, type_id: str, uuid: str) -> None:
        """A write to mdev_supported_types/TYPE/create."""
        host, path = self._host, self._path(parent)
        folder = f"{path}/mdev_supported_types/{type_id}"
        if not (host.sys / folder).exists():
            raise fail(errno.ENOENT, folder)
        if len(uuid) != 36:
            raise fail(errno.EINVAL, folder)
        if uuid in self.mdevs:
            raise fail(errno.EEXIST, uuid)
        kind = next(t for t in self._types(parent) if t.id == type_id)
        if self.available(parent, kind) < 1:
            raise fail(errno.ENOSPC, folder)
        self.mdevs[uuid] = VgpuInstance(parent, kind)
        mdev = f"{path}/{uuid}"
        host.write(f"{mdev}/uevent", "DRIVER=nvidia-vgpu-vfio")
        host.write(f"{mdev}/nvidia/vm_name", "")
        host.write(f"{mdev}/nvidia/vgpu_params", "")
        host.touch(f"{mdev}/remove")
        host.link(f"{mdev}/mdev_type", folder)
        host.link(f"{mdev}/driver", "bus/mdev/drivers/nvidia-vgpu-vfio")
        host.link(f"{mdev}/subsystem", "bus/mdev")
        host.link(f"{folder}/devices/{uuid}", mdev)
        host.link(f"bus/mdev/devices/{uuid}", mdev)
        group = host.group_of("own")
        assert group is not None
        self._groups[uuid] = group
        host.join_group(group, uuid, mdev)
        host.vfio_group(group, present=True)
        self._refresh(parent)
        host.emit("add", "mdev", mdev)

    def remove(self, uuid: str) -> None:
        """A write of 1 to an instance's `remove`."""
        if uuid not in self.mdevs:
            raise fail(errno.ENODEV, uuid)
        host, instance = self._host, self.mdevs.pop(uuid)
        path = self._path(instance.parent)
        group = self._groups.pop(uuid)
        host.leave_group(group, uuid)
        host.vfio_group(group, present=False)
        host.remove(f"bus/mdev/devices/{uuid}")
        host.remove(f"{path}/mdev_supported_types/{instance.type.id}/devices/{uuid}")
        host.remove(f"{path}/{uuid}")
        self._refresh(instance.parent)
        host.emit("remove", "mdev", f"{path}/{uuid}")

    def set_type(self, vf: str, type_id: str) -> None:
        """A write to nvidia/current_vgpu_type: a type from the list creates, 0 destroys.

        A second type over the first, or one that is not in the list, is refused with EPERM.
        """
        file = self._host.path(vf, "nvidia/current_vgpu_type")
        if not (self._host.sys / file).exists():
            raise fail(errno.ENOENT, file)
        group = self._host.functions[vf].group
        if type_id == "0":
            self.current.pop(vf, None)
            if group is not None:
                self._host.vfio_group(group, present=False)
        else:
            kind = next((t for t in self._types(vf) if t.id == type_id), None)
            if kind is None or self.available(vf, kind) < 1:
                raise fail(errno.EPERM, file)
            self.current[vf] = kind
            if group is not None:
                self._host.vfio_group(group, present=True)
        self._refresh(vf)
        self._host.emit("change", "pci", self._host.path(vf))

    def available(self, parent: str, kind: VgpuType) -> int:
        """How many more instances of a type this parent takes now."""
        return self._left(parent, kind, self._live(parent))

    def _left(self, parent: str, kind: VgpuType, live: list[VgpuInstance]) -> int:
        vgpu = self._card(parent)
        assert vgpu is not None
        if vgpu.one_size and any(i.type.framebuffer != kind.framebuffer for i in live):
            return 0
        free = (vgpu.framebuffer - sum(i.type.framebuffer for i in live)) // kind.framebuffer
        left = max(0, min(free, kind.max_instance - sum(i.type == kind for i in live)))
        if parent in self.parents or self._host.functions[parent].pf is None:
            return left
        return 0 if any(i.parent == parent for i in live) else min(1, left)

    def _live(self, address: str) -> list[VgpuInstance]:
        """The instances of the whole card."""
        card = self._pf(address)
        current = [VgpuInstance(vf, kind) for vf, kind in self.current.items()]
        return [i for i in (*self.mdevs.values(), *current) if self._pf(i.parent) == card]

    def _refresh(self, address: str) -> None:
        """Show anew what all parents of the card have left."""
        card, live = self._pf(address), self._live(address)
        for parent in (*self._host.functions, *self.parents):
            if self._pf(parent) == card and self._is_parent(parent):
                self._show(parent, live)

    def _show(self, parent: str, live: list[VgpuInstance]) -> None:
        path = self._path(parent)
        left = {kind: self._left(parent, kind, live) for kind in self._types(parent)}
        now: dict[str, str] = {}
        if (self._host.sys / path / "mdev_supported_types").exists():
            for kind, number in left.items():
                now[f"{path}/mdev_supported_types/{kind.id}/available_instances"] = str(number)
        if (self._host.sys / path / "nvidia").exists():
            rows = [f"{kind.id:<6}: {kind.name}\n" for kind, number in left.items() if number]
            current = self.current.get(parent)
            now[f"{path}/nvidia/creatable_vgpu_types"] = _HEADER + "".join(rows)
            now[f"{path}/nvidia/current_vgpu_type"] = current.id if current else "0"
        before = self._shown.get(parent, {})
        self._shown[parent] = now
        for file, text in now.items():
            if before.get(file) != text and (self._host.sys / file).parent.exists():
                self._host.write(file, text)

    def _pf(self, address: str) -> str:
        return address if address in self.parents else self._host.functions[address].pf or address

    def _card(self, address: str) -> Vgpu | None:
        return self.parents.get(address) or self._host.functions[self._pf(address)].spec.vgpu

    def _types(self, address: str) -> tuple[VgpuType, ...]:
        vgpu = self._card(address)
        return vgpu.types if vgpu else ()

    def _is_parent(self, address: str) -> bool:
        """VFs are parents where the card has SR-IOV, else the PF is."""
        return address in self.parents or (self._host.functions[address].pf is None) == (
            self._host.functions[self._pf(address)].spec.sriov is None
        )
