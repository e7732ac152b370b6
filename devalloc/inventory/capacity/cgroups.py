"""Limits of the cgroup that this process is in.

They do not bind machines, which get cgroups of their own. They are reported because they would bind them if that fails,
and because the admin who set them may have meant machines, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from devalloc.inventory.sysfs import Folder, Tree

_MAX = re.compile(r"([0-9]{1,15})\s+([0-9]{1,15})", re.ASCII)
_UNLIMITED = 1 << 60
"""What version 1 shows for "no limit" is a little below 2^63."""


def own_limits(tree: Tree) -> list[str]:
    """A sentence for each limit of this process's cgroup; none in a recording without /proc."""
    place = tree.proc.folder("self") if tree.proc else None
    top = tree.sys.folder("fs", "cgroup") if tree.sys else None
    cpus: list[float] = []
    memory: list[int] = []
    for folder in _folders((place and place.text("cgroup")) or "", top):
        cpus += _quota(folder)
        memory += _memory(folder)
    sentences = []
    if cpus:
        sentences.append(f"this process's cgroup has a quota of {min(cpus):g} CPUs, a limit not counted for machines")
    if memory:
        sentences.append(f"this process's cgroup has {min(memory)} bytes of memory, a limit not counted for machines")
    return sentences


def _folders(text: str, top: Folder | None) -> Iterator[Folder]:
    """The cgroups that the process is in, each with those above it: ``<id>:<controllers>:<path>`` a line."""
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3 or top is None:
            continue
        controllers = parts[1].split(",")
        mounts = [top, top.folder("unified")] if parts[1] == "" else [top.folder(name) for name in controllers[:1]]
        names = [name for name in parts[2].split("/") if name and name not in (".", "..")]
        for mount in filter(None, mounts):
            for depth in range(len(names) + 1):
                folder = mount.folder(*names[:depth]) if depth else mount
                if folder is not None and (parts[1] == "" or {"cpu", "memory"} & set(controllers)):
                    yield folder


def _quota(folder: Folder) -> Iterator[float]:
    if folder.has("cpu.max"):
        match = _MAX.fullmatch(folder.text("cpu.max") or "")
        if match and int(match[2]):
            yield int(match[1]) / int(match[2])
    elif folder.has("cpu.cfs_quota_us"):
        quota, period = folder.number("cpu.cfs_quota_us"), folder.number("cpu.cfs_period_us")
        if quota and period and quota > 0 and period > 0:
            yield quota / period


def _memory(folder: Folder) -> Iterator[int]:
    for name in ("memory.max", "memory.limit_in_bytes"):
        text = folder.text(name) if folder.has(name) else None
        if text is not None and text.isascii() and text.isdigit() and len(text) < 20 and int(text) < _UNLIMITED:
            yield int(text)
