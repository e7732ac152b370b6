"""Live migration of a machine between the QEMUs of two nodes: what each side does, and what each may do when.

The order of the calls, in which ``uid`` names the migration:

    source: offer     what must be the same on the target; the machine cannot be changed from here on
    target: receive   a QEMU that waits, and where it listens
    source: send      begin; ``await_sent`` waits until the target has everything: then the CPUs of both stand still
    target: store_firmware   its UEFI variables and its TPM are on the target's disk, if it has any
    -- the store's word: the machine is the target's now --
    target: take_over   its CPUs run
    source: hand_over   its QEMU is ended

Until the store's word the source may ``cancel``, which lets the machine go on there, and the target ``discard``s it.
After it neither of these may be called. Each call may be repeated, and follows one that a kill cut off; so a plugin
that comes back needs nothing but the record of the machine and the store's word.

Two locks stand behind that order. A record with a migration is changed by nothing else on its node
(``MachineRegistry.hold``). And QEMU takes the locks of disks on the target only in ``take_over``, so that the source's
CPUs cannot run any more after it.
"""

from __future__ import annotations

import logging
import socket
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from ipaddress import ip_address
from types import MappingProxyType
from typing import Any, Literal

from devalloc.api.virtual_machine import VirtualMachine
from devalloc.api.virtual_machine_migration import MigrationAmounts, MigrationDestination, MigrationOffer
from devalloc_machines.qemu import (
    migrated_firmware,
    migration_blockers,
    migration_offer,
    migration_tls,
    preflight,
)
from devalloc_machines.qemu.launch import TLS_FOLDER
from devalloc_machines.qemu.lifecycle import MachineLifecycle
from devalloc_machines.qemu.qmp import Monitor, QmpRefused, checked_number, checked_text, has_kvm, qom_list, run_state
from devalloc_machines.qemu.records import MachineAmounts, MachineMigration, MachineRecord, with_history
from devalloc_machines.qemu.spec import spec_of
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError, Unknown
from devalloc_node.host import linux
from devalloc_node.journal.audit_log import audit

LOG = logging.getLogger(__name__)

ANSWER_SECONDS = 10.0
STALL_SECONDS = 15.0
"""How long the guest may stand still before the end of ``await_sent``: the network was cut there, and would be waited
for as long as TCP does."""
HANDSHAKE_SECONDS = 10.0
_NETWORK_SECONDS = 15
"""How long the network may deliver nothing before the connection is taken to be cut."""
_LOOK_SECONDS, _SLICE_SECONDS, _HANDSHAKE_LOOK_SECONDS = 0.2, 2.0, 0.02
_TIMEVAL = struct.Struct("@ll")
_READ_MICROSECONDS = 50_000
_LINE = "migration"
"""What the connection to the target is called in QEMU."""
_CREDENTIALS = "migration-tls"
"""The id of the object in QEMU that has its keys and certificates."""
_MOST = 1 << 62
_ACTIVE = ("setup", "active", "pre-switchover", "device", "wait-unplug", "cancelling")
_OVER = ("failed", "cancelled", "none")
_WAITING = ("inmigrate", "prelaunch")
"""States of a QEMU to which a machine comes."""
_STANDING = ("postmigrate", "paused")
"""What QEMU says of CPUs that a migration has stopped; not before it has told their end they may be let run again."""
_ENDING = "finish-migrate"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the source is. Bytes are those of the guest's memory."""

    status: str
    """QEMU's word; ``none`` before it begins."""
    error: str = ""
    sent: int = 0
    remaining: int = 0
    total: int = 0
    seconds: float = 0.0
    """Since it began."""
    downtime_seconds: float | None = None
    """How long the guest stood still on the source, when everything is sent."""


# The source.


