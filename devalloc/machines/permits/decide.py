"""A transaction of permit decisions that are not sent before they are written. Pure: who writes it, writes ``records``.

What a draft wants written is written machine by machine, in any order, and each write may be the last one before a
crash. So what a decision of a draft gives back no other one of the same draft gives away: with whatever part of its
writes no node has given more than it has. What is in the store the book takes over; what is not, has not happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from devalloc.machines.permits.ledger import MIGRATING, SHOULD_MIGRATE, Object, PermitLedgers, VmState
from devalloc.scaling.messages.permits import (
    PermitRequest,
    RequestError,
    WireResources,
    demand_in_bytes,
    encode_reply,
)
from devalloc.scaling.permits import ledger
from devalloc.scaling.permits.ledger import (
    MachineAccount,
    MachineKey,
    NodeLedger,
    after_first_request,
    answer_request,
    is_under_pressure,
    should_migrate,
)
from devalloc.scaling.resources import NO_RESOURCES, Resources
from devalloc.scaling.versions import ProtocolEra

NODE_PRESSURE = "NodePressure"
"""The reason of conditions that say that a machine should leave its node."""

WRONG_NODE_MESSAGE = "this machine is not on the node that the token names"

ConditionValue = tuple[bool, str, str]
"""Of a condition: whether it is true, the reason, the message."""


@dataclass(frozen=True, slots=True)
class PermitGrant:
    """What a request comes to. Told only after what the draft wants written is written."""

    key: MachineKey
    node: str
    body: bytes
    wanted: Resources
    permit: Resources
    before: Resources
    wants_migration: bool = False
    """It should move, and there is no migrator."""
    begins_migration: bool = False
    """The migrator is to be told; the body says so already."""
    without_migration: bytes = b""
    """What to say if the machine is on its way already."""


@dataclass(frozen=True, slots=True)
class PermitRefused:
    """Why a request is not granted."""

    status: int
    """As of HTTP."""
    text: str


PermitAnswer = PermitGrant | PermitRefused


@dataclass(frozen=True, slots=True)
class PermitRecord:
    """What is to be written of one machine."""

    key: MachineKey
    permit: Resources | None
    """None: none is recorded any more."""
    previous: Resources
    conditions: Mapping[str, ConditionValue]
    unit: Resources
    """The compute unit."""
    given_by: str
    now: str
    """RFC 3339."""

    @property
    def most(self) -> Resources:
        """What the machine may have at most once this is written."""
        return self.previous if self.permit is None else self.permit.most(self.previous)


class RetryLater(Exception):
    """There may be more for this request when what others of the draft gave back is written."""


class PermitTransaction:
    """Decisions, one on top of the other."""

    def __init__(self, book: PermitLedgers, given_by: str, now: str, *, is_certain: bool = True) -> None:
        """``given_by``: who writes the permits. ``now``: RFC 3339. ``is_certain``: no write may still arrive that the
        book does not know of; else what changes nothing is made sure of as well."""
        self._book = book
        self._given_by = given_by
        self._now = now
        self._is_certain = is_certain
        self._nodes: dict[str, NodeLedger] = {}
        self._given_back: dict[str, Resources] = {}
        """By node, what decisions of this draft freed of it."""
        self._conditions: dict[MachineKey, dict[str, ConditionValue]] = {}
        self._permits: dict[MachineKey, Resources | None] = {}
        self._previous: dict[MachineKey, Resources] = {}
        self._unsure: set[MachineKey] = set()

    def answer(self, request: PermitRequest, of: str | None = None, *, by_pod: bool = False) -> PermitGrant:
        """Checks 10 to 15, in order, and the decision. Raises RequestError and RetryLater, and then nothing is decided.

        ``of``: the node for whose machines the caller may ask; None: all. ``by_pod``: it may name only runner pods.
        """
        book, settings = self._book, self._book.settings
        record = book.find((request.pod.namespace, request.pod.name), of, by_pod=by_pod)
        key = record.key
        if of not in (None, record.node):
            raise RequestError(
                403, WRONG_NODE_MESSAGE, f"{key[0]}/{key[1]} is on node {record.node}, but node {of} asked"
            )
        slot = self._slot(request, record)
        ask = demand_in_bytes(request, slot, settings.unit)
        node = self._node(record.node)
        if node.machines[key].migrating:
            return self._while_migrating(request, record, node.machines[key])
        leaves = settings.era is not ProtocolEra.NEWEST and should_migrate(node, key, book.backed_off)
        begins = leaves and book.migrates
        conditions = self._conditions_of(record, node, leaves)
        before = node.machines[key].counted
        given_back = self._given_back.get(record.node, NO_RESOURCES)
        total = node.total
        node = node.with_limits(total.excess_over(given_back), node.watermark)
        node = after_first_request(node, key, ask.last_permit)
        had = node.machines[key].assumed
        node = ledger.replace_machine(node, key, _with_last_permit(node.machines[key], request, slot))
        node = answer_request(node, key, ask.resources, ask.step, leaving=begins, era=settings.era)
        machine = node.machines[key]
        permit = machine.assumed
        if given_back != NO_RESOURCES and not begins and ask.resources.exceeds(permit):
            raise RetryLater
        self._given_back[record.node] = given_back + before.excess_over(machine.counted)
        node = node.with_limits(total, node.watermark)
        previous = machine.previous if machine.previous.exceeds(permit) else NO_RESOURCES
        bodies = [
            encode_reply(request.version, permit, slot, settings.unit, migrate=migrate)
            for migrate in ((True, False) if begins else (False,))
        ]
        machine = replace(machine, previous=previous, load=None if request.metrics is None else request.metrics.load1)
        self._nodes[record.node] = ledger.replace_machine(
            node, key, ledger.begin_migration(machine) if begins else machine
        )
        self._permits[key], self._previous[key] = permit, previous
        if not self._is_certain or record.permit is None or ask.last_permit != record.permit:
            # It may be another run of the machine than the one that is known here, which has no permit yet.
            self._unsure.add(key)
        if conditions:
            self._conditions.setdefault(key, {}).update(conditions)
        return PermitGrant(
            key, record.node, bodies[0], ask.resources, permit, had, leaves and not begins, begins, bodies[-1]
        )

    def tell(self, key: MachineKey, conditions: Mapping[str, ConditionValue]) -> None:
        """Write conditions on a machine, if it is there."""
        if key in self._book.records:
            self._conditions.setdefault(key, {}).update(conditions)

    def retract(self, key: MachineKey) -> None:
        """Take the record of a machine's permit away, if it does not ask for any more."""
        record = self._book.records.get(key)
        if record is not None and record.permit is not None and not record.scaled:
            self._permits[key] = None

    def writes(self, key: MachineKey) -> bool:
        """Whether something of this machine must be written or confirmed before anyone gets an answer about it."""
        record = self._book.records.get(key)
        if record is None:
            return False
        permit, previous = self._amounts(key, record)
        changes = (permit, previous) != (record.permit, record.previous) or bool(self._conditions.get(key))
        return changes or key in self._unsure

    def records(self) -> Sequence[PermitRecord]:
        """Return what must be written; nothing if all stays as it is. Records that change nothing confirm that an
        object is still the one on which the decision was based."""
        return [
            PermitRecord(
                key,
                *self._amounts(key, self._book.records[key]),
                conditions=self._conditions.get(key, {}),
                unit=self._book.settings.unit,
                given_by=self._given_by,
                now=self._now,
            )
            for key in dict.fromkeys((*self._permits, *self._conditions))  # the caller is among the permits
            if self.writes(key)
        ]

    def adopt(self, stored: Iterable[Object], lost: Iterable[MachineKey] = ()) -> None:
        """It is written: the book has it now. ``lost``: the machines of which it is not."""
        for key in lost:
            record = self._book.records[key]
            if record.node in self._nodes:
                as_it_was = self._book.nodes[record.node].machines[key]
                self._nodes[record.node] = ledger.replace_machine(self._nodes[record.node], key, as_it_was)
        self._book.nodes.update(self._nodes)
        for obj in stored:
            self._book.put(obj)

    def _amounts(self, key: MachineKey, record: VmState) -> tuple[Resources | None, Resources]:
        """The permit, and what is kept beside it."""
        if key not in self._permits:
            return record.permit, record.previous
        return self._permits[key], self._previous.get(key, NO_RESOURCES)

    def _conditions_of(self, record: VmState, node: NodeLedger, leaves: bool) -> dict[str, ConditionValue]:
        """What to write of the pressure, seen before the request counts."""
        is_requested = record.should_migrate is not None and record.should_migrate.is_true
        room = f"node {record.node} has too little room"
        if leaves and self._book.migrates:
            return {MIGRATING: (True, NODE_PRESSURE, f"{room}; it is being migrated")}
        if leaves and not is_requested:
            return {
                SHOULD_MIGRATE: (
                    True,
                    NODE_PRESSURE,
                    f"{room}, and this machine should leave it first; no migrator is configured, so an admin must move "
                    "it",
                )
            }
        if is_requested and not leaves and not is_under_pressure(node):
            return {SHOULD_MIGRATE: (False, "NodeRelieved", f"node {record.node} has room again")}
        return {}

    def _node(self, name: str) -> NodeLedger:
        return self._nodes.get(name) or self._book.nodes[name]

    def _slot(self, request: PermitRequest, record: VmState) -> int:
        """Bytes of a slot: of those in which memory changes, or of those in which the request counts it."""
        if request.version.memory_is_bytes:
            return record.slot
        return record.wire_slot or self._book.settings.memory_slot

    def _while_migrating(self, request: PermitRequest, record: VmState, machine: MachineAccount) -> PermitGrant:
        has, slot = machine.assumed, self._slot(request, record)
        if WireResources.of(has, request.version, slot) != request.resources:
            raise RequestError(400, "cannot change resources while the VM is migrating", f"it has {has}")
        body = encode_reply(request.version, has, slot, self._book.settings.unit)
        return PermitGrant(record.key, record.node, body, has, has, has)


def _with_last_permit(machine: MachineAccount, request: PermitRequest, slot: int) -> MachineAccount:
    """The machine before its request is answered. It also counts for the permit before the last one, until
    its agent confirms the last answer.

    A request has no number. A late one, which asks for what was wanted long ago, looks like a new one; but it names the
    permit of its time. An agent that names another permit than the last has not received that, and may go by the one
    before it.
    """
    if machine.permit is None:
        return machine
    last = request.last_permit
    unheard = last is not None and last != WireResources.of(machine.permit, request.version, slot)
    previous = machine.permit.most(machine.previous) if unheard else NO_RESOURCES
    counts = replace(machine, previous=previous)
    return replace(counts, reserved=machine.permit.most(counts.floor))
