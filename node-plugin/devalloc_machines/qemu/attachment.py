"""Steps of kind ``attachment``: a prepared device in a machine. The target is ``<namespace>/<name>/<device id>``.

The value says what of the host is plugged in; None means that it is not. So the engine's undo of a claim detaches its
devices before it unbinds them, and a device that the guest keeps keeps its claim.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from devalloc.inventory.pci import BarSizes
from devalloc_machines.qemu import adoption, allowed_paths, guest_numa, hotplug, launch, pci, registry
from devalloc_machines.qemu.lifecycle import MachineLifecycle
from devalloc_machines.qemu.process import Process, open_nodes
from devalloc_machines.qemu.records import PLUGS, MachineRecord
from devalloc_machines.qemu.registry import LOOK_SECONDS
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError, Unknown
from devalloc_node.host.boundary import Host
from devalloc_node.model.step import (
    ATTACHMENT,
    NUMA_NODE,
    ROOT_PORT,
    PluggedDevice,
    Prepared,
    PreparedDevice,
    Step,
    Value,
    host_device_of,
)

LOG = logging.getLogger(__name__)
_POLL_SECONDS = 0.05


class AttachmentKind:
    """Plugs in, takes out. All state is in the journal's records and in QEMU."""

    def __init__(
        self,
        machines: MachineLifecycle,
        owner: Host,
        sizes: Callable[[Sequence[str]], BarSizes | None] = lambda functions: None,
    ) -> None:
        """``owner``: gives device nodes to users. ``sizes``: how much memory functions of the host have that are passed
        through together; None: unknown."""
        self._machines = machines
        self._owner = owner
        self._sizes = sizes

    def attachments(self, key: str, prepared: Prepared, deadline: Deadline) -> Sequence[tuple[str, Step]]:
        """A step for each device (``pool/device``) that puts it into the machine.

        Raises Denied if they do not fit: ``NoFreePciSlot``, ``DeviceNotPluggable``, ``MemlockTooLow``; or if an
        option ROM of them may not be used: ``PathNotAllowed``, ``PathMissing``, ``RomInvalid``.
        """
        record, process = self._machines.running(key)
        steps = []
        for device in prepared.devices:
            name = pci.device_id(prepared.ref.uid, device.pool, device.device, device.share)
            pci.passthrough_device(name, device)
            if device.rom_file is not None:
                rom = allowed_paths.rom_file(device.rom_file, self._machines.config.rom_folders)
                device = replace(device, rom_file=str(rom))
            step = Step(ATTACHMENT, f"{key}/{name}", None, value_of(device))
            steps.append((device.name, step))
        adoption.check_memlock(record.spec, self._machines.config, process)
        with self._machines.line(record) as monitor:
            there = hotplug.plugged_names(list(pci.present_devices(monitor, deadline)))
            new = sum(split(step.target)[1] not in there for _, step in steps)
            free = hotplug.free_slots(pci.list_root_ports(monitor, deadline), record.spec)
        if new > free:
            raise Denied(
                "NoFreePciSlot",
                f"claim {prepared.ref} has {new} devices for machine {key}, which has {free} free PCI slots",
            )
        return steps

    def is_in(self, plug: PluggedDevice) -> bool:
        """Whether it is there, as QEMU shows it. Raises NodeError."""
        return self.read(plug.step.target) is not None

    # The kind of step.

    def read(self, target: str) -> Value:
        """What is plugged in, as QEMU shows it; None if nothing is, or the machine does not run."""
        key, name = split(target)
        content = self._machines.records.record(PLUGS, target)
        if content is None or (machine := self._lives(key)) is None:
            return None
        with self._machines.line(machine[0]) as monitor:
            return (
                content["value"]
                if pci.function_id(name, 0) in pci.present_devices(monitor, Deadline.after(5.0))
                else None
            )

    def apply(self, target: str, value: Value, deadline: Deadline) -> None:
        """Plug it in and see the guest give it addresses, or (None) take it out and see QEMU let go of its nodes.

        Before its CPUs run, no guest assigns addresses: ``MachineLifecycle.resume`` sees to that. Raises Denied:
        ``GuestRefused`` (retryable) if the guest keeps it, ``NoPciWindow``, ``GuestNotReady`` (retryable) if it
        gives no addresses; Unknown if QEMU does not answer.
        """
        key, name = split(target)
        change = self._machines.lock if self._is_of_migration(key) else self._machines.hold
        with change(key, deadline, "unplug a device" if value is None else "plug a device in"):
            if value is None:
                self._take_out(target, key, name, deadline)
            else:
                self._put_in(target, key, name, value, deadline)

    def force(self, target: str, value: Value, deadline: Deadline) -> None:
        """As ``apply``; a machine that does not let go is ended (T14), but not one that was not even asked."""
        try:
            # Half of the time for asking: the other half is for ending the machine.
            self.apply(target, value, deadline.capped(deadline.seconds / 2))
        except NodeError as error:
            if value is not None or (isinstance(error, Failed) and not error.code.startswith("Monitor")):
                raise
            key = split(target)[0]
            LOG.warning("killing machine %s: %s", key, error)
            self._machines.stop(key, 0.0, True, deadline)
            self.apply(target, value, deadline)

    def _put_in(self, target: str, key: str, name: str, value: Mapping[str, Any], deadline: Deadline) -> None:
        record, process = self._machines.running(key)
        adoption.check_memlock(record.spec, self._machines.config, process)
        nodes = list(value.get("nodes", ()))
        owners = _owners(target, nodes, self._recorded(target))
        self._machines.records.put(PLUGS, target, {"value": dict(value), "owners": owners, "boot": adoption.boot_id()})
        if record.user is not None:
            for node in nodes:
                self._owner.own(node, record.user, record.user)
        busy = (
            f"QEMU of machine {key} is plugging a device in; for the first one it locks all memory, and responds "
            "after that"
        )
        launch.grow_memory_limit(record.spec, self._machines.config, process.pid)
        with self._machines.busy(key, busy), self._machines.line(record) as monitor:
            runs = not record.is_incoming and not registry.never_ran(self._machines, record, deadline)
            if runs:
                hotplug.check_runs(monitor, key, deadline)
            device = _device(name, value)
            size = (
                None if "sysfsdev" in value else self._sizes(value.get("functions", ()))
            )  # a vGPU says it to QEMU only
            node = guest_numa.guest_node(record.spec, value.get("numaNode"))
            spares = not runs and bool(self._machines.config.devices().prefetchable_32)
            needs = hotplug.SlotNeeds(size, node, not runs, spares, value.get("port", ""))
            port = hotplug.plug_device(monitor, key, device, deadline, needs)
            if runs:
                ids = [device.function_id(number) for number in range(len(device.functions))]
                hotplug.await_addresses(monitor, key, dict.fromkeys(ids, host_device_of(value) or name), deadline)
        LOG.info("machine %s: %s is in %s", key, name, port)

    def _take_out(self, target: str, key: str, name: str, deadline: Deadline) -> None:
        machine = self._lives(key)
        content = self._recorded(target)
        if machine is not None:
            record, process = machine
            if record.is_incoming:
                self._machines.end_moving(key, deadline)
            elif registry.never_ran(self._machines, record, Deadline.after(LOOK_SECONDS)):
                # No guest is there that could let go, and nothing has happened in it yet.
                self._machines.undo_start(key, deadline)
            else:
                self._unplug(record, process, name, list(content.get("owners", {})), deadline)
        for node, (uid, gid) in content.get("owners", {}).items():
            if os.path.exists(node):
                self._owner.own(node, uid, gid)
        self._machines.records.drop(PLUGS, target)

    def _unplug(
        self, record: MachineRecord, process: Process, name: str, nodes: Sequence[str], deadline: Deadline
    ) -> None:
        key = record.spec.key
        try:
            with self._machines.line(record) as monitor:
                hotplug.unplug_device(monitor, key, name, deadline)
        except (Unknown, Failed):
            if self._lives(key) is not None:
                raise
            return  # it ended meanwhile, and holds nothing any more
        # Who unbinds a device that QEMU holds blocks in the kernel; the event alone may have been missed.
        while held := open_nodes(process.pid, nodes):
            if deadline.passed:
                raise Unknown(
                    "DeviceHeld", f"machine {key} reports {name} as unplugged but still holds {', '.join(held)}"
                )
            time.sleep(_POLL_SECONDS)

    def _is_of_migration(self, key: str) -> bool:
        """Whether it is the migration of a machine that plugs devices in, or takes them out when its QEMU has ended."""
        record = self._machines.find(key)
        if record is None or record.migration is None:
            return False
        return record.is_incoming or self._machines.process_of(record) is None

    def _lives(self, key: str) -> tuple[MachineRecord, Process] | None:
        """None: the machine does not run, so that it holds nothing."""
        try:
            return self._machines.running(key)
        except Denied:
            return None

    def _recorded(self, target: str) -> Mapping[str, Any]:
        return self._machines.records.record(PLUGS, target) or {}


