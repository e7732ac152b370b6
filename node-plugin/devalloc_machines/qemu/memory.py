"""Memory of a running machine: counted, grown and shrunk, by virtio-mem or by DIMMs."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from devalloc_machines.qemu.command_line import dimm, dimm_backend, dimm_id
from devalloc_machines.qemu.guest_numa import memory_by_cell
from devalloc_machines.qemu.hotplug import request_unplug
from devalloc_machines.qemu.pci import PERIPHERAL, present_devices
from devalloc_machines.qemu.qmp import ANSWER_SECONDS, Monitor, QmpRefused, checked_number, qom_get, qom_list
from devalloc_machines.qemu.spec import MachineSpec
from devalloc_machines.qemu.spec import memory_text as _text
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed

_LOOK_SECONDS = 0.1
_MOST = 1 << 60
"""Bytes: more than any machine has."""
_DIMM = re.compile(r"dimm([0-9]+)", re.ASCII)
_BACKEND = re.compile(r"dimm([0-9]+)-ram", re.ASCII)


@dataclass(frozen=True, slots=True)
class MemoryState:
    """Bytes, as QEMU has them."""

    base: int
    plugged: int
    """Beyond ``base``: DIMMs, and what the guest has taken of virtio-mem."""

    @property
    def total(self) -> int:
        return self.base + self.plugged


@dataclass(frozen=True, slots=True)
class VirtioMem:
    """The virtio-mem device of a machine; bytes."""

    path: str
    block: int
    size: int
    requested: int
    most: int
    others: int
    """What other memory devices have, in the same reading: the guest may be taking or giving back more meanwhile."""
    node: int = 0
    """The guest node that its memory is on."""


def observe_memory(monitor: Monitor, deadline: Deadline) -> MemoryState:
    """What there is now."""
    summary = monitor.execute("query-memory-size-summary", deadline=deadline)
    return MemoryState(
        checked_number(summary["base-memory"], _MOST), checked_number(summary.get("plugged-memory", 0), _MOST)
    )


def virtio_mems(monitor: Monitor, deadline: Deadline) -> list[VirtioMem]:
    """The machine's virtio-mem devices that have an id, by guest node."""
    devices = monitor.execute("query-memory-devices", deadline=deadline)
    plugged = sum(int(device["data"]["size"]) for device in devices if device["type"] in ("dimm", "virtio-mem"))
    virtio = []
    for device in devices:
        data = device["data"]
        if device["type"] == "virtio-mem" and data.get("id"):
            path = f"{PERIPHERAL}/{data['id']}"
            block, size, requested, most = (
                int(data[name]) for name in ("block-size", "size", "requested-size", "max-size")
            )
            node = checked_number(data.get("node", 0), _MOST)
            virtio.append(VirtioMem(path, block, size, requested, most, plugged - size, node))
    return sorted(virtio, key=lambda device: (device.node, device.path))


def requested_total(monitor: Monitor, deadline: Deadline) -> int | None:
    """How many bytes there will be when the guest has done all that QEMU asks of it; None if it is asked for
    nothing."""
    devices = virtio_mems(monitor, deadline)
    if not devices:
        return None
    pending = sum(device.requested - device.size for device in devices[1:])
    return observe_memory(monitor, deadline).base + devices[0].others + devices[0].requested + pending


def has_dimms_in_order(monitor: Monitor, deadline: Deadline) -> bool:
    """Whether our DIMMs are those that a QEMU begins with that is started with as many."""
    dimms = _dimms(monitor, deadline)
    return dimms == set(range(len(dimms)))


