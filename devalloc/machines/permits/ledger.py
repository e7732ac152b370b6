"""The ledgers of all nodes, built from the machines on them. Decisions on them are made in a ``PermitTransaction``.

Pure: what the objects of machines say is for their sources to read (``MachineReader``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from devalloc.api.meta import parse_time
from devalloc.api.views import MachineView
from devalloc.machines.permits.runner_usage import PodOwner, RunnerPlace, RunnerPod, RunnerUsage
from devalloc.scaling.messages.permits import NO_POD, RequestError
from devalloc.scaling.peer_json import MAX_BYTES, MAX_CPU, bytes_to_json, cpu_to_json
from devalloc.scaling.permits import ledger
from devalloc.scaling.permits.arithmetic import PermitsArithmetic
from devalloc.scaling.permits.ledger import (
    MachineAccount,
    MachineKey,
    NodeLedger,
    all_to_migrate,
    is_under_pressure,
    make_ledger,
    next_to_migrate,
)
from devalloc.scaling.resources import NO_OVERCOMMIT, NO_RESOURCES, Resources
from devalloc.scaling.versions import ProtocolEra

Object = dict[str, Any]
"""As a store has it: what it says is for a ``MachineReader`` to tell."""
MIGRATING = "Migrating"
SHOULD_MIGRATE = "ShouldMigrate"
CanMigrate = Callable[[Object], bool]
"""Whether nothing that a machine has keeps it on its node, by its object."""


@dataclass(frozen=True, slots=True)
class VmCondition:
    """What a condition of a machine says."""

    is_true: bool
    reason: str
    since: str
    """RFC 3339; empty if that is not known."""


@dataclass(frozen=True, slots=True)
class VmState:
    """One machine."""

    key: MachineKey
    node: str
    least: Resources
    most: Resources
    use: Resources
    """The largest of what was read back, what it was told to take, and what others report that it has. What its spec
    says if it is not scaled."""
    permit: Resources | None
    """What is written down that it may have in this run."""
    previous: Resources
    """What it was told before and may go by still, if that is more: it is unconfirmed that it knows its permit."""
    slot: int
    """Bytes in which its memory changes."""
    runs: bool
    scaled: bool
    movable: bool
    """Its owner allows that it is migrated."""
    must_move: bool
    reserve_max: bool
    billed_to: str
    overcommit: Resources | None
    runner_pod: MachineKey | None
    created: str
    migrating: VmCondition | None
    should_migrate: VmCondition | None
    machine_id: str
    kind: str = "VirtualMachine"
    """Of its object, in the store."""
    is_own: bool = True
    """devalloc runs it, and its conditions are written here. Else its pod runs it, and counts too."""
    wire_slot: int | None = None
    """Bytes of one of its memory slots, as its object says; None: it says none, so the server's own counts."""
    is_moving: bool = False
    """A migration moves it to another node; until that is over it gets nothing else."""
    withdrawn: Resources | None = None
    """What it may have in this run if that was written down, and was taken off."""


@dataclass(frozen=True, slots=True)
class SecondReservation:
    """What a second node keeps for a machine that moves."""

    node: str
    amounts: Resources
    is_leaving: bool
    """Whether that node is its source, which gets it back when the target takes the machine."""


@dataclass(frozen=True, slots=True)
class Host:
    """One node, as far as permits go."""

    limit: Resources
    """What there is for machines: the effective limit, with the oversubscription that is configured."""
    others: Mapping[MachineKey, Resources] = field(default_factory=dict)
    """Pods that are no machines, by namespace and name, and what they take of the limit."""


@dataclass(frozen=True, slots=True)
class MachineReading:
    """What an object says."""

    state: VmState | None
    """None: nothing of it counts on a node."""
    second: SecondReservation | None = None
    """What a second node keeps for a machine that moves."""
    owner: PodOwner | None = None
    """Which pods the machine owns, if pods run those of its source."""


class MachineReader(Protocol):
    """Reads objects that are machines."""

    def key(self, obj: Object) -> MachineKey:
        """Return the key of a machine by its object."""

    def read(self, obj: Object) -> MachineReading:
        """Return what an object says."""


