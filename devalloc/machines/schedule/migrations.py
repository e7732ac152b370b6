"""Read VirtualMachineMigrations: which of them look for a target, and what became of the others.

A migration reserves its target's capacity in ``status.migrationState`` of its machine, in one write; everything else
follows from that. As long as the reservation is there the machine can move; the write that makes the target its node
removes it. So the first to remove it decides: the node that hands the machine over, or the controller, which
withdraws the migration by it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from devalloc.api.decode import decode
from devalloc.api.machine_location import (
    MigrationTargets,
    is_migratability_unknown,
    migration_obstacle,
)
from devalloc.api.machine_reservation import required_amounts, sum_entries
from devalloc.api.moved_claims import booked_devices, claim_users, has_local_devices, local_claims, moved_devices
from devalloc.api.quantity import Quantity
from devalloc.api.reasons import Reason, find_reason
from devalloc.api.views import ClaimKey, ClaimView, MachineKey, MachineView, MigrationView
from devalloc.api.virtual_machine import VirtualMachine
from devalloc.machines.schedule.machines import counted_amounts, counted_entries, in_order, quantity_of
from devalloc.store import Object

KIND = "VirtualMachineMigration"
MigrationKey = tuple[str, str]
"""Namespace and name, the namespace never empty."""
MAX_PER_NODE = 2
"""Migrations from one node, or to one node, at a time: they share its network."""


def migrations_in(documents: Iterable[Object]) -> list[Object]:
    """The migrations, in the order in which they were created."""
    return in_order(documents, KIND)


class MigrationStates:
    """Of all migrations and their machines."""

    def __init__(
        self,
        migrations: Sequence[Object],
        machines: Sequence[Object],
        hosts: Mapping[str, Object],
        claims: Mapping[ClaimKey, Object],
        network_pools: Container[str],
    ) -> None:
        """``hosts``: the pools of what nodes have for machines, by node. ``network_pools``: names of the pools that
        every node reaches."""
        self._machines = {MachineView(doc).key: doc for doc in machines}
        self._targets = MigrationTargets.of(hosts)
        self._claims = claims
        self._users = claim_users(machines)
        self._network_pools = network_pools
        self.asking: dict[MigrationKey, tuple[Object, Object, VirtualMachine]] = {}
        """Those that look for a target, with their machine."""
        self.waiting: dict[MigrationKey, tuple[str, str]] = {}
        """Those that look for none yet, with reason and message."""
        self.booked: dict[MigrationKey, Object] = {}
        """Those whose target is reserved, with their machine."""
        self.moved: dict[MigrationKey, Object] = {}
        """Those whose machine is its target's, with the machine."""
        self.failed: dict[MigrationKey, tuple[str, str]] = {}
        """Those that can never be, or not any more, with reason and message."""
        self.withdrawn: dict[MachineKey, Object] = {}
        """Machines of which a reservation is to be removed."""
        self.objects = {MigrationView(doc).key: doc for doc in migrations}
        """All of them."""
        self.load: dict[str, int] = defaultdict(int)
        """How many are on their way, by node: from it and to it."""
        self._requested: dict[str, int] = defaultdict(int)
        """By node that a machine leaves, migrations that look for a target and have not been refused yet."""
        self._turns: dict[str, int] = defaultdict(int)
        """By namespace, migrations that are under way, or come before its next one."""
        self._first: dict[MachineKey, str] = {}
        """Of those that look for a target for the same machine, the one that comes first."""
        self._sort_all(migrations)
        self.following = self._following()
        """Claims of network devices that are of another node than their machine by now, and the machine's node."""

    def _sort_all(self, migrations: Sequence[Object]) -> None:
        by_uid = {MigrationView(doc).uid: doc for doc in migrations}
        for key, doc in self._machines.items():
            if not (state := MachineView(doc).migration_state):
                continue
            if self._may_go_on(doc, by_uid.get(str(state.get("migrationUID") or " "))):
                self._turns[key[0]] += 1
                for name in ("sourceNode", "targetNode"):
                    self.load[str(state.get(name))] += 1
            else:
                self.withdrawn[key] = doc
        for view, machine in self._in_turn(migrations):
            self._sort(view, machine)

    def _in_turn(self, migrations: Sequence[Object]) -> list[tuple[MigrationView, MachineKey]]:
        """Those that are not over: the first of each namespace before the second of any, counting those under way,
        and of equal ones the oldest first. Else one tenant could keep an admin from draining a node, with enough
        migrations that are older."""
        ordered = []
        for number, doc in enumerate(migrations):
            view = MigrationView(doc)
            if view.is_over or view.is_deleting or view.machine is None:
                continue
            is_new = not view.status.get("targetNode")
            ordered.append((self._turns[view.key[0]] if is_new else 0, number, view, view.machine))
            self._turns[view.key[0]] += is_new and not was_refused(view)
        return [(view, machine) for _, _, view, machine in sorted(ordered, key=lambda one: one[:2])]

    def _following(self) -> dict[ClaimKey, str]:
        following: dict[ClaimKey, str] = {}
        for key, (user, *others) in self._users.items():
            machine, content = MachineView(self._machines[user]), self._claims.get(key)
            if content is None or others or machine.node is None or machine.migration_state:
                continue
            claim = ClaimView(content)
            is_elsewhere = bool(claim.entries) and claim.node not in (None, machine.node)
            is_free = claim.holder in (None, machine.node) and not claim.is_unsettled
            is_there = machine.holder == machine.node
            if is_elsewhere and is_free and is_there and not has_local_devices(content, self._network_pools):
                following[key] = machine.node
        return following

    def _sort(self, view: MigrationView, machine_key: MachineKey) -> None:
        """Sort one migration: into those that moved, failed or wait, or those that are to be placed."""
        machine = self._machines.get(machine_key)
        if machine is not None and view.is_booked_on(MachineView(machine)):
            if machine_key not in self.withdrawn:
                self.booked[view.key] = machine
        elif target := view.status.get("targetNode"):
            if machine is not None and MachineView(machine).status.get("nodeName") == target:
                self.moved[view.key] = machine
            else:
                self.failed[view.key] = _why_timed_out(view) or self._why_withdrawn(machine)
        elif machine is None and view.status.get("reason") not in (None, Reason.MACHINE_NOT_FOUND.value):
            # Another one of that name is not the one that was to move.
            self.failed[view.key] = self._why_withdrawn(None)
        elif machine is None:
            why = f"there is no machine {'/'.join(machine_key)}; delete the migration, or create the machine"
            self.waiting[view.key] = Reason.MACHINE_NOT_FOUND.value, why
        elif other := MachineView(machine).migration_state.get("migrationName") or self._first.get(machine_key):
            self.waiting[view.key] = (
                Reason.ALREADY_MIGRATING.value,
                f"migration {other} is moving the machine; wait until it ends",
            )
        elif (never := self._why_never(view, machine)) is not None:
            self.failed[view.key] = never
        else:
            self._first[machine_key] = view.key[1]
            self._ask(view, machine)

    def _why_never(self, view: MigrationView, machine: Object) -> tuple[str, str] | None:
        """Why no node can take the machine while it runs, whatever there is room for."""
        if why := _why_ended(machine):
            return Reason.MACHINE_NOT_RUNNING.value, f"{why}; only a machine that runs can move"
        source = MachineView(machine).holder or MachineView(machine).node
        if source is None or MachineView(machine).handed_over_to is not None:
            return None  # it is not placed yet, or its target has not taken it
        if view.spec.get("targetNode") == source:
            return Reason.MACHINE_NOT_MOVABLE.value, f"the machine is on node {source} already"
        folders = self._targets.folders.get(source, frozenset())
        obstacle = migration_obstacle(machine, folders, self._claims, self._users, self._network_pools)
        return (Reason.MACHINE_NOT_MOVABLE.value, obstacle) if obstacle else None

    def _ask(self, view: MigrationView, machine: Object) -> None:
        """Those that found no target are asked for again beside the others: they must not keep these waiting."""
        vm, source = decode(machine).object, str(MachineView(machine).holder)
        is_new = not was_refused(view)
        others = self.load[source] + (self._requested[source] if is_new else 0)
        if (why := _why_not_yet(machine, self._claims)) is not None:
            self.waiting[view.key] = why
        elif is_migratability_unknown(machine, self._claims, self._network_pools):
            why_none = f"node {source} has not said yet whether QEMU can move the machine with its devices"
            self.waiting[view.key] = Reason.MIGRATABILITY_UNKNOWN.value, why_none
        elif not isinstance(vm, VirtualMachine):
            self.waiting[view.key] = Reason.MACHINE_INVALID.value, "its machine cannot be read"
        elif why_none := self._targets.why_none_receives(source, view.spec.get("targetNode")):
            self.waiting[view.key] = Reason.MIGRATION_OFF.value, why_none
        elif others >= MAX_PER_NODE:
            self.waiting[view.key] = Reason.TOO_MANY_MIGRATIONS.value, too_many_message(source)
        else:
            self._requested[source] += is_new
            self.asking[view.key] = dict(view.content), machine, vm

    def _may_go_on(self, machine: Object, migration: Object | None) -> bool:
        """Whether the migration that its status names may still move it."""
        if migration is None or MigrationView(migration).machine != MachineView(machine).key:
            return False
        view = MigrationView(migration)
        return not view.is_over and not view.is_deleting and self._why_stopped(machine) is None

    def _why_stopped(self, machine: Object) -> tuple[str, str] | None:
        """Why a machine cannot move any more that could before."""
        why = _why_stopped(machine) or _why_claims_stay(machine, self._claims, self._network_pools)
        return (Reason.MIGRATION_WITHDRAWN.value, why) if why else None

    def _why_withdrawn(self, machine: Object | None) -> tuple[str, str]:
        """Say why the machine is not where its migration booked it."""
        if machine is None:
            return Reason.MIGRATION_WITHDRAWN.value, "the machine was deleted"
        stopped = self._why_stopped(machine)
        return stopped or (Reason.MIGRATION_WITHDRAWN.value, "its reservation on the target was removed")


