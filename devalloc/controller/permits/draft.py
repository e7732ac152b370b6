"""Decisions that nobody knows of yet.

What a draft wants written is written machine by machine, in any order, and each write may be the last one before a
crash. So what a decision of a draft gives back no other one of the same draft gives away: with whatever part of its
writes no node has given more than it has. What is in the store the book takes over; what is not, has not happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from devalloc.controller.permits.book import Book
from devalloc.controller.permits.records import MIGRATING, SHOULD_MIGRATE, Record, change
from devalloc.scaling.eras import Era
from devalloc.scaling.messages.plugin import Ask, Refused, Request, WireResources, encode_reply, in_bytes
from devalloc.scaling.permits import events
from devalloc.scaling.permits.grant import answer, factor_of, met
from devalloc.scaling.permits.ledger import NOTHING, Key, Machine, Node
from devalloc.scaling.permits.pressure import is_too_full, should_leave
from devalloc.scaling.resources import Resources
from devalloc.store import Change, Object

PRESSURE = "NodePressure"
"""The reason of conditions that say that a machine should leave its node."""

NOT_YOURS = "this machine is not on the node that the token names"

Told = tuple[bool, str, str]
"""Of a condition: whether it is true, the reason, the message."""


@dataclass(frozen=True, slots=True)
class Granted:
    """What a request comes to. Told only after what the draft wants written is written."""

    key: Key
    node: str
    body: bytes
    wanted: Resources
    permit: Resources
    before: Resources
    wants_migration: bool = False
    """It should move, and nobody is there to move it."""
    begins_migration: bool = False
    """The migrator is to be told; the body says so already."""
    without_migration: bytes = b""
    """What to say where the machine is on its way already."""


class Later(Exception):
    """There may be more for this request when what others of the draft gave back is written."""


class Draft:
    """Decisions, one on top of the other."""

    def __init__(self, book: Book, given_by: str, now: str, *, is_certain: bool = True) -> None:
        """``given_by``: who writes the permits. ``now``: RFC 3339. ``is_certain``: no write may still arrive that the
        book does not know of; else what changes nothing is made sure of as well."""
        self._book = book
        self._given_by = given_by
        self._now = now
        self._is_certain = is_certain
        self._nodes: dict[str, Node] = {}
        self._given_back: dict[str, Resources] = {}
        """By node, what decisions of this draft freed of it."""
        self._conditions: dict[Key, dict[str, Told]] = {}
        self._permits: dict[Key, Resources | None] = {}
        self._kept: dict[Key, Resources] = {}
        self._unsure: set[Key] = set()

    def answer(self, request: Request, of: str | None = None) -> Granted:
        """Checks 10 to 15, in order, and the decision. Raises Refused and Later, and then nothing is decided.

        ``of``: the node whose machines whoever asks may ask for; None: all.
        """
        book, settings = self._book, self._book.settings
        record = book.find((request.pod.namespace, request.pod.name), of)
        key = record.key
        if of not in (None, record.node):
            raise Refused(403, NOT_YOURS, f"{key[0]}/{key[1]} is on node {record.node}, and node {of} asks")
        ask = in_bytes(request, record.slot, settings.unit)
        node = self._node(record.node)
        if node.machines[key].migrating:
            return self._while_migrating(request, record, node.machines[key])
        leaves = settings.era is not Era.NEWEST and should_leave(node, key)
        begins = leaves and book.migrates
        told = self._conditions_of(record, node, leaves)
        before = node.machines[key].counted
        given_back = self._given_back.get(record.node, NOTHING)
        total = node.total
        node = node.limited(total.above(given_back), node.watermark)
        node = met(node, key, None if settings.era is Era.V0_12 else ask.last_permit)
        had = node.machines[key].told
        node = events.changed(node, key, _with_what_it_knows(node.machines[key], request, record.slot))
        node = answer(node, key, ask.resources, self._factor(request, record, ask), leaving=begins, era=settings.era)
        machine = node.machines[key]
        permit = machine.told
        if given_back != NOTHING and not begins and ask.resources.exceeds(permit):
            raise Later
        self._given_back[record.node] = given_back + before.above(machine.counted)
        node = node.limited(total, node.watermark)
        kept = machine.kept if machine.kept.exceeds(permit) else NOTHING
        bodies = [
            encode_reply(request.version, permit, record.slot, settings.unit, migrate=migrate)
            for migrate in ((True, False) if begins else (False,))
        ]
        machine = replace(machine, kept=kept, load=None if request.metrics is None else request.metrics.load1)
        self._nodes[record.node] = events.changed(node, key, events.leaving(machine) if begins else machine)
        self._permits[key], self._kept[key] = permit, kept
        if not self._is_certain or record.permit is None or ask.last_permit != record.permit:
            # It may be another run of the machine than the one that is known here, which has no permit yet.
            self._unsure.add(key)
        if told:
            self._conditions.setdefault(key, {}).update(told)
        return Granted(
            key, record.node, bodies[0], ask.resources, permit, had, leaves and not begins, begins, bodies[-1]
        )

    def tell(self, key: Key, conditions: Mapping[str, Told]) -> None:
        """Write conditions on a machine, if it is there."""
        if key in self._book.records:
            self._conditions.setdefault(key, {}).update(conditions)

    def retract(self, key: Key) -> None:
        """Take the record of a machine's permit away, if it does not ask for any more."""
        record = self._book.records.get(key)
        if record is not None and record.permit is not None and not record.scaled:
            self._permits[key] = None

    def writes(self, key: Key) -> bool:
        """Whether something of this machine is to be written, or made sure of, before anybody is told of it."""
        record = self._book.records.get(key)
        if record is None:
            return False
        permit, kept = self._amounts(key, record)
        changes = (permit, kept) != (record.permit, record.kept) or bool(self._conditions.get(key))
        return changes or key in self._unsure

    def changes(self) -> Sequence[Change]:
        """What is to be written; nothing where all stays as it is. Changes that change nothing make sure of an object:
        that it is still the one that the decision was made on."""
        found = []
        for key in dict.fromkeys((*self._permits, *self._conditions)):  # whoever asked is among the permits
            if self.writes(key):
                permit, kept = self._amounts(key, self._book.records[key])
                found.append(
                    change(
                        self._book.objects[key],
                        permit=permit,
                        kept=kept,
                        given_by=self._given_by,
                        conditions=self._conditions.get(key, {}),
                        now=self._now,
                    )
                )
        return found

    def adopt(self, stored: Iterable[Object], lost: Iterable[Key] = ()) -> None:
        """It is written: the book has it now. ``lost``: the machines of which it is not."""
        for key in lost:
            record = self._book.records[key]
            if record.node in self._nodes:
                as_it_was = self._book.nodes[record.node].machines[key]
                self._nodes[record.node] = events.changed(self._nodes[record.node], key, as_it_was)
        self._book.nodes.update(self._nodes)
        for obj in stored:
            self._book.put(obj)

    def _amounts(self, key: Key, record: Record) -> tuple[Resources | None, Resources]:
        """The permit, and what is kept beside it."""
        if key not in self._permits:
            return record.permit, record.kept
        return self._permits[key], self._kept.get(key, NOTHING)

    def _conditions_of(self, record: Record, node: Node, leaves: bool) -> dict[str, Told]:
        """What to write of the pressure, seen before the request counts."""
        was_told = record.should_migrate is not None and record.should_migrate.is_true
        room = f"node {record.node} has too little room"
        if leaves and self._book.migrates:
            return {MIGRATING: (True, PRESSURE, f"{room}; it is being migrated")}
        if leaves and not was_told:
            return {
                SHOULD_MIGRATE: (
                    True,
                    PRESSURE,
                    f"{room}, and this machine should leave it first; no migrator is configured, so that is for an "
                    "admin",
                )
            }
        if was_told and not leaves and not is_too_full(node):
            return {SHOULD_MIGRATE: (False, "NodeRelieved", f"node {record.node} has room again")}
        return {}

    def _node(self, name: str) -> Node:
        return self._nodes.get(name) or self._book.nodes[name]

    def _factor(self, request: Request, record: Record, ask: Ask) -> Resources:
        settings = self._book.settings
        if settings.era is not Era.V0_12:
            return ask.step
        whole = not request.version.has_fractional_cpu
        return factor_of(settings.unit, whole_cpus=whole, slot=record.slot, era=settings.era)

    def _while_migrating(self, request: Request, record: Record, machine: Machine) -> Granted:
        has = machine.told
        if WireResources.of(has, request.version, record.slot) != request.resources:
            raise Refused(400, "cannot change resources while the VM is migrating", f"it has {has}")
        body = encode_reply(request.version, has, record.slot, self._book.settings.unit)
        return Granted(record.key, record.node, body, has, has, has)


def _with_what_it_knows(machine: Machine, request: Request, slot: int) -> Machine:
    """The machine before its request is answered. It counts for what it was told before as well while its agent does
    not say that it heard the last answer.

    A request has no number. One that was late on its way, and asks for what was wanted long ago, looks like a new one;
    but it names the permit of its time. Whoever names another one than was told last has not heard of that, and may go
    by what he was told before it.
    """
    if machine.permit is None:
        return machine
    last = request.last_permit
    unheard = last is not None and last != WireResources.of(machine.permit, request.version, slot)
    kept = machine.permit.most(machine.kept) if unheard else NOTHING
    counts = replace(machine, kept=kept)
    return replace(counts, reserved=machine.permit.most(counts.floor))
