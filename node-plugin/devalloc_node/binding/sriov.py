"""Binding ``sriov``: one virtual function of a card, created if need be, set up by its PF, and passed through.

Whether VFs get drivers by themselves, and how many there are, belongs to all claims that have VFs of the PF, under the
name ``pf/<address>``.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Generator
from dataclasses import dataclass, replace

from devalloc.inventory import nic
from devalloc.inventory.cards import VirtualFunction
from devalloc.inventory.locate import VfDevice, function_folder, read_function
from devalloc.inventory.pci import Address, PciFunction
from devalloc.inventory.sysfs import Folder, Tree
from devalloc.inventory.vf_creation import creation_problem, use_problem
from devalloc.inventory.vfio_refusals import pf_driver_problem, vf_refusal
from devalloc_node.binding import checks, host_changes
from devalloc_node.binding.binding import BindingConfig, HealthState, Steps
from devalloc_node.binding.checks import locate_device_of_kind, refuse_open, vfio_nodes
from devalloc_node.binding.drivers import health_of_functions
from devalloc_node.binding.vf_settings import settings_step, wanted_settings
from devalloc_node.binding.vfio_handover import (
    describe_passed_through,
    function_key,
    function_keys,
    handover_steps,
    rom_file,
    with_network,
)
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, VfsRefused
from devalloc_node.host.boundary import Host
from devalloc_node.model.grant import GrantedDevice
from devalloc_node.model.step import PreparedDevice, Step, Value


def shared_name(pf: PciFunction) -> str:
    return f"pf/{pf.address}"


def autoprobe_step(pf: PciFunction) -> Step:
    """Its VFs are to get no drivers; if the kernel has no switch for that, they do."""
    before = _autoprobe(pf.folder)
    return Step("vf-autoprobe", str(pf.address), before, None if before is None else 0, shared_name(pf))


def count_step(pf: PciFunction, after: int | None) -> Step:
    """``after`` None: as it is."""
    before = _count(pf.folder)
    return Step("vf-count", str(pf.address), before, before if after is None else after, shared_name(pf))


@dataclass(frozen=True, slots=True)
class VfAutoprobeKind:
    """0: VFs get no driver when they are made. None if the kernel has no such switch (before 4.12)."""

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
            raise Denied("VfCountFixed", f"{target} has {now} VFs; the count can change to {value} only from zero")
        if now:
            _refuse_users(tree, host_changes.function(tree, target))
        path = f"bus/pci/devices/{target}/sriov_numvfs"
        address = Address.parse(target)
        meanings = _refusals(function_folder(tree, address)) if value and address is not None else {}
        try:
            host_changes.write(self.host, path, str(value), deadline, _MAY_PASS | meanings if value else {})
        except Failed as error:
            code = error.__cause__.errno if isinstance(error.__cause__, OSError) else None
            if address is not None and code in meanings:
                raise _not_made(host_changes.function(tree, target), str(value), code, meanings[code], error) from error
            raise
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


def _refusals(pf: Folder | None) -> dict[int, str]:
    """What the kernel's refusals to make VFs mean, by errno: those that are the same each time."""
    driver = pf.link("driver") if pf is not None else None
    no_room = (
        "the firmware left too few addresses or bus numbers for so many VFs; lower --max-vfs, or enable SR-IOV and "
        "`Above 4G decoding` in the firmware"
    )
    no_driver = (
        f"its driver {driver or '(none)'} cannot make VFs; bind one that can, or publish none of its VFs (--max-vfs 0)"
    )
    in_card = "the card has too few resources for so many VFs; lower --max-vfs"
    too_many = f"{driver or 'its driver'} makes fewer; lower --max-vfs, or allow more in its firmware"
    return {errno.ENOMEM: no_room, errno.ENOSPC: in_card, errno.ERANGE: too_many} | dict.fromkeys(
        (errno.ENOENT, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENODEV), no_driver
    )


_AS_SET_UP = "its driver or the kernel makes no VFs as the card is set up now; see the kernel's log"
_MAY_PASS = {
    # Drivers refuse so while their link is down (bnx2x), or for settings of the port (ixgbe with traffic classes).
    errno.EINVAL: "its driver makes none as the card is set up now; set its link up, or lower --max-vfs",
    errno.EPERM: _AS_SET_UP,
    errno.EACCES: _AS_SET_UP,
    errno.EBUSY: "its driver or another program is at work on the card; it is tried again",
    errno.EAGAIN: "its driver is at work on the card, such as a reset; it is tried again",
    errno.ETIMEDOUT: "the card did not answer in time; see the kernel's log if it stays so",
    errno.EIO: "the card or its firmware reports an error; see the kernel's log, and load its driver anew",
}
"""What others mean, by errno: another try may end in another way."""


