"""Steps of kinds ``vf-autoprobe`` and ``vf-count``: whether a PF's VFs get drivers by themselves, and how many it has.

Both belong to all claims that have VFs of the PF, under the name ``pf/<address>``.
"""

from __future__ import annotations

from dataclasses import dataclass

from devalloc.inventory.locate import function_folder, read_function
from devalloc.inventory.pci import PciFunction
from devalloc.inventory.sysfs import Folder, Tree
from devalloc_node.binding import host_changes
from devalloc_node.binding.device_users import refuse_open, vfio_nodes
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed
from devalloc_node.host.boundary import Host
from devalloc_node.model.step import Step, Value


def shared_name(pf: PciFunction) -> str:
    return f"pf/{pf.address}"


def autoprobe_step(pf: PciFunction) -> Step:
    """Its VFs are to get no drivers; where the kernel has no switch for that, they do."""
    before = _autoprobe(pf.folder)
    return Step("vf-autoprobe", str(pf.address), before, None if before is None else 0, shared_name(pf))


def count_step(pf: PciFunction, after: int | None) -> Step:
    """``after`` None: as it is."""
    before = _count(pf.folder)
    return Step("vf-count", str(pf.address), before, before if after is None else after, shared_name(pf))


@dataclass(frozen=True, slots=True)
class VfAutoprobeKind:
    """0: VFs get no driver when they are made. None where the kernel has no such switch (before 4.12)."""

    host: Host

    def read(self, target: str) -> Value:
        return _autoprobe(host_changes.folder(self.host.tree(), target))

    def apply(self, target: str, value: Value, deadline: Deadline) -> None:
        if self.read(target) == value:
            return
        host_changes.write(self.host, f"bus/pci/devices/{target}/sriov_drivers_autoprobe", str(value), deadline)
        if self.read(target) != value:
            raise Failed("HostRefused", f"{target} keeps sriov_drivers_autoprobe at {self.read(target)}")


@dataclass(frozen=True, slots=True)
class VfCountKind:
    """How many VFs a PF has: changed from none and to none only, and never while VFs are in use."""

    host: Host

    def read(self, target: str) -> Value:
        return _count(host_changes.folder(self.host.tree(), target))

    def apply(self, target: str, value: Value, deadline: Deadline) -> None:
        host_changes.refuse_unanswered(self.host, target)
        tree = self.host.tree()
        now = _count(host_changes.folder(tree, target))
        # The kernel shows the number once all exist; one may since have been removed by its own `remove`.
        if now == value:
            return
        if now and value:
            raise Denied(
                "VfCountFixed",
                f"{target} has {now} VFs; the count can change to {value} only from zero",
                retryable=True,
            )
        if now:
            _refuse_users(tree, host_changes.function(tree, target))
        host_changes.write(self.host, f"bus/pci/devices/{target}/sriov_numvfs", str(value), deadline)
        tree = self.host.tree()
        pf = host_changes.function(tree, target)
        there = [address for _, address in pf.virtfns if function_folder(tree, address) is not None]
        if _count(pf.folder) != value or len(there) != value:
            raise Failed("VfsMissing", f"{target} has {len(there)} VFs although {value} were requested")

    def taken_over(self, step: Step, *, finished: bool) -> str | None:
        """VFs that were not made by the step are not removed, nor created again if others removed them (T8). While it
        is not known to be done, fewer than were asked for are its own: drivers may make some and give up."""
        count = self.read(step.target)
        return f"{step.target} has {count} VFs" if finished and count not in (step.before, step.after) else None


def _autoprobe(pf: Folder) -> int | None:
    return host_changes.number(pf, "sriov_drivers_autoprobe")


def _count(pf: Folder) -> int:
    count = host_changes.number(pf, "sriov_numvfs")
    if count is None:
        raise Denied("DeviceGone", f"{pf.name} no longer has VFs to configure")
    return count


def _refuse_users(tree: Tree, pf: PciFunction) -> None:
    """The plugin's own VFs have been given back by now, and none gets a driver by itself: what has one is used."""
    for _, address in pf.virtfns:
        vf = read_function(tree, address)
        if vf is not None and vf.driver is not None:
            refuse_open(tree, vfio_nodes([vf]), str(vf.address), certain=False)
            raise Denied(
                "VfsInUse",
                f"the VFs of {pf.address} stay: {vf.address} has the driver {vf.driver}, which "
                "devalloc did not bind; unbind it, and devalloc removes them",
                retryable=True,
            )
