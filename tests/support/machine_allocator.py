"""An allocator of claims and machines, as programs make it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from devalloc.controller.reconcile.device_claims import DeviceClaimAllocator
from devalloc.controller.reconcile.loop import AllocatorSettings
from devalloc.machines.schedule.requester import requesters
from devalloc.store import Store


def machine_allocator(store: Store, *, settings: AllocatorSettings | None = None, **more: Any) -> DeviceClaimAllocator:
    """Make one that answers machines and migrations, too."""
    answering = replace(settings or AllocatorSettings(), requesters=requesters())
    return DeviceClaimAllocator(store, settings=answering, **more)
