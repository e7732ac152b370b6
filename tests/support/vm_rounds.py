"""Rounds of the loop of VirtualMachines by hand."""

from __future__ import annotations

from devalloc.store.watcher import Listed
from devalloc_machines.vms import VirtualMachineLoop


def full_round(loop: VirtualMachineLoop) -> float | None:
    """One that lists all objects; seconds until the next key is due."""
    loop.worker.tell(Listed())
    return loop.worker.round()
