"""Images have a part of the disk: what they may take, and what must be free before another one is pulled."""

from __future__ import annotations

from devalloc.inventory.capacity.host import HostCapacity
from devalloc.inventory.capacity.sizes import human
from devalloc.inventory.capacity.usage import Stores, stored

LEAST_FOR_PULL = 5 << 30
"""Bytes of disk that must be available before an image is pulled: how large it is shows only afterwards."""


def image_bytes(stores: Stores) -> int:
    """Bytes that images and their cache take. What cannot be asked is an error: it raises UsageUnknown."""
    return stored(Stores(images=stores.images, cache=stores.cache))


def image_shortage(host: HostCapacity, used: int) -> str | None:
    """Why no further image may be stored when they take ``used`` bytes; None when one may, or there is no limit."""
    limit = host.image_limit
    if limit <= 0 or used < limit:
        return None
    percent = limit * 100 // host.disk.capacity if host.disk.capacity else 0
    return f"image storage limit reached: {human(used)} used, the limit is {human(limit)} ({percent}% of the disk)"


def pull_shortage(available: int) -> str | None:
    """Why no image may be pulled while so many bytes of disk are available; None when one may."""
    if available >= LEAST_FOR_PULL:
        return None
    return f"insufficient disk to pull an image: {human(available)} available, {human(LEAST_FOR_PULL)} needed at least"
