"""The steps of a drain, decided from one listing at a time: pure.

``next_actions`` says what is to be done now with the machines and claims of the node and with the migrations to it,
and ``became`` what came of those that were requested. From one listing to the next, an ``Entry`` says how far each is:

| state | it begins when | it ends when |
|---|---|---|
| REQUESTED | it was asked to leave, or leaves without that | it has left, or need not leave any more |
| MIGRATING | a migration moves it while it runs | it has left; or the migration failed, or took too long |
| FAILED | it did not move while it ran; or a claim is in use | the plan has it leave; or the claim is free |
| POWERING_DOWN | it did not move while it ran, and leaves otherwise | it has left |
| REFUSED | the store refuses the write by which it would leave | never, unless it leaves without that |
| LEFT | it has left | it has another node, or a reason why not |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from devalloc.api.moved_claims import moved_devices
from devalloc.api.views import MachineView, MigrationView, machine_views
from devalloc.machines.drain import (
    PURPOSE,
    DrainedMachine,
    Fate,
    arrivals,
    name_of,
    other_claims,
    plan_drain,
    sort_migrations,
)
from devalloc.machines.migrations import has_purpose, pending_migrations
from devalloc.machines.schedule.machines import KIND
from devalloc.machines.schedule.migrations import KIND as MIGRATION
from devalloc.store import Key, Object

SETTLE_SECONDS = 2.0
"""How long to wait after a migration failed: if the guest has powered off, its node writes that last."""


class State(Enum):
    """How far a machine, a claim or a migration to the node is: see the table above."""

    REQUESTED = "requested"
    MIGRATING = "migrating"
    POWERING_DOWN = "powering down"
    FAILED = "failed"
    REFUSED = "refused"
    LEFT = "left"


WAITING = (State.REQUESTED, State.MIGRATING, State.POWERING_DOWN, State.LEFT)
"""The states that a drain waits for."""
_UNMOVED = (State.FAILED, State.POWERING_DOWN)


@dataclass(frozen=True, slots=True)
class Entry:
    """How far one object is."""

    state: State | None = None
    """None: nothing was asked of it."""
    machine: DrainedMachine | None = None
    """As it was when it was requested."""
    migration: Key | None = None
    """The last one by which it was to move."""
    why: str = ""
    """Why it did not move by that."""
    failed_at: float | None = None
    """When that was seen first."""
    reported: str = ""
    """The last words about its migration."""

    @property
    def waits(self) -> bool:
        return self.state in WAITING

    @property
    def drains_migration(self) -> Key | None:
        """Its migration, if a drain has created that."""
        return self.migration if self.migration is not None and has_purpose(self.migration.name, PURPOSE) else None

    @property
    def was_evicted(self) -> bool:
        """Whether the drain asked it to power down and leave."""
        return self.waits and self.machine is not None and self.machine.fate in (Fate.MOVE, Fate.STOP)


class Write(Enum):
    """What is written for one object."""

    EVICT = "evict"
    MIGRATE = "migrate"
    WITHDRAW = "withdraw"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class Action:
    """A write for one object, and what is known of the object and said when it is done."""

    key: Key
    entry: Entry | None
    """None: it is forgotten."""
    write: Write | None = None
    migration: Key | None = None
    """The one to withdraw."""
    what: str = "cannot be asked to leave"
    """What a failed write means."""
    lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """The same, of what is less welcome."""


@dataclass(frozen=True, slots=True)
class Look:
    """What one listing shows of a node."""

    node: str
    objects: Sequence[Object]
    is_cordoned: bool
    """Whether it gets nothing new."""
    machines: Sequence[DrainedMachine] = ()

    def leaves_anyway(self, key: Key) -> bool:
        """Whether it is a machine that leaves also without the drain."""
        return any(one.key == key and one.fate is Fate.LEAVING for one in self.machines)

    def is_to_leave(self, one: DrainedMachine) -> bool:
        """Whether the drain waits until it has."""
        return one.fate is Fate.LEAVING or (one.leaves and self.is_cordoned)

    @property
    def arriving(self) -> list[MachineView]:
        """The machines that move to the node and may not."""
        return arrivals(self.objects, self.node) if self.is_cordoned else []

    @property
    def claims(self) -> list[Key]:
        """The claims that leave by themselves."""
        return [Key.of(claim.content) for claim in other_claims(self.objects, self.node, self.machines)]


def take_look(
    objects: Sequence[Object], node: str, entries: Mapping[Key, Entry], *, force: bool, live: bool, is_cordoned: bool
) -> Look:
    """Read what these objects show. ``force`` and ``live``: as for ``plan_drain``."""
    unmoved = {key: one.why for key, one in entries.items() if key.kind == KIND and one.state in _UNMOVED}
    return Look(node, objects, is_cordoned, plan_drain(objects, node, force=force, live=live, failed=unmoved))


def next_actions(look: Look, entries: Mapping[Key, Entry], now: float) -> list[Action]:
    """Decide what is to be done, in this order; what follows a write of an object that failed is left out."""
    stored = {Key.of(obj): obj for obj in look.objects}
    pending = pending_migrations(look.objects)
    actions = [_turn_back(machine) for machine in look.arriving if migration_to_node(machine) not in entries]
    for one in look.machines:
        if one.fate is Fate.LEAVING or look.is_cordoned:
            of_machine = pending[one.machine.key]
            actions += _leave(one, entries.get(one.key, Entry()), of_machine, stored, now)
    for key in look.claims:
        state = entries.get(key, Entry()).state
        if state is State.REQUESTED or (look.is_cordoned and state is not State.REFUSED):
            actions.append(Action(key, Entry(State.REQUESTED), Write.RELEASE, what="cannot be released"))
    return actions


def became(look: Look, entries: Mapping[Key, Entry]) -> list[Action]:
    """Find what came of those that were asked; nothing is written."""
    actions: list[Action] = []
    machines = {one.key: one for one in look.machines}
    stored = {Key.of(one.content): one for one in machine_views(look.objects)}
    there = {*look.claims, *map(migration_to_node, look.arriving)}
    for key, entry in entries.items():
        if key.kind == KIND and entry.machine is not None and entry.waits:
            actions += _machine_became(look, entry, entry.machine, machines.get(key), stored.get(key))
        elif key.kind != KIND and key not in there and entry.state is not State.REFUSED:
            is_released = key.kind != MIGRATION and entry.state is State.REQUESTED
            actions.append(Action(key, None, lines=(f"{key} released",) if is_released else ()))
    return actions


def too_late(look: Look, entries: Mapping[Key, Entry]) -> dict[Key, Entry]:
    """Find the machines that did not move while they ran, as they are when they are not to do so any more."""
    late = {}
    for one in look.machines:
        entry = entries.get(one.key, Entry())
        moves = one.fate is Fate.MIGRATE and entry.state is not State.REFUSED
        moves |= entry.drains_migration is not None and one.machine.migration_target is not None
        if moves and entry.state not in _UNMOVED:
            late[one.key] = replace(entry, state=State.FAILED, why=entry.why or "it took too long")
    return late


def migration_to_node(machine: MachineView) -> Key:
    """Return the migration that has a target for a machine; without a name if the machine does not say it."""
    name = machine.migration_state.get("migrationName")
    return Key(MIGRATION, machine.key[0], name if isinstance(name, str) else "")


def reason_of(view: MigrationView) -> str:
    """Say why a migration waits, or has failed."""
    return ": ".join(str(view.status[part]) for part in ("reason", "message") if view.status.get(part))


def _turn_back(machine: MachineView) -> Action:
    """Keep a machine that moves to the node where it is. One that arrives nevertheless leaves with the others."""
    key = migration_to_node(machine)
    if not key.name:
        return Action(key, Entry(State.REQUESTED))
    what = f"of machine {'/'.join(machine.key)} cannot be withdrawn"
    line = f"{name_of(Key.of(machine.content))}: its migration to the node is withdrawn"
    return Action(key, Entry(State.REQUESTED), Write.WITHDRAW, key, what, (line,))


def _leave(
    one: DrainedMachine, entry: Entry, pending: Sequence[MigrationView], stored: Mapping[Key, Object], now: float
) -> list[Action]:
    """Have a machine leave, if it must and does not yet. ``pending``: its migrations that are not over."""
    leaves_anyway = one.fate is Fate.LEAVING
    if entry.state is State.REFUSED and not leaves_anyway:
        return []
    chosen, others = sort_migrations(one, pending)
    withdrawn = []
    for view in others:
        key = Key(MIGRATION, *view.key)
        entry = replace(entry, migration=None) if entry.migration == key else entry
        note = f"{name_of(one.key)}: its migration {'/'.join(view.key)} is withdrawn"
        withdrawn.append(Action(one.key, entry, Write.WITHDRAW, key, notes=(note,)))
    if not one.leaves:
        return withdrawn
    state = State.POWERING_DOWN if entry.state in _UNMOVED else State.REQUESTED
    is_known = leaves_anyway and (entry.waits or entry.state is State.FAILED)
    requested = replace(entry, state=state, machine=(entry.machine if is_known else None) or one)
    main = Action(one.key, requested)
    if chosen is not None:
        main = _follow(one, entry, requested, chosen)
    elif one.fate is Fate.MIGRATE:
        main = _migrate(one, requested, stored, now)
    elif one.fate in (Fate.MOVE, Fate.STOP):
        line = f"{name_of(one.key)} asked to leave"
        main = Action(one.key, requested, Write.EVICT, lines=() if entry.was_evicted else (line,))
    if leaves_anyway:  # it is waited for, whatever the store says of the others
        return [main, *(replace(action, entry=main.entry) for action in withdrawn)]
    return [*withdrawn, main]


def _follow(one: DrainedMachine, entry: Entry, requested: Entry, view: MigrationView) -> Action:
    """Follow this migration of a machine; say how far it is."""
    name, words, lines = name_of(one.key), reason_of(view), []
    if view.phase != "Pending":
        text = f"moves to node {view.status.get('targetNode')}: {view.phase}"
    else:
        text = f"waits: {words}" if words else ""
        if not entry.waits:
            lines.append(f"{name} will move by its pending migration {'/'.join(view.key)}")
    if text and text != entry.reported:
        lines.append(f"{name} {text}")
    if requested.state is State.REQUESTED:
        requested = replace(requested, state=State.MIGRATING, why="")
    requested = replace(requested, migration=Key(MIGRATION, *view.key), failed_at=None, reported=text or entry.reported)
    return Action(one.key, requested, lines=tuple(lines))


def _migrate(one: DrainedMachine, requested: Entry, stored: Mapping[Key, Object], now: float) -> Action:
    """Have it move by a migration of the drain. If that failed and it can still move after a while, it is the
    migration's failure, and not that the machine has stopped or left."""
    requested = replace(requested, state=State.MIGRATING)
    why = _why_failed(stored.get(own)) if (own := requested.drains_migration) is not None else ""
    if not why:
        line = f"{name_of(one.key)} asked to move to another node while it runs"
        return Action(one.key, replace(requested, why="", failed_at=None), Write.MIGRATE, lines=(line,))
    requested = replace(
        requested, why=requested.why or why, failed_at=now if requested.failed_at is None else requested.failed_at
    )
    if requested.failed_at is None or now - requested.failed_at < SETTLE_SECONDS:
        return Action(one.key, requested)
    note = f"error: {name_of(one.key)} did not move while it ran: {why}"
    return Action(one.key, replace(requested, state=State.FAILED), notes=(note,))