def scale(monitor: Monitor, spec: MachineSpec, goal: int, deadline: Deadline) -> int:
    """Have ``goal`` bytes of memory, or the next more that blocks allow; how many there are then.

    ``spec``: what the machine was started as, whose guest nodes and pages of the host it keeps to. Raises Denied:
    ``MemoryRoomExhausted``, ``MemoryBuiltIn``; ``GuestRefused`` (retryable) if the guest takes or
    gives back no more before the deadline: then what there is is also what is asked of it (T15). Unknown if QEMU
    does not answer.
    """
    machine, now = spec.key, observe_memory(monitor, deadline)
    if goal < now.base:
        raise Denied(
            "MemoryBuiltIn",
            f"machine {machine} was started with {_text(now.base)}; it cannot have {_text(goal)} while it runs",
        )
    if spec.dimm_bytes is not None:
        return _scale_dimms(monitor, spec, goal, spec.dimm_bytes, deadline)
    devices = virtio_mems(monitor, deadline)
    if spec.numa_cells:
        return _scale_nodes(monitor, spec, devices, goal, deadline)
    device = devices[0] if devices else None
    if device is None:
        if goal == now.total:
            return goal
        raise Denied(
            "MemoryRoomExhausted",
            f"machine {machine} has no virtio-mem device, so its memory cannot change ({_text(now.total)}); an "
            "adopted machine with DIMM slots can grow if you adopt it with --slot-size",
        )
    fixed = now.base + device.others
    if goal < fixed:
        raise _built_in_memory_error(machine, goal, fixed)
    return fixed + _scale_virtio_mem(monitor, machine, device, goal - fixed, deadline)


def _scale_nodes(
    monitor: Monitor, spec: MachineSpec, devices: Sequence[VirtioMem], goal: int, deadline: Deadline
) -> int:
    """Each guest node by its share. What is to leave does so first, so that the host's nodes have room for the rest."""
    goals = memory_by_cell(spec, goal)
    built_in = memory_by_cell(spec, spec.memory.least)
    wanted = {device.path: goals[device.node] - built_in[device.node] for device in devices}
    for device in sorted(devices, key=lambda device: wanted[device.path] - device.size):
        _scale_virtio_mem(monitor, spec.key, device, wanted[device.path], deadline)
    return observe_memory(monitor, deadline).total


