"""Build setups part by part, and remove what exists of them, but nothing that a process still uses.

Each part is made and removed alone. One call of a part is one change of the host, or none.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import stat
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from devalloc.api.virtual_machine import VirtualMachine
from devalloc.inventory.capacity.machines import MachineUsage
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.journal.audit_log import audit
from devalloc_node.machine.resources import resources_taken
from devalloc_node.machine.spec import MachineSpec
from devalloc_node.warm import network
from devalloc_node.warm.network import ForeignNameError
from devalloc_node.warm.paused_machine import MachinePart, check_template, free_user, paused_spec
from devalloc_node.warm.pool_state import PoolState
from devalloc_node.warm.records import SetupRecord, SetupRecords
from devalloc_node.warm.setup import Inode, NotEnoughSetups, Setup, WarmConfig, new_identifier


class SetupPart(Protocol):
    """Stateless, safe for threads."""

    @property
    def name(self) -> str:
        """Stable: it is in records."""

    def make(self, setup: Setup) -> Setup:
        """Make it; the setup with what is known of it now. Raises OSError, FileExistsError where something has its
        place already, which then has another owner; NodeError."""

    def remove(self, setup: Setup) -> None:
        """Remove it from whatever a crash left of it; do nothing if it is gone. Raises OSError, or ForeignNameError if
        something else is in its place."""

    def is_whole(self, setup: Setup) -> bool:
        """Whether it is there as it was made."""

    def lives(self, setup: Setup) -> bool:
        """The same, as far as can be told in microseconds."""


@dataclass(frozen=True, slots=True)
class FolderPart:
    name: str = "folder"

    def make(self, setup: Setup) -> Setup:
        setup.folder.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        os.mkdir(setup.folder, 0o700)
        if setup.user is not None:
            os.chown(setup.folder, setup.user, setup.user, follow_symlinks=False)
        return setup

    def remove(self, setup: Setup) -> None:
        """With all that its owner has put there."""
        with suppress(FileNotFoundError):
            if not stat.S_ISDIR(os.lstat(setup.folder).st_mode):
                raise network.ForeignNameError(errno.EPERM, "is not a folder", str(setup.folder))
            shutil.rmtree(setup.folder)  # follows no link, also where its owner makes some meanwhile

    def is_whole(self, setup: Setup) -> bool:
        """A folder that is empty, because the setup had no owner yet."""
        try:
            return stat.S_IMODE(os.lstat(setup.folder).st_mode) == 0o700 and not os.listdir(setup.folder)
        except OSError:
            return False

    def lives(self, setup: Setup) -> bool:
        return setup.folder.is_dir()


@dataclass(frozen=True, slots=True)
class NamespacePart:
    name: str = "namespace"

    def make(self, setup: Setup) -> Setup:
        setup.namespace.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        return replace(setup, inode=network.make_namespace(setup.namespace))

    def remove(self, setup: Setup) -> None:
        network.remove_namespace(setup.namespace, setup.inode)

    def is_whole(self, setup: Setup) -> bool:
        try:
            return network.namespace_inode(setup.namespace) == setup.inode
        except OSError:
            return False

    def lives(self, setup: Setup) -> bool:
        return self.is_whole(setup)


@dataclass(frozen=True, slots=True)
class TapPart:
    name: str = "tap"

    def make(self, setup: Setup) -> Setup:
        network.make_tap(setup.namespace, setup.tap, setup.user)
        return setup

    def remove(self, setup: Setup) -> None:
        """Before the namespace, which a process may hold: then it is gone all the same."""
        try:
            is_own = setup.inode is None or network.namespace_inode(setup.namespace) == setup.inode
        except OSError:  # without the namespace there is no TAP either
            return
        if is_own:
            network.remove_tap(setup.namespace, setup.tap)

    def is_whole(self, setup: Setup) -> bool:
        try:
            return network.has_tap(setup.namespace, setup.tap)
        except OSError:
            return False

    def lives(self, setup: Setup) -> bool:
        return True  # who takes it away has entered the namespace


def parts_of(config: WarmConfig) -> tuple[SetupPart, ...]:
    """In the order in which they are made; they are removed in the other. Raises Denied ``WarmMachineInvalid``."""
    if config.machine is None:
        return FolderPart(), NamespacePart(), TapPart()
    check_template(config.machine)
    return known_parts(config)


def known_parts(config: WarmConfig) -> tuple[SetupPart, ...]:
    """All that a setup may have by any config, in this order."""
    return FolderPart(), NamespacePart(), TapPart(), MachinePart(config.paused, config.machine)


log = logging.getLogger(__name__)

Admit = Callable[[VirtualMachine, MachineSpec], AbstractContextManager[None]]
"""Inside, the host has room for a machine, which is written down there. Raises Denied (``HostFull``)."""


class SetupBuilder:
    """Makes setups and removes them. Safe for threads, of which one at a time has a setup in hand."""

    def __init__(
        self,
        config: WarmConfig,
        records: SetupRecords,
        boot: str,
        parts: Sequence[SetupPart] | None = None,
        admit: Admit = lambda machine, spec: nullcontext(),
    ) -> None:
        """``parts``: what a setup is made of, in this order; None for what ``config`` asks for. What an earlier plugin
        has made by another config is known all the same."""
        self._config = config
        self._admit = admit
        self._records = records
        self._boot = boot
        self._parts = parts_of(config) if parts is None else tuple(parts)
        self._by_name: Mapping[str, SetupPart] = {part.name: part for part in (*known_parts(config), *self._parts)}
        self._machine = MachinePart(config.paused)
        self._mutex = threading.Lock()
        self._users: dict[str, int] = {}
        """Of the setups that there are, by id."""

    def recall(self, records: Iterable[SetupRecord]) -> None:
        """These exist already: their users belong to them."""
        with self._mutex:
            self._users |= {record.id: record.user for record in records if record.user is not None}

    def make(self, *, bare: bool = False) -> tuple[Setup, SetupRecord]:
        """Create a setup and its record, which is ``ready``. If this fails, nothing is left of it, or its record and
        the error say what. ``bare``: without a paused machine. Raises Failed: ``SetupFailed``,
        ``RecordsUnavailable``; NotEnoughSetups; Leftover."""
        setup = self._config.setup(new_identifier(self._config.prefix))
        setup = replace(setup, user=self._user(setup.id))
        record = SetupRecord(setup.id, "making", self._boot, user=setup.user)
        try:
            record = record if bare else self._admitted(setup, record)
            for part in self._parts:
                if bare and part.name == self._machine.name:
                    continue
                record = replace(record.with_part(part.name), inode=setup.inode)
                self._records.put(record)
                try:
                    setup = part.make(setup)
                except FileExistsError:
                    record = record.without_part(part.name)  # it has another owner, and stays
                    self._records.put(record)
                    raise
                except NodeError as error:
                    raise _failed(setup, record, error.message, retryable=error.retryable) from error
            record = replace(record, state="ready", inode=setup.inode)
            self._records.put(record)
        except (OSError, NodeError) as error:
            why = error if isinstance(error, NodeError) else _failed(setup, record, _words(error))
            raise self._taken_back(replace(record, state="removing", inode=setup.inode), why) from error
        return setup, record

    def _admitted(self, setup: Setup, record: SetupRecord) -> SetupRecord:
        """The record with what its machine takes of the host, written down where the host has room for that. Raises
        TryAgain, Failed."""
        if (machine := self._config.machine) is None:
            return record
        spec = paused_spec(machine, setup)
        cpu_milli, memory_bytes = resources_taken(machine, spec)
        record = replace(record, cpu_milli=cpu_milli, memory_bytes=memory_bytes)
        try:
            with self._admit(machine, spec):
                self._records.put(record)
        except Denied as error:
            raise NotEnoughSetups("room", error.message) if error.code == "HostFull" else error from None
        return record

    def uses(self) -> Iterator[MachineUsage]:
        """What machines in setups take of the host, by the records: also in those of another plugin on this folder.
        Raises Failed (``RecordsUnavailable``)."""
        for record in self._records.all()[0] if self._records.are_kept else ():
            if record.cpu_milli and record.boot == self._boot:
                yield MachineUsage(record.id, record.id, "Running", record.cpu_milli, record.memory_bytes)

    def _taken_back(self, record: SetupRecord, why: NodeError) -> NodeError:
        try:
            self.remove(record)
        except NodeError as error:
            return Leftover(record, why, error)
        return why

    def remove(self, record: SetupRecord) -> None:
        """Remove what there may be of it, last made first, and its record. May be done again from anywhere.

        What has another owner by now stays. Raises Failed: ``SetupNotRemoved``, ``RecordsUnavailable``.
        """
        record = replace(record, state="removing")
        self._records.put(record)
        setup = self.setup_of(record)
        for name in reversed(record.parts):
            part = self._by_name.get(name)
            if part is None:
                raise Failed(
                    "SetupNotRemoved", f"setup {setup.id} has a part {name!r} that this version does not support"
                )
            try:
                if record.boot == self._boot or name == "folder":  # the rest went with the boot
                    part.remove(setup)
            except ForeignNameError as error:
                log.warning("setup %s: its %s stays, because another program owns it: %s", setup.id, name, error)
                audit("left", setup=setup.id, part=name, reason=str(error))
            except OSError as error:
                raise Failed(
                    "SetupNotRemoved", f"cannot remove the {name} of setup {setup.id}: {_words(error)}"
                ) from error
            record = record.without_part(name)
            self._records.put(record)
        self._records.drop(setup.id)
        with self._mutex:
            self._users.pop(setup.id, None)

    def without_machine(self, record: SetupRecord) -> SetupRecord:
        """End the machine that waits in it, if one does; the record then. Raises Failed."""
        if self._machine.name not in record.parts:
            return record
        try:
            self._machine.remove(self.setup_of(record))
        except OSError as error:
            raise Failed("SetupNotRemoved", f"cannot end the machine of setup {record.id}: {_words(error)}") from error
        record = replace(record.without_part(self._machine.name), cpu_milli=0, memory_bytes=0)
        self._records.put(record)
        return record

    def _user(self, name: str) -> int | None:
        if self._config.users is None:
            return None
        with self._mutex:
            self._users[name] = user = free_user(self._config.users, {*self._users.values()})
            return user

    def setup_of(self, record: SetupRecord) -> Setup:
        setup = replace(self._config.setup(record.id), inode=record.inode, user=record.user)
        return self._machine.with_monitor(setup) if self._machine.name in record.parts else setup

    def lives(self, record: SetupRecord) -> bool:
        """Whether all of it is there, as far as can be told in microseconds."""
        setup = self.setup_of(record)
        return all(part.lives(setup) for part in self._parts)

    def process_of(self, record: SetupRecord) -> int | None:
        """The process of the machine that waits in it, or has been used since; None where there is none."""
        with suppress(OSError):
            if self._machine.name in record.parts and (process := self._machine.process(self.setup_of(record))):
                return process.pid
        return None

    def is_unused(self, record: SetupRecord) -> bool:
        """Whether the machine in it is as it was made. QEMU is asked."""
        return self._machine.name in record.parts and self._machine.is_unused(self.setup_of(record))

    def has_all(self, record: SetupRecord) -> bool:
        """Whether it was made with all parts that the config asks for."""
        return record.parts == tuple(part.name for part in self._parts)

    def is_whole(self, record: SetupRecord) -> bool:
        """Whether one that an earlier run of the plugin made is there as it was made."""
        setup = self.setup_of(record)
        is_like_others = record.boot == self._boot and self.has_all(record)
        return is_like_others and all(part.is_whole(setup) for part in self._parts)


class Leftover(Failed):
    """A setup could not be made, and what there is of it could not be removed: that is tried again."""

    def __init__(self, record: SetupRecord, why: NodeError, left: NodeError) -> None:
        super().__init__("SetupNotRemoved", f"{why}; and {left}")
        self.record = record


def _failed(setup: Setup, record: SetupRecord, why: str, *, retryable: bool = True) -> Failed:
    which = record.parts[-1] if record.parts else "first part"
    return Failed("SetupFailed", f"cannot create the {which} of setup {setup.id}: {why}", retryable=retryable)


def _words(error: OSError) -> str:
    """For people, who do not count errors."""
    why = error.strerror or str(error)
    return f"{why}: {error.filename}" if error.filename else why


_MOST = 8
"""Processes that are named for a setup."""
_NOWHERE: Inode = (0, 0)
_GONE = (errno.ENOENT, errno.EINVAL, errno.ENODEV)
"""There is no namespace of that name any more, or nothing that is one; or the interface has just gone."""


def occupants(setups: Collection[Setup], own: Mapping[str, int] | None = None) -> Mapping[str, Sequence[str]]:
    """By id, for people: the processes in its namespace, and who has its TAP interface open though he is elsewhere.

    Setups without users are left out. One look at all processes, however many setups. ``own``: by id, the
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
    """None if it has ended. Raises OSError."""
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
