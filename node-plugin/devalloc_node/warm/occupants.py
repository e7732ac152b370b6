"""Who lives in a setup: while anybody does, nothing of it is removed."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from devalloc_node.warm import network
from devalloc_node.warm.setup import Inode, Setup

_MOST = 8
"""Processes that are named for a setup."""


def occupants(setups: Collection[Setup], own: Mapping[str, int] | None = None) -> Mapping[str, Sequence[str]]:
    """By id, for people: the processes in its namespace, and who has its TAP interface open though he is elsewhere.

    Setups in which nobody lives are left out. One look at all processes, however many setups. ``own``: by id, the
    process of a setup itself, which does not count.
    """
    own = own or {}
    at: Mapping[Inode, str] = {setup.inode: setup.id for setup in setups if setup.inode is not None}
    found: dict[str, list[str]] = defaultdict(list)
    for pid in filter(str.isdecimal, os.listdir("/proc")) if at else ():
        with suppress(OSError):  # it has ended, or is the kernel's own
            there = os.stat(f"/proc/{pid}/ns/net")
            name = at.get((there.st_dev, there.st_ino))
            if name is not None and len(found[name]) < _MOST and int(pid) != own.get(name):
                found[name].append(f"process {pid} ({Path(f'/proc/{pid}/comm').read_text(errors='replace').strip()})")
    for setup in setups:
        if not found.get(setup.id) and setup.id not in own and _is_tap_used(setup):
            found[setup.id].append(f"a process elsewhere that has {setup.tap} open")
    return {name: tuple(who) for name, who in found.items() if who}


def _is_tap_used(setup: Setup) -> bool:
    try:
        return setup.inode == network.found(setup.namespace) and network.is_tap_used(setup.namespace, setup.tap)
    except OSError:  # there is no namespace any more, or it is another's
        return False
