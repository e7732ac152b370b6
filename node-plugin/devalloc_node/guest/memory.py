"""The guest's memory: what /proc/meminfo says of all of it, and what a cgroup says of the workload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from devalloc_node.guest.system import GuestSystem


@dataclass(frozen=True, slots=True)
class GuestMemory:
    """Of the whole guest, in bytes."""

    total: int
    available: int
    cached: int
    anonymous: int
    """Memory of processes and of tmpfs, on either list: what cannot be dropped."""


def memory(system: GuestSystem) -> GuestMemory:
    """Raises OSError, and ValueError where a field is missing."""
    fields: dict[str, int] = {}
    for line in system.read("proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        amount = value.split()
        if amount and amount[0].isdecimal():
            fields[name] = int(amount[0]) * (1024 if amount[1:] == ["kB"] else 1)
    try:
        return GuestMemory(
            total=fields["MemTotal"],
            available=fields["MemAvailable"],
            cached=fields["Cached"],
            anonymous=fields["Active(anon)"] + fields["Inactive(anon)"],
        )
    except KeyError as missing:
        raise ValueError(f"{system.path('proc/meminfo')} has no {missing.args[0]}") from None


def cgroup_file(system: GuestSystem, group: str) -> str:
    """Where a cgroup tells of its memory: version 2, or version 1, or both mounted side by side.

    Raises ValueError: no such name, no such cgroup, or one whose memory is not told.
    """
    parts = group.strip("/").split("/")
    if not all(part and part not in (".", "..") and part.isprintable() for part in parts):
        raise ValueError(f"invalid cgroup name {group!r}: give it relative to /sys/fs/cgroup, such as `workload.slice`")
    name = "/".join(parts)
    places = [f"sys/fs/cgroup/{root}{name}/memory.stat" for root in ("", "unified/", "memory/")]
    for place in places:
        if system.has(place):
            return place
    looked = ", ".join(system.path(place) for place in places)
    raise ValueError(f"no cgroup {name!r} with a memory controller; looked for {looked}")


def cgroup_anonymous(system: GuestSystem, file: str) -> int:
    """Anonymous memory of a cgroup and those below it, in bytes. Raises OSError, ValueError."""
    fields = dict(line.split(" ", 1) for line in system.read(file).splitlines() if " " in line)
    for prefix in ("total_", ""):  # version 1 tells the sum apart
        try:
            return int(fields[f"{prefix}active_anon"]) + int(fields[f"{prefix}inactive_anon"])
        except KeyError:
            continue
    raise ValueError(f"{system.path(file)} has no active_anon and inactive_anon")


MemoryMeasure = Callable[[], int]
"""Bytes in use now. Raises OSError, ValueError."""


def memory_measure(system: GuestSystem, what: str) -> MemoryMeasure | None:
    """How memory in use is measured: ``system``, ``cgroup:NAME`` or ``none``. Raises ValueError."""
    kind, _, group = what.partition(":")
    if what == "none":
        return None
    if what == "system":
        return lambda: memory(system).anonymous
    if kind != "cgroup" or not group:
        raise ValueError(f"{what!r} is not `system`, `cgroup:NAME` or `none`")
    file = cgroup_file(system, group)
    return lambda: cgroup_anonymous(system, file)
