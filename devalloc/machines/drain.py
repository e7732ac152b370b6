"""Drain a node: what becomes of its machines, and the request that has one leave.

A request is one write on one machine (``devalloc.io/evict``), or one migration. The node and the controller carry it
out, whatever becomes of the one who asked. For the first, the node powers the machine down and lets it go, and then the
controller releases its claims and takes its node away in one commit, and places it anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from devalloc.api import meta
from devalloc.api.conditions import READY
from devalloc.api.cordon import pool_node
from devalloc.api.decode import decode
from devalloc.api.fencing import without_holder
from devalloc.api.host_pool_names import node_of_host_pool
from devalloc.api.machine_location import (
    MigrationTargets,
    is_migratability_unknown,
    local_disks,
    local_parts,
    migration_obstacle,
    network_pool_names,
)
from devalloc.api.moved_claims import claim_users, moved_devices
from devalloc.api.reasons import Reason
from devalloc.api.serving import is_of_unserved
from devalloc.api.views import ClaimKey, ClaimView, MachineKey, MachineView, MigrationView, claim_views, machine_views
from devalloc.api.virtual_machine import VirtualMachine
from devalloc.controller.reconcile.stored_claims import ALLOCATION_ANNOTATIONS, solver_documents
from devalloc.machines.migrations import has_purpose, new_migration, pending_migrations, withdraw_migration
from devalloc.machines.schedule.machines import KIND, is_running
from devalloc.machines.schedule.migrations import KIND as MIGRATION_KIND
from devalloc.machines.schedule.migrations import is_refused_by_target, waits_for_other_migration
from devalloc.machines.schedule.what_if import solve_with_machines
from devalloc.store import OBJECT_FAILURES, Conflict, Key, NotFound, Object, Store, StoreError
from devalloc.store.metadata_rules import with_annotations

if TYPE_CHECKING:
    from devalloc_solver.pipeline.admission import AdminNamespaces

PURPOSE = "drain"
"""Part of the names of the migrations that drains create."""


class Fate(Enum):
    """What a drain does with a machine."""

    MIGRATE = "migrate"
    """It moves to another node while it runs."""
    MOVE = "move"
    """It leaves, and starts on another node if it is to run."""
    STOP = "stop"
    """It leaves, and waits until it can start on this node again."""
    STOPPING = "stopping"
    """It is to be stopped, and still runs: the drain waits for that, and then looks at it again."""
    LEAVING = "leaving"
    """It leaves already, also without the drain."""
    STAY = "stay"


@dataclass(frozen=True, slots=True)
class DrainedMachine:
    """A machine of the node."""

    machine: MachineView
    fate: Fate
    why: str
    """Why it stays, stops or leaves without the drain; empty if the drain moves it."""
    runs: bool
    """Whether it runs on the node, or is to run there."""

    @property
    def key(self) -> Key:
        return Key.of(self.machine.content)

    @property
    def leaves(self) -> bool:
        """Whether the drain waits until it has left the node."""
        return self.fate is not Fate.STAY


def drained_machines(store: Store, node: str, *, force: bool, live: bool = True) -> list[DrainedMachine]:
    """The machines of a node, by namespace and name, and what a drain does with each. ``force``: also with those that
    run, or cannot start elsewhere. ``live``: the node can still move machines while they run. Raises StoreError."""
    return plan_drain(store.list((KIND, "DevicePool", "DeviceClaim")).objects, node, force=force, live=live)


def plan_drain(
    listed: Sequence[Object],
    node: str,
    *,
    force: bool,
    live: bool = True,
    failed: Mapping[Key, str] | None = None,
) -> list[DrainedMachine]:
    """The same, from all machines, pools and claims. ``failed``: machines that did not move while they ran, and why."""
    pools = {name: pool for pool in listed if (name := node_of_host_pool(pool)) is not None}
    machines = machine_views(listed)
    claims = {claim.key: claim for claim in claim_views(listed)}
    users = claim_users(one.content for one in machines)
    fleet = _Fleet(MigrationTargets.of(pools), claims, users, network_pool_names(listed), live, failed or {})
    here = sorted((one for one in machines if one.is_on(node)), key=lambda one: one.key)
    planned = [_fate(one, node, fleet, force) for one in here]
    return _with_shared_claims(planned, claims, node)


def claims_on(objects: Sequence[Object], node: str) -> list[ClaimView]:
    """List the claims that have devices of the node, or that the node has prepared, and that take something of it: one
    that has admin access and is not prepared does not, and would get the same devices again."""
    return [
        claim for claim in claim_views(objects) if claim.is_on(node) and (claim.is_held or not claim.has_admin_access)
    ]


def moved_claims(objects: Sequence[Object], node: str) -> list[ClaimView]:
    """List the claims on the node whose machine has moved: they get other devices when the node has given up theirs."""
    machines = machine_views(objects)
    moved = [devices for one in machines for devices in moved_devices(one.content) if devices.node != node]
    return [
        claim
        for claim in claims_on(objects, node)
        if any(one.claim == claim.key and one.is_of(claim.content) for one in moved)
    ]


def other_claims(objects: Sequence[Object], node: str, machines: Collection[DrainedMachine]) -> list[ClaimView]:
    """List the claims on the node that neither move with a machine nor stay for one that does not run."""
    moving = {claim for one in machines if one.leaves for claim in one.machine.claims}
    moving |= {claim.key for claim in moved_claims(objects, node)}
    resting = {claim for one in machines if not one.leaves and not one.runs for claim in one.machine.claims}
    return [
        claim
        for claim in claims_on(objects, node)
        if claim.key not in moving and (claim.is_held or claim.key not in resting)
    ]


def node_has_pools(objects: Iterable[Object], node: str) -> bool:
    return any(one["kind"] == "DevicePool" and pool_node(one) == node for one in objects)


def arrivals(objects: Sequence[Object], node: str) -> list[MachineView]:
    """List the machines that move to a node and are not its own yet."""
    return [machine for machine in machine_views(objects) if machine.arrives_on(node)]


def name_of(key: Key) -> str:
    """Name a machine, or an object of another kind, as output does."""
    return f"virtualmachine {key.namespace}/{key.name}" if key.kind == KIND else str(key)


def is_held(obj: Object, node: str) -> bool:
    """Whether the node has something of a machine or claim."""
    if obj["kind"] == KIND:
        return MachineView(obj).holder == node
    return obj["kind"] == "DeviceClaim" and ClaimView(obj).holder == node


@dataclass(frozen=True, slots=True)
class Outlook:
    """What the solver says of a machine or claim that leaves the node."""

    node: str
    """Where it has room now; empty if nowhere, or if it is bound to no node."""
    why: str
    """Why it would wait: "CODE: message"; empty if it has room."""

    @property
    def place(self) -> str:
        """Where it goes, for people."""
        return f"node {self.node}" if self.node else "another node"


def predict(
    objects: Iterable[Object],
    node: str,
    planned: Iterable[DrainedMachine],
    claims: Collection[ClaimKey],
    *,
    note: str,
    deadline: float,
    admin_namespaces: AdminNamespaces = "all",
    with_nodes: bool = False,
) -> dict[Key, Outlook]:
    """What becomes of each machine that is to move, and of each of these claims, according to the solver. Machines that
    do not move, those of which the solver cannot say it in time, and those that only queue for other migrations are
    missing.

    ``objects``: all on which an answer depends. ``claims``: those that the node releases beside those of machines.
    ``note``: the annotation with which the node gets nothing new. ``deadline``: seconds. ``with_nodes``: Nodes count.
    """
    objects, planned = list(objects), list(planned)
    leaving = {one.key for one in planned if one.fate is Fate.MOVE}
    released = {*claims} | {claim for one in planned if one.fate is Fate.MOVE for claim in one.machine.claims}
    pending = pending_migrations(objects)
    moving = [one.key for one in planned if one.fate is Fate.MIGRATE and not pending[one.machine.key]]
    documents = [_as_left(obj, node, leaving, released, note) for obj in objects]
    created = [{**new_migration((key.namespace or "", key.name)), "status": _REFUSED} for key in moving]
    migrations = {MigrationView(one).key: one for one in created}
    answer = solve_with_machines(
        solver_documents([*documents, *created], with_nodes=with_nodes),
        deadline=deadline,
        admin_namespaces=admin_namespaces,
    )
    answers = {Key(KIND, one["namespace"], one["name"]): one for one in answer.get("machines", ())}
    by_key = {key: answers[key] for key in leaving if key in answers}
    by_key |= {
        Key("DeviceClaim", one["namespace"], one["name"]): one
        for one in answer["claims"]
        if (one["namespace"], one["name"]) in claims
    }
    for one in answer.get("migrations", ()):
        if (migration := migrations.get((one["namespace"], one["name"]))) is not None:
            by_key[Key(KIND, one["namespace"], migration["spec"]["vmName"])] = one
    return {
        key: Outlook(one["node"] or "", "") if one["allocated"] else Outlook("", f"{one['reason']}: {one['message']}")
        for key, one in by_key.items()
        if one["reason"] not in (Reason.SEARCH_LIMIT, Reason.TOO_MANY_MIGRATIONS)
    }


_REFUSED = {"phase": "Pending", "reason": Reason.NO_ROOM.value}
"""Of migrations that were looked at before: they are all looked at together, also more than may begin at a time."""


def _as_left(obj: Object, node: str, leaving: Collection[Key], released: Collection[ClaimKey], note: str) -> Object:
    """An object as it is when these machines have left the node, and the claims are released."""
    if obj["kind"] == "DevicePool" and pool_node(obj) == node:
        is_noted = note in (obj["metadata"].get("annotations") or {})
        return obj if is_noted else with_annotations(obj, {note: "by this command"})
    if obj["kind"] == "DeviceClaim" and ClaimView(obj).key in released and ClaimView(obj).entries:
        notes: dict[str, str | None] = dict.fromkeys((*ALLOCATION_ANNOTATIONS, meta.RELEASE))
        return {**without_holder(with_annotations(obj, notes)), "status": {}}
    if obj["kind"] != KIND or Key.of(obj) not in leaving:
        return obj
    notes = {meta.EVICT: None}
    if MachineView(obj).holder == node:
        notes[meta.LAST_NODE] = node
    return {**without_holder(with_annotations(obj, notes)), "status": {"phase": "Pending"}}


def evict(store: Store, machine: MachineView, node: str) -> None:
    """Ask a machine to leave its node, as it was read. Raises Conflict if it changed meanwhile, and NotFound."""
    notes: dict[str, str | None] = {meta.EVICT: node}
    if machine.holder == node:  # it may have begun there: its disks are where they are
        notes[meta.LAST_NODE] = node
    store.replace(with_annotations(machine.content, notes))


def sort_migrations(
    one: DrainedMachine, pending: Sequence[MigrationView]
) -> tuple[MigrationView | None, list[MigrationView]]:
    """Of the migrations of a machine that are not over, the one by which it leaves, and those to withdraw. The first
    moves it already, or can do so; None if a drain must create it. The others are those of drains, which would move the
    machine once more, and those that name a node that cannot take it, because other migrations wait for them."""
    booked = [view for view in pending if view.is_booked_on(one.machine)]
    waiting = [view for view in pending if one.fate is Fate.MIGRATE and not booked]
    blocking = [view for view in waiting if is_refused_by_target(view)]
    usable = [view for view in waiting if view not in blocking and not waits_for_other_migration(view)]
    usable.sort(key=_is_of_drain)
    chosen = next(iter([*booked, *usable]), None)
    others = [view for view in pending if view is not chosen and view.phase == "Pending"]
    return chosen, [view for view in others if _is_of_drain(view) or view in blocking]


def _is_of_drain(view: MigrationView) -> bool:
    return has_purpose(view.key[1], PURPOSE)


def withdraw_requests(
    store: Store, node: str, note_failure: Callable[[Key, StoreError], None] | None = None
) -> list[Key]:
    """Take back the requests of drains to leave a node; the machines that had not left yet. ``note_failure``: called
    with each machine for which the store refuses it. Raises StoreError; without ``note_failure``, also if the store
    refuses it for some of the machines, after all others."""
    objects = store.list((KIND, MIGRATION_KIND)).objects
    pending = pending_migrations(objects)
    withdrawn, failures = [], dict[Key, StoreError]()
    for machine in machine_views(objects):
        key = Key.of(machine.content)
        is_there = machine.is_on(node) and machine.node == node  # and has not been handed over
        migrations = [one for one in pending[machine.key] if is_there and _is_of_drain(one)]
        try:
            for one in migrations:
                withdraw_migration(store, Key(MIGRATION_KIND, *one.key))
            if _withdraw_eviction(store, machine.content, node) or migrations:
                withdrawn.append(key)
        except OBJECT_FAILURES as error:
            failures[key] = error
    for key, failure in failures.items():
        if note_failure is None:
            raise failure
        note_failure(key, failure)
    return withdrawn


def _withdraw_eviction(store: Store, machine: Object, node: str) -> bool:
    while MachineView(machine).must_leave(node):
        try:
            store.replace(with_annotations(machine, {meta.EVICT: None}))
            return True
        except NotFound:
            break
        except Conflict:
            try:
                machine = store.get(*Key.of(machine))
            except NotFound:
                break
    return False


@dataclass(frozen=True, slots=True)
class _Fleet:
    """What else counts for the fate of a machine."""

    targets: MigrationTargets
    claims: Mapping[ClaimKey, ClaimView]
    users: Mapping[ClaimKey, Sequence[MachineKey]]
    """The machines that name each claim."""
    network_pools: frozenset[str]
    live: bool
    failed: Mapping[Key, str]

    def migration_obstacle(self, machine: MachineView, node: str) -> str:
        """Why a machine that runs cannot move while it does; empty if it may."""
        if not self.live:
            return f"node {node} is lost"
        if why := self.failed.get(Key.of(machine.content)):
            return why
        if machine.spec.get("running") is False:
            return _TO_BE_STOPPED
        phase = machine.status.get("phase")
        if phase != "Running" and not is_of_unserved(machine.condition(READY)):  # its plugin is back
            return f"it is {phase}"
        if machine.holder != node:
            return "its node does not have it yet"
        for claim in machine.claims:
            if claim not in self.claims or not self.claims[claim].entries:
                return f"its claim {'/'.join(claim)} is not allocated"
        folders = self.targets.folders.get(node, frozenset())
        claims = {key: claim.content for key, claim in self.claims.items() if key in machine.claims}
        obstacle = migration_obstacle(machine.content, folders, claims, self.users, self.network_pools)
        if not obstacle and is_migratability_unknown(machine.content, claims, self.network_pools):
            obstacle = f"node {node} has not said yet whether QEMU can move it with its devices"
        return obstacle or self.targets.why_none(machine.content, node)


_TO_BE_STOPPED = "it is to be stopped"


def _why_leaving(machine: MachineView, node: str) -> str:
    """Why a machine leaves a node that has it, without a drain; empty if it does not."""
    if machine.is_deleting:
        return "it is being deleted"
    if machine.must_leave(node):
        return "it was asked to leave before"
    if machine.migration_target is not None:
        return f"it is moving to node {machine.migration_target}"
    if machine.node != node:
        return f"it moves to {machine.node or 'another node'}"
    return ""


def _fate(machine: MachineView, node: str, fleet: _Fleet, force: bool) -> DrainedMachine:
    shared_folders = fleet.targets.folders
    vm, runs = decode(machine.content).object, is_running(machine.content)
    if not isinstance(vm, VirtualMachine):
        return DrainedMachine(machine, Fate.STAY, "its manifest is invalid: `devalloc validate` shows why", runs)
    wanted = runs or (vm.spec.running and not machine.has_ended)
    if why := _why_leaving(machine, node):
        return DrainedMachine(machine, Fate.LEAVING, why, runs)
    if vm.spec.adopt is not None:
        why = "it was adopted: the one who started its QEMU must stop it, and then delete the machine"
        return DrainedMachine(machine, Fate.STAY, why, wanted)
    if runs and not vm.spec.running and not force:
        return DrainedMachine(machine, Fate.STOPPING, _TO_BE_STOPPED, runs)
    pinned = ["spec.nodeName names the node"] if vm.spec.node_name == node else []
    if pinned and node not in shared_folders:
        return DrainedMachine(machine, Fate.STAY, f"{pinned[0]}; name another one, or set spec.running: false", wanted)
    if pinned and machine.holder is None and machine.status.get("nodeName") != node:
        why = f"{pinned[0]}, so it waits until that is uncordoned; nothing of it is there"
        return DrainedMachine(machine, Fate.STAY, why, False)
    last = node if machine.holder == node else machine.annotation(meta.LAST_NODE)
    folders = shared_folders.get(last or "", frozenset())
    local = [f"only node {last} has {part}" for part in local_parts(machine.content, folders)] if last else []
    ties = [*pinned, *local]
    if runs and not pinned and not local_disks(machine.content, folders):  # else the ties say all
        if not (obstacle := fleet.migration_obstacle(machine, node)):
            return DrainedMachine(machine, Fate.MIGRATE, "", wanted)
        if not force:
            ties.append(f"it runs, and cannot move while it does: {obstacle}")
            return DrainedMachine(machine, Fate.STAY, "; ".join(ties), wanted)
    if ties and not (force and wanted):
        return DrainedMachine(machine, Fate.STAY, "; ".join(ties), wanted)
    return DrainedMachine(machine, Fate.STOP if ties else Fate.MOVE, "; ".join(ties), wanted)


def _with_shared_claims(
    planned: Iterable[DrainedMachine], claims: Mapping[ClaimKey, ClaimView], node: str
) -> list[DrainedMachine]:
    """A machine stays if a claim of it has devices of the node and is also that of one that stays."""
    planned = list(planned)
    while True:
        staying = [one for one in planned if not one.leaves or one.fate is Fate.STOPPING]
        users = {claim: one for one in staying for claim in one.machine.claims}
        here = {claim: one for claim, one in users.items() if claim in claims and claims[claim].node == node}
        after = [_unless_claim_stays(one, here) for one in planned]
        if after == planned:
            return planned
        planned = after


def _unless_claim_stays(one: DrainedMachine, staying: Mapping[ClaimKey, DrainedMachine]) -> DrainedMachine:
    if one.fate not in (Fate.MOVE, Fate.STOP):
        return one
    for claim in one.machine.claims:
        if (other := staying.get(claim)) is not None:
            owner = f"{other.key.namespace}/{other.key.name}"
            why = f"its claim {'/'.join(claim)} is also that of machine {owner}, which stays"
            return replace(one, fate=Fate.STAY, why=why)
    return one
