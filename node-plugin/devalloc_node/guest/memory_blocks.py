"""Bring hot-plugged memory blocks online, in the zone that allows unplugging.

A *movable* block can be emptied and unplugged. The kernel's own memory is never movable, and each movable page costs
some of it, so a guest whose plugged memory is all movable runs dry in spite of all it has. `auto` leaves the choice to
the kernel, which keeps to a ratio; what it then puts into the kernel's zone may not come out again, and a later shrink
ends early (it is denied at that size).
"""

from __future__ import annotations

from collections.abc import Iterator

from devalloc_node.guest.system import GuestSystem

FOLDER = "sys/devices/system/memory"
_PARAMETERS = "sys/module/memory_hotplug/parameters"
_STATES = {"auto": "online", "movable": "online_movable", "kernel": "online_kernel"}
POLICIES = (*_STATES, "leave")


def set_policy(system: GuestSystem, policy: str, ratio: int) -> tuple[str, list[str]]:
    """Tell the kernel what to do with memory that is plugged from now on.

    ``ratio``: with `auto`, how many times the kernel's memory the movable may be. Returns the policy that is followed,
    and what did not work or is otherwise than asked for, in sentences.
    """
    problems = []
    if policy == "auto" and not system.has(f"{_PARAMETERS}/auto_movable_ratio"):
        problems.append("this kernel does not support a ratio of movable memory: all plugged memory becomes movable")
        policy = "movable"
    writes = [(f"{FOLDER}/auto_online_blocks", _STATES[policy])]
    if policy == "auto":
        # A percentage, and one more so that the ratio itself can be reached.
        writes = [
            (f"{_PARAMETERS}/auto_movable_ratio", str(ratio * 100 + 1)),
            (f"{_PARAMETERS}/online_policy", "auto-movable"),
            *writes,
        ]
    for name, value in writes:
        if not system.has(name):
            problems.append(f"{system.path(name)} does not exist: blocks are brought online one by one")
            continue
        try:
            system.write(name, value)
        except OSError as error:
            problems.append(f"cannot write {value}: {error}")
    return policy, problems


def bring_online(system: GuestSystem, policy: str) -> list[str]:
    """Bring all blocks online that are not. Returns what did not work, in sentences. Raises OSError."""
    failures = []
    for block in _blocks(system):
        state = f"{FOLDER}/{block}/state"
        try:
            if system.read(state).strip() == "offline":
                system.write(state, _STATES[policy])
        except OSError as error:
            if not system.has(state):
                continue  # unplugged meanwhile
            failures.append(f"memory block {block.removeprefix('memory')} cannot be brought online: {error}")
    return failures


def _blocks(system: GuestSystem) -> Iterator[str]:
    for name in system.names(FOLDER):
        if name.startswith("memory") and name[6:].isdecimal():
            yield name
