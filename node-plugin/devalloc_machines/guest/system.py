"""The one boundary to the guest's kernel: files of /proc and /sys below a root, which may be a recorded tree; and the
guest's CPUs: which are present, which are online, and bringing them online.
"""

from __future__ import annotations

import os

_MOST_BYTES = 1 << 20


class GuestSystem:
    """Paths are relative to the root and fixed by the code; what is put into them is a number or was checked."""

    def __init__(self, root: str = "/") -> None:
        self._root = root

    def path(self, name: str) -> str:
        """How messages for people call it."""
        return os.path.join(self._root, name)

    def read(self, name: str) -> str:
        """All of a file, at most a mebibyte. Raises OSError."""
        descriptor = os.open(self.path(name), os.O_RDONLY | os.O_CLOEXEC)
        try:
            parts = []
            size = 0
            while size < _MOST_BYTES and (part := os.read(descriptor, 1 << 16)):
                parts.append(part)
                size += len(part)
        finally:
            os.close(descriptor)
        return b"".join(parts).decode("utf-8", "replace")

    def write(self, name: str, value: str) -> None:
        """One write of a value to a file that is there. Raises OSError, with what the kernel says to it."""
        descriptor = os.open(self.path(name), os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, value.encode())
        finally:
            os.close(descriptor)

    def names(self, folder: str) -> list[str]:
        """What is in a folder. Raises OSError."""
        return os.listdir(self.path(folder))

    def has(self, name: str) -> bool:
        return os.path.exists(self.path(name))


FOLDER = "sys/devices/system/cpu"
_MOST = 65_536  # CPUs that a list may name: more than any kernel has


def parse_cpus(text: str) -> list[int]:
    """The CPUs of a list such as ``0-1,3-5, 9``, in order. Raises ValueError."""
    cpus: set[int] = set()
    for part in text.strip().split(",") if text.strip() else []:
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"not a CPU or a range of CPUs: {part.strip()[:40]!r}")
        low, high = int(first), int(last) if dash else int(first)
        if not low <= high < _MOST:
            raise ValueError(f"the CPUs {low} to {high} are not in order, or there are too many")
        cpus.update(range(low, high + 1))
    return sorted(cpus)


def present_cpus(system: GuestSystem) -> list[int]:
    """CPUs that the machine has, online or not. Raises OSError, ValueError."""
    return parse_cpus(system.read(f"{FOLDER}/present"))


def online_cpus(system: GuestSystem) -> list[int]:
    """CPUs that the guest uses. Raises OSError, ValueError."""
    return parse_cpus(system.read(f"{FOLDER}/online"))


def scale_cpus(system: GuestSystem, count: int | None) -> list[str]:
    """Bring so many CPUs online: the lowest first, and off again from the highest. None: all that are present.

    CPU 0 stays. Returns what did not work, in sentences; success is what `online` reads afterwards. Raises OSError and
    ValueError where the lists of CPUs cannot be read.
    """
    there = present_cpus(system)
    wanted = set(there if count is None else _chosen(there, online_cpus(system), count))
    failures = []
    is_online = set(online_cpus(system))
    for cpu in [*sorted(wanted - is_online), *sorted(is_online - wanted, reverse=True)]:
        name = f"{FOLDER}/cpu{cpu}/online"
        if not system.has(name):
            continue  # cannot be switched, as the first CPU on x86
        try:
            system.write(name, "1" if cpu in wanted else "0")
        except OSError as error:
            failures.append(f"CPU {cpu} cannot be brought {'on' if cpu in wanted else 'off'}line: {error}")
    return failures


def _chosen(there: list[int], is_online: list[int], count: int) -> list[int]:
    """Which: what is online stays, unless it is too much; CPU 0 always."""
    stays = sorted(set(there) & set(is_online))
    others = [cpu for cpu in there if cpu not in stays]
    return (stays + others)[: max(1, count)]
