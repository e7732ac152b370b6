"""Plugging PCI devices into a running machine and taking them out, each told done only when QEMU shows it."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress

from devalloc.inventory.bars import NO_BARS, BarSizes
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError, Unknown
from devalloc_node.machine.monitor import Monitor, Refused
from devalloc_node.machine.pci import PERIPHERAL, Backend, PciDevice, Port, function_id, place, ports, present
from devalloc_node.machine.windows import window_for

LOG = logging.getLogger(__name__)
ANSWER_SECONDS = 5.0
"""For one question while waiting: at the deadline it is still to be told how far it came."""
_LOOK_SECONDS = 0.25
"""Between looks whether a device is gone: its event may have come while the line was broken."""


def plug(
    monitor: Monitor, machine: str, device: PciDevice, deadline: Deadline, *, size: BarSizes | None = NO_BARS
) -> str:
    """Plug a device in; the root port that it is on then. Does nothing where it is plugged in already. ``size``: its
    own memory; None: nobody knows.

    Raises Denied: ``NoFreePciSlot``, ``QemuRefused`` (nothing is left of it then). Failed where QEMU says yes and does
    not show it. Unknown where QEMU does not answer: it may be there.
    """
    there = present(monitor, deadline)
    ids = [device.function_id(number) for number in range(len(device.functions))]
    if ids[0] in there:  # function 0 comes last: all of it is there
        return _verified(monitor, machine, device, deadline)
    for leftover in [name for name in ids if name in there]:
        _discard(monitor, leftover, deadline)
    port = _free(monitor, machine, device, size, deadline)
    _add_backends(monitor, device, deadline)
    added: list[str] = []
    try:
        for number in reversed(range(len(device.functions))):
            many = {"multifunction": True} if number == 0 and len(ids) > 1 else {}
            where = {"id": ids[number], "bus": port.bus, "addr": f"0x0.{number}" if number else "0x0"}
            monitor.execute("device_add", {**device.functions[number], **where, **many}, deadline=deadline)
            added.append(ids[number])
        return _verified(monitor, machine, device, deadline)
    except Unknown:
        raise
    except NodeError:
        for name in reversed(added):
            _discard(monitor, name, deadline)
        remove_backends(monitor, device.backends, deadline)
        raise


def unplug(monitor: Monitor, machine: str, name: str, deadline: Deadline) -> None:
    """Ask the guest to let a device go, and wait until QEMU has let it go too. Nothing to do where it is not there.

    Raises Denied (``GuestRefused``, retryable): the guest says no, or nothing, until the deadline. Unknown where QEMU
    does not answer.
    """
    ids = tuple(function_id(name, number) for number in range(8))
    with monitor.expect("DEVICE_DELETED", "DEVICE_UNPLUG_GUEST_ERROR") as events:
        began = time.monotonic()
        left = [i for i in ids if i in present(monitor, deadline)]
        if not left:
            return
        ask(monitor, left[0], deadline)
        while left:
            event = None
            with suppress(Unknown):  # the line broke, perhaps under another's question: it is looked at anew
                event = events.next(deadline.capped(_LOOK_SECONDS))
            # Of several functions, and of a card's own children, the events come in any order and some without an id.
            who = None if event is None else event.get("data", {}).get("device")
            if event is not None and event["event"] == "DEVICE_UNPLUG_GUEST_ERROR" and who in ids:
                raise Denied("GuestRefused", f"machine {machine}: the guest refuses to let {name} go", retryable=True)
            # A guest can cause events as fast as they are read: those of others do not put the deadline off.
            if event is None or who in left or deadline.passed:
                if deadline.passed:
                    raise Denied(
                        "GuestRefused",
                        f"machine {machine}: the guest has not let {name} go within {time.monotonic() - began:.0f} s; "
                        "is it running, and has it stopped using the device?",
                        retryable=True,
                    )
                there = present(monitor, Deadline.after(ANSWER_SECONDS))
                left = [i for i in left if i in there and i != who]


def ask(monitor: Monitor, name: str, deadline: Deadline) -> None:
    """device_del, where it is fine that it is under way (native hot-plug refuses then, ACPI does not) or done."""
    try:
        monitor.execute("device_del", {"id": name}, deadline=deadline)
    except Refused as error:
        if error.kind != "DeviceNotFound" and "in the process of unplug" not in error.reason:
            raise


def remove_backends(monitor: Monitor, backends: Sequence[Backend], deadline: Deadline) -> None:
    """Take away what a device stood on, the last first. What is gone already is fine."""
    for backend in reversed(backends):
        try:
            monitor.execute(*backend.remove, deadline=deadline)
        except Refused as error:
            LOG.debug("%s", error)


def _free(monitor: Monitor, machine: str, device: PciDevice, size: BarSizes | None, deadline: Deadline) -> Port:
    """The port that keeps the least of those that keep enough, so that large windows stay free for large devices; the
    one that keeps the most where none does, or nobody knows what the device needs."""
    known = ports(monitor, deadline)
    free = [port for port in known if not port.busy]
    if free:
        if size is None:
            return max(free, key=lambda port: port.reserve)
        wide, low = window_for(size.prefetchable), window_for(size.other)
        enough = [port for port in free if port.reserve.prefetchable >= wide and port.reserve.memory >= low]
        if enough:
            return min(enough, key=lambda port: port.reserve)
        return max(free, key=lambda port: port.reserve)
    raise Denied(
        "NoFreePciSlot",
        f"machine {machine} has no free PCI slot for {device.id}: all of its {len(known)} root ports are taken"
        if known
        else f"machine {machine} has no root ports, so nothing can be plugged into it; start it with pciSlots",
        retryable=bool(known),
    )


def _add_backends(monitor: Monitor, device: PciDevice, deadline: Deadline) -> None:
    for number, backend in enumerate(device.backends):
        try:
            monitor.execute(*backend.add, deadline=deadline, fd=backend.fd)
        except Refused:
            # One of that name may be there, and is not taken for ours: it may stand on another file.
            remove_backends(monitor, device.backends[:number], deadline)
            raise


def _verified(monitor: Monitor, machine: str, device: PciDevice, deadline: Deadline) -> str:
    where = [place(monitor, device.function_id(number), deadline) for number in range(len(device.functions))]
    if where[0] is None or any(other != where[0] for other in where):
        raise Failed("DeviceNotThere", f"QEMU of machine {machine} took {device.id} and does not show it: {where}")
    path = f"{PERIPHERAL}/{device.function_id(0)}"
    if monitor.execute("qom-get", {"path": path, "property": "realized"}, deadline=deadline) is not True:
        raise Failed("DeviceNotThere", f"QEMU of machine {machine} shows {device.id} as not ready")
    return where[0].rpartition("/")[2]


def _discard(monitor: Monitor, name: str, deadline: Deadline) -> None:
    """Take back a function that the guest has not been told of: QEMU removes it at once, or says why not."""
    try:
        ask(monitor, name, deadline)
    except Refused as error:
        LOG.warning("left behind: %s", error)


def plugged_names(there: Sequence[str]) -> set[str]:
    """The devices of claims among the ids that QEMU has."""
    return {name.rpartition(".f")[0] for name in there if is_of_claim(name)}


def is_of_claim(name: str) -> bool:
    """Whether an id in QEMU is that of a function of a claim's device."""
    return name.startswith("claim-") and ".f" in name
