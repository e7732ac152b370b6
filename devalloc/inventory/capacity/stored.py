"""What images, their cache and volumes take of a host's disk, counted from the files that are there.

They lie in folders of the data folder: ``images``, ``oci-cache`` and ``volumes``. A count holds until the content of a
folder changes, but at most HOLDS_SECONDS, because files grow without a trace in their folder; and a count that took
long holds for longer, so that counting takes no more than a small part of the time.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from devalloc.api.virtual_machine import VirtualMachine
from devalloc.inventory.capacity.config import format_size
from devalloc.inventory.capacity.host import HostCapacity
from devalloc.inventory.capacity.machines import machine_usage
from devalloc.inventory.capacity.status import DiskUsageSources, HostStatus, UsageUnknown, stored_bytes

IMAGES, CACHE, VOLUMES = "images", "oci-cache", "volumes"
"""Folders of the data folder."""
HOLDS_SECONDS = 10.0
MAX_FILES = 200_000
"""Entries of one folder that are counted; more are an error."""
_MAX_WATCHED = 1_000
"""Folders whose changes are looked for before a count is used again."""
_REST = 20
"""A count holds at least so many times as long as it took."""
LEAST_FOR_PULL = 5 << 30
"""Bytes of disk that must be available before an image is pulled: how large it is shows only afterwards."""


@dataclass(frozen=True, slots=True)
class _Count:
    size: int
    folders: tuple[tuple[str, int], ...]
    """Folders below, with the time of their last change in nanoseconds."""
    at: float
    took: float


class FolderSize:
    """The bytes of the files below a folder, as one function that is called. Safe for threads."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = folder, clock
        self._mutex = threading.Lock()
        self._last: _Count | None = None

    def __call__(self) -> int:
        """0 where there is no such folder. Raises OSError if it cannot be read, or has more than MAX_FILES entries."""
        with self._mutex:
            if self._last is None or not self._holds(self._last):
                self._last = None
                begun = self._clock()
                size, folders = count_files(self._folder)
                now = self._clock()
                self._last = _Count(size, folders, now, now - begun)
            return self._last.size

    def _holds(self, last: _Count) -> bool:
        age = self._clock() - last.at
        if age < _REST * last.took:
            return True
        if age > HOLDS_SECONDS:
            return False
        return all(_changed_at(path) == changed for path, changed in last.folders)


def count_files(folder: Path) -> tuple[int, tuple[tuple[str, int], ...]]:
    """The bytes of a folder's files, and the folders in it with the times of their changes.

    A sparse file counts with its whole length, to which a machine can fill it. A file with several names counts once.
    Links are not followed, nor other file systems. Raises OSError.
    """
    size, entries = 0, 0
    seen: set[tuple[int, int]] = set()
    watched: list[tuple[str, int]] = []
    try:
        top = os.stat(folder, follow_symlinks=False)
    except FileNotFoundError:
        return 0, ((str(folder), 0),)
    if not stat.S_ISDIR(top.st_mode):
        raise NotADirectoryError(f"{folder} is not a folder")
    pending = [str(folder)]
    while pending:
        path = pending.pop()
        if len(watched) < _MAX_WATCHED:
            watched.append((path, _changed_at(path)))
        try:
            listing = os.scandir(path)
        except FileNotFoundError:  # it was removed meanwhile
            continue
        with listing:
            for entry in listing:
                entries += 1
                if entries > MAX_FILES:
                    raise OSError(f"{folder} has more than {MAX_FILES} files, which are not counted")
                try:
                    info = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if info.st_dev != top.st_dev:
                    continue
                if stat.S_ISDIR(info.st_mode):
                    pending.append(entry.path)
                elif stat.S_ISREG(info.st_mode) and (info.st_nlink == 1 or (info.st_dev, info.st_ino) not in seen):
                    seen.add((info.st_dev, info.st_ino))
                    size += _size(info)
    return size, tuple(watched)


def _size(info: os.stat_result) -> int:
    return max(info.st_size, info.st_blocks * 512)


def _changed_at(path: str) -> int:
    try:
        return os.stat(path, follow_symlinks=False).st_mtime_ns
    except OSError:
        return 0


