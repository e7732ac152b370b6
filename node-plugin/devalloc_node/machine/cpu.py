"""vCPUs of a running machine: counted, added, taken away."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed
from devalloc_node.machine.command import cpu_id
from devalloc_node.machine.devices import ask
from devalloc_node.machine.monitor import Monitor, Refused, bounded
from devalloc_node.machine.pci import PERIPHERAL

_ANSWER_SECONDS = 5.0
"""For one question while waiting: at the deadline it is still to be told how far it came."""
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
"""An entry of query-hotpluggable-cpus: taken where it has a ``qom-path``."""


def slots(monitor: Monitor, deadline: Deadline) -> list[Slot]:
    """All slots in the order of their places; the position is the slot's number."""
    found: list[Slot] = monitor.execute("query-hotpluggable-cpus", deadline=deadline)
    return sorted(found, key=lambda slot: tuple(int(slot["props"].get(name, 0)) for name in _PLACE))


def count(monitor: Monitor, deadline: Deadline) -> int:
    """vCPUs that QEMU has. Whether the guest uses them, only the guest knows."""
    return _taken(slots(monitor, deadline))


def left(monitor: Monitor, machine: str, goal: int, before: bool | None, deadline: Deadline) -> bool | None:
    """Whether any vCPU has left an emulated machine once it has ``goal``; ``before``: whether any has by now. None: not
    known; then the mark tells that an earlier plugin, or one whose journal was lost, had one leave. Of what others did
    to an adopted machine nothing tells.

    To be asked, and noted, before ``scale``. Raises Denied (``CpusEmulated``) for what QEMU would not survive without
    KVM. 7.2 writes to freed memory when a vCPU leaves, and ends with one of the next devices or vCPUs that come or go
    ("corrupted double-linked list", "double free"). 10.0 has room for as many vCPUs as it may have at once, and keeps
    that of one that left.
    """
    known = slots(monitor, deadline)
    taken = _taken(known)
    if before is None and goal > taken:
        before = _is_marked(monitor, deadline) or None
    if not (_mobile(known) if goal < taken else before and goal > taken):
        return before
    if monitor.execute("query-kvm", deadline=deadline)["enabled"]:
        return False
    version = monitor.execute("query-version", deadline=deadline)["qemu"]
    has = f"machine {machine} is emulated (it has no KVM), and has {taken} vCPUs; it cannot have {goal} while it runs"
    if goal > taken:
        raise Denied("CpusEmulated", f"{has}: some may have left it, and its QEMU crashes when others come after that")
    if int(version["major"]) < _SOUND:
        raise Denied("CpusEmulated", f"{has}: QEMU {version['major']}.{version['minor']} crashes after one has left")
    return True


def mark_left(monitor: Monitor, deadline: Deadline) -> None:
    """Have QEMU itself keep that a vCPU leaves it: it is known then as long as it lives, whoever asks. A QEMU that has
    no such objects can be asked by nobody but who has the machine's record."""
    if not _is_marked(monitor, deadline):
        with suppress(Refused):
            monitor.execute("object-add", {"qom-type": "secret", "id": _MARK, "data": "1"}, deadline=deadline)


def _is_marked(monitor: Monitor, deadline: Deadline) -> bool:
    return any(entry["name"] == _MARK for entry in monitor.execute("qom-list", {"path": "/objects"}, deadline=deadline))


def scale(monitor: Monitor, machine: str, goal: int, deadline: Deadline) -> int:
    """Have ``goal`` vCPUs; how many there are then, which is ``goal``.

    Raises Denied: ``CpuSlotsExhausted``; ``GuestRefused`` (retryable) where the guest keeps some, and the message says
    how many there are. Unknown where QEMU does not answer.
    """
    while (taken := _taken(known := slots(monitor, deadline))) < goal:
        _add(monitor, machine, known, deadline)
    for _ in range(taken - goal):
        _remove(monitor, machine, goal, deadline)
    return count(monitor, deadline)


def _taken(known: list[Slot]) -> int:
    return bounded(sum(int(slot["vcpus-count"]) for slot in known if "qom-path" in slot), _MOST)


def _mobile(known: list[Slot]) -> list[Slot]:
    return [slot for slot in known if str(slot.get("qom-path", "")).startswith(PERIPHERAL + "/")]


def _add(monitor: Monitor, machine: str, known: list[Slot], deadline: Deadline) -> None:
    free = [(number, slot) for number, slot in enumerate(known) if "qom-path" not in slot]
    if not free:
        raise Denied("CpuSlotsExhausted", f"machine {machine} was started with room for {_taken(known)} vCPUs")
    number, slot = free[0]
    arguments = {"driver": slot["type"], "id": cpu_id(number), **slot["props"]}
    monitor.execute("device_add", arguments, deadline=deadline)
    if _taken(slots(monitor, deadline)) <= _taken(known):
        raise Failed("CpuNotThere", f"QEMU of machine {machine} took a vCPU ({cpu_id(number)}) and does not show it")


def _remove(monitor: Monitor, machine: str, goal: int, deadline: Deadline) -> None:
    """Take away the last one that can be. Those built in at the start have no id and stay."""
    known = slots(monitor, deadline)
    mobile = _mobile(known)
    if not mobile:
        raise Denied(
            "CpusBuiltIn",
            f"machine {machine} was started with {_taken(known)} vCPUs; it cannot have {goal} while it runs",
        )
    name = str(mobile[-1]["qom-path"]).rpartition("/")[2]
    place, began = mobile[-1]["props"], time.monotonic()
    with monitor.expect("DEVICE_DELETED", "DEVICE_UNPLUG_GUEST_ERROR", "ACPI_DEVICE_OST") as events:
        ask(monitor, name, deadline)
        while True:
            event = events.next(deadline.capped(_LOOK_SECONDS))
            if event is not None and _refusal(event, name):
                raise Denied(
                    "GuestRefused",
                    f"machine {machine}: the guest refuses to give back a vCPU; it has {count(monitor, deadline)} "
                    f"where {goal} are wanted",
                    retryable=True,
                )
            # An emulated CPU leaves without an event of its own: its slot is what tells.
            now = slots(monitor, Deadline.after(_ANSWER_SECONDS))
            if not any(slot["props"] == place and "qom-path" in slot for slot in now):
                return
            if deadline.passed:
                raise Denied(
                    "GuestRefused",
                    f"machine {machine}: the guest has not given back a vCPU within {time.monotonic() - began:.0f} s; "
                    f"it has {_taken(now)} where {goal} are wanted",
                    retryable=True,
                )


def _refusal(event: Mapping[str, Any], name: str) -> bool:
    data = event.get("data", {})
    if event["event"] == "ACPI_DEVICE_OST":
        info = data.get("info", {})
        return bool(info.get("device") == name and info.get("source") == _EJECT and info.get("status") in _REFUSALS)
    return bool(event["event"] == "DEVICE_UNPLUG_GUEST_ERROR" and data.get("device") == name)
