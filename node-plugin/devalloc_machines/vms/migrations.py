"""The loop that moves machines between this node and others while they run, by VirtualMachineMigrations of the store.

It does the steps of ``devalloc_machines.qemu.migration`` for the side that this node is. It keeps nothing in memory
that matters: each step follows from the record of the machine, QEMU, and the two objects, so a plugin that was killed
goes on where it was. Whose the machine is, its object alone says (``migration_objects``):

- As long as its status has the booking of the migration, it is the source's, which alone may hand it over.
- Without it, it is the node's that the status names. The source lets it go on only while the object is its own; the
  target only after it has taken the object.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from devalloc.api import meta
from devalloc.api.decode import decode
from devalloc.api.reasons import Reason
from devalloc.api.views import MachineView, MigrationView
from devalloc.api.virtual_machine import VirtualMachine
from devalloc.store import Conflict, Event, NotFound, Object, Store, StoreError
from devalloc.store.watcher import Listed, Watcher, run_with_watchers
from devalloc.worker import UNTRIED, Again, Pace, Why, Worker
from devalloc_machines.qemu import migrated_firmware, migration
from devalloc_machines.qemu.lifecycle import MachineLifecycle
from devalloc_machines.qemu.records import MachineRecord
from devalloc_machines.qemu.settings import MigrationSettings
from devalloc_machines.qemu.spec import MachineSpec, locking_seconds, spec_of
from devalloc_machines.service.operations import MachineOperations
from devalloc_machines.vms import migration_objects as moves
from devalloc_machines.vms import moving_claims, objects
from devalloc_machines.vms.situation import pending_changes, with_numa_node
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, NodeError, Unknown
from devalloc_node.operations.change_feed import ChangeNotifier, machine_change

log = logging.getLogger(__name__)

STEP_SECONDS = 30.0
"""For one step on this host."""
_WAIT_SECONDS, _RETRY_SECONDS, _WORD_SECONDS = 0.5, 2.0, 0.05
"""Pauses before the other side is looked at again, before a step that failed is tried again, and before the object of a
machine that has arrived: its guest stands still."""
_THREADS = 128
"""Machines that move from or to this node at a time: while all of one is sent, its thread waits."""
ALL = "all machines"
"""The key of finding which machines are concerned."""
_ARRIVAL_SECONDS = 0.2
"""Before it is looked again whether a machine has arrived whose guest stands still until its firmware is stored."""
_REPORT_SECONDS, _END_SECONDS = 1.0, 1.5
_PREPARE_SECONDS = 300.0
"""What a target may take until it waits for the machine, beside what clearing huge pages takes."""
_SENT_SECONDS = 30.0
"""How long a target is taken to have what it was sent, should its machine not be handed over at once."""
_ATTEMPTS = 20
_TRANSIENT = frozenset({"Busy", "LockUnavailable", "MachineBusy", "StoreUnavailable"})


@dataclass(frozen=True, slots=True)
class _Move:
    """What is known of a machine that moves, as it was read just now."""

    key: str
    uid: str
    """Of the migration."""
    record: MachineRecord | None
    """With this migration; None: nothing of it is on this node."""
    machine: Object | None
    migration: Object | None

    @property
    def phase(self) -> str:
        return "Failed" if self.migration is None else MigrationView(self.migration).phase


class _Withdrawn(Exception):
    """It is not to move any more."""


class MigrationLoop:
    """Run it in a thread of its own."""

    def __init__(
        self,
        store: Store,
        operations: MachineOperations,
        machines: MachineLifecycle,
        notifier: ChangeNotifier,
        settings: MigrationSettings,
        *,
        resync: float = 60.0,
        grace: float = 300.0,
    ) -> None:
        """``resync``: seconds between looks at all migrations without an event; ``grace``: how long the object of a
        machine must be gone before what is here of its move is removed (T16)."""
        self._sys = settings.sys
        self._store, self._operations, self._machines = store, operations, machines
        self._notifier, self._settings = notifier, settings
        self._node = operations.node_name
        self._resync, self._grace = resync, grace
        self._stop = threading.Event()
        pace = Pace(_RETRY_SECONDS, _RETRY_SECONDS, threads=_THREADS, expected=(NodeError, StoreError))
        self.worker: Worker[str, object] = Worker("cannot go on with migrations", self._work, pace=pace)
        self._waiting: set[str] = set()
        """Keys of machines whose next step has its time. Each report of any migration has all looked at, and must not
        have steps repeated before it."""
        self._names: dict[str, tuple[str, str]] = {}
        """Keys of migrations by their UIDs."""
        self._began: dict[str, float] = {}
        """When a migration was first seen to be under way, by its UID."""
        self._gone_since: dict[str, float] = {}
        self._sent_at: dict[str, float] = {}
        """When this process saw that everything was sent. A plugin that comes back does not know whether the target
        still has it, but has the machine itself, which can go on."""
        self._undecided: set[str] = set()
        """UIDs of migrations of which it is sure that no one has handed the machine over."""

    def run(self, stop: threading.Event) -> None:
        """Until ``stop`` is set. Errors are logged, and what failed is tried again."""
        self._stop = stop

        def hear(change: Listed | Event) -> None:
            self.worker.add(ALL)

        watcher = Watcher(self._store, moves.KIND, hear, "cannot watch migrations", lists=False)
        run_with_watchers(self.worker.run, [watcher], stop)
        self.worker.drain(_END_SECONDS)  # what is left undone, the next plugin goes on with

    def concerned(self) -> list[str]:
        """Keys of the machines that move from or to this node. Raises StoreError, NodeError."""
        keys = dict.fromkeys(self._machines.moving())
        views = [MigrationView(obj) for obj in self._store.list([moves.KIND]).objects]
        self._names = {view.uid: view.key for view in views}  # of those that are there: users create any number
        for view in views:
            nodes = (view.status.get("sourceNode"), view.status.get("targetNode"))
            if not view.is_over and self._node in nodes and view.machine is not None:
                keys.setdefault("/".join(view.machine))
        return list(keys)

    def _work(self, key: str, why: Why) -> Again | None:
        """Go on with a machine, or look which ones are to. Raises StoreError, NodeError.

        A machine whose migration is over and withdrawn costs nothing.
        """
        if key != ALL:
            if why is Why.ADDED and key in self._waiting:
                return UNTRIED
            self._waiting.add(key)  # also if it fails
            if (pause := self.step(key)) is None:
                self._waiting.discard(key)
                return None
            return Again(pause)
        for each in self.concerned():
            self.worker.add(each)
        return Again(self._resync)

    # One machine.

    def step(self, key: str) -> float | None:
        """Do what is to be done now; seconds until there may be more, None if there is nothing. Raises NodeError,
        StoreError."""
        record = self._machines.find(key)
        own = None if record is None else record.migration
        machine = objects.read_again(self._store, objects.KIND, key)
        if record is not None and machine is not None and machine["metadata"]["uid"] != record.spec.uid:
            machine = None if own is not None else machine
        if own is not None:
            move = _Move(key, own.uid, record, machine, self._migration(own.uid, machine))
            return self._leave(move) if own.role == "source" else self._arrive(move)
        if machine is None or (booked := self._booked(key, machine)) is None:
            return None
        uid, migration = booked
        return self._begin(_Move(key, uid, None, machine, migration))

    def _migration(self, uid: str, machine: Object | None) -> Object | None:
        """The migration with this UID, as it is now; None if it is gone."""
        state = {} if machine is None else MachineView(machine).migration_state
        if state.get("migrationUID") == uid and machine is not None:
            self._names[uid] = (objects.namespace_of(machine), str(state.get("migrationName")))
        if uid not in self._names:
            for obj in self._store.list([moves.KIND]).objects:
                self._names[MigrationView(obj).uid] = MigrationView(obj).key
        name = self._names.get(uid)
        return None if name is None else objects.read_again(self._store, moves.KIND, "/".join(name), uid)

    def _booked(self, key: str, machine: Object) -> tuple[str, Object | None] | None:
        """The UID of the migration by which a machine can move, and the migration if it is not gone; else the one that
        is not over and may have moved it."""
        if uid := str(MachineView(machine).migration_state.get("migrationUID") or ""):
            return uid, self._migration(uid, machine)
        for obj in self._store.list([moves.KIND]).objects:
            view = MigrationView(obj)
            if view.machine is not None and "/".join(view.machine) == key and not view.is_over:
                return view.uid, obj
        return None

    def _begin(self, move: _Move) -> float | None:
        """Of a machine of which nothing here knows that it moves."""
        assert move.machine is not None
        view = MachineView(move.machine)
        status = {} if move.migration is None else MigrationView(move.migration).status
        if not moves.has_booking(move.machine, move.uid):
            # It was handed over to this node, which has lost what it had received: it starts again from its disks.
            is_handed_over = view.status.get("nodeName") == self._node == status.get("targetNode")
            is_left = is_handed_over and view.annotation(meta.PREPARED_ON) == status.get("sourceNode")
            if is_left and moves.take_moved_object(self._store, move.machine, move.uid, self._node):
                moves.write_succeeded(self._store, move.migration)
                self._changed(move.key)
            return None
        if view.migration_state.get("sourceNode") == self._node:
            if move.phase == "Pending":
                return None
            if move.phase == "Scheduled":
                return self._offer(move)
            return self._give_up(move, Reason.MIGRATION_WITHDRAWN, "its source has withdrawn it")
        if view.migration_state.get("targetNode") == self._node and move.phase == "PreparingTarget":
            return self._receive(move)
        return None  # until the migration changes

    # On the source.

    def _leave(self, move: _Move) -> float | None:
        """Do the next step of a migration from this node; return the seconds until the one after it."""
        if move.machine is None:
            return self._without_object(move)
        view = MachineView(move.machine)
        is_own = view.annotation(meta.PREPARED_ON) == self._node and view.is_held
        if moves.has_booking(move.machine, move.uid):
            if (why := self._why_withdrawn(move)) is not None:
                return self._give_up(move, *why)
            if move.phase in ("Pending", "Scheduled"):
                return self._offer(move)
            if move.phase != "PreparingTarget":
                return self._send(move)
            patience = _PREPARE_SECONDS + (0.0 if move.record is None else _clearing_seconds(move.record.spec))
            if time.monotonic() - self._began.get(move.uid, time.monotonic()) < patience:
                return _WAIT_SECONDS
            target = view.migration_state.get("targetNode")
            silent = f"node {target} has not answered in {patience:.0f} s: does its plugin run?"
            return self._give_up(move, "TargetUnreachable", silent)
        if is_own and view.status.get("nodeName") == self._node:
            return self._give_up(move, Reason.MIGRATION_WITHDRAWN, "it was withdrawn before the machine had moved")
        if is_own:  # the target has not taken it yet; if it is fenced, the controller gives the machine back
            return _WAIT_SECONDS
        self._end(move)
        migration.hand_over(self._machines, move.key, move.uid, Deadline.after(STEP_SECONDS))
        self._forget(move.uid)
        self._changed(move.key)
        moves.write_succeeded(self._store, move.migration)
        return None

    def _offer(self, move: _Move) -> float | None:
        assert move.machine is not None
        view = MachineView(move.machine)
        if (why := self._why_withdrawn(move)) is not None:
            return self._give_up(move, *why)
        if view.annotation(meta.PREPARED_ON) != self._node:
            return _WAIT_SECONDS
        try:
            self._check_unchanged(move)
            devices = moving_claims.leaving(self._operations, move.key, self._sys)
            offered = migration.offer(self._machines, move.key, move.uid, Deadline.after(STEP_SECONDS), devices)
        except NodeError as error:
            return self._failed(move, error)
        if view.status.get("machineID") != offered.run:  # by which the target knows it
            return _WAIT_SECONDS
        self._undecided.add(move.uid)
        state = view.migration_state
        nodes = {"sourceNode": self._node, "targetNode": state.get("targetNode")}
        moves.write_migration(self._store, move.migration, "PreparingTarget", offer=offered.to_manifest(), **nodes)
        self._changed(move.key)
        return 0.0

    def _check_unchanged(self, move: _Move) -> None:
        """Raises Denied (``MachineNotMovable``) if the target would start another machine than runs here."""
        vm = None if move.machine is None else decode(move.machine).object
        here = self._machines.get(move.key)
        if here is None or here.uid != (move.machine or {"metadata": {}})["metadata"].get("uid"):
            raise Denied("MachineNotMovable", f"machine {move.key} cannot move while it runs: it does not run here")
        if not isinstance(vm, VirtualMachine):
            raise Denied("MachineNotMovable", f"machine {move.key} cannot move while it runs: its object is invalid")
        if here.reason == "MachineMigrates":
            return  # it was looked at before
        if changes := pending_changes(with_numa_node(vm, move.machine or {}), here):
            raise Denied("MachineNotMovable", f"machine {move.key} cannot move while it runs: {changes[0].message}")

    def _send(self, move: _Move) -> float | None:
        limit = Deadline.after(self._left(move.uid))
        if migration.is_sent(self._machines, move.key, Deadline.after(_SENT_SECONDS)):
            if time.monotonic() - self._sent_at.get(move.uid, float("-inf")) < _SENT_SECONDS:
                return self._hand_over(move)
            if _is_firmware_awaited(move):
                why = f"the target has not stored the firmware of machine {move.key}: does its plugin run?"
                return self._give_up(move, "TargetUnreachable", why)
            why = f"everything of machine {move.key} was sent some time ago, and the target may have lost it by now"
            return self._give_up(move, "MigrationFailed", why)
        try:
            to = moves.destination_of(move.migration or {})
            migration.refuse_own_services(str(to.address), self._settings.address)
            due = Deadline.after(STEP_SECONDS)
            migration.send(self._machines, move.key, move.uid, to, due, bandwidth=self._settings.bandwidth)
        except NodeError as error:
            return self._failed(move, error)
        with suppress(NodeError):  # for people
            moves.write_migration(self._store, move.migration, "Running")
        try:
            sent = self._await_sent(move, limit)
        except _Withdrawn:
            return 0.0  # the next step sees why
        except NodeError as error:
            return self._give_up(move, error.code, error.message)
        self._sent_at[move.uid] = time.monotonic()
        pause = self._hand_over(move)
        with suppress(NodeError):
            moves.write_migration(self._store, move.migration, "Running", progress=moves.progress_status(sent))
        return pause

    def _await_sent(self, move: _Move, limit: Deadline) -> migration.Progress:
        """Wait until the target has all of it. Raises _Withdrawn, NodeError."""
        due = time.monotonic()

        def report(now: migration.Progress) -> None:
            nonlocal due
            if self._stop.is_set():
                raise _Withdrawn  # the next plugin goes on
            if time.monotonic() < due:
                return
            due = time.monotonic() + _REPORT_SECONDS
            with suppress(NodeError, StoreError):
                machine = objects.read_again(self._store, objects.KIND, move.key)
                there = self._migration(move.uid, machine)
                latest = _Move(move.key, move.uid, move.record, machine, there)
                if machine is None or self._why_withdrawn(latest) or not moves.has_booking(machine, move.uid):
                    raise _Withdrawn
                moves.write_migration(self._store, there, "Running", progress=moves.progress_status(now))

        while True:
            try:
                return migration.await_sent(self._machines, move.key, limit, report)
            except Unknown as error:
                if error.code == "MigrationSlow" or limit.passed:
                    raise  # else QEMU was silent for a moment

    def _hand_over(self, move: _Move) -> float:
        """The store's word. Whatever becomes of it, the next step reads whose the machine is."""
        for _ in range(_ATTEMPTS):
            try:
                machine = objects.read_again(self._store, objects.KIND, move.key)
            except StoreError:
                self._let_go_on(move)  # and not wait for the store while its guest stands still
                raise
            there = self._migration(move.uid, machine)
            latest = _Move(move.key, move.uid, move.record, machine, there)
            if machine is None or not moves.has_booking(machine, move.uid) or self._why_withdrawn(latest):
                return 0.0
            if _is_firmware_awaited(latest):
                return _WORD_SECONDS
            self._undecided.discard(move.uid)
            try:
                moves.hand_over_object(self._store, machine)
                return 0.0
            except (Conflict, NotFound):
                continue
        return 0.0

    def _let_go_on(self, move: _Move) -> None:
        """Let its CPUs run without an answer of the store, but only if the store was not asked to hand it over."""
        if move.uid in self._undecided:
            migration.cancel(self._machines, move.key, move.uid, Deadline.after(STEP_SECONDS))
            self._changed(move.key)

    def _failed(self, move: _Move, error: NodeError) -> float | None:
        """A step of the source failed."""
        if isinstance(error, Unknown) or error.code in _TRANSIENT:
            log.warning("migration of machine %s: %s", move.key, error)
            return _RETRY_SECONDS
        return self._give_up(move, error.code, error.message)

    def _give_up(self, move: _Move, reason: str, message: str) -> float | None:
        """It is not to move by this migration, and goes on here, unless it has moved already."""
        assert move.machine is not None
        if move.uid in self._undecided or move.phase in ("Pending", "Scheduled", "PreparingTarget"):
            with suppress(NodeError):  # first, or the controller says that its reservation was removed
                moves.write_failed(self._store, move.migration, reason, message)
        try:
            now = moves.withdraw(self._store, move.machine, move.uid)
        except NodeError:
            self._let_go_on(move)
            raise
        if now is None or MachineView(now).status.get("nodeName") != self._node:
            return 0.0 if move.record is not None else None
        if move.record is not None:
            migration.cancel(self._machines, move.key, move.uid, Deadline.after(STEP_SECONDS))
        self._forget(move.uid)
        self._changed(move.key)
        log.warning("machine %s stays here: %s", move.key, message)
        moves.write_failed(self._store, move.migration, reason, message)
        return None

    def _why_withdrawn(self, move: _Move) -> tuple[str, str] | None:
        """Why a machine that is the source's is not to move any more."""
        machine = MachineView(move.machine or {})
        if move.migration is None or MigrationView(move.migration).is_deleting:
            return Reason.MIGRATION_WITHDRAWN, "the migration was deleted"
        if MigrationView(move.migration).is_over:
            status = MigrationView(move.migration).status
            return str(status.get("reason") or Reason.MIGRATION_WITHDRAWN), str(
                status.get("message") or "it has failed"
            )
        if machine.is_deleting:
            return Reason.MIGRATION_WITHDRAWN, f"machine {move.key} is being deleted"
        if machine.spec.get("running") is False:
            return Reason.MIGRATION_WITHDRAWN, f"machine {move.key} is to stop (spec.running)"
        if (pinned := machine.spec.get("nodeName")) not in (None, "", machine.migration_target):
            return Reason.MIGRATION_WITHDRAWN, f"spec.nodeName of machine {move.key} names node {pinned}"
        if self._left(move.uid) <= 0:
            return "MigrationSlow", f"machine {move.key} has not moved in {self._settings.timeout:.0f} s"
        if move.record is not None and self._machines.process_of(move.record) is None:
            return "MigrationFailed", f"QEMU of machine {move.key} has ended on its node before it had moved"
        return None

    # On the target.

    def _receive(self, move: _Move) -> float | None:
        machine = move.machine
        assert machine is not None
        assert move.migration is not None
        try:
            if self._settings.address is None:
                raise Denied(
                    "MigrationOff",
                    f"node {self._node} receives no machines that run: start its plugin with --migration-address",
                )
            offered = moves.offer_of(move.migration)
            obj = moves.with_target_reservation(machine)
            vm = decode(obj).object
            if not isinstance(vm, VirtualMachine):
                raise Denied("OfferInvalid", f"VirtualMachine {move.key} is invalid")
            seconds = self._machines.config.start_seconds + STEP_SECONDS + _clearing_seconds(spec_of(vm))
            due = Deadline.after(seconds)
            self._discard_unready(move)
            to = migration.receive(
                self._machines,
                with_numa_node(vm, obj),
                move.uid,
                offered,
                self._settings.address,
                due,
                plug=lambda: moving_claims.plug(self._operations, machine, offered.devices, self._sys, due),
            )
        except NodeError as error:
            if moving_claims.booked_refs(machine):
                self._discard(move)
            if isinstance(error, Unknown) or error.code in _TRANSIENT:
                raise
            moves.write_failed(self._store, move.migration, error.code, error.message)
            return 0.0
        moves.write_migration(self._store, move.migration, "TargetReady", destination=to.to_manifest())
        self._changed(move.key)
        return 0.0

    def _discard_unready(self, move: _Move) -> None:
        """A QEMU that does not listen yet may lack devices: a kill cut that off."""
        record = self._machines.find(move.key)
        if record is None or record.migration is None or not moving_claims.booked_refs(move.machine or {}):
            return
        if not migration.is_listening(self._machines, record, Deadline.after(STEP_SECONDS)):
            self._discard(move)

    def _discard(self, move: _Move) -> None:
        """End what waits for it, give its devices back, and keep nothing of it."""
        self._end(move)
        migration.discard(self._machines, move.key, move.uid, Deadline.after(STEP_SECONDS))

    def _end(self, move: _Move) -> None:
        """End its QEMU here, and give its devices back. Its record stays, so that a kill loses none."""
        migration.end(self._machines, move.key, move.uid, Deadline.after(STEP_SECONDS))
        record = self._machines.find(move.key)
        if record is not None and record.migration is not None and record.migration.uid == move.uid:
            moving_claims.give_back(self._operations, move.key, record.spec.claims)

    def _arrive(self, move: _Move) -> float | None:
        if move.machine is None:
            return self._without_object(move)
        view, record = MachineView(move.machine), move.record
        assert record is not None
        if moves.has_booking(move.machine, move.uid):
            if move.phase == "PreparingTarget":
                return self._receive(move)
            if move.phase in ("TargetReady", "Running") and self._is_loaded(record):
                self._store_firmware(move)
                return _WORD_SECONDS
            if move.phase == "Running" and migrated_firmware.is_carried(record.spec):
                return _ARRIVAL_SECONDS
            return _WAIT_SECONDS  # its source, or the controller, withdraws what is not to be
        taken_from = view.annotation(meta.PREPARED_ON) if view.is_held else ""
        is_moved = taken_from == self._node or (taken_from and view.status.get("machineID") == record.run)
        if is_moved and view.status.get("nodeName") == self._node:
            if not moves.take_moved_object(self._store, move.machine, move.uid, self._node):
                return 0.0
            if not migration.take_over(self._machines, move.key, move.uid, Deadline.after(STEP_SECONDS)):
                log.warning("machine %s ended as it arrived here: it starts again from its disks", move.key)
            self._forget(move.uid)
            self._changed(move.key)
            moves.write_succeeded(self._store, move.migration)
            return None
        self._discard(move)
        self._forget(move.uid)
        self._changed(move.key)
        return None

    def _store_firmware(self, move: _Move) -> None:
        """What came of its firmware, before the machine is handed over to this node."""
        if move.record is None or move.migration is None or not migrated_firmware.is_carried(move.record.spec):
            return
        if not moves.is_firmware_stored(move.migration):
            try:
                migration.store_firmware(self._machines, move.key, move.uid, Deadline.after(STEP_SECONDS))
            except NodeError as error:
                if isinstance(error, Unknown) or error.code in _TRANSIENT:
                    raise
                moves.write_failed(self._store, move.migration, error.code, error.message)  # its guest goes on there
            else:
                moves.write_firmware_stored(self._store, move.migration)

    def _is_loaded(self, record: MachineRecord) -> bool:
        """Whether QEMU has all of the machine."""
        with suppress(NodeError):
            return migration.has_arrived(self._machines, record, Deadline.after(_WAIT_SECONDS))
        return False

    # On both.

    def _without_object(self, move: _Move) -> float | None:
        """Its VirtualMachine is gone, so no node has it: nothing of it stays, after the grace period."""
        now = time.monotonic()
        if now - self._gone_since.setdefault(move.uid, now) < self._grace:
            return _RETRY_SECONDS
        end = migration.hand_over if move.record and _role(move.record) == "source" else migration.discard
        self._end(move)
        end(self._machines, move.key, move.uid, Deadline.after(STEP_SECONDS))
        self._forget(move.uid)
        self._changed(move.key)
        return None

    def _left(self, uid: str) -> float:
        """Seconds that a migration may take yet."""
        return self._began.setdefault(uid, time.monotonic()) + self._settings.timeout - time.monotonic()

    def _forget(self, uid: str) -> None:
        for seen in (self._began, self._gone_since, self._sent_at):
            seen.pop(uid, None)
        self._names.pop(uid, None)
        self._undecided.discard(uid)

    def _changed(self, key: str) -> None:
        self._notifier.beat(machine_change(key))


def _role(record: MachineRecord) -> str:
    return "" if record.migration is None else record.migration.role


def _is_firmware_awaited(move: _Move) -> bool:
    """Whether the target has yet to say that it has stored the UEFI variables or the TPM of the machine."""
    is_carried = move.record is not None and migrated_firmware.is_carried(move.record.spec)
    return is_carried and not moves.is_firmware_stored(move.migration)


def _clearing_seconds(spec: MachineSpec) -> float:
    """How long a QEMU that is to receive the machine may take to clear its huge pages before it answers."""
    return locking_seconds(spec.memory.most) if spec.huge_page_bytes else 0.0