def was_refused(view: MigrationView) -> bool:
    """Whether a migration was looked at, and found no target for another reason than that others were first."""
    return view.phase == "Pending" and view.status.get("reason", "") not in ("", Reason.TOO_MANY_MIGRATIONS)


_OF_TARGET = (Reason.MACHINE_NOT_MOVABLE, Reason.MIGRATION_OFF, Reason.NO_ROOM, Reason.NODES_TOO_SMALL)
"""Why a migration that names its target is pending, if another node may be able to take the machine; beside the reasons
of the fleet (``Reason.is_of_fleet``). All others concern the machine, its claims or the store, or pass soon."""


def is_refused_by_target(view: MigrationView) -> bool:
    """Whether a migration is pending because the node that it names cannot take the machine."""
    is_pinned = bool(view.spec.get("targetNode")) and view.phase == "Pending"
    reason = find_reason(view.status.get("reason"))
    return is_pinned and reason is not None and (reason.is_of_fleet or reason in _OF_TARGET)


def waits_for_other_migration(view: MigrationView) -> bool:
    """Whether a migration that names its target waits until another one of the same machine is over."""
    return bool(view.spec.get("targetNode")) and view.status.get("reason") == Reason.ALREADY_MIGRATING


def relevant_part(obj: Object) -> Any:
    """All of a migration that a decision may depend on: not how far it is. None of other objects."""
    if obj["kind"] != KIND:
        return None
    view = MigrationView(obj)
    return view.uid, view.machine, view.spec, view.is_deleting, view.phase, view.status.get("targetNode")


