"""All nodes' ledgers, made of the VirtualMachines there are, and what is decided on them.

Decisions are made in a ``Draft``. Once what it wants written is in the store the book takes it over; else it is
dropped, and nothing has happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from devalloc.api.meta import parse_time
from devalloc.controller.permits.hosts import CanMove, Host, Overhead
from devalloc.controller.permits.records import (
    MIGRATING,
    SHOULD_MIGRATE,
    Record,
    change,
    has_devices,
    key_of,
    read,
)
from devalloc.controller.permits.settings import Settings
from devalloc.scaling.eras import Era
from devalloc.scaling.messages.plugin import NO_POD, Ask, Refused, Request, WireResources, encode_reply, in_bytes
from devalloc.scaling.permits import events
from devalloc.scaling.permits.grant import answer, factor_of, met
from devalloc.scaling.permits.ledger import NOTHING, ONCE, Key, Machine, Node, ledger
from devalloc.scaling.permits.pressure import is_too_full, oldest_to_leave, should_leave
from devalloc.scaling.resources import Resources
from devalloc.store import Change, Object

Told = tuple[bool, str, str]
"""Of a condition: whether it is true, the reason, the message."""


def nothing_more(obj: Object) -> Resources:
    """The overhead of a machine where nobody knows of any."""
    return NOTHING


def without_devices(obj: Object) -> bool:
    """Whether a machine can move, where devices keep it on its node whatever they are."""
    return not has_devices(obj)


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


class Book:
    """The ledgers as they are written down. Use from one thread."""

    def __init__(
        self,
        settings: Settings,
        *,
        overhead: Overhead = nothing_more,
        can_move: CanMove = without_devices,
        migrates: bool = False,
    ) -> None:
        self.settings = settings
        self.migrates = migrates
        """Whether there is somebody who migrates machines."""
        self.nodes: dict[str, Node] = {}
        self.records: dict[Key, Record] = {}
        self.objects: dict[Key, Object] = {}
        self._overhead = overhead
        self._can_move = can_move
        self._pods: dict[Key, Key] = {}
        """Runner pods, and whose they are."""
        self._others: dict[Key, str] = {}
        """Pods that are no machines, and on which node they are."""

    def begin(self, hosts: Mapping[str, Host]) -> None:
        """Anew, with nothing but these nodes."""
        self.nodes, self.records, self.objects, self._pods, self._others = {}, {}, {}, {}, {}
        self.limit(hosts)

    def limit(self, hosts: Mapping[str, Host]) -> None:
        """The nodes as they are now. On one that is gone nothing is granted any more."""
        for name in self.nodes.keys() | hosts.keys():
            host = hosts.get(name, Host(NOTHING))
            total, watermark = self.settings.limits(host.limit)
            node = self.nodes.get(name, ledger(NOTHING, NOTHING)).limited(total, watermark)
            for key in [key for key, there in self._others.items() if there == name and key not in host.others]:
                node = node.without(key)
                del self._others[key]
            for key, amount in host.others.items():
                if key not in self.records:
                    node = events.changed(node, key, _other(amount))
                    self._others[key] = name
            self.nodes[name] = node

    def put(self, obj: Object, *, starting: bool = False) -> None:
        """An object as it is now. One that is no newer than what is known is left aside.

        ``starting``: a machine that runs without a record may have been permitted anything before.
        """
        key = key_of(obj)
        before = self.objects.get(key)
        if before is not None and not starting and _version(obj) <= _version(before):
            return
        record, old = read(obj), self.records.get(key)
        machine = None if old is None else self.nodes[old.node].machines.get(key)
        if old is not None and (record is None or record.node != old.node):
            self._leave(key, old)
            machine = None
        if record is None:
            self.objects.pop(key, None)
            return
        if (there := self._others.pop(key, None)) is not None:
            self.nodes[there] = self.nodes[there].without(key)
        if old is not None and old.runner_pod is not None:
            self._pods.pop(old.runner_pod, None)
        if record.runner_pod is not None:
            self._pods[record.runner_pod] = key
        node = self.nodes.get(record.node) or ledger(NOTHING, NOTHING)
        self.nodes[record.node] = events.changed(node, key, self._machine(record, obj, machine, starting))
        self.records[key], self.objects[key] = record, obj

    def drop(self, key: Key) -> None:
        """There is no such object any more."""
        self.objects.pop(key, None)
        if (old := self.records.get(key)) is not None:
            self._leave(key, old)

    def find(self, pod: Key) -> Record:
        """The machine that somebody calls so. Raises Refused."""
        key = pod if pod in self.records else self._pods.get(pod)
        if key is not None:
            return self.records[key]
        if pod in self._others:
            raise Refused(400, "pod is not a VM runner", f"{pod[0]}/{pod[1]} is a pod, and no machine")
        raise Refused(404, NO_POD, f"there is no machine {pod[0]}/{pod[1]}")

    def _leave(self, key: Key, old: Record) -> None:
        self.nodes[old.node] = self.nodes[old.node].without(key)
        del self.records[key]
        if old.runner_pod is not None:
            self._pods.pop(old.runner_pod, None)

    def _machine(self, record: Record, obj: Object, old: Machine | None, starting: bool) -> Machine:
        newest = self.settings.era is Era.NEWEST
        machine = Machine(
            least=record.least,
            most=record.most,
            reserved=NOTHING,
            use=record.use,
            overhead=self._overhead(obj),
            overcommit=(record.overcommit or self.settings.overcommit) if newest else ONCE,
            reserve_max=record.reserve_max,
            scaled=record.scaled,
            movable=(record.movable or record.must_move) and self._can_move(obj),
            must_move=record.must_move,
            load=None if old is None else old.load,
            since=_milliseconds(record.created),
        )
        if record.permit is not None:
            machine = events.recorded(machine, record.permit)
            machine = replace(machine, pressure=NOTHING if old is None or not record.scaled else old.pressure)
        elif starting and record.runs:
            machine = events.found(machine, era=self.settings.era)
        elif old is not None and old.permit is None and old.buffer != NOTHING and record.scaled:
            # As long as it has not asked, it may have been permitted what nobody here knows of.
            kept = replace(machine, reserved=old.reserved, buffer=old.buffer, most=old.most)
            machine = events.observed(events.bounded(kept, record.least, record.most), record.use)
        else:
            machine = events.admitted(machine)
        if record.migrating is not None and record.migrating.is_true:
            machine = events.leaving(machine)
        return machine


class Draft:
    """Decisions that nobody knows of yet, one on top of the other."""

    def __init__(self, book: Book, given_by: str, now: str) -> None:
        """``given_by``: who writes the permits. ``now``: RFC 3339."""
        self._book = book
        self._given_by = given_by
        self._now = now
        self._nodes: dict[str, Node] = {}
        self._conditions: dict[Key, dict[str, Told]] = {}
        self._permits: dict[Key, Resources | None] = {}
        self._unsure: set[Key] = set()

    def answer(self, request: Request) -> Granted:
        """Checks 10 to 15, in order, and the decision. Raises Refused, and then nothing is decided."""
        book, settings = self._book, self._book.settings
        record = book.find((request.pod.namespace, request.pod.name))
        key = record.key
        ask = in_bytes(request, record.slot, settings.unit)
        node = self._node(record.node)
        machine = node.machines[key]
        if machine.migrating:
            return self._while_migrating(request, record, machine)
        leaves = settings.era is not Era.NEWEST and should_leave(node, key)
        begins = leaves and book.migrates
        told: dict[str, Told] = {}
        was_told = record.should_migrate is not None and record.should_migrate.is_true
        if begins:
            told[MIGRATING] = (True, "NodePressure", f"node {record.node} has too little room; it is being migrated")
        elif leaves and not was_told:
            told[SHOULD_MIGRATE] = (
                True,
                "NodePressure",
                f"node {record.node} has too little room, and this machine should leave it first; no migrator is "
                "configured, so that is for an admin",
            )
        elif was_told and not leaves and not is_too_full(node):
            told[SHOULD_MIGRATE] = (False, "NodeRelieved", f"node {record.node} has room again")
        load = None if request.metrics is None else request.metrics.load1
        node = met(node, key, None if settings.era is Era.V0_12 else ask.last_permit)
        had = node.machines[key].told
        node = answer(node, key, ask.resources, self._factor(request, record, ask), leaving=begins, era=settings.era)
        permit = node.machines[key].told
        bodies = [
            encode_reply(request.version, permit, record.slot, settings.unit, migrate=migrate)
            for migrate in ((True, False) if begins else (False,))
        ]
        machine = replace(node.machines[key], load=load)
        node = events.changed(node, key, events.leaving(machine) if begins else machine)
        self._nodes[record.node] = node
        self._permits[key] = permit
        if record.permit is None or ask.last_permit != record.permit:
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
        """Take the record of a machine's permit away."""
        if key in self._book.records and self._book.records[key].permit is not None:
            self._permits[key] = None

    def writes(self, key: Key) -> bool:
        """Whether something of this machine is to be written, or made sure of, before anybody is told of it."""
        if key not in self._book.records:
            return False
        permit = self._permits.get(key, self._book.records[key].permit)
        changes = permit != self._book.records[key].permit or bool(self._conditions.get(key))
        return changes or key in self._unsure

    def changes(self) -> Sequence[Change]:
        """What is to be written; nothing where all stays as it is. Changes that change nothing make sure of an object:
        that it is still the one that the decision was made on."""
        return [
            change(
                self._book.objects[key],
                permit=self._permits.get(key, self._book.records[key].permit),
                given_by=self._given_by,
                conditions=self._conditions.get(key, {}),
                now=self._now,
            )
            for key in dict.fromkeys((*self._permits, *self._conditions))  # whoever asked is among the permits
            if self.writes(key)
        ]

    def adopt(self, stored: Iterable[Object]) -> None:
        """It is written: the book has it now."""
        self._book.nodes.update(self._nodes)
        for obj in stored:
            self._book.put(obj)

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


def leaving_by_age(book: Book) -> list[Key]:
    """The newest form: the machines of all nodes that should be migrated now."""
    if book.settings.era is not Era.NEWEST:
        return []
    return [key for name in sorted(book.nodes) for key in oldest_to_leave(book.nodes[name])]


def _other(amount: Resources) -> Machine:
    return Machine(least=amount, most=amount, reserved=amount, scaled=False)


def _version(obj: Object) -> int:
    text = obj["metadata"].get("resourceVersion", "")
    return int(text) if text.isdecimal() else 0


def _milliseconds(created: str) -> int:
    try:
        return int(parse_time(created).timestamp() * 1000)
    except ValueError:
        return 0