def _scale_virtio_mem(monitor: Monitor, machine: str, device: VirtioMem, goal: int, deadline: Deadline) -> int:
    goal = max(0, -(-goal // device.block) * device.block)
    if goal > device.most:
        raise Denied(
            "MemoryRoomExhausted",
            f"machine {machine} was started with room for {_text(device.most)} more memory, not {_text(goal)}",
        )
    if device.requested != goal:
        _request(monitor, device, goal, deadline)
    began = time.monotonic()
    while (size := _size(monitor, device, Deadline.after(ANSWER_SECONDS))) != goal:
        if deadline.passed:
            return _stop_asking(monitor, machine, device, goal, time.monotonic() - began)
        time.sleep(min(_LOOK_SECONDS, deadline.seconds))
    return size


def _stop_asking(monitor: Monitor, machine: str, device: VirtioMem, goal: int, seconds: float) -> int:
    """Stop asking: the guest would go on after the deadline, and what there is would not be what was told."""
    deadline = Deadline.after(ANSWER_SECONDS)
    size = _size(monitor, device, deadline)
    _request(monitor, device, size, deadline)
    # It may have moved in between. What is asked and what there is must be the same in one reading.
    while (now := _size(monitor, device, deadline)) != size and not deadline.passed:
        size = now
        _request(monitor, device, size, deadline)
    if size == goal:
        return size
    raise Denied(
        "GuestRefused",
        f"machine {machine}: the guest has {_text(size)} of virtio-mem after {seconds:.0f} s, not the requested "
        f"{_text(goal)}, and makes no progress; the request was withdrawn",
    )


def _size(monitor: Monitor, device: VirtioMem, deadline: Deadline) -> int:
    return int(qom_get(monitor, device.path, "size", deadline))


def _request(monitor: Monitor, device: VirtioMem, size: int, deadline: Deadline) -> None:
    arguments = {"path": device.path, "property": "requested-size", "value": size}
    monitor.execute("qom-set", arguments, deadline=deadline)


def _scale_dimms(monitor: Monitor, spec: MachineSpec, goal: int, dimm_bytes: int, deadline: Deadline) -> int:
    machine, now = spec.key, observe_memory(monitor, deadline)
    fixed = now.total - _plugged_in_dimms(monitor, deadline)
    if goal < fixed:
        raise _built_in_memory_error(machine, goal, fixed)
    wanted = -(-(goal - fixed) // dimm_bytes)
    while len(dimms := _dimms(monitor, deadline)) < wanted:
        number = min(set(range(len(dimms) + 1)) - dimms)
        backend, arguments = dimm(spec, number)
        _add_backend(monitor, backend, deadline)
        try:
            monitor.execute("device_add", arguments, deadline=deadline)
        except QmpRefused as error:
            monitor.execute("object-del", {"id": dimm_backend(number)}, deadline=deadline)
            raise Denied("MemoryRoomExhausted", f"no room for a DIMM: {error}") from None
    while len(dimms := _dimms(monitor, deadline)) > wanted:
        _remove_dimm(monitor, machine, max(dimms), deadline)
    _remove_leftovers(monitor, dimms, deadline)
    total = observe_memory(monitor, deadline).total
    if total < goal:
        raise Failed(
            "MemoryNotThere", f"machine {machine} has only {_text(total)} after plugging, instead of {_text(goal)}"
        )
    return total


def _add_backend(monitor: Monitor, backend: dict[str, object], deadline: Deadline) -> None:
    try:
        monitor.execute("object-add", backend, deadline=deadline)
    except QmpRefused as error:
        # Left by an attempt that was cut off between the two commands; ids are ours, and so is the size.
        if "duplicate" not in error.reason and "exists" not in error.reason:
            raise


def _remove_leftovers(monitor: Monitor, dimms: set[int], deadline: Deadline) -> None:
    """Memory of DIMMs that are not there: an attempt was cut off before it had plugged one, or had given it back."""
    entries = qom_list(monitor, "/objects", deadline)
    there = {int(m[1]) for entry in entries if (m := _BACKEND.fullmatch(entry["name"]))}
    for number in sorted(there - dimms):
        with suppress(QmpRefused):  # not ours, in a machine that was adopted
            monitor.execute("object-del", {"id": dimm_backend(number)}, deadline=deadline)


def _dimms(monitor: Monitor, deadline: Deadline) -> set[int]:
    """The numbers of our DIMMs."""
    there = present_devices(monitor, deadline)
    return {int(m[1]) for name, kind in there.items() if kind == "pc-dimm" and (m := _DIMM.fullmatch(name))}


def _plugged_in_dimms(monitor: Monitor, deadline: Deadline) -> int:
    """Bytes of our DIMMs."""
    sizes = monitor.execute("query-memory-devices", deadline=deadline)
    return sum(
        int(each["data"]["size"])
        for each in sizes
        if each["type"] == "dimm" and _DIMM.fullmatch(each["data"].get("id") or "")
    )


def _built_in_memory_error(machine: str, goal: int, fixed: int) -> Denied:
    return Denied(
        "MemoryBuiltIn",
        f"machine {machine} has {_text(fixed)} that are built in or were plugged in by another program; it cannot "
        f"have {_text(goal)} while it runs",
    )


def _remove_dimm(monitor: Monitor, machine: str, number: int, deadline: Deadline) -> None:
    name, began = dimm_id(number), time.monotonic()
    with monitor.expect("DEVICE_DELETED", "DEVICE_UNPLUG_GUEST_ERROR", "MEM_UNPLUG_ERROR") as events:
        request_unplug(monitor, name, deadline)
        while number in _dimms(monitor, Deadline.after(ANSWER_SECONDS)):
            event = events.next(deadline.capped(_LOOK_SECONDS))
            refused = event is not None and event["event"] != "DEVICE_DELETED" and event["data"].get("device") == name
            if refused or deadline.passed:
                why = "refuses to give back" if refused else "did not give back"
                raise Denied(
                    "GuestRefused",
                    f"machine {machine}: the guest {why} a DIMM after {time.monotonic() - began:.0f} s; it has "
                    f"{_text(observe_memory(monitor, Deadline.after(ANSWER_SECONDS)).total)}",
                )
    monitor.execute("object-del", {"id": dimm_backend(number)}, deadline=deadline)