def offer(
    machines: MachineLifecycle,
    key: str,
    uid: str,
    deadline: Deadline,
    devices: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> MigrationOffer:
    """Begin to move a machine that runs here. ``devices``: those of its claims, as of ``with_ports``. Raises Denied
    (``MachineNotMovable``) with the reason why it cannot; NodeError."""
    with machines.lock(key, deadline, "move to another node"):
        record, _ = machines.running(key)
        if record.migration is not None:
            _check_own(record, uid, "source")
        with machines.line(record) as monitor:
            if (why := migration_blockers.why_not_movable(record, monitor, deadline)) is not None:
                raise Denied("MachineNotMovable", f"machine {key} cannot move while it runs: {why}")
            placed = migration_offer.with_ports(key, devices, monitor, deadline)
            amounts = migration_offer.amounts_of(record, monitor, deadline)
            accel: Literal["kvm", "tcg"] = "kvm" if has_kvm(monitor, deadline) else "tcg"
            platform = migration_offer.platform_of(record, machines.config, accel, monitor, deadline)
        identity = migration_tls.make_identity("client")
        machines.put(replace(record, migration=MachineMigration(uid, "source", identity.authority)))
        migration_tls.write_files(
            machines.config.folder(record.spec.id), record.user, migration_tls.files_of(identity, "client")
        )
    return MigrationOffer(
        run=record.run,
        accel=accel,
        platform=platform,
        amounts=MigrationAmounts(**asdict(amounts)),
        devices=placed,
        certificate=identity.authority,
        restart_digest=migration_offer.restart_digest(record.machine),
    )


def send(
    machines: MachineLifecycle,
    key: str,
    uid: str,
    to: MigrationDestination,
    deadline: Deadline,
    *,
    bandwidth: int | None = None,
) -> None:
    """Begin to send the machine, with at most so many bytes per second (None: QEMU's own limit); nothing to do if that
    has begun. Raises Denied, also for a migration that is not this one; Failed (``MigrationKeyMissing``): cancel it."""
    authority = migration_tls.check_authority(to.certificate)
    with machines.lock(key, deadline, "send it to another node"):
        record, _ = machines.running(key)
        own = _check_own(record, uid, "source")
        folder = machines.config.folder(record.spec.id)
        with machines.line(record) as monitor:
            if _progress(monitor, deadline).status in _ACTIVE or run_state(monitor, deadline) in (
                _ENDING,
                "postmigrate",
            ):
                return
            if not migration_tls.replace_authorities(folder, record.user, own.certificate + authority):
                raise Failed("MigrationKeyMissing", f"the key of machine {key} for its migration is lost: cancel it")
            try:
                _load_credentials(monitor, "client", deadline)
            finally:
                migration_tls.remove_files(folder)
            parameters: dict[str, Any] = {"tls-creds": _CREDENTIALS, "tls-hostname": migration_tls.SERVER_NAME}
            parameters |= {} if bandwidth is None else {"max-bandwidth": bandwidth}
            monitor.execute("migrate-set-parameters", parameters, deadline=deadline)
            _set_capabilities(monitor, deadline, "auto-converge")
            with _connected(key, to, deadline) as line:
                monitor.execute("getfd", {"fdname": _LINE}, deadline=deadline, fd=line.fileno())
                monitor.execute("migrate", {"uri": f"fd:{_LINE}"}, deadline=deadline)
                _await_handshake(monitor, key, line, deadline)
    audit("machine", machine=key, done="sending", migration=uid, to=f"{to.address}:{to.port}")


def progress(machines: MachineLifecycle, key: str, deadline: Deadline) -> Progress:
    """How far the source is. Raises NodeError."""
    record, _ = machines.running(key)
    with machines.line(record) as monitor:
        return _progress(monitor, deadline)


def await_sent(
    machines: MachineLifecycle, key: str, deadline: Deadline, report: Callable[[Progress], None] = lambda now: None
) -> Progress:
    """Wait until the target has all of the machine, whose CPUs stand still then on both sides.

    Raises Failed: ``MigrationFailed`` with QEMU's reason; ``MigrationStalled`` if its guest stands still and nothing
    goes on. Unknown (``MigrationSlow``) at the deadline. After each the store's word counts: ``cancel`` it.
    """
    stopped: float | None = None
    while True:
        now, state = _await_change(machines, key, deadline.capped(_SLICE_SECONDS))
        report(now)
        # "completed" alone may be of the migration by which the machine came to this node.
        if now.status == "completed" and state == "postmigrate":
            return now
        if now.status not in _ACTIVE and state != _ENDING:
            raise Failed("MigrationFailed", f"machine {key} did not move: {now.error or now.status}")
        stopped = None if state == "running" else stopped or time.monotonic()
        if stopped is not None and time.monotonic() >= stopped + STALL_SECONDS:
            raise Failed(
                "MigrationStalled",
                f"machine {key} has stood still for {STALL_SECONDS:.0f} s: the target does not answer",
            )
        if deadline.passed:
            left = f"{now.remaining >> 20}Mi of {now.total >> 20}Mi are left"
            raise Unknown("MigrationSlow", f"machine {key} has not moved in time: {left}")


def is_sent(machines: MachineLifecycle, key: str, deadline: Deadline) -> bool:
    """Whether the source has sent everything. Raises NodeError."""
    record, _ = machines.running(key)
    with machines.line(record) as monitor:
        return run_state(monitor, deadline) == "postmigrate"


def cancel(machines: MachineLifecycle, key: str, uid: str, deadline: Deadline) -> None:
    """Have the machine go on here. Only while the store says that it is this node's. Nothing to do if it does.

    Raises NodeError: then it is not known to go on; call it again.
    """
    with machines.lock(key, deadline, "cancel its migration"):
        record = machines.record_for(key)
        if record.migration is None:
            return
        _check_own(record, uid, "source")
        if machines.process_of(record) is not None:
            with machines.line(record) as monitor:
                _stop_sending(monitor, key, deadline)
                _unload_credentials(monitor, deadline)
                _let_run(monitor, key, deadline)
            migration_tls.remove_files(machines.config.folder(record.spec.id))
        machines.put(replace(record, migration=None))
    audit("machine", machine=key, done="migration cancelled", migration=uid)


def end(machines: MachineLifecycle, key: str, uid: str, deadline: Deadline) -> None:
    """End its QEMU, before ``hand_over`` or ``discard`` and under their conditions: then no process has its devices.
    Nothing to do if nothing of it is left. Raises NodeError."""
    with machines.lock(key, deadline, "end it"):
        record = machines.find(key)
        if record is not None and record.migration is not None and record.migration.uid == uid:
            machines.end_process(record, deadline)


def hand_over(machines: MachineLifecycle, key: str, uid: str, deadline: Deadline) -> None:
    """End the machine here. Only when the store says that it is the target's. Nothing to do if nothing of it is left.
    Raises NodeError."""
    with machines.lock(key, deadline, "hand it over"):
        record = machines.find(key)
        if record is None:
            return
        _check_own(record, uid, "source")
        machines.remove(record, deadline)
    LOG.info("machine %s has moved to another node", key)
    audit("machine", machine=key, done="handed over", migration=uid)


# The target.


def receive(
    machines: MachineLifecycle,
    machine: VirtualMachine,
    uid: str,
    offered: MigrationOffer,
    address: str,
    deadline: Deadline,
    *,
    plug: Callable[[], None] = lambda: None,
) -> MigrationDestination:
    """Start a QEMU that waits for the machine, and listens on ``address`` at a port that the kernel chooses. If that is
    so already, say where. ``plug`` puts the devices of its claims in before that; a caller whose ``plug`` raises
    ``discard``s it.

    What fails leaves nothing behind. Raises Denied: what ``MachineLifecycle.start`` does; ``MachineNotMovable``;
    ``DiskNotShared``; ``OfferInvalid``; ``AcceleratorDiffers``. Failed, Unknown.
    """
    machine = migration_offer.as_started(migration_offer.with_offered_slots(machine, offered), offered)
    spec = spec_of(machine)
    if (why := migration_blockers.why_never_movable(spec)) is not None:
        raise Denied("MachineNotMovable", f"machine {spec.key} cannot move while it runs: {why}")
    authority = migration_tls.check_authority(offered.certificate)
    migration_offer.check_offer(spec, offered)
    migrated_firmware.check_same(spec, machines.config, offered.platform.firmware)
    address = _checked_address(address)
    with machines.lock(spec.key, deadline, "receive it from another node"):
        existing = machines.find(spec.key)
        if existing is not None:
            if existing.migration is None:
                raise Denied("MachineExists", f"machine {spec.key} is on this node already", retryable=True)
            _check_own(existing, uid, "target")
            if existing.state == "incoming" and machines.process_of(existing) is not None:
                machines.come_up(existing, deadline)
                return _listen(machines, existing, authority, address, deadline)
            machines.remove(existing, deadline)  # a kill cut its start off, or it has ended
        migrated_firmware.check_nothing_left(spec, machines.config)
        migration_offer.check_cpu(spec, accel := preflight.choose_accelerator(machines.config), offered)
        record = MachineRecord(
            machine.to_manifest(),
            "incoming",
            offered.run,
            requested=MachineAmounts(**offered.amounts.model_dump()),
            cpus_left=None,
            numa_cells=migration_offer.cells_here(spec, offered),
            node_ports=migration_offer.node_ports(spec, offered),
            migration=MachineMigration(uid, "target"),
        )
        record = with_history(record, machine)
        try:
            machines.begin(record, accel, deadline, offered.platform)
            if not offered.devices:
                return _listen(machines, machines.record_for(spec.key), authority, address, deadline)
        except NodeError:
            if (left := machines.find(spec.key)) is not None and left.migration == record.migration:
                with suppress(NodeError):  # ``discard`` tries again
                    machines.remove(left, Deadline.after(ANSWER_SECONDS))
            raise
    plug()  # which takes the locks of claims before that of the machine
    with machines.lock(spec.key, deadline, "receive it from another node"):
        _check_own(record := machines.record_for(spec.key), uid, "target")
        return _listen(machines, record, authority, address, deadline)


def is_listening(machines: MachineLifecycle, record: MachineRecord, deadline: Deadline) -> bool:
    """Whether a QEMU that is to receive a machine listens: then all its devices are in it. Raises NodeError."""
    if machines.process_of(record) is None:
        return False
    with machines.line(record) as monitor:
        return _listening_port(monitor, deadline) is not None or run_state(monitor, deadline) not in _WAITING


def has_arrived(machines: MachineLifecycle, record: MachineRecord, deadline: Deadline) -> bool:
    """Whether a QEMU that waits for a machine has all of it. Raises NodeError."""
    with machines.line(record) as monitor:
        return run_state(monitor, deadline) not in _WAITING


def store_firmware(machines: MachineLifecycle, key: str, uid: str, deadline: Deadline) -> None:
    """Have the UEFI variables and the TPM that came with the machine on the disk of this node. Only when it has
    arrived. Raises NodeError."""
    with machines.lock(key, deadline, "store its firmware"):
        record = machines.record_for(key)
        _check_own(record, uid, "target")
        with machines.line(record) as monitor:
            migrated_firmware.store(record, machines.config, monitor, deadline)


def take_over(machines: MachineLifecycle, key: str, uid: str, deadline: Deadline) -> bool:
    """Let the machine run here. Only when the store says that it is this node's. False if its QEMU has ended: it is
    this node's all the same, and may be started again from its disks. Raises NodeError."""
    with machines.lock(key, deadline, "take it over"):
        record = machines.record_for(key)
        if record.migration is None:
            return machines.process_of(record) is not None
        _check_own(record, uid, "target")
        lives = machines.process_of(record) is not None
        if lives:
            with machines.line(record) as monitor:
                _let_run(monitor, key, deadline)
                _unload_credentials(monitor, deadline)
            record = record.become("running")
        machines.put(replace(record, migration=None))
    audit("machine", machine=key, done="taken over", migration=uid)
    return lives


def discard(machines: MachineLifecycle, key: str, uid: str, deadline: Deadline) -> None:
    """End what waits for the machine, and keep nothing of it. Never after the store says that it is this node's.
    Nothing to do if nothing waits. Raises NodeError."""
    with machines.lock(key, deadline, "discard what was received of it"):
        record = machines.find(key)
        if record is None or record.migration is None or record.migration.uid != uid:
            return
        _check_own(record, uid, "target")
        machines.remove(record, deadline)


# Within.


def _await_change(machines: MachineLifecycle, key: str, deadline: Deadline) -> tuple[Progress, str]:
    """How far the source is when that changes, or at the deadline; and what its CPUs do. It gives the monitor back
    then, for another plugin may wait for it."""
    record, _ = machines.running(key)
    with machines.line(record) as monitor, monitor.expect("MIGRATION", "STOP") as events:
        before = None
        while True:
            due = Deadline.after(ANSWER_SECONDS)
            now, state = _progress(monitor, due), run_state(monitor, due)
            seen = (now.status, state)
            if now.status not in _ACTIVE or deadline.passed or seen != (before or seen):
                return now, state
            before = seen
            events.next(deadline.capped(_LOOK_SECONDS))


def _await_handshake(monitor: Monitor, key: str, line: socket.socket, deadline: Deadline) -> None:
    """Wait for the first answer of the target, or end the connection: QEMU cannot cancel what waits for that. Raises
    Failed (``TargetUnreachable``), Unknown."""
    due = deadline.capped(HANDSHAKE_SECONDS)
    while _progress(monitor, deadline).status == "setup":
        if due.passed:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            why = f"the target of machine {key} does not answer: its QEMU hangs, or a stranger has connected to it"
            raise Failed("TargetUnreachable", why)
        time.sleep(min(_HANDSHAKE_LOOK_SECONDS, due.seconds))


def _check_own(record: MachineRecord, uid: str, role: Literal["source", "target"]) -> MachineMigration:
    own = record.migration
    if own is None or (own.uid, own.role) != (uid, role):
        what = "it does not move" if own is None else f"it is the {own.role} of migration {own.uid}"
        raise Denied("MigrationUnknown", f"machine {record.spec.key} is not the {role} of migration {uid}: {what}")
    return own


def refuse_own_services(address: str, own: str | None) -> None:
    """Refuse a target that is no other host: loopback, which plugins on one host may use if this one (``own``) does,
    any other address of this host, link-local addresses, where clouds have their metadata service, and what no single
    host has. The target's token may write any address. Raises Denied, and Failed if the kernel does not say."""
    to = ip_address(_checked_address(address))
    to = getattr(to, "ipv4_mapped", None) or to
    if own is not None and to.is_loopback and ip_address(own).is_loopback:
        return
    is_none = to.is_loopback or to.is_link_local or to.is_multicast or to.is_unspecified or to.is_reserved
    try:
        is_other = not is_none and not linux.route_to(str(to)).is_own
    except OSError as error:
        raise Failed("TargetUnreachable", f"cannot look up the way to {to}: {error.strerror or error}") from error
    if not is_other:
        raise Denied("OfferInvalid", f"{to} is not an address of another host, to which a machine could move")


def _checked_address(text: str) -> str:
    try:
        return ip_address(text).compressed
    except ValueError:
        raise Denied("OfferInvalid", f"{text[:80]!r} is not an address of IPv4 or IPv6") from None


def _connected(key: str, to: MigrationDestination, deadline: Deadline) -> socket.socket:
    """A connection for QEMU. It is made here because of what QEMU does with one of its own: it shakes hands in the
    thread that serves its monitor and its guest's devices, and waits there for the other side. A target that is silent
    just then would stop both. This one lets it read for a moment only (after that it waits beside its work), and what
    the network does not deliver ends it soon.

    Raises Failed (``TargetUnreachable``).
    """
    address = str(to.address)
    try:
        line = socket.create_connection((address, to.port), timeout=deadline.capped(ANSWER_SECONDS).seconds or 0.1)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _NETWORK_SECONDS * 1000)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _NETWORK_SECONDS // 3)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _NETWORK_SECONDS // 3)
        line.settimeout(None)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(0, _READ_MICROSECONDS))
    except OSError as error:
        why = f"cannot reach the target of machine {key} at {address}, port {to.port}: {error}"
        raise Failed("TargetUnreachable", why) from None
    return line


