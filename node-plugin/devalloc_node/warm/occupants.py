"""Who lives in a setup: while anybody does, nothing of it is removed."""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from devalloc_node.errors import Failed
from devalloc_node.warm import network
from devalloc_node.warm.setup import Inode, Setup

_MOST = 8
"""Processes that are named for a setup."""
_NOWHERE: Inode = (0, 0)
_GONE = (errno.ENOENT, errno.EINVAL, errno.ENODEV)
"""There is no namespace of that name any more, or nothing that is one; or the interface has just gone."""


def occupants(setups: Collection[Setup], own: Mapping[str, int] | None = None) -> Mapping[str, Sequence[str]]:
    """By id, for people: the processes in its namespace, and who has its TAP interface open though he is elsewhere.

    Setups in which nobody lives are left out. One look at all processes, however many setups. ``own``: by id, the
    process of a setup itself, which does not count. Raises Failed (``ProcessesUnseen``) where that cannot be told:
    nothing counts as empty then.
    """
    own = own or {}
    at: Mapping[Inode, str] = {setup.inode: setup.id for setup in setups if setup.inode is not None}
    found: dict[str, list[str]] = defaultdict(list)
    try:
        for pid in filter(str.isdecimal, os.listdir("/proc")) if at else ():
            name = at.get(_namespace_of(pid))
            if name is not None and len(found[name]) < _MOST and int(pid) != own.get(name):
                found[name].append(f"process {pid} ({_words(pid)})")
        for setup in setups:
            if not found.get(setup.id) and setup.id not in own and _is_tap_used(setup):
                found[setup.id].append(f"a process elsewhere that has {setup.tap} open")
    except OSError as error:
        raise Failed("ProcessesUnseen", f"who lives in warm setups cannot be seen: {error}") from error
    return {name: tuple(who) for name, who in found.items() if who}


def _namespace_of(pid: str) -> Inode:
    """Nobody's where it has ended. Raises OSError."""
    try:
        there = os.stat(f"/proc/{pid}/ns/net")
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # a pool that may not look is not opened at all
        return _NOWHERE
    return there.st_dev, there.st_ino


def _words(pid: str) -> str:
    """What it calls itself. That it lives there is known already."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return "?"


def _is_tap_used(setup: Setup) -> bool:
    try:
        return setup.inode == network.found(setup.namespace) and network.is_tap_used(setup.namespace, setup.tap)
    except OSError as error:
        if error.errno in _GONE:
            return False
        raise
