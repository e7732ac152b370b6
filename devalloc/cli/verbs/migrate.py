"""``devalloc migrate``: move a machine to another node while it runs."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from devalloc.api.views import MachineView, MigrationView, machine_reason
from devalloc.cli.command import BadInput, CommandFailed, NoSuchObject, ending_on_sigterm
from devalloc.cli.follow import LOOK_SECONDS, follow
from devalloc.cli.object_names import fetch_object, find_object, format_key, keys_of
from devalloc.cli.options.places import StoreTarget
from devalloc.cli.render.cells import progress_text
from devalloc.cli.render.output import show_spinner
from devalloc.cli.target import (
    explain_waiting,
    missing_controller_note,
    open_target,
    unanswered_note,
    unserved_note,
    unserved_reason,
)
from devalloc.cli.terminal import print_line, print_note
from devalloc.machines.migrations import begin_migration, new_migration, withdraw_migration
from devalloc.store import Store
from devalloc.store.errors import Forbidden, Key
from devalloc.store.nodes import pools_of

Object = dict[str, Any]
KINDS = ("VirtualMachine", "VirtualMachineMigration")
_SETTLE_SECONDS = 10.0
"""How long to wait for the controller to withdraw what it was asked to, before that is left to it."""
_SAY_SECONDS = 2.0


def migrate(name: str, target: str | None, timeout: float, no_wait: bool, namespace: str, place: StoreTarget) -> int:
    with open_target(place.within(namespace)) as store:
        explain_waiting(store)
        (machine,) = keys_of([name], namespace, default="virtualmachines", store=store)
        if machine.kind != "VirtualMachine":
            raise BadInput(f"`devalloc migrate` moves machines, not a {machine.kind}: devalloc migrate vm/NAME")
        stored = fetch_object(store, machine)
        view = MachineView(stored)
        _check_target(store, view, target)
        silence = unserved_note(store, view.holder or view.node, target)
        if not no_wait:
            silence = silence or unserved_reason(stored)[1] or unanswered_note(store)
        if silence:
            raise CommandFailed(f"virtualmachine {'/'.join(view.key)} cannot move: {silence}")
        if no_wait:
            created = begin_migration(store, (namespace, machine.name), target)
            print_line(f"{format_key(Key.of(created))} created")
            return 0
        wanted = new_migration((namespace, machine.name), target)
        key = Key.of(wanted)
        follower = Follower(store, machine, key)
        with ending_on_sigterm():
            try:  # a signal may come as soon as the store has it
                store.create(wanted)
                print_line(f"{format_key(key)} created")
                return follower.run(timeout)
            except KeyboardInterrupt:
                follower.withdraw("interrupted")
                raise


def _check_target(store: Store, machine: MachineView, target: str | None) -> None:
    """Raises CommandFailed if the machine is there already, so that the migration would fail; or if no node of that
    name has pools, so that it would wait."""
    if target is not None and target == (machine.holder or machine.node) and machine.handed_over_to is None:
        name = "/".join(machine.key)
        if machine.status.get("phase", "Pending") == "Pending":
            why = ": ".join(filter(None, machine_reason(dict(machine.content))))
            raise CommandFailed(
                f"virtualmachine {name} has not started on node {target}{': ' if why else ''}{why}; "
                f"see: devalloc describe vm/{machine.key[1]}"
            )
        raise CommandFailed(f"virtualmachine {name} is on node {target} already; name another node, or leave out --to")
    with suppress(Forbidden):  # users of a cluster may have no right to read pools
        if target is not None and not pools_of(store, target):
            raise NoSuchObject(f"there is no node {target} with pools; `devalloc get nodes` lists all nodes")


class Follower:
    """Waits for one migration, and says how far it is."""

    def __init__(self, store: Store, machine: Key, migration: Key) -> None:
        self._store = store
        self._machine = machine
        self._key = migration
        self._view: MigrationView | None = None
        """As of the last look; None if it was deleted."""
        self._reported: tuple[str, ...] = ()
        self._progress = ""
        """The last words about how much was sent."""
        self._next_progress = 0.0
        self._target: str | None = None
        """The node that was chosen."""
        self._source: str | None = None

    @property
    def name(self) -> str:
        return f"virtualmachine {self._machine.namespace}/{self._machine.name}"

    def run(self, timeout: float) -> int:
        """The exit code, when it is over or the time is up."""
        with show_spinner(f"moving {self.name}"):
            follow(self._store, KINDS, self._look, timeout)
        if (view := self._view) is None:
            print_note(f"error: {format_key(self._key)} was deleted by others; {self._where()}")
            return 1
        if view.phase == "Succeeded":
            print_line(f"{self.name} has moved to node {view.status.get('targetNode')}")
            return 0
        if view.phase == "Failed":
            why = ": ".join(str(view.status[part]) for part in ("reason", "message") if view.status.get(part))
            print_note(f"error: {self.name} has not moved: {why}")
            return 1
        return self.withdraw(f"not moved within {timeout:g} s", "" if _has_answer(view) else _UNANSWERED)

    def withdraw(self, why: str, question: str = "") -> int:
        """Delete the migration, and say where the machine is when that is settled. The exit code. ``question``: the
        end of the message."""
        note = missing_controller_note(self._store)
        withdraw_migration(self._store, self._key)
        follow(self._store, KINDS, lambda: LOOK_SECONDS if self._is_booked() else None, _SETTLE_SECONDS)
        machine = self._stored_machine()
        has_moved = machine is not None and MachineView(machine).node == self._target != self._source
        if self._target is not None and has_moved:
            print_line(f"{self.name} has moved to node {self._target} before it could be withdrawn")
            return 0
        if self._is_booked():
            later = note or "the controller withdraws it when it sees that"
            print_note(f"error: {self.name}: {why}; {format_key(self._key)} is deleted, and {later}")
            return 1
        print_note(f"error: {self.name}: {why}; {format_key(self._key)} is withdrawn; {self._where()}{question}")
        return 1

    def _look(self) -> float | None:
        """Say how far it is. None if it is over, or was deleted."""
        migration = find_object(self._store, self._key)
        if migration is None:
            self._view = None
            return None
        self._view = MigrationView(migration)
        self._say(self._view)
        return None if self._view.is_over else LOOK_SECONDS

    def _say(self, view: MigrationView) -> None:
        status = view.status
        parts = tuple(str(status.get(name) or "") for name in ("reason", "message", "sourceNode", "targetNode"))
        now = (view.phase, *parts)
        self._target = status.get("targetNode") or self._target
        self._source = status.get("sourceNode") or self._source
        if now != self._reported:
            self._reported = now
            if text := _phase_text(view):
                print_line(text)
            elif view.phase == "Succeeded":
                self._print_progress(view)
            elif view.phase == "Pending" and (silence := missing_controller_note(self._store)):
                print_note(silence)
        if view.phase == "Running" and time.monotonic() >= self._next_progress and self._print_progress(view):
            self._next_progress = time.monotonic() + _SAY_SECONDS

    def _print_progress(self, view: MigrationView) -> bool:
        """Print how much was sent, if that has changed. Whether anything was sent."""
        text = progress_text(dict(view.content))
        if text and text != self._progress:
            self._progress = text
            print_line(f"  {text}")
        return bool(text)

    def _is_booked(self) -> bool:
        machine = self._stored_machine()
        return machine is not None and MachineView(machine).migration_state.get("migrationName") == self._key.name

    def _where(self) -> str:
        machine = self._stored_machine()
        node = None if machine is None else MachineView(machine).node
        if machine is None:
            return "the machine is gone"
        return f"the machine is on node {node}" if node else "the machine is on no node yet"

    def _stored_machine(self) -> Object | None:
        return find_object(self._store, self._machine)


_UNANSWERED = "; is the controller (or `devalloc up`) running, and of this version?"


def _has_answer(view: MigrationView) -> bool:
    """Whether a controller has looked at a migration."""
    return view.phase != "Pending" or bool(view.status.get("reason"))


def _phase_text(view: MigrationView) -> str:
    """What a phase means, in one line; empty if there is nothing to say of it."""
    status = view.status
    source, target = status.get("sourceNode"), status.get("targetNode")
    match view.phase:
        case "Pending" if status.get("reason"):
            return f"  waits: {status['reason']}: {status.get('message', '')}"
        case "Scheduled":
            return f"  node {target} reserves what it needs; it moves from node {source}"
        case "PreparingTarget":
            return f"  node {target} prepares for it"
        case "TargetReady":
            return f"  node {target} is ready for it"
        case "Running":
            return f"  node {source} sends its memory to node {target}"
        case _:
            return ""