def _not_made(pf: PciFunction, count: str, code: int, meaning: str, error: Failed) -> VfsRefused:
    """The refusal, as one that holds for every try."""
    reason = f"{count} VFs of {pf.address} could not be made ({errno.errorcode[code]}): {meaning}"
    return VfsRefused(error, pf.address.device_name, pf.driver or "", int(count), reason)


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
            )


@dataclass(frozen=True, slots=True)
class Sriov:
    """Passes a VF through. The PF stays with the host, whatever the host uses it for."""

    host: Host
    config: BindingConfig
    name: str = "sriov"
    shares: bool = False
    located: PciFunction | VirtualFunction | None = None
    """The VF as it was when this binding was chosen for it: enough for ``keys``; ``prepare`` looks again."""

    def keys(self, granted: GrantedDevice, owner: str, held: Collection[str]) -> tuple[str, ...]:
        tree = self.host.tree()
        vf = self.located or locate_device_of_kind(tree, self.config, granted, VfDevice).vf
        function = vf.function if isinstance(vf, VirtualFunction) else vf
        return (function_key(vf.address),) if function is None else tuple(function_keys(tree, [function]))

    def prepare(self, granted: GrantedDevice, keys: Collection[str], deadline: Deadline) -> Steps:
        tree = self.host.tree()
        device = locate_device_of_kind(tree, self.config, granted, VfDevice)
        vf = device.vf
        checks.refuse_kind(self.config, device.port, "vf")
        wanted = wanted_settings(granted)
        rom_file(granted)
        _refuse_settings(vf, wanted)
        function = vf.function
        checks.refuse_in_use(tree, device.port, [function] if function is not None else [], is_vf=True)
        checks.refuse_disks(self.config, device.port, [device.port.function])
        if function is not None:
            checks.refuse_vgpus(function)
        if (useless := use_problem(vf.pf, device.port.kind) or vf_refusal(vf)) is not None:
            raise Denied("VfOfNoUse", f"{vf.address} cannot be given away: {useless}")
        if (problem := pf_driver_problem(vf)) is not None:
            raise Denied("DriverMissing", f"{vf.address} cannot be given away: {problem}")
        if function is not None:
            # The card's last user may remove them until this claim counts as another: then they are not as they were.
            # Whether others would get a driver by themselves does not matter to it.
            yield replace(count_step(vf.pf, None), more=not function.on_vfio)
        else:
            if (problem := creation_problem(vf.pf, device.port.kind, self.config.creatable_vfs)) is not None:
                raise Denied("VfsNotCreatable", f"{vf.address} does not exist: {problem}")
            yield from self._created(vf)
            tree = self.host.tree()
            function = _existing_function(tree, vf)
        checks.refuse_group(tree, self.config, [function])
        checks.refuse_without_reset(self.config, function)
        checks.refuse_useless([function])
        mac = vlan = None
        if _has_settings(vf.pf):
            step = settings_step(self.host, vf, wanted)
            mac, vlan = step.after.get("mac"), step.after.get("vlan")
            yield replace(step, more=not function.on_vfio)
        yield from handover_steps(tree, [function])
        return with_network(describe_passed_through(self.host, granted, [function]), mac, vlan)

    def observe(self, device: PreparedDevice) -> HealthState:
        return health_of_functions(self.host.tree(), device)

    def _created(self, vf: VirtualFunction) -> Generator[Step, None, None]:
        """The steps after which the VF is there."""
        pf = vf.pf
        total = pf.sriov.total if pf.sriov else 0
        count = self.config.vf_count(total)
        if vf.index >= count:
            which = f"{vf.address} will be VF {vf.index} of {pf.address}"
            raise Denied("VfNotConfigured", f"{which}, which will have {count} of at most {total}")
        if pf.iommu_group is None:
            raise Denied(
                "NoIommuGroup",
                f"{pf.address} has no IOMMU group, so its VFs would have none either (is the IOMMU enabled?)",
            )
        yield replace(autoprobe_step(pf), more=True)
        yield count_step(pf, count)


def _existing_function(tree: Tree, vf: VirtualFunction) -> PciFunction:
    function = read_function(tree, vf.address)
    if function is None or function.physfn != vf.pf.address:
        raise Failed("VfsMissing", f"{vf.address} is not a VF of {vf.pf.address} although its VFs were created")
    return function


def _has_settings(pf: PciFunction) -> bool:
    return nic.is_nic(pf) and bool(pf.folder.names("net"))


def _refuse_settings(vf: VirtualFunction, wanted: dict[str, object]) -> None:
    if wanted and not _has_settings(vf.pf):
        raise Denied(
            "ConfigUnsupported",
            f"{vf.pf.address} has no network interface in this namespace, which {', '.join(wanted)} needs",
        )
