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

from devalloc.api.virtual_machine import VirtualMachine
from devalloc.inventory.capacity.machines import MachineUsage
from devalloc_machines.qemu.resources import resources_taken
from devalloc_machines.qemu.spec import MachineSpec
from devalloc_machines.warm import network
from devalloc_machines.warm.addresses import BridgeNetwork, CniNetwork, full_message
from devalloc_machines.warm.bridge import HostBridge, VethPart, make_bridge, own_address, remove_unused_bridges
from devalloc_machines.warm.cni import AddressesExhausted, attachments
from devalloc_machines.warm.cni_part import CniPart, delete_all_but
from devalloc_machines.warm.guest_port import GuestPortPart
from devalloc_machines.warm.network import ForeignNameError
from devalloc_machines.warm.paused_machine import MachinePart, check_template, free_user, paused_spec
from devalloc_machines.warm.pool_state import PoolState
from devalloc_machines.warm.records import SetupRecord, SetupRecords
from devalloc_machines.warm.settings import WarmConfig
from devalloc_machines.warm.setup import Inode, NotEnoughSetups, Setup, SetupPart, new_identifier
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.journal.audit_log import audit


@dataclass(frozen=True, slots=True)
class FolderPart(SetupPart):
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
            shutil.rmtree(setup.folder)  # follows no link, also if its owner makes some meanwhile

    def is_whole(self, setup: Setup) -> bool:
        """A folder that is empty, because the setup had no owner yet."""
        try:
            return stat.S_IMODE(os.lstat(setup.folder).st_mode) == 0o700 and not os.listdir(setup.folder)
        except OSError:
            return False

    def lives(self, setup: Setup) -> bool:
        return setup.folder.is_dir()


@dataclass(frozen=True, slots=True)
class NamespacePart(SetupPart):
    name: str = "namespace"

    def make(self, setup: Setup) -> Setup:
        setup.namespace.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        return replace(setup, inode=network.make_namespace(setup.namespace))

    def remove(self, setup: Setup) -> None:
        network.remove_namespace(setup.namespace, setup.inode)

    def lives(self, setup: Setup) -> bool:
        try:
            return network.namespace_inode(setup.namespace) == setup.inode
        except OSError:
            return False


@dataclass(frozen=True, slots=True)
class TapPart(SetupPart):
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


_BEYOND_A_BOOT = ("folder", "cni")
"""Parts of which something outlives a reboot."""


def parts_of(config: WarmConfig) -> tuple[SetupPart, ...]:
    """In the order in which they are made; they are removed in the other. Raises Denied ``WarmMachineInvalid``."""
    if config.machine is not None:
        check_template(config.machine)
    return tuple(part for part in known_parts(config) if part.name in _names_of_parts(config))


def _names_of_parts(config: WarmConfig) -> Iterator[str]:
    yield from ("folder", "namespace", "tap")
    if isinstance(config.network, BridgeNetwork):
        yield from ("veth", "guest-port")
    if isinstance(config.network, CniNetwork):
        yield from ("cni", "guest-port")
    if config.machine is not None:
        yield "machine"


