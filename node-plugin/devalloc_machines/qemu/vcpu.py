"""vCPUs of a running machine: counted, added, taken away."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from devalloc_machines.qemu.command_line import cpu_id
from devalloc_machines.qemu.hotplug import request_unplug
from devalloc_machines.qemu.pci import PERIPHERAL
from devalloc_machines.qemu.qmp import ANSWER_SECONDS, Monitor, QmpRefused, checked_number, has_kvm, qom_list
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed

_LOOK_SECONDS = 0.1
_MOST = 1 << 16
"""vCPUs: more than any machine has."""
_EJECT = 3
"""Of the guest's reports (ACPI _OST): about a request to eject."""
_REFUSALS = frozenset({0x01, 0x02, 0x80, 0x81, 0x82})
"""Failed, not recognised, locked or in use, and so on; 0 is success, 0x83 and 0x84 are "under way"."""
_SOUND = 10
"""The first major version of QEMU that is known to survive an emulated vCPU that leaves."""
_MARK = "devalloc-cpus-left"
"""An object in QEMU of no use but to be there."""
_PLACE = ("socket-id", "die-id", "cluster-id", "module-id", "core-id", "thread-id")

Slot = Mapping[str, Any]
"""An entry of query-hotpluggable-cpus: taken if it has a ``qom-path``."""


def slots(monitor: Monitor, deadline: Deadline) -> list[Slot]:
    """All slots in the order of their places; the position is the slot's number."""
    entries: list[Slot] = monitor.execute("query-hotpluggable-cpus", deadline=deadline)
    return sorted(entries, key=lambda slot: tuple(int(slot["props"].get(name, 0)) for name in _PLACE))


def count(monitor: Monitor, deadline: Deadline) -> int:
    """vCPUs that QEMU has. Whether the guest uses them, only the guest knows."""
    return _plugged_slots(slots(monitor, deadline))


def has_lost_vcpu(monitor: Monitor, machine: str, goal: int, before: bool | None, deadline: Deadline) -> bool | None:
    """Whether any vCPU has left an emulated machine once it has ``goal``; ``before``: whether any has by now. None: not
    known; then the mark tells that an earlier plugin, or one whose journal was lost, had one leave. Of what others did
    to an adopted machine nothing tells.

    To be asked, and noted, before ``scale``. Raises Denied (``CpusEmulated``) for what QEMU would not survive without
    KVM. 7.2 writes to freed memory when a vCPU leaves, and ends with one of the next devices or vCPUs that come or go
    ("corrupted double-linked list", "double free"). 10.0 has room for as many vCPUs as it may have at once, and keeps
    that of one that left.
    """
    all_slots = slots(monitor, deadline)
    taken = _plugged_slots(all_slots)
    if before is None and goal > taken:
        before = _is_marked(monitor, deadline) or None
    if not (_unpluggable_slots(all_slots) if goal < taken else before and goal > taken):
        return before
    if has_kvm(monitor, deadline):
        return False
    version = monitor.execute("query-version", deadline=deadline)["qemu"]
    has = f"machine {machine} is emulated (no KVM) and has {taken} vCPUs; it cannot have {goal} while it runs"
    if goal > taken:
        raise Denied(
            "CpusEmulated",
            f"{has}: vCPUs may have been unplugged, and its QEMU crashes if others are plugged after that",
        )
    if int(version["major"]) < _SOUND:
        raise Denied(
            "CpusEmulated",
            f"{has}: QEMU {version['major']}.{version['minor']} crashes if a vCPU is plugged after one was unplugged",
        )
    return True


def check_secure_boot(monitor: Monitor, machine: str, goal: int, deadline: Deadline) -> None:
    """Raises Denied (``CpusEmulated``) if ``goal`` changes the vCPUs of an emulated machine with Secure Boot: its
    firmware then waits for the new one in system management mode, which without KVM never comes there, and the guest
    stands still (OVMF 2022.11 on QEMU 7.2)."""
    taken = count(monitor, deadline)
    if goal != taken and not has_kvm(monitor, deadline):
        raise Denied(
            "CpusEmulated",
            f"machine {machine} has Secure Boot, is emulated (no KVM) and has {taken} vCPUs; it cannot have {goal} "
            "while it runs, because its firmware would hang",
        )