def has_no_devices(obj: Object) -> bool:
    """Whether a machine can move, if any device that is bound to it, or is to be, keeps it on its node."""
    return not MachineView(obj).spec.get("claims") and not MachineView(obj).status.get("devices")


class PermitLedgers:
    """The ledgers as they are written down. Use from one thread."""

    def __init__(
        self,
        settings: PermitsArithmetic,
        machines: MachineReader,
        *,
        migrates: bool = False,
        node: str | None = None,
    ) -> None:
        """``machines``: reads them. ``node``: the one whose machines count; None: all."""
        self.settings = settings
        self._reader = machines
        self.migrates = migrates
        """Whether a migrator moves machines."""
        self.nodes: dict[str, NodeLedger] = {}
        self.records: dict[MachineKey, VmState] = {}
        self.objects: dict[MachineKey, Object] = {}
        self.backed_off: Mapping[MachineKey, float] = {}
        """Machines whose migration failed, did not begin or was withdrawn, and until when they are left where they are
        (by the monotonic clock)."""
        self._can_move: CanMigrate = has_no_devices
        self._node = node
        self._pods: dict[MachineKey, dict[MachineKey, None]] = {}
        """Runner pods, and the machines that name them: the last one to do so last. Each node says so of its own."""
        self._second_nodes: dict[MachineKey, str] = {}
        """Machines that move, and the second node that counts them."""
        self._others: dict[MachineKey, str] = {}
        """Pods that are no machines, and on which node they are."""
        self._runners = RunnerUsage()
        self._runner_accounts: dict[RunnerPlace, MachineKey] = {}
        """Where runner pods count by themselves, and by which account of the node."""
        self._doubts: dict[str, Mapping[MachineKey, Resources] | None] = {}
        """By kind, machines on which a permit may still be written that is not known here, and what it is at most.
        None: all of them, up to their upper bounds."""

    def begin(self, hosts: Mapping[str, Host], can_move: CanMigrate | None = None) -> None:
        """Anew, with nothing but these nodes."""
        self.nodes, self.records, self.objects, self._pods, self._others = {}, {}, {}, {}, {}
        self._doubts = {}
        self._second_nodes = {}
        self._runners, self._runner_accounts = RunnerUsage(), {}
        self.limit(hosts, can_move)

    def limit(self, hosts: Mapping[str, Host], can_move: CanMigrate | None = None) -> None:
        """The nodes as they are now. On one that is gone nothing is granted any more. Whether a machine can move is
        looked at again: that depends on other nodes and on claims, which change without its object. ``can_move``: how
        to judge that from now on; None: as before."""
        self._can_move = can_move or self._can_move
        for key, name in self._others.items():  # one that went from node to node is on the other one now
            self.nodes[name] = self.nodes[name].without(key)
        self._others = {}
        for name in sorted(self.nodes.keys() | hosts.keys()):
            host = hosts.get(name, Host(NO_RESOURCES))
            total, watermark = self.settings.limits(host.limit)
            node = self.nodes.get(name, make_ledger(NO_RESOURCES, NO_RESOURCES)).with_limits(total, watermark)
            for key, amount in host.others.items():
                if key not in self.records:
                    node = ledger.replace_machine(node, key, _other_consumer(amount))
                    self._others[key] = name
            self.nodes[name] = node
        for key, record in self.records.items():
            machine = self.nodes[record.node].machines[key]
            machine = replace(machine, movable=self._is_movable(record, self.objects[key]))
            self.nodes[record.node] = ledger.replace_machine(self.nodes[record.node], key, machine)
        self._count_runners(pod.place for pod in self._runners.ownerless())

    def put(self, obj: Object, *, starting: bool = False) -> None:
        """An object as it is now. One that is no newer than what is known is left aside.

        ``starting``: a machine that runs without a record may have been permitted anything before.
        """
        key = self._reader.key(obj)
        before = self.objects.get(key)
        if before is not None and not starting and _version(obj) <= _version(before):
            return
        self._unbook(key)  # it may be on the node that counts it second now
        old, reading = self.records.get(key), self._reader.read(obj)
        self._put(key, obj, reading.state, before, starting)
        if reading.second is not None:
            self._book(key, reading.second)
        if reading.owner is not None:
            named = filter(None, map(self._runners.place_of, _runner_pods(old, self.records.get(key))))
            self._count_runners((*self._runners.own(key, reading.owner), *named))

    def _put(self, key: MachineKey, obj: Object, record: VmState | None, before: Object | None, starting: bool) -> None:
        old = self.records.get(key)
        if record is not None and self._node not in (None, record.node):
            record = None
        machine = None if old is None else self.nodes[old.node].machines.get(key)
        if before is not None and before["metadata"].get("uid") != obj["metadata"].get("uid"):
            machine = None  # another machine of this name
        if old is not None and (record is None or record.node != old.node):
            self._leave(key, old)
            machine = None
        if record is None:
            self.objects.pop(key, None)
            return
        if old is not None and machine is not None:
            record = _keep_run_amounts(record, old, machine)
        if (there := self._others.pop(key, None)) is not None:
            self.nodes[there] = self.nodes[there].without(key)
        if old is not None:
            self._forget_pod(key, old)
        if record.runner_pod is not None:
            self._pods.setdefault(record.runner_pod, {})[key] = None
        node = self.nodes.get(record.node) or make_ledger(NO_RESOURCES, NO_RESOURCES)
        self.nodes[record.node] = ledger.replace_machine(node, key, self._machine(record, obj, machine, starting))
        self.records[key], self.objects[key] = record, obj

    def drop(self, key: MachineKey, version: str | None = None) -> None:
        """There is no such object any more. ``version``: that of its deletion, if that may be long ago: an object
        that is newer was made since."""
        stored = self.objects.get(key)
        if version is not None and stored is not None and _number(version) < _version(stored):
            return
        self.objects.pop(key, None)
        self._unbook(key)
        if (old := self.records.get(key)) is not None:
            self._leave(key, old)
        named = filter(None, map(self._runners.place_of, _runner_pods(old)))
        self._count_runners((*self._runners.disown(key), *named))

    def put_runner(self, pod: RunnerPod, *, is_inherited: bool = False) -> None:
        """Take a pod that runs a machine as it is now. ``is_inherited``: it was there before this process led."""
        self._change_runner(pod.key, self._runners.put(pod, is_inherited=is_inherited))

    def drop_runner(self, key: MachineKey) -> None:
        """There is no such pod any more, or its machine has ended."""
        self._change_runner(key, self._runners.drop(key))

    def _change_runner(self, pod: MachineKey, places: Iterable[RunnerPlace]) -> None:
        for key in self._pods.get(pod, ()):  # what the pod says may have changed
            if not self.records[key].is_own:
                self._account_anew(key)
        self._count_runners(places)

    @property
    def runners(self) -> Collection[MachineKey]:
        """The pods that run machines."""
        return self._runners.pods.keys()

    @property
    def ownerless_runners(self) -> Collection[RunnerPod]:
        """Those of them that were there before this process led, and whose machine was not."""
        return self._runners.ownerless()

    @property
    def machines(self) -> Collection[MachineKey]:
        """The machines of which an object is known, also those that are on no node."""
        return self.objects.keys() | self._runners.machines

    def _count_runners(self, places: Iterable[RunnerPlace]) -> None:
        """Count the pods of a machine on a node by themselves, together as one, but for that of the machine if it
        counts there."""
        for place in dict.fromkeys(places):
            name = place[1]
            alone = [pod for pod in self._runners.at(place) if not self._counts_with_machine(pod, name)]
            node = self.nodes.get(name) or make_ledger(NO_RESOURCES, NO_RESOURCES)
            amounts = NO_RESOURCES
            for pod in alone if self._node in (None, name) else ():
                amounts = amounts.most(self._runners.amounts(pod, node.total))
            account = None
            if amounts != NO_RESOURCES:
                account = self._runners.pods[min(alone)].account
            before = self._runner_accounts.pop(place, None)
            if before not in (None, account):
                node = node.without(before)
            if account is not None:
                node = ledger.replace_machine(node, account, _other_consumer(amounts))
                self._runner_accounts[place] = account
            if account is not None or before is not None:
                self.nodes[name] = node

    def _counts_with_machine(self, pod: MachineKey, node: str) -> bool:
        named = (self.records[key] for key in self._pods.get(pod, ()))
        return any(record.node == node and not record.is_own for record in named)

    def _account_anew(self, key: MachineKey) -> None:
        record = self.records[key]
        node = self.nodes[record.node]
        machine = self._machine(record, self.objects[key], node.machines[key], starting=False)
        self.nodes[record.node] = ledger.replace_machine(node, key, machine)

    def doubtful(self, kind: str) -> Collection[MachineKey] | None:
        """Return the machines of a kind on which a late permit may still be written; None: all."""
        doubts = self._doubts.get(kind, {})
        return None if doubts is None else doubts.keys()

    def doubt(self, kind: str, permits: Mapping[MachineKey, Resources] | None) -> None:
        """Count, until the next call, these machines of a kind for these permits at least, because they may still be
        written. None: all of them, for their upper bounds."""
        self._doubts[kind] = permits
        for key, record in self.records.items():
            if record.kind == kind:
                self._account_anew(key)

    def find(self, pod: MachineKey, of: str | None = None, *, by_pod: bool = False) -> VmState:
        """Find the machine of that name. ``of``: of several that name one pod, that of this node,
        then one that runs in it, then the last to do so. ``by_pod``: the name is that of a runner pod, and
        no machine's. Raises RequestError."""
        if pod in self.records and not by_pod:
            return self.records[pod]
        if named := [self.records[key] for key in self._pods.get(pod, ())]:
            # Who runs machines in pods says itself which one; one of ours can only have the same name and node.
            latest = reversed(named)
            return max(latest, key=lambda record: (record.node == of, not record.is_own))
        if pod in self._others:
            raise RequestError(400, "pod is not a VM runner", f"{pod[0]}/{pod[1]} is a pod, not a machine")
        raise RequestError(404, NO_POD, f"there is no machine {pod[0]}/{pod[1]}")

    def _unbook(self, key: MachineKey) -> None:
        if (node := self._second_nodes.pop(key, None)) is not None:
            self.nodes[node] = self.nodes[node].without(key)

    def _book(self, key: MachineKey, second: SecondReservation) -> None:
        """Count a machine that moves on the second node that has it."""
        if self._node in (None, second.node):
            node = self.nodes.get(second.node) or make_ledger(NO_RESOURCES, NO_RESOURCES)
            machine = _other_consumer(second.amounts)
            if second.is_leaving:  # the source gets it back soon: no other machine need leave for it
                machine = ledger.begin_migration(machine)
            self.nodes[second.node] = ledger.replace_machine(node, key, machine)
            self._second_nodes[key] = second.node

    def _leave(self, key: MachineKey, old: VmState) -> None:
        if old.runner_pod is not None and not old.is_own:
            self._runners.had(old.runner_pod, self.nodes[old.node].machines[key].use)
        self.nodes[old.node] = self.nodes[old.node].without(key)
        del self.records[key]
        self._forget_pod(key, old)

    def _forget_pod(self, key: MachineKey, old: VmState) -> None:
        if old.runner_pod is not None:
            named = self._pods.get(old.runner_pod, {})
            named.pop(key, None)
            if not named:
                self._pods.pop(old.runner_pod, None)

    def _doubt_of(self, record: VmState) -> Resources:
        doubts = self._doubts.get(record.kind, {})
        return record.most if doubts is None else doubts.get(record.key, NO_RESOURCES)

    def _usage_of(self, record: VmState) -> Resources:
        return self._runners.usage(record.runner_pod, record.node).least(record.most)

    def _is_movable(self, record: VmState, obj: Object) -> bool:
        return (record.movable or record.must_move) and self._can_move(obj)

    def _machine(self, record: VmState, obj: Object, old: MachineAccount | None, starting: bool) -> MachineAccount:
        newest = self.settings.era is ProtocolEra.NEWEST
        machine = MachineAccount(
            least=record.least,
            most=record.most,
            reserved=NO_RESOURCES,
            use=record.use if record.is_own else record.use.most(self._usage_of(record)),
            overcommit=(record.overcommit or self.settings.overcommit) if newest else NO_OVERCOMMIT,
            reserve_max=record.reserve_max,
            scaled=record.scaled,
            previous=record.previous.most(self._doubt_of(record)),
            movable=self._is_movable(record, obj),
            must_move=record.must_move,
            load=None if old is None else old.load,
            since=_milliseconds(record.created),
        )
        permit = record.withdrawn if record.permit is None else record.permit
        if permit is not None:
            machine = ledger.restore_recorded(machine, permit)
            machine = replace(machine, pressure=NO_RESOURCES if old is None or not record.scaled else old.pressure)
        elif starting and record.runs:
            machine = ledger.assume_unrecorded(machine, era=self.settings.era)
        elif old is not None and old.permit is None and old.buffer != NO_RESOURCES and record.scaled:
            # Until it asks, it may have a permit that is unknown here.
            restored = replace(machine, reserved=old.reserved, buffer=old.buffer, most=old.most)
            machine = ledger.observe_use(ledger.change_bounds(restored, record.least, record.most), record.use)
        else:
            machine = ledger.admit(machine)
        if record.is_moving or (record.migrating is not None and record.migrating.is_true):
            machine = ledger.begin_migration(machine)
        return machine