def stores_of(host: HostCapacity) -> DiskUsageSources | None:
    """What is stored in the host's data folder; None where it has none."""
    if host.data_dir is None:
        return None
    return DiskUsageSources(*(FolderSize(host.data_dir / name) for name in (IMAGES, CACHE, VOLUMES)))


def reserved_in_stores(host: HostCapacity, machine: VirtualMachine) -> int:
    """Bytes of the reservation of an active machine that are among those of ``stores_of``: they count twice for those
    who add up both."""
    use = machine_usage(machine)
    return min(use.overlay, stored_of_machine(host, machine)) if use.is_active else 0


class LastCount:
    """What a source of bytes last answered, for those who must not wait for a disk. Safe for threads."""

    def __init__(self, source: Callable[[], int]) -> None:
        self._source = source
        self._answer: int | Exception = UsageUnknown("not counted yet")

    def refresh(self) -> None:
        """Ask the source, which may take long. What it raises, the next call raises."""
        try:
            self._answer = self._source()
        except Exception as error:
            self._answer = error

    def __call__(self) -> int:
        """Raises what the source raised."""
        if isinstance(answer := self._answer, Exception):
            raise answer
        return answer


def disks_in_stores(host: HostCapacity, paths: Iterable[str]) -> int:
    """Bytes of those of the files that ``stores_of`` counts; what cannot be read counts there, if at all."""
    if host.data_dir is None:
        return 0
    folders = [os.path.realpath(host.data_dir / name) for name in (IMAGES, CACHE, VOLUMES)]
    sizes = dict[tuple[int, int], int]()
    for path in paths:
        real = os.path.realpath(path)
        folder = next((each for each in folders if real.startswith(f"{each}/")), None)
        if folder is None:
            continue
        try:
            info, top = os.stat(real, follow_symlinks=False), os.stat(folder, follow_symlinks=False)
        except OSError:
            continue
        if stat.S_ISREG(info.st_mode) and info.st_dev == top.st_dev:
            sizes[info.st_dev, info.st_ino] = _size(info)
    return sum(sizes.values())


def stored_of_machine(host: HostCapacity, machine: VirtualMachine) -> int:
    """Bytes of a machine's own disks that are among those of ``stores_of``. Images that it only reads or clones are
    not its own, and a machine that reserves nothing has none to count."""
    start = machine.spec.start
    if start is None or not machine.spec.disk:
        return 0
    return disks_in_stores(host, (disk.path for disk in start.disks if not disk.read_only and disk.clone is None))


def image_bytes(stores: DiskUsageSources) -> int:
    """Bytes that images and their cache take. What cannot be asked is an error: it raises UsageUnknown."""
    return stored_bytes(DiskUsageSources(images=stores.images, cache=stores.cache))


def image_shortage(host: HostCapacity, used: int) -> str | None:
    """Why no further image may be stored when they take ``used`` bytes; None if another may, or without a limit."""
    limit = host.image_limit
    if limit <= 0 or used < limit:
        return None
    percent = limit * 100 // host.disk.capacity if host.disk.capacity else 0
    limits = f"the limit is {format_size(limit)} ({percent}% of the disk)"
    return f"image storage limit reached: {format_size(used)} used, {limits}"


def pull_shortage(available: int, size: int = 0) -> str | None:
    """Why no image may be pulled while so many bytes of disk are available; None when one may. ``size``: of the image,
    where it is known."""
    least = max(LEAST_FOR_PULL, size)
    if available >= least:
        return None
    sizes = f"{format_size(available)} available, {format_size(least)} needed at least"
    return f"insufficient disk to pull an image: {sizes}"


def pull_refusal(status: HostStatus, size: int = 0) -> str | None:
    """Why an image of ``size`` bytes (0: unknown) may not be pulled to a host; None when it may.

    Images and their cache must stay within their part of the disk, and the image must fit beside all that the disk is
    promised to.
    """
    if not status.counts_content:
        return "the host's images are not counted: name its data folder with --data-dir"
    if status.uncounted:
        return "; ".join(status.uncounted)
    used, limit = status.disk.images + status.disk.cache, status.host.image_limit
    if 0 < limit < used + size:
        limits = f"the limit is {format_size(limit)}"
        return f"insufficient image storage: requested {format_size(size)}, {format_size(used)} used, {limits}"
    return image_shortage(status.host, used) or pull_shortage(status.resources["disk"].available, size)
