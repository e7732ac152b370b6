"""Images have a part of the disk: what they may take, and what must be free before another one is pulled."""

from __future__ import annotations

from devalloc.inventory.capacity.config import format_size
from devalloc.inventory.capacity.host import HostCapacity
from devalloc.inventory.capacity.status import DiskUsageSources, stored_bytes

LEAST_FOR_PULL = 5 << 30
"""Bytes of disk that must be available before an image is pulled: how large it is shows only afterwards."""


def image_bytes(stores: DiskUsageSources) -> int:
    """Bytes that images and their cache take. What cannot be asked is an error: it raises UsageUnknown."""
    return stored_bytes(DiskUsageSources(images=stores.images, cache=stores.cache))


def image_shortage(host: HostCapacity, used: int) -> str | None:
    """Why no further image may be stored when they take ``used`` bytes; None when one may, or there is no limit."""
    limit = host.image_limit
    if limit <= 0 or used < limit:
        return None
    percent = limit * 100 // host.disk.capacity if host.disk.capacity else 0
    limits = f"the limit is {format_size(limit)} ({percent}% of the disk)"
    return f"image storage limit reached: {format_size(used)} used, {limits}"


def pull_shortage(available: int) -> str | None:
    """Why no image may be pulled while so many bytes of disk are available; None when one may."""
    if available >= LEAST_FOR_PULL:
        return None
    sizes = f"{format_size(available)} available, {format_size(LEAST_FOR_PULL)} needed at least"
    return f"insufficient disk to pull an image: {sizes}"