def _why_failed(migration: Object | None) -> str:
    """Say why a machine did not move by a migration of the drain; empty if it may."""
    view = None if migration is None else MigrationView(migration)
    if view is None or (view.is_deleting and not view.is_over):
        return "its migration was deleted"
    return reason_of(view) if view.phase == "Failed" else ""


def _machine_became(
    look: Look, entry: Entry, requested: DrainedMachine, one: DrainedMachine | None, machine: MachineView | None
) -> Iterator[Action]:
    """Whether a machine has left, and has a node or a reason why not if it is to run; or stays."""
    key, name, node = requested.key, name_of(requested.key), look.node
    if machine is None:
        yield Action(key, None, lines=(f"{name} is gone",))
        return
    if one is not None and (machine.holder is not None or machine.status.get("nodeName") == node):
        if not look.is_to_leave(one):
            yield Action(key, None)
        return
    if any(devices.node != node for devices in moved_devices(machine.content)):
        return  # the devices that its claims had are not given up yet
    if entry.state is not State.LEFT:
        again = f"{name} starts again on node {node} after `devalloc uncordon node/{node}`"
        lines = f"{name} left node {node}", *([again] if requested.fate is Fate.STOP else [])
        yield Action(key, replace(entry, state=State.LEFT), lines=lines)
    if requested.fate in (Fate.LEAVING, Fate.STOPPING, Fate.STOP) or not requested.runs:
        yield Action(key, None)
    elif (chosen := machine.node) is not None:
        yield Action(key, None, lines=(f"{name} placed on node {chosen}",))
    elif machine.status.get("reason"):
        why = machine.status.get("message") or machine.status["reason"]
        yield Action(key, None, notes=(f"{name} waits for a node: {why}",))