def machines_to_migrate(book: PermitLedgers) -> list[MachineKey]:
    """The newest form: the machines of all nodes that should be migrated now."""
    if book.settings.era is not ProtocolEra.NEWEST:
        return []
    return [key for name in sorted(book.nodes) for key in all_to_migrate(book.nodes[name], book.backed_off)]


def _keep_run_amounts(record: VmState, old: VmState, machine: MachineAccount) -> VmState:
    """A permit holds until its run of the machine ends, even if it was removed from the object."""
    same_run = record.machine_id == old.machine_id and record.runs and old.runs
    if record.permit is not None or machine.permit is None or not (same_run and record.scaled and old.scaled):
        return record
    return replace(record, withdrawn=machine.permit.most(machine.previous))


def _runner_pods(*records: VmState | None) -> list[MachineKey]:
    return [pod for record in records if record is not None and (pod := record.runner_pod) is not None]


def _other_consumer(amount: Resources) -> MachineAccount:
    return MachineAccount(least=amount, most=amount, reserved=amount, scaled=False)


def _version(obj: Object) -> int:
    return _number(obj["metadata"].get("resourceVersion", ""))


def _number(version: str) -> int:
    return int(version) if version.isdecimal() else 0


def _milliseconds(created: str) -> int:
    try:
        return int(parse_time(created).timestamp() * 1000)
    except (ValueError, OverflowError):
        return 0


