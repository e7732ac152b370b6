"""What keeps a machine on its node while it runs: what QEMU cannot send, and what another node would not have."""

from __future__ import annotations

import stat
from contextlib import suppress
from pathlib import Path

from devalloc_machines.qemu import emulated_devices, memory, vcpu
from devalloc_machines.qemu.qmp import Monitor, checked_text, run_state
from devalloc_machines.qemu.records import MachineRecord
from devalloc_machines.qemu.spec import MachineSpec
from devalloc_node.deadline import Deadline

_MOST_BLOCKERS = 8


def why_not_movable(record: MachineRecord, monitor: Monitor, deadline: Deadline) -> str | None:
    """What of a machine cannot be on two nodes; None if nothing is in the way. Raises NodeError."""
    spec = record.spec
    if spec.adopt is not None:
        return "it was adopted, and how its QEMU was started is not known"
    state = run_state(monitor, deadline)
    if record.state != "running" or state != "running":
        return f"its guest does not run ({record.state}, {state!r}); start it or wait until it has started"
    if (why := why_never_movable(spec)) is not None:
        return why
    if spec.firmware == "uefi" and not record.firmware:
        return "which firmware it was started with is not recorded; restart it"
    block = next((disk.path for disk in spec.disks if _is_block_device(disk.path)), None)
    if block is not None:
        return f"disk {block} is a block device, and nothing proves that it is the same one on another node"
    if (blocked := _blockers(monitor, deadline)) is not None:
        return f"QEMU cannot move it: {blocked}"
    plugged = sorted(one.name for one in emulated_devices.plugged_emulated(monitor, deadline))
    if plugged:
        return f"devices were plugged in while it ran ({', '.join(plugged)}); unplug them first"
    slots = [bool(slot.get("qom-path")) for slot in vcpu.slots(monitor, deadline)]
    if slots != sorted(slots, reverse=True):
        return "its vCPUs are not in the first slots, as they would be in a new QEMU"
    if not memory.has_dimms_in_order(monitor, deadline):
        return "its DIMMs are not in the first slots, as they would be in a new QEMU"
    return None


def why_never_movable(spec: MachineSpec) -> str | None:
    """What of its spec lies on one node. The target asks too: what is removed after a failure would be its own."""
    if spec.wants_sandbox:
        return "its network is a warm setup of its node"
    if any(disk.device == "nvme" for disk in spec.disks):
        return "QEMU cannot move disks with device nvme; use virtio"
    if own := next((disk.path for disk in spec.disks if disk.clone is not None), None):
        return f"its clone of {own} is on its node only"
    return None


def _blockers(monitor: Monitor, deadline: Deadline) -> str | None:
    """QEMU's own words: each device whose VFIO driver has no migration adds some, such as "0000:81:00.0: VFIO migration
    is not supported in kernel". A kernel that cannot pass on which memory a device has written is not among them: that
    shows when a migration starts."""
    blocked = monitor.execute("query-migrate", deadline=deadline).get("blocked-reasons") or []
    return "; ".join(checked_text(reason) for reason in blocked[:_MOST_BLOCKERS]) or None


def _is_block_device(path: str) -> bool:
    with suppress(OSError):
        return stat.S_ISBLK(Path(path).stat().st_mode)
    return False
