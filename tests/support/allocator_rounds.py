"""Rounds of an allocator, made by hand."""

from __future__ import annotations

from devalloc.controller.reconcile.device_claims import DeviceClaimAllocator


def settle(allocator: DeviceClaimAllocator) -> None:
    """Make rounds until one gives nothing, writes nothing and asks for no other; AssertionError if none does."""
    version = ""
    for _ in range(100):
        done = allocator.round()
        if not (done.granted or allocator.loop.is_again) and done.resource_version == version:
            return
        version = done.resource_version
    raise AssertionError("it never comes to rest")
