"""Rounds of the loops of machines by hand."""

from __future__ import annotations

from devalloc.api.virtual_machine import VirtualMachine
from devalloc.store.watcher import Listed
from devalloc_machines.qemu.lifecycle import MachineLifecycle
from devalloc_machines.vms import RequestLoop, VirtualMachineLoop


def full_round(loop: VirtualMachineLoop) -> float | None:
    """One that lists all objects; seconds until the next key is due."""
    loop.worker.tell(Listed())
    return loop.worker.round()


def look_at_requests(loop: RequestLoop) -> None:
    """Have it look at all machines of requests, and bring each nearer to its request."""
    loop.worker.add(None)
    loop.worker.round()
    loop.worker.round()


def to_begin(machines: MachineLifecycle) -> list[VirtualMachine]:
    """The machines of requests that are to be started, or whose start is to be finished."""
    seen = [machine for machine in machines.list() if machine.is_to_begin]
    return [machine.created_as for machine in seen if machine.created_as is not None]
