"""One run of ``devalloc drain`` after its node was cordoned: ask machines and claims to leave, and wait until they
have."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from devalloc.api.moved_claims import moved_devices
from devalloc.api.views import ClaimView, MachineView, MigrationView
from devalloc.cli.drain_plan import (
    arrivals,
    claims_on,
    moved_claims,
    name_of,
    name_of_object,
    node_has_pools,
    other_claims,
)
from devalloc.cli.follow import LOOK_SECONDS, follow
from devalloc.cli.render.output import show_spinner
from devalloc.cli.terminal import print_line, print_note
from devalloc.store.errors import OBJECT_FAILURES, REFUSALS, Conflict, NotFound, StoreError

if TYPE_CHECKING:
    from devalloc.controller.drain import DrainedMachine
    from devalloc.store import Store
    from devalloc.store.errors import Key

Object = dict[str, Any]

_MIGRATION = "VirtualMachineMigration"
_WATCHED = ("VirtualMachine", _MIGRATION, "DeviceClaim")
KINDS = (*_WATCHED, "DevicePool")
"""What a drain looks at."""
_SETTLE_SECONDS = 2.0
"""How long to wait after a migration failed: if the guest has powered off, its node writes that last."""


class DrainRun:
    """One run of the command, after the node was cordoned. Each look compares all objects with what is to become of
    them now: others may change any of them meanwhile, and uncordon the node."""

    def __init__(
        self,
        store: Store,
        node: str,
        force: bool,
        timeout: float,
        *,
        live: bool,
        planned: Iterable[DrainedMachine] = (),
    ) -> None:
        """``live``: the node can still move machines while they run. ``planned``: what was printed of the machines
        before."""
        self._store = store
        self._live = live
        self._node = node
        self._force = force
        self._timeout = timeout
        self._until = time.monotonic() + timeout
        self._is_cordoned = True
        """Whether the node gets nothing new, as at the last look: it is cordoned, or has no pools."""
        self._had_pools = True
        """Whether it had pools when it last got nothing new."""
        self._must_look_again = False
        """Whether the next look may show something else although no other change comes: the last one released a claim,
        noted a failure, or was out of date."""
        self._printed_whys = {one.key: one.why for one in planned if not one.leaves}
        self._machines: list[DrainedMachine] = []
        """Those that were on the node at the last look."""
        self._arriving: list[Object] = []
        """Machines that moved to it then."""
        self._requested: dict[Key, DrainedMachine] = {}
        """Machines that are to leave, or have no node yet, as they were when they were asked."""
        self._left: set[Key] = set()
        """Those of them that have left."""
        self._migrations: dict[Key, Key] = {}
        """The migration of each machine that a drain created."""
        self._failures: dict[Key, tuple[float, str]] = {}
        """When this command first saw that such a migration had failed, and why; by migration."""
        self._followed: dict[Key, Key] = {}
        """The pending or running migration of each machine, also if a user created it."""
        self._failed: dict[Key, str] = {}
        """Why machines did not move while they ran."""
        self._reported: dict[Key, str] = {}
        """The last words about each migration."""
        self._withdrawn: set[Key] = set()
        """Migrations to the node that were withdrawn."""
        self._in_use: set[Key] = set()
        """Claims that may not be taken away, at the last look."""
        self._releasing: set[Key] = set()
        """Claims that the node is to release."""
        self._unreleased: set[Key] = set()
        """Claims that the store did not let this command release, at the last look."""
        self._still_on_node: set[Key] = set()
        """Claims whose machine has moved, and which the node is to give up."""
        self._held: list[Object] = []
        """Claims that the node had prepared at the last look."""
        self._problems: dict[Key, tuple[str, StoreError]] = {}
        """Writes that failed, and why: by machine or claim, or by the migration to the node. What the store refused is
        not tried again."""
        self._is_slow = False
        """Whether a write had no clear answer at this look: it is tried again, and others may take as long."""

    def run(self) -> int:
        try:
            with show_spinner(f"waiting for machines and claims to leave node {self._node}"):
                self._wait()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and self._requested.keys() - self._migrations.keys():
                print_note(
                    f"interrupted: machines that were asked to leave node {self._node} still do so; "
                    f"`devalloc drain node/{self._node} --dry-run` shows what is left"
                )
            try:
                self._withdraw_migrations()
            except StoreError as second:  # the first error is what the user must see
                print_note(
                    f"error: cannot withdraw the migrations of this drain: {second}; "
                    f"`devalloc uncordon node/{self._node}` withdraws them, and reverses the cordon"
                )
            raise
        return self._report(self._withdraw_migrations())

    def _wait(self) -> None:
        while not follow(self._store, _WATCHED, self._look_again, self._until - time.monotonic()):
            if not self._power_down_late():
                return

    def _look_again(self) -> float | None:
        if not self._look():
            return None
        return 0.0 if self._must_look_again and not self._is_slow else LOOK_SECONDS

    def _look(self) -> bool:
        """Ask what is to leave and was not asked before, and print what has left. Whether to wait and look again."""
        from devalloc.controller.cordon import is_node_cordoned
        from devalloc.controller.drain import Fate, plan_drain, withdraw_requests
        from devalloc.controller.migrations import pending_migrations
        from devalloc.store.errors import Key

        objects = self._store.list(KINDS).objects
        stored = {Key.of(obj): obj for obj in objects}
        was_cordoned = self._is_cordoned
        has_pools = node_has_pools(objects, self._node)
        self._is_cordoned = not has_pools or is_node_cordoned(self._store, self._node, objects)
        self._had_pools = has_pools if self._is_cordoned else self._had_pools
        self._must_look_again = self._is_slow = False
        if was_cordoned and not self._is_cordoned:
            self._must_look_again = True  # what was asked for after that is not taken back yet
            for key in withdraw_requests(self._store, self._node, self._note_withdrawal_problem):
                print_line(f"{name_of(key)} is no longer asked to leave")
            return True
        self._machines = plan_drain(objects, self._node, force=self._force, live=self._live, failed=self._failed)
        pending = pending_migrations(objects)
        self._turn_back_arrivals(objects)
        for one in self._machines:
            if self._is_slow and time.monotonic() >= self._until:  # the next ones may take as long
                break
            if one.fate is Fate.LEAVING or self._is_cordoned:
                self._ask_machine(one, pending[MachineView(one.machine).key], stored)
        for key, requested in list(self._requested.items()):
            if self._is_done(requested, stored.get(key)):
                del self._requested[key]
        self._release_claims(objects)
        arriving = [one for one in self._arriving if not self._is_refused(_migration_of(one))]
        return bool(self._must_look_again or self._requested or arriving or self._releasing or self._still_on_node)

    def _note_problem(self, key: Key, what: str, error: StoreError) -> None:
        """Note, and print once, that a write of one object failed: the others are not concerned."""
        _, before = self._problems.get(key, ("", None))
        self._problems[key] = what, error
        if str(before) != str(error):
            print_note(f"error: {name_of(key)} {what}: {error}")
        if not isinstance(error, REFUSALS):  # it may have been done
            self._must_look_again = self._is_slow = True

    def _note_withdrawal_problem(self, machine: Key, error: StoreError) -> None:
        self._note_problem(machine, _STILL_ASKED, error)

    def _is_refused(self, key: Key | None) -> bool:
        return key in self._problems and isinstance(self._problems[key][1], REFUSALS)

    def _turn_back_arrivals(self, objects: Sequence[Object]) -> None:
        """Withdraw the migrations of machines that move to the node. One that arrives nevertheless leaves with the
        others."""
        from devalloc.controller.migrations import withdraw_migration

        self._arriving = arrivals(objects, self._node) if self._is_cordoned else []
        for obj in self._arriving:
            key = _migration_of(obj)
            if key is None or key in self._withdrawn or self._is_refused(key):
                continue
            try:
                withdraw_migration(self._store, key)
            except OBJECT_FAILURES as error:
                self._note_problem(key, f"of machine {'/'.join(MachineView(obj).key)} cannot be withdrawn", error)
                continue
            self._withdrawn.add(key)
            print_line(f"{name_of_object(obj)}: its migration to the node is withdrawn")

    def _ask_machine(self, one: DrainedMachine, pending: Sequence[MigrationView], stored: Mapping[Key, Object]) -> None:
        """Ask a machine to leave if it must and does not leave yet. ``pending``: its migrations that are not over."""
        from devalloc.controller.drain import Fate, evict, sort_migrations

        if self._is_refused(one.key) and one.fate is not Fate.LEAVING:
            return
        chosen, others = sort_migrations(one, pending)
        try:
            self._withdraw(one.key, [] if self._is_refused(one.key) else others)
            if chosen is not None:
                self._follow_migration(one, chosen)
            elif one.fate is Fate.MIGRATE:
                if why := self._migration_problem(one.key, stored):
                    self._note_failure(one, why)
                else:
                    self._migrate(one)
            elif one.fate in (Fate.MOVE, Fate.STOP):
                evict(self._store, one.machine, self._node)
                if not self._was_asked(one.key):
                    print_line(f"{name_of(one.key)} asked to leave")
        except (NotFound, Conflict):  # it changed meanwhile
            self._must_look_again = True
            return
        except OBJECT_FAILURES as error:
            self._note_problem(one.key, "cannot be asked to leave", error)
            if one.fate is not Fate.LEAVING:
                if self._is_refused(one.key):  # nothing changes that
                    self._requested.pop(one.key, None)
                return
        else:
            if not self._is_refused(one.key):
                self._problems.pop(one.key, None)
        if one.leaves and (one.fate is not Fate.LEAVING or one.key not in self._requested):
            self._requested[one.key] = one
            self._left.discard(one.key)

    def _was_asked(self, machine: Key) -> bool:
        """Whether this command has asked a machine to power down and leave."""
        from devalloc.controller.drain import Fate

        return machine in self._requested and self._requested[machine].fate in (Fate.MOVE, Fate.STOP)

    def _note_failure(self, one: DrainedMachine, why: str) -> None:
        """Note why a migration failed. If its machine can still move after a while, it is the migration's failure, and
        not that the machine has stopped or left."""
        since, _ = self._failures.setdefault(self._migrations[one.key], (time.monotonic(), why))
        if time.monotonic() - since >= _SETTLE_SECONDS:
            print_note(f"error: {name_of(one.key)} did not move while it ran: {why}")
            self._failed[one.key] = why
            self._must_look_again = True

    def _failure_of(self, machine: Key) -> str:
        """Why the migration of a machine is over without a move; empty if it is not."""
        migration = self._migrations.get(machine)
        return self._failures[migration][1] if migration in self._failures else ""

    def _migrate(self, one: DrainedMachine) -> None:
        from devalloc.controller.drain import PURPOSE
        from devalloc.controller.migrations import begin_migration
        from devalloc.store.errors import Key

        migration = begin_migration(self._store, MachineView(one.machine).key, purpose=PURPOSE)
        self._migrations[one.key] = Key.of(migration)
        print_line(f"{name_of(one.key)} asked to move to another node while it runs")

    def _follow_migration(self, one: DrainedMachine, view: MigrationView) -> None:
        """Print how far the migration is by which a machine leaves."""
        from devalloc.controller.drain import PURPOSE
        from devalloc.controller.migrations import has_purpose
        from devalloc.store.errors import Key

        self._followed[one.key] = Key(_MIGRATION, *view.key)
        self._failures.pop(self._followed[one.key], None)  # an older list may lack it
        if has_purpose(view, PURPOSE):
            self._migrations[one.key] = self._followed[one.key]
        else:
            self._migrations.pop(one.key, None)
        if view.phase == "Pending" and one.key not in self._requested:
            print_line(f"{name_of(one.key)} will move by its pending migration {'/'.join(view.key)}")
        words = _reason_of(view)
        text = "" if view.phase == "Pending" and not words else _progress_text(view, words)
        if text and self._reported.get(one.key) != text:
            self._reported[one.key] = text
            print_line(f"{name_of(one.key)} {text}")

    def _migration_problem(self, machine: Key, stored: Mapping[Key, Object]) -> str:
        """Why a machine did not move by the migration that a drain created for it; empty if there was none."""
        if (key := self._migrations.get(machine)) is None:
            return ""
        view = MigrationView(stored[key]) if key in stored else None
        if view is None or (view.is_deleting and not view.is_over):
            return "its migration was deleted"
        return _reason_of(view) if view.phase == "Failed" else ""

    def _withdraw(self, machine: Key, migrations: Iterable[MigrationView]) -> None:
        from devalloc.controller.migrations import withdraw_migration
        from devalloc.store.errors import Key

        for view in migrations:
            key = Key(_MIGRATION, *view.key)
            withdraw_migration(self._store, key)
            if self._migrations.get(machine) == key:
                del self._migrations[machine]
            print_note(f"{name_of(machine)}: its migration {'/'.join(view.key)} is withdrawn")

    def _withdraw_migrations(self) -> set[Key]:
        """Withdraw the migrations of drains that are not over, unless their machines have been handed over. Returns the
        machines, which stay where they are."""
        withdrawn = set()
        for one in self._machines:
            key = self._migrations.get(one.key)
            if key is None or MachineView(one.machine).node != self._node:
                continue
            try:
                view = MigrationView(self._store.get(*key))
                if not view.is_over:
                    self._withdraw(one.key, [view])
                    withdrawn.add(one.key)
            except NotFound:
                continue
            except OBJECT_FAILURES as error:
                self._note_problem(one.key, f"may still move by migration {key.namespace}/{key.name}", error)
        return withdrawn

    def _power_down_late(self) -> bool:
        """With --force: power down the machines that did not move in time, so that they leave; whether there are
        any."""
        from devalloc.controller.drain import Fate

        late = [
            one.key
            for one in self._machines
            if (one.fate is Fate.MIGRATE and not self._is_refused(one.key))
            or (one.key in self._migrations and MachineView(one.machine).migration_target is not None)
        ]
        failed = {key: self._failure_of(key) or "it took too long" for key in late if key not in self._failed}
        if not (self._force and self._is_cordoned and failed):
            return False
        self._withdraw_migrations()
        self._failed |= failed
        self._until = time.monotonic() + self._timeout
        return True

    def _is_done(self, requested: DrainedMachine, machine: Object | None) -> bool:
        """Whether there is nothing more to wait for: a machine has left, and has a node or a reason why not if it is to
        run; or it stays."""
        from devalloc.controller.drain import Fate

        name, node = name_of(requested.key), self._node
        if machine is None:
            print_line(f"{name} is gone")
            return True
        view = MachineView(machine)
        one = next((one for one in self._machines if one.key == requested.key), None)
        if one is not None and (view.holder is not None or view.status.get("nodeName") == node):
            return not self._is_to_leave(one)
        if any(devices.node != node for devices in moved_devices(machine)):
            return False  # the devices that its claims had are not given up yet
        if requested.key not in self._left:
            self._left.add(requested.key)
            print_line(f"{name} left node {node}")
            if requested.fate is Fate.STOP:
                print_line(f"{name} starts again on node {node} after `devalloc uncordon node/{node}`")
        if requested.fate in (Fate.LEAVING, Fate.STOPPING, Fate.STOP) or not requested.runs:
            return True
        if (chosen := view.node) is not None:
            print_line(f"{name} placed on node {chosen}")
            return True
        if view.status.get("reason"):
            print_note(f"{name} waits for a node: {view.status.get('message') or view.status['reason']}")
            return True
        return False

    def _is_to_leave(self, one: DrainedMachine) -> bool:
        from devalloc.controller.drain import Fate

        return one.fate is Fate.LEAVING or (one.leaves and self._is_cordoned)

    def _release_claims(self, objects: Sequence[Object]) -> None:
        """Release claims that do not move with a machine, or ask their node to."""
        from devalloc.controller.reconcile.release import InUse, release_claim
        from devalloc.store.errors import Key

        self._held = [claim for claim in claims_on(objects, self._node) if ClaimView(claim).is_held]
        moved = moved_claims(objects, self._node)
        others = [Key.of(claim) for claim in other_claims(objects, self._node, self._machines)]
        in_use, requested, failed = set[Key](), set[Key](), set[Key]()
        for key in (key for key in others if self._is_cordoned or key in self._releasing):
            if self._is_refused(key) or (self._is_slow and time.monotonic() >= self._until):
                failed.add(key)
                continue
            try:
                outcome = release_claim(self._store, key.namespace or "default", key.name, force=self._force)
            except InUse as error:
                in_use.add(key)
                if key not in self._in_use:
                    print_note(f"error: {error}")
            except NotFound:
                continue
            except OBJECT_FAILURES as error:
                self._note_problem(key, "cannot be released", error)
                failed.add(key)
            else:
                self._problems.pop(key, None)
                if outcome == "asked":
                    requested.add(key)
                elif outcome == "released":
                    self._must_look_again = True  # it may have got others of the node
                    self._releasing.discard(key)
                    print_line(f"{key} released")
        for key in sorted(self._releasing - requested - in_use - failed):
            print_line(f"{key} released")
        self._in_use, self._releasing, self._unreleased = in_use, requested, failed
        self._still_on_node = {Key.of(claim) for claim in moved}

    def _report(self, withdrawn: Collection[Key]) -> int:
        """Print what is left on the node, and why. The exit code."""
        has_failed = bool(self._arriving or self._in_use or self._releasing or self._still_on_node or self._held)
        has_failed |= bool(self._unreleased)
        within = f"within {self._timeout:g} s"
        for obj in self._arriving:
            if (problem := self._problem_of(_migration_of(obj))) is not None:
                print_note(f"error: {name_of_object(obj)} still moves to the node: its migration {problem}")
                continue
            print_note(
                f"error: {name_of_object(obj)} still moves to the node after {self._timeout:g} s; do the controller "
                f"and the plugin of node {MachineView(obj).holder} run?"
            )
        for one in self._machines:
            if one.leaves:
                print_note(f"error: {name_of(one.key)} {self._why_not_left(one, withdrawn)}")
            else:
                is_printed = self._printed_whys.get(one.key) == one.why
                print_note(f"{name_of(one.key)} stays on the node{'' if is_printed else f': {one.why}'}")
            has_failed |= one.leaves or one.runs
        there = {one.key for one in self._machines}
        for key in self._requested.keys() - there:
            if key in self._left:
                print_note(f"{name_of(key)} has no other node yet; is the controller running?")
            else:
                print_note(f"error: {name_of(key)} has not left {within}; {_LATER}")
                has_failed = True
        for key in sorted(self._releasing):
            print_note(f"error: {key}: the node has not released the devices {within}; it will do so later")
        for key in sorted(self._unreleased):
            print_note(f"error: {key} still has devices of node {self._node}: it {self._problem_of(key) or _NO_TIME}")
        for key in sorted(self._still_on_node):
            print_note(
                f"error: {key}: its machine has moved, but the claim still has devices of node {self._node} after "
                f"{self._timeout:g} s; do the controller and the plugins of both nodes run?"
            )
        return int(has_failed)

    def _problem_of(self, key: Key | None) -> str | None:
        """Which write of an object failed, and why, as the end of a sentence; None without one."""
        if key not in self._problems:
            return None
        what, error = self._problems[key]
        return f"{what}: {error}"

    def _why_not_left(self, one: DrainedMachine, withdrawn: Collection[Key]) -> str:
        """Why a machine is still on the node that the drain waited for, as the end of a sentence."""
        from devalloc.controller.drain import Fate

        within = f"within {self._timeout:g} s"
        if not self._is_to_leave(one):
            change = "was uncordoned" if self._had_pools else "got pools that are not cordoned"
            return f"stays on node {self._node}, which {change} during the drain; to drain it, repeat the command"
        if (problem := self._problem_of(one.key)) is not None:
            return f"is still on node {self._node}: it {problem}"
        if one.key in withdrawn:
            return f"has not moved {within}, and stays on the node"
        if one.fate is Fate.MIGRATE and (why := self._failure_of(one.key)):
            return f"did not move while it ran: {why}"
        if one.fate is Fate.MIGRATE and (migration := self._followed.get(one.key)) is not None:
            option = "" if migration.namespace == "default" else f" -n {migration.namespace}"
            advice = f"see `devalloc explain migration/{migration.name}{option}`"
            return f"has not moved {within}; its migration is still pending; {advice}"
        if one.fate is Fate.STOPPING:
            return f"has not stopped {within}; repeat the command when it has, or with --force"
        if one.fate in (Fate.MOVE, Fate.STOP) and not self._was_asked(one.key):
            return "changed while the drain asked it to leave; repeat the command"
        if one.fate is Fate.LEAVING and not MachineView(one.machine).must_leave(self._node):
            return f"has not left {within}: {one.why}"
        return f"has not left {within}; {_LATER}"


_STILL_ASKED = "is still asked to leave"
_NO_TIME = "was not released in time; repeat the command"
_LATER = "it will do so later, if the node's plugin and the controller run and are of this version"


def _migration_of(machine: Object) -> Key | None:
    """The migration that has a target for a machine; None without one."""
    from devalloc.store.errors import Key

    name = MachineView(machine).migration_state.get("migrationName")
    return Key(_MIGRATION, MachineView(machine).key[0], name) if isinstance(name, str) else None


def _reason_of(view: MigrationView) -> str:
    return ": ".join(str(view.status[part]) for part in ("reason", "message") if view.status.get(part))


def _progress_text(view: MigrationView, words: str) -> str:
    return (
        f"waits: {words}" if view.phase == "Pending" else f"moves to node {view.status.get('targetNode')}: {view.phase}"
    )