def too_many_message(node: str) -> str:
    """Why a migration from or to a node waits for others."""
    return f"{MAX_PER_NODE} other machines move from or to node {node}, as many as may at a time; wait for one"


def migrated_amounts(machine: Object, vm: VirtualMachine) -> dict[str, Quantity]:
    """What the target must reserve: as much as the machine counts for on its node, and what its spec asks for."""
    amounts = required_amounts(vm.spec)
    for name, nano in counted_amounts(machine).items():
        if name not in amounts or amounts[name].nano < nano:
            amounts[name] = quantity_of(name, nano)
    return amounts


def amounts_by_numa_node(machine: Object) -> dict[int, dict[str, Quantity]]:
    """What is reserved on each NUMA node for a machine whose guest has several; empty for all others."""
    nodes = MachineView(machine).status.get("numaNodes")
    if not isinstance(nodes, list) or len(nodes) < 2:
        return {}
    by_node: dict[int, dict[str, int]] = {}
    for (_, device, resource), nano in sum_entries(counted_entries(machine)).items():
        if (number := device.removeprefix("numa")).isdecimal():
            part = by_node.setdefault(int(number), {})
            part[resource] = part.get(resource, 0) + nano
    return {number: {name: quantity_of(name, nano) for name, nano in part.items()} for number, part in by_node.items()}


