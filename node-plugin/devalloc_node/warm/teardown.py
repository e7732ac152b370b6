"""Remove setups, but nothing of one that a process still uses.

Who lives in a setup: while anybody does, nothing of it is removed.
"""

from __future__ import annotations

import errno
import logging
import os
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.warm import network
from devalloc_node.warm.builder import SetupBuilder
from devalloc_node.warm.pool_state import PoolState
from devalloc_node.warm.records import SetupRecord
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
    by_setup: dict[str, list[str]] = defaultdict(list)
    try:
        for pid in filter(str.isdecimal, os.listdir("/proc")) if at else ():
            name = at.get(_namespace_of(pid))
            if name is not None and len(by_setup[name]) < _MOST and int(pid) != own.get(name):
                by_setup[name].append(f"process {pid} ({_process_name(pid)})")
        for setup in setups:
            if not by_setup.get(setup.id) and setup.id not in own and _is_tap_used(setup):
                by_setup[setup.id].append(f"a process in another namespace that has {setup.tap} open")
    except OSError as error:
        raise Failed("ProcessesUnseen", f"cannot see which processes use warm setups: {error}") from error
    return {name: tuple(who) for name, who in by_setup.items() if who}


def _namespace_of(pid: str) -> Inode:
    """Nobody's where it has ended. Raises OSError."""
    try:
        there = os.stat(f"/proc/{pid}/ns/net")
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # a pool that may not look is not opened at all
        return _NOWHERE
    return there.st_dev, there.st_ino


def _process_name(pid: str) -> str:
    """What it calls itself. That it lives there is known already."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return "?"


def _is_tap_used(setup: Setup) -> bool:
    try:
        return setup.inode == network.namespace_inode(setup.namespace) and network.is_tap_used(
            setup.namespace, setup.tap
        )
    except OSError as error:
        if error.errno in _GONE:
            return False
        raise


log = logging.getLogger(__name__)


class SetupTeardown:
    """Safe for threads."""

    def __init__(self, pool_state: PoolState, builder: SetupBuilder, workers: int) -> None:
        self._pool_state = pool_state
        self._builder = builder
        self._workers = workers

    def occupants(self, records: Sequence[SetupRecord], *, asking: bool = False) -> Mapping[str, Sequence[str]]:
        """Who lives in them, by id, but for machines that wait there. ``asking``: these may have been used since, and
        are asked whether they were. Raises Failed (``ProcessesUnseen``)."""
        waiting = {}
        for record in records:
            process = self._builder.process_of(record)
            if process is not None and (not asking or self._builder.is_unused(record)):
                waiting[record.id] = process
        return occupants([self._builder.setup_of(record) for record in records], waiting)

    def remove_all(self) -> None:
        """Try those that are to be removed, several at a time. Raises Failed (``ProcessesUnseen``)."""
        with self._pool_state.mutex:
            records = list(self._pool_state.removing.values())
        if not records:
            return
        lived_in = self.occupants(records)
        with ThreadPoolExecutor(min(self._workers, len(records)), thread_name_prefix="warm") as workers:
            list(workers.map(lambda record: self.remove(record, lived_in), records))

    def remove(self, record: SetupRecord, lived_in: Mapping[str, Sequence[str]]) -> None:
        """What cannot be removed now is tried again. ``lived_in``: who lives where."""
        pool_state = self._pool_state
        with pool_state.mutex:
            if record.id in pool_state.in_hand or record.id not in pool_state.removing:
                return
            pool_state.in_hand.add(record.id)
        try:
            if who := lived_in.get(record.id):
                raise Denied("SetupInUse", f"setup {record.id} is not removed, because it is used by {', '.join(who)}")
            self._builder.remove(record)
        except NodeError as error:
            log.warning("%s", error)
            pool_state.failed(error)
        else:
            with pool_state.mutex:
                pool_state.removing.pop(record.id, None)
        finally:
            with pool_state.mutex:
                pool_state.in_hand.discard(record.id)
                pool_state.mutex.notify_all()