def value_of(device: PreparedDevice) -> dict[str, Any]:
    """A prepared device as the value of an attachment."""
    value: dict[str, Any] = {"functions": list(device.functions), "nodes": list(device.nodes)}
    value |= {} if device.rom_file is None else {"romFile": device.rom_file}
    value |= {} if (node := device.attributes.get(NUMA_NODE)) is None else {"numaNode": node}
    value |= {} if (port := device.attributes.get(ROOT_PORT)) is None else {"port": port}
    return value | ({} if device.sysfsdev is None else {"sysfsdev": device.sysfsdev})


def split(target: str) -> tuple[str, str]:
    """The machine's key and the device's id of a target."""
    key, _, name = target.rpartition("/")
    return key, name


def _device(name: str, value: Mapping[str, Any]) -> pci.PciDevice:
    functions, rom_file = tuple(value.get("functions", ())), value.get("romFile")
    prepared = PreparedDevice((), "", name, "vfio", functions, sysfsdev=value.get("sysfsdev"), rom_file=rom_file)
    return pci.passthrough_device(name, prepared)


def _owners(target: str, nodes: Sequence[str], recorded: Mapping[str, Any]) -> dict[str, list[int]]:
    """Whose the nodes were before: what is known already is older than what a cut-off attempt left. Not so if it is
    of another run of the host, in which these nodes were those of other devices."""
    this = adoption.boot_id()
    older = recorded.get("owners", {}) if recorded.get("boot", this) == this else {}
    before = {node: owner for node, owner in older.items() if node in nodes}
    for node in nodes:
        if node not in before:
            try:
                info = os.stat(node)
            except OSError as error:
                raise Denied("DeviceGone", f"cannot prepare {node}, which {target} needs: {error.strerror}") from None
            before[node] = [info.st_uid, info.st_gid]
    return before