def _listen(
    machines: MachineLifecycle, record: MachineRecord, authority: str, address: str, deadline: Deadline
) -> MigrationDestination:
    """Have QEMU listen, if it does not; where it does."""
    with machines.line(record) as monitor:
        own = record.migration
        port = _listening_port(monitor, deadline)
        if port is None:
            identity = migration_tls.make_identity("server")
            own = MachineMigration(own.uid if own else "", "target", identity.authority)
            machines.put(record := replace(machines.record_for(record.spec.key), migration=own))
            folder = machines.config.folder(record.spec.id)
            files = migration_tls.files_of(identity, "server")
            files[migration_tls.AUTHORITIES] += authority
            migration_tls.write_files(folder, record.user, files)
            try:
                _load_credentials(monitor, "server", deadline)
            finally:
                migration_tls.remove_files(folder)
            monitor.execute("migrate-set-parameters", {"tls-creds": _CREDENTIALS}, deadline=deadline)
            _set_capabilities(monitor, deadline)
            host = f"[{address}]" if ":" in address else address
            monitor.execute("migrate-incoming", {"uri": f"tcp:{host}:0"}, deadline=deadline)
            port = _listening_port(monitor, deadline)
    if port is None or own is None:
        raise Failed("MigrationFailed", f"QEMU of machine {record.spec.key} does not say where it listens")
    return MigrationDestination(address=address, port=port, certificate=own.certificate)