# -- for people --------------------------------------------------------------------------------------------------------


def dump_ledgers(book: PermitLedgers) -> dict[str, Any]:
    """All ledgers."""
    return {
        "compat": book.settings.era.value,
        "nodes": {name: _shown_node(name, node, book) for name, node in sorted(book.nodes.items())},
    }


def _shown_node(name: str, node: NodeLedger, book: PermitLedgers) -> dict[str, Any]:
    first = next_to_migrate(node, book.backed_off)
    return {
        **{of: _amounts(getattr(node, of)) for of in _SHOWN},
        "tooFull": is_under_pressure(node),
        "firstToLeave": None if first is None else "/".join(first),
        "machines": {"/".join(key): _shown_machine(machine) for key, machine in sorted(node.machines.items())},
    }


_SHOWN = ("total", "watermark", "counted", "free", "buffer", "pressure", "accounted")


def _shown_machine(machine: MachineAccount) -> dict[str, Any]:
    return {
        "permit": None if machine.permit is None else _amounts(machine.permit),
        **{
            name: _amounts(getattr(machine, of))
            for name, of in (
                ("min", "least"),
                ("max", "most"),
                ("reserved", "reserved"),
                ("use", "use"),
                ("kept", "previous"),
                ("buffer", "buffer"),
                ("pressure", "pressure"),
                ("overhead", "overhead"),
            )
        },
        "scaled": machine.scaled,
        "movable": machine.movable,
        "migrating": machine.migrating,
        "load": machine.load,
    }


def _amounts(of: Resources) -> dict[str, Any]:
    # A sum of what strangers ask for need not fit.
    return {"cpu": cpu_to_json(min(of.cpu, MAX_CPU)), "memory": bytes_to_json(min(of.memory, MAX_BYTES))}
