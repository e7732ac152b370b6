"""The guest's CPUs: which are there, which are online, and bringing as many online as there should be."""

from __future__ import annotations

from devalloc_node.guest.system import GuestSystem

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


def present(system: GuestSystem) -> list[int]:
    """CPUs that the machine has, online or not. Raises OSError, ValueError."""
    return parse_cpus(system.read(f"{FOLDER}/present"))


def online(system: GuestSystem) -> list[int]:
    """CPUs that the guest uses. Raises OSError, ValueError."""
    return parse_cpus(system.read(f"{FOLDER}/online"))


def scale(system: GuestSystem, count: int | None) -> list[str]:
    """Bring so many CPUs online: the lowest first, and off again from the highest. None: all that are present.

    CPU 0 stays. Returns what did not work, in sentences; success is what `online` reads afterwards. Raises OSError and
    ValueError where the lists of CPUs cannot be read.
    """
    there = present(system)
    wanted = set(there if count is None else _chosen(there, online(system), count))
    failures = []
    is_online = set(online(system))
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