def _listening_port(monitor: Monitor, deadline: Deadline) -> int | None:
    addresses = monitor.execute("query-migrate", deadline=deadline).get("socket-address") or []
    return next((checked_number(one["port"], 65535) for one in addresses if one.get("type") == "inet"), None)


def _load_credentials(monitor: Monitor, endpoint: migration_tls.Endpoint, deadline: Deadline) -> None:
    """Have QEMU read the files in its TLS folder: another set may be there, of a call that was cut off."""
    _unload_credentials(monitor, deadline)
    properties = {"qom-type": "tls-creds-x509", "id": _CREDENTIALS, "dir": TLS_FOLDER}
    monitor.execute("object-add", {**properties, "endpoint": endpoint, "verify-peer": True}, deadline=deadline)


def _unload_credentials(monitor: Monitor, deadline: Deadline) -> None:
    monitor.execute("migrate-set-parameters", {"tls-creds": "", "tls-hostname": ""}, deadline=deadline)
    there = qom_list(monitor, "/objects", deadline)
    if any(entry["name"] == _CREDENTIALS for entry in there):
        monitor.execute("object-del", {"id": _CREDENTIALS}, deadline=deadline)


def _set_capabilities(monitor: Monitor, deadline: Deadline, *more: str) -> None:
    """``return-path``: the source has sent everything when the target says that it has loaded it."""
    names = ("late-block-activate", "return-path", "events", *more)
    capabilities = [{"capability": name, "state": True} for name in names]
    monitor.execute("migrate-set-capabilities", {"capabilities": capabilities}, deadline=deadline)


