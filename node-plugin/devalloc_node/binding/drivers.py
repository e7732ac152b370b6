"""Steps of kind ``driver``: which driver has a function, and what overrides the choice of one.

A value is ``{"driver": name or None, "override": name or None}``. Between two drivers it may have ``next``, too: the
drivers that this function and those that go with it had before, and get next if the steps are undone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from devalloc.inventory.locate import function_folder, read_function
from devalloc.inventory.pci import Address, PciFunction, is_vfio_driver, responds
from devalloc.inventory.resets import has_own_reset, hot_reset, slot_reset
from devalloc.inventory.sysfs import Folder, Tree
from devalloc_node.binding import host_changes
from devalloc_node.binding.binding import HealthState
from devalloc_node.binding.checks import refuse_open, vfio_nodes
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed
from devalloc_node.host.boundary import Host
from devalloc_node.model.step import PreparedDevice, Step, Value

_NONE = "(null)"


def state(folder: Folder) -> dict[str, Value]:
    """The value of the step kind for the function in a folder."""
    override = folder.text("driver_override")
    return {"driver": folder.link("driver"), "override": None if override == _NONE else override}


@dataclass(frozen=True, slots=True)
class DriverKind:
    """Reads and sets the driver of the function whose address is the target."""

    host: Host

    def read(self, target: str) -> Value:
        return state(host_changes.folder(self.host.tree(), target))

    def apply(self, target: str, value: Value, deadline: Deadline) -> None:
        host_changes.refuse_unanswered(self.host, target)
        folder = host_changes.folder(self.host.tree(), target)
        now, wanted = state(folder), value["driver"]
        if now["driver"] != wanted:
            # Otherwise it would have no driver until that one is loaded.
            if wanted is not None and not _is_loaded(folder.tree, wanted):
                raise _not_bound(target, now["driver"], wanted, loaded=False)
            for driver in value.get("next", ()):
                if not _is_loaded(folder.tree, driver):
                    raise Failed(
                        "DriverNotBound",
                        f"{target} keeps {now['driver']} until the driver {driver} "
                        "exists, which it or a device bound with it needs; is its module "
                        "loaded?",
                    )
            if is_vfio_driver(now["driver"]):
                self._refuse_open(target)
            # By name, so that it is this driver although another would match too; and before it is without a driver,
            # so that none of those takes it in between (udev, or a module that is loaded just now).
            override = wanted or value["override"]
            self._override(target, now["override"], override, deadline)
            if now["driver"] is not None:
                host_changes.write(self.host, f"bus/pci/drivers/{now['driver']}/unbind", target, deadline)
                now = self._expected(folder, target, None, override)
            if wanted is not None and now["driver"] != wanted:
                host_changes.write(self.host, "bus/pci/drivers_probe", target, deadline)
            now = self._expected(folder, target, wanted, override)
        if now["override"] == value["override"]:
            return
        self._override(target, now["override"], value["override"], deadline)
        # A process that probes all devices gives it to the driver that the override names, one step early.
        after = self._expected(folder, target, wanted, value["override"] if wanted is None else wanted)
        if after["override"] != value["override"]:
            raise Failed("DriverNotBound", f"{target} has the override {after['override']}, not {value['override']}")

    def taken_over(self, step: Step, *, finished: bool) -> str | None:
        """Another program bound a driver that the step did not ask for: perhaps the host has its card back,
        and needs it."""
        driver = self.read(step.target)["driver"]
        if driver in (None, step.before["driver"], step.after["driver"], step.after["override"]):
            return None
        return f"{step.target} has the driver {driver}"

    def _refuse_open(self, target: str) -> None:
        tree = self.host.tree()
        # While a machine holds it the kernel would block, and make the machine start an unplug of its own.
        refuse_open(tree, vfio_nodes([host_changes.function(tree, target)]), target, certain=False)

    def _override(self, target: str, now: str | None, wanted: str | None, deadline: Deadline) -> None:
        if now != wanted:
            host_changes.write(self.host, f"bus/pci/devices/{target}/driver_override", f"{wanted or ''}\n", deadline)

    def _expected(self, folder: Folder, target: str, wanted: str | None, also: str | None) -> dict[str, Value]:
        current = state(folder)
        if current["driver"] is None:
            host_changes.folder(self.host.tree(), target)  # it may not be there any more
        if current["driver"] not in (wanted, also):
            raise _not_bound(target, current["driver"], wanted, loaded=wanted is None or current["driver"] is not None)
        return current


def _is_loaded(tree: Tree, driver: str) -> bool:
    return tree.sys is not None and tree.sys.folder("bus", "pci", "drivers", driver) is not None


def _not_bound(target: str, driver: str | None, wanted: str | None, *, loaded: bool) -> Failed:
    why = "" if loaded else "; is its module loaded?"
    return Failed("DriverNotBound", f"{target} has the driver {driver}, not {wanted}{why}")


@dataclass(frozen=True, slots=True)
class ResetKind:
    """Steps of kind ``reset``: ``"used"`` when a device is handed over, ``"clean"`` before it goes to the next owner.

    Either way it is reset, for what it was used for cannot be read: by the host's driver, or by another program that
    had it before. That happens whenever VFIO has it, or had it until that was taken away: a function level or bus
    reset, whichever the kernel knows for the function, or that of its card as a whole, by the bridge above or by VFIO.
    A host driver that has it back has set it up anew, and would be disturbed.
    """

    host: Host

    def read(self, target: str) -> Value:
        driver = host_changes.folder(self.host.tree(), target).link("driver")
        return "used" if is_vfio_driver(driver) else "clean"

    def apply(self, target: str, value: Value, deadline: Deadline) -> None:
        tree = self.host.tree()
        function = host_changes.function(tree, target)
        if not (function.on_vfio or function.driver is None):
            return
        refuse_open(tree, vfio_nodes([function]), target, certain=False)
        before = _usable(function.header)
        try:
            if has_own_reset(function):
                host_changes.write(self.host, f"bus/pci/devices/{target}/reset", "1", deadline)
            # Rather by VFIO than by the bridge: only VFIO refuses it while a process has a part of the card.
            elif functions := _reset_by_vfio(tree, function):
                self._hot_reset(functions, deadline)
            else:
                file = _reset_of_slot(tree, function)
                host_changes.write(self.host, f"bus/pci/devices/{file}", "1", deadline)
        except Failed as error:
            if error.code == "ResetFailed":
                raise
            raise Failed("ResetFailed", f"{target} could not be reset: {error}") from error
        function = host_changes.function(self.host.tree(), target)
        header = function.header
        if not responds(header):
            raise Failed("ResetFailed", f"{target} does not respond after its reset")
        after = _usable(header)
        changed = [name for name, place in _UNCHANGED.items() if before and before[place] != after[place]]
        if after and function.physfn is None and after[:4] != _ids(function):  # a VF has no IDs there
            changed = ["vendor and device"]
        if changed:
            raise Failed(
                "ResetFailed",
                f"{target} came out of its reset with another {', '.join(changed)} in its configuration space",
            )

    def _hot_reset(self, functions: Sequence[PciFunction], deadline: Deadline) -> None:
        """``functions``: all on the bus, the one that is to be reset first."""
        groups = dict.fromkeys(each.iommu_group for each in functions if each.iommu_group is not None)
        addresses = [str(each.address) for each in functions]
        try:
            self.host.hot_reset(addresses[0], [*groups], addresses, deadline)
        except OSError as error:
            raise host_changes.refused_by_kernel(f"a reset of {', '.join(addresses)} by VFIO", error) from error


_UNCHANGED = {"class": slice(8, 12), "header type": slice(14, 15), "BARs": slice(16, 40), "subsystem": slice(44, 48)}
"""What of the header of a configuration space the kernel puts back after a reset, or no reset changes."""


def _usable(header: bytes | None) -> bytes:
    """The header of a configuration space; nothing if it cannot be read, or the function does not respond."""
    return header if header is not None and len(header) >= 64 and responds(header) else b""


def _ids(function: PciFunction) -> bytes:
    """Vendor and device as the kernel first read them, in the form of a configuration space."""
    return function.vendor.to_bytes(2, "little") + (function.device or 0).to_bytes(2, "little")


def _reset_of_slot(tree: Tree, function: PciFunction) -> str:
    """The file that resets all below the bridge above a function. Raises Failed if that would reset something else,
    too."""
    impossible = f"{function.address} cannot be reset: the kernel has no reset method for it"
    slot = slot_reset(function)
    if slot is None:
        raise Failed("ResetFailed", impossible, retryable=False)
    below = [read_function(tree, address) for address in slot.below]
    for other in below:
        if other is None or other.address.card != function.address.card:
            raise Failed(
                "ResetFailed", f"{impossible}, and other slots share its bridge {slot.bridge}", retryable=False
            )
        if not (other.on_vfio or other.driver is None):
            raise Failed("ResetFailed", f"{impossible} by itself, and {other.address} has the driver {other.driver}")
    try:
        refuse_open(tree, vfio_nodes(filter(None, below)), "a device that is reset with it", certain=True)
    except Denied as error:
        raise Failed("ResetFailed", f"{impossible} by itself, and {error}") from error
    return slot.file


def _reset_by_vfio(tree: Tree, function: PciFunction) -> list[PciFunction]:
    """The functions of a card that VFIO can reset together, this one first; none if the bridge above has to do it.
    Raises Failed if neither can now."""
    together = hot_reset(function)
    others = [read_function(tree, address) for address in together if address != function.address]
    functions = [function, *(other for other in others if other is not None)]
    host_owned = next((each for each in functions if not each.on_vfio), None)
    if not together or (host_owned is not None and slot_reset(function) is not None):
        return []
    if host_owned is not None:
        what = f"has the driver {host_owned.driver}" if host_owned.driver else "has no driver"
        raise Failed(
            "ResetFailed",
            f"{function.address} can be reset only together with its card, and {host_owned.address} {what}, not a VFIO "
            "driver",
        )
    try:
        refuse_open(tree, vfio_nodes(functions), "a device that is reset with it", certain=True)
    except Denied as error:
        raise Failed("ResetFailed", f"{function.address} cannot be reset by itself, and {error}") from error
    return functions


HEALTHY = HealthState("healthy")


def health_of_functions(tree: Tree, device: PreparedDevice) -> HealthState:
    """Of functions that were passed through."""
    functions = []
    for name in device.functions:
        function = problem_with_function(tree, name)
        if isinstance(function, HealthState):
            return function
        if not function.on_vfio:
            why = f"{name} has the driver {function.driver or 'none'} now, not a VFIO driver"
            return HealthState("unhealthy", why, "DriverNotBound")
        functions.append(function)
    nodes = {f"/dev/vfio/{function.iommu_group}" for function in functions}
    if nodes != set(device.nodes):
        why = f"the IOMMU group has changed: {_listed(device.nodes)} became {_listed(nodes)}"
        return HealthState("unhealthy", why, "DriverNotBound")
    return health_of_nodes(tree, device)


def health_of_nodes(tree: Tree, device: PreparedDevice) -> HealthState:
    """Whether the nodes are there that the device's user opens, if this process sees the host's."""
    if tree.folder("dev", "vfio") is None:
        return HEALTHY
    missing = [node for node in device.nodes if not os.path.lexists(tree.root / node.removeprefix("/"))]
    if missing:
        return HealthState("unhealthy", f"{_listed(tuple(missing))} does not exist", "DriverNotBound")
    return HEALTHY


def problem_with_function(tree: Tree, name: str) -> PciFunction | HealthState:
    """A function that is there and answers, or why it is not well."""
    address = Address.parse(name)
    function = read_function(tree, address) if address is not None else None
    if function is None:
        return HealthState("unhealthy", f"{name} no longer exists", "DeviceGone")
    if not function.responds:
        why = f"{name} does not respond: its configuration space reads as all ones"
        return HealthState("unhealthy", why, "DeviceGone")
    return function


def is_there(tree: Tree, name: str) -> bool:
    address = Address.parse(name)
    return address is not None and function_folder(tree, address) is not None


def _listed(nodes: object) -> str:
    assert isinstance(nodes, (set, tuple))
    return ", ".join(sorted(nodes)) or "none"
