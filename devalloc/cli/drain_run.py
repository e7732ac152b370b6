"""One run of ``devalloc drain``: cordon the node, do what ``drain_steps`` says, print it, and wait."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from devalloc.api import meta
from devalloc.api.views import MigrationView
from devalloc.cli.command import BadInput, CommandFailed, ending_on_sigterm
from devalloc.cli.drain_plan import claim_text, fate_text, plan_text, predict
from devalloc.cli.follow import LOOK_SECONDS, follow
from devalloc.cli.object_names import find_cordon_target
from devalloc.cli.options.places import StoreTarget
from devalloc.cli.render.output import show_spinner
from devalloc.cli.target import current_user, open_target, unserved_note
from devalloc.cli.terminal import print_line, print_note
from devalloc.controller.cordon import NoPools, is_node_cordoned, set_cordon
from devalloc.controller.reconcile.release import InUse, release_claim
from devalloc.machines.drain import (
    PURPOSE,
    DrainedMachine,
    Fate,
    arrivals,
    claims_on,
    evict,
    is_held,
    moved_claims,
    name_of,
    node_has_pools,
    other_claims,
    plan_drain,
    withdraw_requests,
)
from devalloc.machines.drain_steps import (
    Action,
    Entry,
    Look,
    State,
    Write,
    became,
    migration_to_node,
    next_actions,
    take_look,
    too_late,
)
from devalloc.machines.migrations import begin_migration, withdraw_migration
from devalloc.store import OBJECT_FAILURES, REFUSALS, Conflict, Key, NotFound, Store, StoreError

_MACHINE = "VirtualMachine"
_WATCHED = (_MACHINE, "VirtualMachineMigration", "DeviceClaim")
KINDS = (*_WATCHED, "DevicePool")
"""What a drain looks at."""
_LATER = "it will do so later, if the node's plugin and the controller run and are of this version"


def drain_node(name: str, reason: str, place: StoreTarget, *, dry_run: bool, force: bool, timeout: float) -> int:
    """Print what will become of all that is on a node; then cordon it and drain it. The exit code."""
    with open_target(place) as store:
        target = find_cordon_target(store, name if "/" in name else f"node/{name}", "drain")
        if (node := target.node) is None:
            raise BadInput(f"cannot drain {target}, only nodes; to keep new claims off it: devalloc cordon {name}")
        objects = store.list(KINDS).objects
        cordoned = is_node_cordoned(store, node, objects)
        silence = unserved_note(store, node) if any(is_held(obj, node) for obj in objects) else ""
        machines = plan_drain(objects, node, force=force, live=not silence)
        print_line(plan_text(node, objects, machines, force=force, cordoned=cordoned))
        forcible = {one.key for one in plan_drain(objects, node, force=True) if one.leaves}
        others = other_claims(objects, node, machines)
        released = [claim.key for claim in others if force or not claim.is_held]
        outlook = predict(store, place, node, machines, released, meta.CORDONED_NODE) if dry_run else {}
        for one in machines:
            is_forcible = one.key in forcible
            print_line(fate_text(one, node, force=force, is_forcible=is_forcible, outlook=outlook.get(one.key)))
        for claim in others if dry_run else ():
            print_line(claim_text(claim, force=force, outlook=outlook.get(Key("DeviceClaim", *claim.key))))
        for machine in arrivals(objects, node):
            print_line(f"{name_of(Key.of(machine.content))}: its migration to the node will be withdrawn")
        off = f"if its host is off: devalloc fence node/{node}"
        if silence and (dry_run or not force):
            raise CommandFailed(f"nothing can leave node {node}, which must release it: {silence}; {off}")
        if silence:
            print_note(f"warning: what it holds may still run, and stays until its plugin is back: {silence}; {off}")
        if dry_run:
            return 0
        why = f"by {current_user(store)}, {datetime.now(UTC):%Y-%m-%d}: {reason or 'draining'}"
        with suppress(NoPools):  # it gets nothing new, and what is there can leave
            if set_cordon(store, target, why, keep=not reason):
                print_line(f"{target} is cordoned for the new reason" if cordoned else f"{target} cordoned")
        with ending_on_sigterm():
            patience = 0.0 if silence else timeout
            return DrainRun(store, node, force, patience, live=not silence, planned=machines).run()


class DrainRun:
    """One run of the command. Each look compares all objects with what is to become of them now: others may change any
    of them meanwhile, and uncordon the node."""

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
        self._printed_whys = {one.key: one.why for one in planned if not one.leaves}
        self._seen = Look(node, (), is_cordoned=True)
        """The last look."""
        self._had_pools = True
        """Whether the node had pools when it last got nothing new."""
        self._entries: dict[Key, Entry] = {}
        self._problems: dict[Key, str] = {}
        """Writes that failed, by the object that is to leave: which, and why, as the end of a sentence."""
        self._printed: set[str] = set()
        """Problems that were printed."""
        self._must_look_again = False
        """Whether the next look may show something else although no other change comes: the last one released a claim,
        noted a failure, or was out of date."""
        self._is_slow = False
        """Whether a write had no clear answer at this look: it is tried again, and others may take as long."""

    def run(self) -> int:
        try:
            with show_spinner(f"waiting for machines and claims to leave node {self._node}"):
                self._wait()
        except BaseException as error:
            is_asked = any(
                key.kind == _MACHINE and one.waits and not one.drains_migration for key, one in self._entries.items()
            )
            if isinstance(error, KeyboardInterrupt) and is_asked:
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
        while not follow(self._store, _WATCHED, self._look, self._until - time.monotonic()):
            late = too_late(self._seen, self._entries)
            if not (self._force and self._seen.is_cordoned and late):
                return
            self._withdraw_migrations()
            self._entries |= late
            self._until = time.monotonic() + self._timeout

    def _look(self) -> float | None:
        """Ask what is to leave and was not asked before, and print what has left."""
        objects = self._store.list(KINDS).objects
        has_pools = node_has_pools(objects, self._node)
        is_cordoned = not has_pools or is_node_cordoned(self._store, self._node, objects)
        self._had_pools = has_pools if is_cordoned else self._had_pools
        self._must_look_again = self._is_slow = False
        if self._seen.is_cordoned and not is_cordoned:
            self._seen = replace(self._seen, is_cordoned=False)
            for key in withdraw_requests(self._store, self._node, self._note_withdrawal_problem):
                print_line(f"{name_of(key)} is no longer asked to leave")
            return LOOK_SECONDS if self._is_slow else 0.0  # what was asked for after that is not taken back yet
        self._seen = take_look(
            objects, self._node, self._entries, force=self._force, live=self._live, is_cordoned=is_cordoned
        )
        failed = set[Key]()
        for action in next_actions(self._seen, self._entries, time.monotonic()):
            if action.key not in failed and not self._do(action):
                failed.add(action.key)
        for action in became(self._seen, self._entries):
            self._do(action)
        if self._must_look_again and not self._is_slow:
            return 0.0
        waits = any(one.waits for one in self._entries.values()) or moved_claims(objects, self._node)
        return LOOK_SECONDS if waits or self._is_slow else None

    def _do(self, action: Action) -> bool:
        """Write what an action says, and print what came of it. Whether that worked."""
        key, before = action.key, self._entries.get(action.key, Entry())
        if action.write is not None and self._is_slow and time.monotonic() >= self._until:
            if action.write is Write.RELEASE:
                self._entries[key] = Entry(State.FAILED)
            return False  # this one may take as long
        try:
            entry = self._write(action)
        except InUse as error:
            self._entries[key] = Entry(State.FAILED, why=str(error))
            if before.why != str(error):
                print_note(f"error: {error}")
            return False
        except (NotFound, Conflict):  # it changed meanwhile
            self._must_look_again = True
            return False
        except OBJECT_FAILURES as error:
            self._note_problem(key, action.what, error)
            if isinstance(error, REFUSALS) and not self._seen.leaves_anyway(key):
                self._entries[key] = replace(before, state=State.REFUSED, why="")
            elif action.write is Write.RELEASE:
                self._entries[key] = Entry(State.FAILED)
            return False
        if entry is None:
            self._entries.pop(key, None)
        else:
            self._entries[key] = entry
            self._must_look_again |= entry.state is State.FAILED
        if before.state is not State.REFUSED:
            self._problems.pop(key, None)
        for line in action.lines:
            print_line(line)
        for note in action.notes:
            print_note(note)
        return True

    def _write(self, action: Action) -> Entry | None:
        """Write it; what is known of the object then. Raises StoreError."""
        key, entry = action.key, action.entry
        match action.write:
            case Write.RELEASE:
                return self._release(key, entry)
            case Write.WITHDRAW if action.migration is not None:
                withdraw_migration(self._store, action.migration)
            case Write.EVICT if entry is not None and entry.machine is not None:
                evict(self._store, entry.machine.machine, self._node)
            case Write.MIGRATE if entry is not None:
                created = begin_migration(self._store, (key.namespace or "", key.name), purpose=PURPOSE)
                return replace(entry, migration=Key.of(created))
        return entry

    def _release(self, key: Key, requested: Entry | None) -> Entry | None:
        try:
            outcome = release_claim(self._store, key.namespace or "default", key.name, force=self._force)
        except NotFound:
            outcome = "held nothing"
        if outcome == "asked":
            return requested
        if outcome == "released" or self._entries.get(key, Entry()).state is State.REQUESTED:
            self._must_look_again = True  # it may have got others of the node
            print_line(f"{key} released")
        return None

    def _note_problem(self, key: Key, what: str, error: StoreError) -> None:
        """Note, and print once, that a write of one object failed: the others are not concerned."""
        self._problems[key] = f"{what}: {error}"
        if (text := f"error: {name_of(key)} {what}: {error}") not in self._printed:
            self._printed.add(text)
            print_note(text)
        if not isinstance(error, REFUSALS):  # it may have been done
            self._is_slow = True

    def _note_withdrawal_problem(self, machine: Key, error: StoreError) -> None:
        self._note_problem(machine, "is still asked to leave", error)

    def _withdraw_migrations(self) -> set[Key]:
        """Withdraw the migrations of drains that are not over, unless their machines have been handed over. Returns the
        machines, which stay where they are."""
        withdrawn = set()
        for one in self._seen.machines:
            key = self._entries.get(one.key, Entry()).drains_migration
            if key is None or one.machine.node != self._node:
                continue
            try:
                if not MigrationView(self._store.get(*key)).is_over:
                    withdraw_migration(self._store, key)
                    print_note(f"{name_of(one.key)}: its migration {key.namespace}/{key.name} is withdrawn")
                    withdrawn.add(one.key)
            except NotFound:
                continue
            except OBJECT_FAILURES as error:
                self._note_problem(one.key, f"may still move by migration {key.namespace}/{key.name}", error)
        return withdrawn

    def _report(self, withdrawn: Collection[Key]) -> int:
        """Print what is left on the node, and why. The exit code."""
        seen, within = self._seen, f"within {self._timeout:g} s"
        for machine in seen.arriving:
            name = name_of(Key.of(machine.content))
            if (problem := self._problems.get(migration_to_node(machine))) is not None:
                print_note(f"error: {name} still moves to the node: its migration {problem}")
                continue
            print_note(
                f"error: {name} still moves to the node after {self._timeout:g} s; do the controller and the plugin of "
                f"node {machine.holder} run?"
            )
        for one in seen.machines:
            if one.leaves:
                print_note(f"error: {name_of(one.key)} {self._why_not_left(one, withdrawn)}")
            else:
                is_printed = self._printed_whys.get(one.key) == one.why
                print_note(f"{name_of(one.key)} stays on the node{'' if is_printed else f': {one.why}'}")
        has_failed = bool(seen.arriving) or any(one.leaves or one.runs for one in seen.machines)
        there = {one.key for one in seen.machines}
        for key, entry in self._entries.items():
            if key.kind != _MACHINE or key in there or not entry.waits:
                continue
            if entry.state is State.LEFT:
                print_note(f"{name_of(key)} has no other node yet; is the controller running?")
            else:
                print_note(f"error: {name_of(key)} has not left {within}; {_LATER}")
                has_failed = True
        claims = {
            key: self._entries[key]
            for key in sorted(seen.claims)
            if key in self._entries and (seen.is_cordoned or self._entries[key].state is State.REQUESTED)
        }
        for key in (key for key, one in claims.items() if one.state is State.REQUESTED):
            print_note(f"error: {key}: the node has not released the devices {within}; it will do so later")
        for key in (key for key, one in claims.items() if one.state is not State.REQUESTED and not one.why):
            problem = self._problems.get(key, "was not released in time; repeat the command")
            print_note(f"error: {key} still has devices of node {self._node}: it {problem}")
        moved = sorted(Key.of(claim.content) for claim in moved_claims(seen.objects, self._node))
        for key in moved:
            print_note(
                f"error: {key}: its machine has moved, but the claim still has devices of node {self._node} after "
                f"{self._timeout:g} s; do the controller and the plugins of both nodes run?"
            )
        is_held = any(claim.is_held for claim in claims_on(seen.objects, self._node))
        return int(bool(has_failed or claims or moved or is_held))

    def _why_not_left(self, one: DrainedMachine, withdrawn: Collection[Key]) -> str:
        """Why a machine is still on the node that the drain waited for, as the end of a sentence."""
        within, entry = f"within {self._timeout:g} s", self._entries.get(one.key, Entry())
        if not self._seen.is_to_leave(one):
            change = "was uncordoned" if self._had_pools else "got pools that are not cordoned"
            return f"stays on node {self._node}, which {change} during the drain; to drain it, repeat the command"
        if (problem := self._problems.get(one.key)) is not None:
            return f"is still on node {self._node}: it {problem}"
        if one.key in withdrawn:
            return f"has not moved {within}, and stays on the node"
        if one.fate is Fate.MIGRATE and entry.why:
            return f"did not move while it ran: {entry.why}"
        if one.fate is Fate.MIGRATE and (migration := entry.migration) is not None:
            option = "" if migration.namespace == "default" else f" -n {migration.namespace}"
            advice = f"see `devalloc explain migration/{migration.name}{option}`"
            return f"has not moved {within}; its migration is still pending; {advice}"
        if one.fate is Fate.STOPPING:
            return f"has not stopped {within}; repeat the command when it has, or with --force"
        if one.fate in (Fate.MOVE, Fate.STOP) and not entry.was_evicted:
            return "changed while the drain asked it to leave; repeat the command"
        if one.fate is Fate.LEAVING and not one.machine.must_leave(self._node):
            return f"has not left {within}: {one.why}"
        return f"has not left {within}; {_LATER}"