def _progress(monitor: Monitor, deadline: Deadline) -> Progress:
    answer: dict[str, Any] = monitor.execute("query-migrate", deadline=deadline)
    ram = answer.get("ram") or {}
    sent, remaining, total = (checked_number(ram.get(name, 0), _MOST) for name in ("transferred", "remaining", "total"))
    downtime = answer.get("downtime")
    return Progress(
        status=checked_text(answer.get("status", "none"), 64),
        error=checked_text(answer.get("error-desc", "")),
        sent=sent,
        remaining=remaining,
        total=total,
        seconds=checked_number(answer.get("total-time", 0), _MOST) / 1000,
        downtime_seconds=None if downtime is None else checked_number(downtime, _MOST) / 1000,
    )


def _stop_sending(monitor: Monitor, key: str, deadline: Deadline) -> None:
    """Have QEMU send no more; it may have sent everything by then."""
    if _progress(monitor, deadline).status in _ACTIVE:
        with suppress(QmpRefused):  # it came to its end meanwhile
            monitor.execute("migrate_cancel", deadline=deadline)
    while (now := _progress(monitor, deadline)).status not in (*_OVER, "completed"):
        if deadline.passed:
            raise Unknown("MigrationUnclear", f"QEMU of machine {key} is still {now.status!r} after its cancellation")
        time.sleep(min(_LOOK_SECONDS, deadline.seconds))


def _let_run(monitor: Monitor, key: str, deadline: Deadline) -> None:
    """Have the CPUs run that a migration has stopped: not before its end, or QEMU aborts. Raises Failed, Unknown."""
    while (state := run_state(monitor, deadline)) in ("inmigrate", _ENDING):
        if deadline.passed:
            raise Unknown("MigrationUnclear", f"machine {key} is to run on this node, but is still {state!r}")
        time.sleep(min(_LOOK_SECONDS, deadline.seconds))
    if state in _STANDING:
        monitor.execute("cont", deadline=deadline)
        state = run_state(monitor, deadline)
    if state in _STANDING:
        raise Failed("MachineNotRunning", f"machine {key} was resumed but is {state!r}")
