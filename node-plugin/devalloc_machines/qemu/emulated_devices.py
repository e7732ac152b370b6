"""Emulated disks and network cards, plugged into a running machine and removed again.

QEMU is the only record of them. All that is added to it for one is called by its id and what it is for
(``plug-data.f0``, ``plug-data.disk``), and with a disk's descriptor goes the path that it was opened by. So they are
known as long as this QEMU runs, whatever becomes of the plugin, and gone with it; what a call that was cut off left
behind is seen to belong to no device. Files and interfaces are opened here and handed over: QEMU's user need not be
able to open them.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, get_args

from devalloc_machines.qemu import allowed_paths, hotplug, spawn
from devalloc_machines.qemu.command_line import NIC_DRIVERS, file_node, format_node, user_backend
from devalloc_machines.qemu.pci import PERIPHERAL, PciDevice, QemuBackend, QmpCommand, function_id, present_devices
from devalloc_machines.qemu.qmp import ANSWER_SECONDS, Monitor, QmpRefused, checked_number, checked_text, qom_get
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_machines.qemu.spec import (
    EMULATED_PREFIX,
    MAX_EMULATED_NAME,
    Disk,
    DiskDevice,
    DiskFormat,
    EmulatedDevice,
    Nic,
    NicModel,
    own_mac,
)
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError, Unknown

LOG = logging.getLogger(__name__)
_OURS = re.compile(rf"({EMULATED_PREFIX}[a-z0-9][a-z0-9-]{{0,{MAX_EMULATED_NAME - 1}}})\.(\S+)")
_NET = re.compile(rf"^(?: \\ )?({_OURS.pattern}): ", re.MULTILINE)
"""A network backend in what QEMU tells people."""
_DISKS: Mapping[str, DiskDevice] = {"virtio-blk-pci": "virtio", "nvme": "nvme"}
_FORMATS: Mapping[str, DiskFormat] = {name: name for name in get_args(DiskFormat)}
_NICS = {driver: model for model, driver in NIC_DRIVERS.items()}
_MOST = 1024
"""Devices in one machine: more than any has slots for."""
_FIRST_SET = 1000
"""Of the sets of descriptors that disks are handed over in; those that a machine starts with are far below."""
_TAP = "plug-tap"
"""What the descriptor of a TAP interface is called between two commands, whichever device it is for."""
_POLL_SECONDS = 0.05
UNDO_SECONDS = 10.0
"""For taking out what the guest cannot use, also after the deadline."""


@dataclass(frozen=True, slots=True)
class EmulatedDevices:
    """What QEMU has of plain devices: each device by its id, and what devices stand on."""

    devices: Mapping[str, EmulatedDevice]
    others: frozenset[str]
    """A device that is named like an emulated one, but that others plugged in with a back end of their own."""
    nodes: frozenset[str]
    """Block nodes."""
    sets: Mapping[int, str]
    """Sets of descriptors, with the id of the device that they are for."""
    nets: Mapping[str, str]
    """Network backends, with that id."""

    def left(self, of: str) -> bool:
        """Whether there is anything that the device stands, or stood, on."""
        return of in self.sets.values() or of in self.nets.values() or any(_id(node) == of for node in self.nodes)


def plug_emulated(
    monitor: Monitor,
    machine: str,
    device: EmulatedDevice,
    config: MachineConfig,
    deadline: Deadline,
    *,
    namespace: str,
    owner: str = "",
    is_starting: bool = False,
) -> EmulatedDevice:
    """Plug it in; as it is in the machine then. Does nothing if it is plugged in already. ``owner``: see
    ``MachineSpec``; the machine if nothing is said. ``namespace``: the machine's. ``is_starting``: its CPUs
    never ran, so that its firmware makes windows for the device, which has no addresses yet.

    Raises Denied: what a machine may not name (``PathNotAllowed``, ``DiskFormat``, ``TapMissing`` …), ``DeviceExists``,
    ``DiskInUse``, ``TapInUse``, ``NoFreePciSlot``, ``QemuRefused``; ``NoPciWindow`` and ``GuestNotReady`` if the guest
    gives it no addresses, as for devices of claims: nothing is left of it then. Failed, Unknown.
    """
    wanted = _resolved(device, config, namespace)
    seen = remove_leftovers(monitor, deadline)
    there = seen.devices.get(wanted.id)
    if there is not None:
        if not _same(wanted, there):
            raise Denied(
                "DeviceExists",
                f"machine {machine} has another device called {wanted.name}, {backing_text(there)}; unplug that one "
                f"first, or choose another name for {backing_text(wanted)}",
            )
        return there
    if wanted.id in seen.others:
        raise Denied(
            "DeviceExists", f"another program has plugged {wanted.id} into machine {machine}; choose another name"
        )
    if seen.left(wanted.id):
        raise _in_use_error(machine, wanted.name)
    if not is_starting:
        hotplug.check_runs(monitor, machine, deadline)
    with _opened(machine, wanted) as fd:
        if isinstance(wanted.what, Disk):
            pci_device = _disk(wanted, wanted.what, max([_FIRST_SET, *seen.sets]) + 1, fd)
        else:
            pci_device = _nic(wanted, wanted.what, owner or machine, fd, config.user_net)
        try:
            hotplug.plug_device(monitor, machine, pci_device, deadline)
        except QmpRefused as error:
            if isinstance(wanted.what, Disk) and re.search(r"Failed to get .*lock", error.reason):
                raise Denied(
                    "DiskInUse",
                    f"disk {wanted.what.path} is in use, by another machine or a process of this host: {error.reason}",
                ) from error
            raise
    if not is_starting:
        _await_addresses(monitor, machine, wanted, deadline)
    after = observe_emulated(monitor, deadline).devices.get(wanted.id)
    if after is None or not _same(wanted, after):
        raise Failed(
            "DeviceNotThere",
            f"QEMU of machine {machine} accepted {wanted.name} but shows {backing_text(after)}; unplug it",
        )
    return after


def _await_addresses(monitor: Monitor, machine: str, device: EmulatedDevice, deadline: Deadline) -> None:
    """Raises Denied if the guest does not get to the device, which is taken out then. Raises NodeError."""
    where = "spec.start.disks" if isinstance(device.what, Disk) else "spec.nics"
    at_start = f"list it in {where} of the machine, so that its firmware reserves windows for it at start"
    try:
        hotplug.await_addresses(
            monitor, machine, {function_id(device.id, 0): backing_text(device)}, deadline, at_start=at_start
        )
    except Denied as error:
        try:
            unplug_emulated(monitor, machine, device.name, Deadline.after(UNDO_SECONDS))
        except NodeError as left:
            raise Failed(
                error.code, f"{error.message}; it is still plugged in, but the guest cannot use it: {left.message}"
            ) from error
        raise


def unplug_emulated(monitor: Monitor, machine: str, name: str, deadline: Deadline) -> bool:
    """Have the guest let it go, and QEMU close what it stood on. False: there was no such device.

    Raises Denied (``GuestRefused``, retryable) if the guest keeps it: it stays whole then. Unknown (``DeviceHeld``)
    if QEMU does not let go of its file or interface.
    """
    id_of = EmulatedDevice(name, Nic()).id
    seen = observe_emulated(monitor, deadline)
    if id_of in seen.others or (id_of not in seen.devices and not seen.left(id_of)):
        return False
    if id_of in seen.devices:
        hotplug.unplug_device(monitor, machine, id_of, deadline)
    # QEMU takes the device apart a moment after it is not shown any more, and refuses to take its backends before.
    while remove_leftovers(monitor, Deadline.after(ANSWER_SECONDS)).left(id_of):
        if deadline.passed:
            raise _in_use_error(machine, name)
        time.sleep(_POLL_SECONDS)
    return True


def remove_leftovers(monitor: Monitor, deadline: Deadline) -> EmulatedDevices:
    """Take away what stands for no device: a call was cut off, or a guest has let its device go by itself.

    Returns the devices it has then. Callers hold the machine's lock.
    """
    seen = observe_emulated(monitor, deadline)
    spent = [command for id_of in sorted(_leftovers(seen)) for command in _removal(seen, id_of)]
    for command in [*spent, ("closefd", {"fdname": _TAP})]:
        try:
            monitor.execute(*command, deadline=deadline)
        except QmpRefused as error:
            LOG.debug("%s", error)
    return observe_emulated(monitor, deadline) if spent else seen


def has_leftovers(seen: EmulatedDevices) -> bool:
    """Whether ``remove_leftovers`` has anything to remove, unless a device is being plugged or unplugged."""
    return bool(_leftovers(seen))


def is_empty(seen: EmulatedDevices) -> bool:
    """Whether there is no plain device, and nothing that could be left of one."""
    return not (seen.devices or seen.others or seen.nodes or seen.sets or seen.nets)


def plugged_emulated(monitor: Monitor, deadline: Deadline) -> tuple[EmulatedDevice, ...]:
    """The plain devices in the machine, by name."""
    if not any(_id(name) for name in present_devices(monitor, deadline)):
        return ()
    return tuple(device for _, device in sorted(observe_emulated(monitor, deadline).devices.items()))


def observe_emulated(monitor: Monitor, deadline: Deadline) -> EmulatedDevices:
    """What QEMU has now."""
    block_nodes = monitor.execute("query-named-block-nodes", {"flat": True}, deadline=deadline)
    nodes = {node["node-name"]: node for node in block_nodes if _id(node["node-name"])}
    sets, files = {}, {}
    for each in monitor.execute("query-fdsets", deadline=deadline):
        for fd in each["fds"]:
            id_of, _, path = fd.get("opaque", "").partition(" ")
            if _id(f"{id_of}.file"):
                sets[int(each["fdset-id"])], files[id_of] = id_of, checked_text(path)
    devices, others = {}, set()
    for name, driver in present_devices(monitor, deadline).items():
        id_of = _id(name)
        if id_of is None or name != function_id(id_of, 0):
            continue
        what: Disk | Nic | None = None
        if driver in _DISKS and id_of in files and (node := nodes.get(f"{id_of}.disk")) is not None:
            what = _seen_disk(files[id_of], node, _DISKS[driver])
        elif driver in _NICS:
            what = _seen_nic(monitor, id_of, _NICS[driver], deadline)
        if what is None:
            others.add(id_of)
        else:
            devices[id_of] = EmulatedDevice(id_of.removeprefix(EMULATED_PREFIX), what)
    checked_number(len(devices), _MOST)
    return EmulatedDevices(devices, frozenset(others), frozenset(nodes), sets, _nets(monitor, deadline))


def backing_text(device: EmulatedDevice | None) -> str:
    """For messages: what of the host it is."""
    if device is None:
        return "nothing"
    if isinstance(device.what, Disk):
        how = f"{device.what.format}, {device.what.device}{', read-only' if device.what.read_only else ''}"
        return f"disk {device.what.path} ({how})"
    where = "the host's own sockets" if device.what.interface is None else f"TAP {device.what.interface}"
    return f"a {device.what.model} network card{f' {device.what.mac}' if device.what.mac else ''} on {where}"


def _id(name: str) -> str | None:
    """The id of the plain device that something in QEMU is called after."""
    match = _OURS.fullmatch(name)
    return None if match is None else match[1]


def _same(wanted: EmulatedDevice, there: EmulatedDevice) -> bool:
    """Whether it is the one that is wanted; if no address was requested, any will do."""
    if isinstance(wanted.what, Nic) and isinstance(there.what, Nic) and wanted.what.mac is None:
        there = replace(there, what=replace(there.what, mac=None))
    return wanted == there


def _in_use_error(machine: str, name: str) -> Unknown:
    return Unknown("DeviceHeld", f"machine {machine} reports {name} as unplugged, but QEMU still has its backend open")


# Of this host.


def _resolved(device: EmulatedDevice, config: MachineConfig, namespace: str) -> EmulatedDevice:
    """With the path that its links lead to; what may not be named is refused as for machines that start."""
    what = device.what
    if isinstance(what, Disk):
        return replace(device, what=replace(what, path=str(allowed_paths.disk_image(what, config.folders, namespace))))
    if what.interface is not None:
        allowed_paths.checked_tap(what.interface, config.taps, namespace)
    return replace(device, what=replace(what, mac=None if what.mac is None else what.mac.lower()))


@contextmanager
def _opened(machine: str, device: EmulatedDevice) -> Iterator[int | None]:
    """The descriptor of its image or interface; None if it needs none. Raises Denied, Failed."""
    what, fd = device.what, None
    try:
        if isinstance(what, Disk):
            fd = spawn.open_checked(what.path, not what.read_only)
        elif what.interface is not None:
            fd = spawn.open_tap(what.interface)
    except OSError as error:
        if isinstance(what, Nic) and error.errno == errno.EBUSY:
            why = f"TAP {what.interface} is in use, by another machine or a process of this host"
            raise Denied("TapInUse", why) from None
        raise Failed(
            "HostRefused", f"cannot open {backing_text(device)} for machine {machine}: {error.strerror or error}"
        ) from None
    try:
        if isinstance(what, Disk) and fd is not None:
            allowed_paths.check_image_free(fd, what.path, writable=not what.read_only)
        yield fd
    finally:
        if fd is not None:
            os.close(fd)


# As QEMU has it.


def _disk(device: EmulatedDevice, disk: Disk, fdset: int, fd: int | None) -> PciDevice:
    assert fd is not None
    file, node = f"{device.id}.file", f"{device.id}.disk"
    block = stat.S_ISBLK(os.fstat(fd).st_mode)
    backends = (
        QemuBackend(
            ("add-fd", {"fdset-id": fdset, "opaque": f"{device.id} {disk.path}"}),
            ("remove-fd", {"fdset-id": fdset}),
            fd,
        ),
        QemuBackend(
            ("blockdev-add", file_node(file, f"/dev/fdset/{fdset}", disk.read_only, block=block)), _without_node(file)
        ),
        QemuBackend(("blockdev-add", format_node(disk, node, file)), _without_node(node)),
    )
    driver = next(driver for driver, name in _DISKS.items() if name == disk.device)
    return PciDevice(device.id, ({"driver": driver, "drive": node, "serial": device.name},), backends)


def _nic(device: EmulatedDevice, nic: Nic, owner: str, fd: int | None, user_net: bool) -> PciDevice:
    net = f"{device.id}.net" + ("" if nic.interface is None else f".{nic.interface}")
    kind = user_backend(net, user_net)
    backends = []
    if nic.interface is not None:
        kind = {"type": "tap", "id": net, "fd": _TAP}
        backends.append(QemuBackend(("getfd", {"fdname": _TAP}), ("closefd", {"fdname": _TAP}), fd))
    backends.append(QemuBackend(("netdev_add", kind), _without_net(net)))
    function = {"driver": NIC_DRIVERS[nic.model], "netdev": net, "mac": nic.mac or own_mac(owner, device.id)}
    return PciDevice(device.id, (function,), tuple(backends))


def _seen_disk(path: str, node: Mapping[str, Any], device: DiskDevice) -> Disk | None:
    of_disk = _FORMATS.get(checked_text(node["drv"], 64))
    return None if of_disk is None else Disk(path, of_disk, bool(node["ro"]), device)


def _seen_nic(monitor: Monitor, id_of: str, model: NicModel, deadline: Deadline) -> Nic | None:
    where = f"{PERIPHERAL}/{function_id(id_of, 0)}"
    try:
        net, mac = (checked_text(qom_get(monitor, where, name, deadline)) for name in ("netdev", "mac"))
    except QmpRefused:  # it has gone meanwhile
        return None
    if _id(net) != id_of:
        return None
    _, _, interface = net.partition(".net.")
    return Nic(model, interface or None, mac.lower())


def _nets(monitor: Monitor, deadline: Deadline) -> dict[str, str]:
    """Network backends of plain devices. QEMU tells of them to people only."""
    try:
        output = monitor.execute("human-monitor-command", {"command-line": "info network"}, deadline=deadline)
    except QmpRefused as error:
        LOG.debug("%s", error)
        return {}
    return {match[1]: match[2] for match in _NET.finditer(output.replace("\r", "")) if match[3].startswith("net")}


def _leftovers(seen: EmulatedDevices) -> set[str]:
    """The ids of devices that are not there, and on whose behalf something is."""
    ids = {_id(node) or "" for node in seen.nodes} | set(seen.sets.values()) | set(seen.nets.values())
    return ids - seen.devices.keys() - seen.others


def _removal(seen: EmulatedDevices, id_of: str) -> Iterator[QmpCommand]:
    """What takes away all that a device stood on, what stands on something else first."""
    for node in (f"{id_of}.disk", f"{id_of}.file"):
        if node in seen.nodes:
            yield _without_node(node)
    for fdset, of in seen.sets.items():
        if of == id_of:
            yield "remove-fd", {"fdset-id": fdset}
    for net, of in seen.nets.items():
        if of == id_of:
            yield _without_net(net)


def _without_node(name: str) -> QmpCommand:
    return "blockdev-del", {"node-name": name}


def _without_net(name: str) -> QmpCommand:
    return "netdev_del", {"id": name}