def mark_unplugged(monitor: Monitor, deadline: Deadline) -> None:
    """Record in QEMU itself that a vCPU was unplugged, for any later caller and as long as QEMU lives. For a QEMU
    without such objects, only the machine's record knows."""
    if not _is_marked(monitor, deadline):
        with suppress(QmpRefused):
            monitor.execute("object-add", {"qom-type": "secret", "id": _MARK, "data": "1"}, deadline=deadline)


def _is_marked(monitor: Monitor, deadline: Deadline) -> bool:
    return any(entry["name"] == _MARK for entry in qom_list(monitor, "/objects", deadline))


def scale(monitor: Monitor, machine: str, goal: int, deadline: Deadline) -> int:
    """Have ``goal`` vCPUs; how many there are then, which is ``goal``.

    Raises Denied: ``CpuSlotsExhausted``; ``GuestRefused`` (retryable) if the guest keeps some, and the message says
    how many there are. Unknown if QEMU does not answer.
    """
    while (taken := _plugged_slots(all_slots := slots(monitor, deadline))) < goal:
        _add(monitor, machine, all_slots, deadline)
    for _ in range(taken - goal):
        _remove(monitor, machine, goal, deadline)
    return count(monitor, deadline)


def _plugged_slots(all_slots: list[Slot]) -> int:
    return checked_number(sum(int(slot["vcpus-count"]) for slot in all_slots if "qom-path" in slot), _MOST)


def _unpluggable_slots(all_slots: list[Slot]) -> list[Slot]:
    return [slot for slot in all_slots if str(slot.get("qom-path", "")).startswith(PERIPHERAL + "/")]


def _add(monitor: Monitor, machine: str, all_slots: list[Slot], deadline: Deadline) -> None:
    free = [(number, slot) for number, slot in enumerate(all_slots) if "qom-path" not in slot]
    if not free:
        raise Denied(
            "CpuSlotsExhausted", f"machine {machine} was started with room for {_plugged_slots(all_slots)} vCPUs"
        )
    number, slot = free[0]
    arguments = {"driver": slot["type"], "id": cpu_id(number), **slot["props"]}
    monitor.execute("device_add", arguments, deadline=deadline)
    if _plugged_slots(slots(monitor, deadline)) <= _plugged_slots(all_slots):
        raise Failed(
            "CpuNotThere", f"QEMU of machine {machine} accepted a vCPU ({cpu_id(number)}) but does not show it"
        )


def _remove(monitor: Monitor, machine: str, goal: int, deadline: Deadline) -> None:
    """Take away the last one that can be. Those built in at the start have no id and stay."""
    all_slots = slots(monitor, deadline)
    mobile = _unpluggable_slots(all_slots)
    if not mobile:
        raise Denied(
            "CpusBuiltIn",
            f"machine {machine} was started with {_plugged_slots(all_slots)} vCPUs; it cannot have {goal} while "
            "it runs",
        )
    name = str(mobile[-1]["qom-path"]).rpartition("/")[2]
    place, began = mobile[-1]["props"], time.monotonic()
    with monitor.expect("DEVICE_DELETED", "DEVICE_UNPLUG_GUEST_ERROR", "ACPI_DEVICE_OST") as events:
        request_unplug(monitor, name, deadline)
        while True:
            event = events.next(deadline.capped(_LOOK_SECONDS))
            if event is not None and _refusal(event, name):
                raise Denied(
                    "GuestRefused",
                    f"machine {machine}: the guest refuses to give back a vCPU; it has {count(monitor, deadline)} "
                    f"instead of {goal}",
                )
            # An emulated CPU leaves without an event of its own: its slot is what tells.
            now = slots(monitor, Deadline.after(ANSWER_SECONDS))
            if not any(slot["props"] == place and "qom-path" in slot for slot in now):
                return
            if deadline.passed:
                raise Denied(
                    "GuestRefused",
                    f"machine {machine}: the guest did not give back a vCPU within {time.monotonic() - began:.0f} s; "
                    f"it has {_plugged_slots(now)} instead of {goal}",
                )


def _refusal(event: Mapping[str, Any], name: str) -> bool:
    data = event.get("data", {})
    if event["event"] == "ACPI_DEVICE_OST":
        info = data.get("info", {})
        return bool(info.get("device") == name and info.get("source") == _EJECT and info.get("status") in _REFUSALS)
    return bool(event["event"] == "DEVICE_UNPLUG_GUEST_ERROR" and data.get("device") == name)