def known_parts(config: WarmConfig) -> tuple[SetupPart, ...]:
    """All that a setup may have by any config, in this order."""
    bridge = config.network if isinstance(config.network, BridgeNetwork) else None
    return (
        FolderPart(),
        NamespacePart(),
        TapPart(),
        VethPart(bridge, config.run),
        CniPart(config.network if isinstance(config.network, CniNetwork) else None, config.attachments),
        GuestPortPart(config.nft),
        MachinePart(config.paused, config.machine),
    )


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
        self._addresses: dict[str, str] = {}
        """The same, in the network of setups."""
        self._last_address = 0
        """The number of the address that was given last."""

    def recall(self, records: Iterable[SetupRecord]) -> None:
        """These exist already: their users belong to them."""
        with self._mutex:
            for record in records:
                if record.user is not None:
                    self._users[record.id] = record.user
                if record.network is not None:
                    self._addresses[record.id] = record.network.address

    def make(self, *, bare: bool = False) -> tuple[Setup, SetupRecord]:
        """Create a setup and its record, which is ``ready``. If this fails, nothing is left of it, or its record and
        the error say what. ``bare``: without a paused machine. Raises Failed: ``SetupFailed``,
        ``RecordsUnavailable``; NotEnoughSetups; Leftover."""
        setup = self._config.setup(new_identifier(self._config.prefix))
        setup = replace(setup, user=self._user(setup.id))
        try:
            setup = self._addressed(setup)
        except NotEnoughSetups:
            self._forget(setup.id)
            raise
        record = SetupRecord(setup.id, "making", self._boot, user=setup.user, network=setup.network)
        try:
            record = record if bare else self._admitted(setup, record)
            for part in self._parts:
                if bare and part.name == self._machine.name:
                    continue
                record = replace(record.with_part(part.name), inode=setup.inode, network=setup.network)
                self._records.put(record)
                try:
                    setup = part.make(setup)
                except FileExistsError:
                    record = record.without_part(part.name)  # it has another owner, and stays
                    self._records.put(record)
                    raise
                except NodeError as error:
                    raise _failed(setup, record, error.message, retryable=error.retryable) from error
            record = replace(record, state="ready", inode=setup.inode, network=setup.network)
            self._records.put(record)
        except (OSError, NodeError) as error:
            why = _reason(setup, record, error)
            raise self._taken_back(replace(record, state="removing", inode=setup.inode), why) from error
        return setup, record

    def _admitted(self, setup: Setup, record: SetupRecord) -> SetupRecord:
        """The record with what its machine takes of the host, written down if the host has room for that. Raises
        NotEnoughSetups, Failed."""
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
                if record.boot == self._boot or name in _BEYOND_A_BOOT:  # the rest went with the boot
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
        self._forget(setup.id)

    def _forget(self, name: str) -> None:
        """What it had is free for others."""
        with self._mutex:
            self._users.pop(name, None)
            self._addresses.pop(name, None)

    def keep_network(self) -> None:
        """Make the bridge of setups as it is to be, if it was made before; remove those that none uses any more.
        Raises Failed ``NetworkUnavailable``."""
        network = self._config.network
        try:
            if isinstance(network, BridgeNetwork):
                bridge = HostBridge(network, self._config.run)
                if bridge.record.exists():
                    make_bridge(bridge)
        except (OSError, NodeError) as error:
            raise _network_failure(error) from error

    def remove_unused_networks(self) -> None:
        """Remove bridges that no setup is on, while none is made, and what CNI plugins added for setups that are gone.
        Raises Failed ``NetworkUnavailable``."""
        try:
            remove_unused_bridges(self._config.run, self._config.nft)
            if attachments(self._config.attachments):
                records, unreadable = self._records.all()
                delete_all_but(self._config.attachments, {*(record.id for record in records), *unreadable})
        except (OSError, NodeError) as error:
            raise _network_failure(error) from error

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

    def _addressed(self, setup: Setup) -> Setup:
        """With an address that no other setup has, if the built-in network gives them. Raises NotEnoughSetups."""
        network = self._config.network
        if not isinstance(network, BridgeNetwork):
            return setup
        with self._mutex:
            address = network.free_address(self._last_address, self._addresses.values())
            if address is None:
                raise NotEnoughSetups("addresses", full_message(network, len(self._addresses)))
            self._addresses[setup.id] = address
            self._last_address = network.number(address)
        return replace(setup, network=own_address(network, setup, address))

    def setup_of(self, record: SetupRecord) -> Setup:
        setup = replace(self._config.setup(record.id), inode=record.inode, user=record.user, network=record.network)
        return self._machine.with_monitor(setup) if self._machine.name in record.parts else setup

    def lives(self, record: SetupRecord) -> bool:
        """Whether all of it is there, as far as can be told in microseconds."""
        setup = self.setup_of(record)
        return all(part.lives(setup) for part in self._parts)

    def process_of(self, record: SetupRecord) -> int | None:
        """The process of the machine that waits in it, or has been used since; None if there is none."""
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


def _reason(setup: Setup, record: SetupRecord, error: OSError | NodeError) -> NodeError:
    """Why a setup could not be made."""
    if isinstance(error, AddressesExhausted):
        return NotEnoughSetups("addresses", _words(error))
    return error if isinstance(error, NodeError) else _failed(setup, record, _words(error))


def _network_failure(error: OSError | NodeError) -> Failed:
    why = error.message if isinstance(error, NodeError) else _words(error)
    return Failed("NetworkUnavailable", f"cannot maintain the network of warm setups: {why}")


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
    process of a setup itself, which does not count. Raises Failed (``ProcessesUnseen``) if that cannot be told:
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