def _why_ended(machine: Object) -> str:
    view = MachineView(machine)
    phase = view.status.get("phase")
    if view.is_deleting:
        return "the machine is being deleted"
    if view.spec.get("running") is False:
        return "the machine is to be stopped"
    return f"the machine is {phase}" if phase in ("Stopped", "Failed") else ""


def _why_stopped(machine: Object) -> str:
    """Why a machine cannot move any more that could before; empty if it can."""
    view = MachineView(machine)
    source = view.migration_state.get("sourceNode")
    if why := _why_ended(machine):
        return why
    if source is not None and view.holder != source:
        return f"the machine is not on node {source} any more"
    if view.must_leave(view.holder):
        return f"the machine is being powered down and leaves node {view.holder}"
    if view.spec.get("nodeName") not in (None, view.migration_target):
        return f"spec.nodeName of the machine names node {view.spec['nodeName']}"
    return ""


def _why_claims_stay(machine: Object, claims: Mapping[ClaimKey, Object], network_pools: Container[str]) -> str:
    """Which claim of a machine has no use for what is reserved for it on the target, or needs something there for which
    nothing is; empty if there is none."""
    booked = booked_devices(machine)
    for devices in booked:
        name, claim = f"claim {'/'.join(devices.claim)}", claims.get(devices.claim)
        if devices.claim not in MachineView(machine).claims:
            return f"{name} was detached from the machine"
        if claim is None or not devices.is_of(claim) or ClaimView(claim).is_deleting:
            return f"{name} was deleted"
        if ClaimView(claim).wants_release or not ClaimView(claim).entries:
            return f"{name} was released"
    reserved = {devices.claim for devices in booked}
    local = (ClaimView(claim).key for claim in local_claims(machine, claims, network_pools))
    return next((f"claim {'/'.join(key)} was attached to the machine" for key in local if key not in reserved), "")


def _why_timed_out(view: MigrationView) -> tuple[str, str] | None:
    """What was written on a migration before its reservation was removed for that."""
    is_late = view.status.get("reason") == Reason.MIGRATION_TIMED_OUT
    return (Reason.MIGRATION_TIMED_OUT.value, str(view.status.get("message", ""))) if is_late else None


def _why_not_yet(machine: Object, claims: Mapping[ClaimKey, Object]) -> tuple[str, str] | None:
    """What must change before it makes sense to look for a target."""
    view = MachineView(machine)
    if view.must_leave(view.holder or view.node):
        return Reason.MACHINE_NOT_RUNNING.value, "the machine is being powered down and leaves its node"
    if (node := view.handed_over_to) is not None:
        return (
            Reason.ALREADY_MIGRATING.value,
            f"node {node} is taking the machine over from node {view.holder}; wait until it has it",
        )
    if (phase := view.status.get("phase", "Pending")) != "Running":
        return Reason.MACHINE_NOT_RUNNING.value, f"the machine is {phase}; the migration begins once it runs"
    if view.holder is None or view.is_unsettled:
        return Reason.MACHINE_NOT_RUNNING.value, "no node has taken the machine yet; the migration begins once it runs"
    if waiting := moved_devices(machine):
        name, node = "/".join(waiting[0].claim), waiting[0].node
        return (
            Reason.CLAIM_MOVING.value,
            f"claim {name} of the machine still has to get its devices on node {node}; wait for it",
        )
    for claim in MachineView(machine).claims:
        if claim not in claims or not ClaimView(claims[claim]).entries:
            return Reason.CLAIM_NOT_ALLOCATED.value, f"claim {'/'.join(claim)} of the machine is not allocated yet"
    return None
