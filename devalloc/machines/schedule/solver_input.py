"""The solver's input with machines in it: a placed machine is an allocated claim, a waiting machine is a pending one.

The claims of a machine that waits are grouped with it. Those of a machine that cannot be placed yet, whatever there is
room for, are kept back: devices on a node that the machine may never run on are of no use to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from devalloc.api import host_pool_names, meta
from devalloc.api.claim import priority_fault
from devalloc.api.decode import decode
from devalloc.api.findings import Cause, fact
from devalloc.api.machine_location import (
    local_parts,
    network_pool_names,
    reaches_disks,
    receives_machines,
    shared_storage,
    storage_folders,
    writable_disks,
)
from devalloc.api.machine_reservation import missing_amounts, required_amounts, sum_entries
from devalloc.api.moved_claims import MovedDevices, booked_devices, local_claims, moved_claim, moved_devices
from devalloc.api.node_rules import FIELD, NodeRestriction, NodeRule, Restrictions, ValueRestriction
from devalloc.api.owner_names import CLAIM, MACHINE, owner_document, owner_name
from devalloc.api.quantity import Quantity
from devalloc.api.reasons import Reason
from devalloc.api.views import (
    ClaimKey,
    ClaimView,
    MachineKey,
    MachineView,
    MigrationView,
    ObjectView,
    device_claims_in,
)
from devalloc.api.virtual_machine import VirtualMachine, annotation_problems
from devalloc.controller.reconcile.pool_attributes import PoolAttributes
from devalloc.controller.reconcile.requester import Requests
from devalloc.controller.reconcile.snapshot import Memo
from devalloc.controller.reconcile.stored_claims import DisjointSets
from devalloc.machines.schedule import machines, moving_claims, resize
from devalloc.machines.schedule.machines import AmountsByNuma, MachineRequest, MachineStates
from devalloc.machines.schedule.migrations import KIND as MIGRATION_KIND
from devalloc.machines.schedule.migrations import (
    MigrationStates,
    amounts_by_numa_node,
    migrated_amounts,
    migrations_in,
)
from devalloc.store import Key, Object

_OUT_OF_REACH = NodeRule("", False, Reason.NODE_UNAVAILABLE, (fact(Cause.NODE_BARRED),))
"""That a machine must not be on nodes that do not receive it, or do not reach its disks."""
_NUMA = "numa"
"""The attribute of a host's devices with the number of their NUMA node."""
Group = tuple[str, str]
"""Namespace, and the label of a group in the solver's input."""


@dataclass(frozen=True, slots=True)
class _HostRequest:
    """What a machine asks of devices of a node."""

    amounts: Mapping[str, Quantity]
    numa: int | None = None
    """the number of the NUMA node that they must be of"""
    is_of_one: bool = False
    """whether one device must have all of it"""

    @property
    def is_of_numa_nodes(self) -> bool:
        return {*self.amounts} <= {*host_pool_names.COMPUTE}

    def to_manifest(self) -> Object:
        requests = {"requests": {name: str(amount) for name, amount in self.amounts.items()}}
        return requests | ({"limits": {"count": "1"}} if self.is_of_one else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationRequest(MachineRequest):
    """A target that is asked for for a machine that is to move while it runs."""

    migration: Object
    source: str
    claims: Mapping[ClaimKey, ClaimKey] = field(default_factory=dict)
    """Its claims with devices of a node, and for each the claim that asks for the same on the target."""


@dataclass(slots=True)
class SchedulingInput(Requests):
    """What of machines is decided together with claims."""

    wishes: dict[MachineKey, MachineRequest] = field(default_factory=dict)
    waiting: dict[MachineKey, tuple[str, str]] = field(default_factory=dict)
    """Machines that are not asked for, with reason and message."""
    standing: MachineStates = field(default_factory=partial(MachineStates, (), {}, {}))
    growing: dict[MachineKey, resize.MachineGrowth] = field(default_factory=dict)
    """Placed machines that are to have more."""
    fitted: dict[MachineKey, list[Any]] = field(default_factory=dict)
    """Placed machines that want less, or have what they want already, and what is to be kept for them."""
    members: dict[Group, set[ClaimKey]] = field(default_factory=dict)
    """Claims that are asked for, by group; of groups with a machine in them."""
    owners: Mapping[ClaimKey, MachineKey] = field(default_factory=dict)
    """Which machine a claim is placed with, or waits with."""
    kept_back: Set[ClaimKey] = frozenset()
    """Claims that wait with a machine, and are not asked for."""
    moves: Mapping[MachineKey, MigrationRequest] = field(default_factory=dict)
    """Machines for which another node is asked for."""
    moving: dict[MachineKey, str] = field(default_factory=dict)
    """Machines that are moving to another node, or whose claims still are, and to which."""
    migrations: MigrationStates = field(default_factory=partial(MigrationStates, (), (), {}, {}, ()))
    arriving: Mapping[ClaimKey, MovedDevices] = field(default_factory=dict)
    """Claims for which devices wait on the node to which their machine has moved: only that is written on them."""
    pools: Mapping[str, Object] = field(default_factory=dict)
    """The pools of what nodes have for machines, by name."""
    objects: Mapping[MachineKey, Object] = field(default_factory=dict)
    """All machines."""
    agreeing: Set[ClaimKey] = frozenset()
    """Claims that must be on one NUMA node with their machine, and only because of its policy."""

    @property
    def bound(self) -> Iterable[ClaimKey]:
        return (*self.owners, *self.kept_back)

    def parts_of(self, key: Key, *, alone: bool = False) -> Sequence[ClaimKey]:
        requests = self.requests_of((key.namespace or "default", key.name)) if key.kind == machines.KIND else ()
        return next((one.parts for one in requests if not (alone and one.group)), ())

    def is_waiting(self, key: Key) -> bool:
        return key.kind == machines.KIND and (key.namespace or "default", key.name) in self.waiting

    def requests_of(self, machine: MachineKey) -> Sequence[MachineRequest]:
        """All that is asked for for a machine."""
        kinds: tuple[Mapping[MachineKey, MachineRequest], ...] = (self.wishes, self.growing, self.moves)
        return [requests[machine] for requests in kinds if machine in requests]


def scheduling_input(
    documents: Sequence[Object], memo: Memo | None = None, others_wait: bool = False
) -> SchedulingInput:
    """The input for documents in which allocated claims are as they count (``effective_documents``). ``others_wait``:
    machines that are not among them wait for room, so that the solver is to know what they ask for."""
    machine_docs, memo = machines.virtual_machines_in(documents), memo or Memo()
    migration_docs = migrations_in(documents)
    if not (machine_docs or migration_docs or others_wait):
        return SchedulingInput(documents)
    named = (doc for doc in documents if host_pool_names.node_of_host_pool(doc) is not None)
    pools = [doc for doc in named if memo.of("readable", doc, partial(_is_readable, doc))]
    views = [*map(MachineView, machine_docs)]
    if not (others_wait or migration_docs or (views and pools)) and all(
        view.spec.get("nodeName") and not (view.migration_state or view.moved_claims) for view in views
    ):
        return SchedulingInput(documents)
    return _MachineInput(documents, machine_docs, migration_docs, pools)


def _is_readable(pool: Object) -> bool:
    return decode(pool).object is not None


class _MachineInput(SchedulingInput):
    """The input of documents with machines among them."""

    def __init__(
        self,
        documents: Sequence[Object],
        machine_docs: Sequence[Object],
        migration_docs: Sequence[Object],
        pools: Iterable[Object],
    ) -> None:
        super().__init__(documents)
        self.objects = {MachineView(doc).key: doc for doc in machine_docs}
        self.problems = [problem for doc in machine_docs for problem in annotation_problems(doc)]
        self.hosts = {node: pool for pool in pools if (node := host_pool_names.node_of_host_pool(pool)) is not None}
        self.pools = {pool["metadata"]["name"]: pool for pool in self.hosts.values()}
        self.claims = {ClaimView(doc).key: doc for doc in device_claims_in(documents)}
        self.standing = MachineStates(machine_docs, self.hosts, self.claims)
        self.networks = network_pool_names(documents)
        self.migrations = MigrationStates(migration_docs, machine_docs, self.hosts, self.claims, self.networks)
        self.arriving = {
            devices.claim: devices
            for doc in machine_docs
            for devices in moved_devices(doc)
            if devices.is_of(self.claims.get(devices.claim))
        }
        self.half_written = moving_claims.half_written_claims(self.claims, self.arriving, documents)
        self.claims |= self.half_written
        self.attributes = PoolAttributes(documents)
        self.extra: list[Object] = []
        """what machines ask for and hold, and their claims on other nodes"""
        self.blocked: dict[Group, tuple[str, str]] = {}
        """groups that are not asked for, and why"""
        self._fill_in()

    def _fill_in(self) -> None:
        labels, standing = self._labels(), self.standing
        self.waiting = {**standing.waiting}
        self.owners = {**standing.unowned, **standing.owners}
        self.kept_back = kept_back = self._kept_back(labels)
        changed: dict[ClaimKey, Object] = {**self.half_written}
        self.agreeing = agreeing = set[ClaimKey]()
        for claim, doc in self.claims.items():
            label = labels.get(("claim", *claim))
            if label is not None and claim not in kept_back:
                agree = standing.owners.get(claim) in standing.agree
                changed[claim] = _with_group(doc, label, agree=agree)
                if agree and _NUMA not in _match_of_group(doc).split(","):
                    agreeing.add(claim)
                if not ClaimView(doc).entries:
                    self.members.setdefault((claim[0], label), set()).add(claim)
        for key, (doc, entries) in standing.placed.items():
            self._hold(key, doc, entries, labels.get(("machine", *key)))
            self._resize(key, doc, entries)
        for key, (doc, entries) in standing.on_second_node.items():
            second = MachineView(doc).migration_target or MachineView(doc).holder
            self._add(key, "move", doc, (), {meta.ALLOCATED_NODE: str(second)}, entries)
        self._fill()
        for doc in self.objects.values():
            self._hold_moved(doc)
        for key, (doc, machine) in standing.asking.items():
            label = labels.get(("machine", *key))
            if label is not None and (key[0], label) in self.blocked:
                self.waiting[key] = self.blocked[key[0], label]
                continue
            self.wishes[key] = self._ask(key, doc, machine, label)
        self.moves = dict(self._move(*each) for each in self.migrations.asking.values())
        rest = [
            changed.get(ClaimView(doc).key, doc) if doc.get("kind") == "DeviceClaim" else doc
            for doc in self.documents
            if doc.get("kind") != MIGRATION_KIND
            and not (doc.get("kind") == "DeviceClaim" and ClaimView(doc).key in kept_back)
        ]
        self.documents = [*rest, *self.extra]
        for key, doc in self.objects.items():
            for devices in moved_devices(doc):
                self.moving[key] = devices.node
            if (target := MachineView(doc).migration_target) is not None:
                self.moving[key] = target

    def _labels(self) -> dict[tuple[str, str, str], str]:
        """The group of each claim and machine that is grouped by a machine: ``("claim", namespace, name)`` -> label.

        A group that claims name themselves takes in their machine, and with it its other claims.
        """
        joined: DisjointSets[tuple[str, str, str]] = DisjointSets()
        for claim, owner in self.standing.owners.items():
            joined.join(("machine", *owner), ("claim", *claim))
        for claim, doc in self.claims.items():
            if (group := ClaimView(doc).group) is not None:
                joined.join(("group", claim[0], group), ("claim", *claim))
        labels: dict[tuple[str, str, str], str] = {}
        for members in sorted(map(sorted, joined.sets())):
            groups = [name for kind, _, name in members if kind == "group"]
            owners = [name for kind, _, name in members if kind == "machine"]
            if owners:
                label = groups[0] if len(groups) == 1 else owner_name(MACHINE, owners[0])
                labels |= dict.fromkeys((one for one in members if one[0] != "group"), label)
        return labels

    def _kept_back(self, labels: Mapping[tuple[str, str, str], str]) -> set[ClaimKey]:
        """Claims that are not solved: those of machines that wait, and the other members of their groups."""
        waiting = {
            claim
            for claim in self.standing.unowned
            if claim in self.claims and not ClaimView(self.claims[claim]).entries
        }
        waiting |= {claim for claim in self.arriving if not ClaimView(self.claims[claim]).entries}
        groups = {(claim[0], group) for claim in waiting if (group := ClaimView(self.claims[claim]).group) is not None}
        for claim, doc in self.claims.items():
            if not ClaimView(doc).entries and (claim[0], ClaimView(doc).group) in groups:
                waiting.add(claim)
                if (label := labels.get(("claim", *claim))) is not None:
                    message = f"claim {'/'.join(claim)} is in a group with a claim whose machine waits"
                    self.blocked[claim[0], label] = Reason.CLAIM_NOT_ALLOCATED.value, message
        return waiting

    def _hold(self, key: MachineKey, doc: Object, entries: Sequence[Any], label: str | None) -> None:
        """A machine that is placed, as claims that hold: those on NUMA nodes apart if others are to agree."""
        node = MachineView(doc).running_node if key in self.standing.running else MachineView(doc).status["nodeName"]
        notes = {meta.ALLOCATED_NODE: str(node)}
        if ObjectView(doc).is_deleting or machines.is_leaving(doc):
            notes[meta.RELEASE] = meta.RELEASES[0]  # who waits for its place need not release it
        if label is None or key not in self.standing.agree:
            self._add(key, "", doc, (), notes | ({} if label is None else {meta.GROUP: label}), entries)
            return
        notes[meta.GROUP] = label
        compute = [entry for entry in entries if _resource_names(entry) & {*host_pool_names.COMPUTE}]
        others = [entry for entry in entries if not _resource_names(entry) & {*host_pool_names.COMPUTE}]
        self._add(key, "", doc, (), notes | {meta.GROUP_MATCH: "numa"}, compute)
        if others:
            self._add(key, "io", doc, (), notes, others)

    def _fill(self) -> None:
        """Hold what machines count for beyond what the devices that it is counted on have, on others of their pool."""
        taken: dict[tuple[str, str, str], int] = {}
        counted = [*self.standing.placed.items(), *self.standing.on_second_node.items()]
        for _, (_, entries) in counted:
            for place, nano in sum_entries(entries).items():
                taken[place] = taken.get(place, 0) + nano
        for node, pool in self.hosts.items():
            if entries := machines.excess_entries(pool, taken):
                name = pool["metadata"]["name"]
                on_it = (one for one in counted if any(entry["devicePoolName"] == name for entry in one[1][1]))
                key, (doc, _) = next(on_it)  # none of it is there without one
                self._add(key, f"over-{node}", doc, (), {meta.ALLOCATED_NODE: node}, entries)

    def _ask(self, key: MachineKey, doc: Object, machine: VirtualMachine, label: str | None) -> MachineRequest:
        amounts = required_amounts(machine.spec)
        by_numa = _amounts_by_start(machine, amounts)
        compute, *io = _host_requests(amounts, by_numa)
        if key in self.standing.agree:
            compute = replace(compute, is_of_one=True)
        notes = {} if label is None else {meta.GROUP: label}
        if (node := self._pin(doc, machine)) is not None:
            notes[meta.NODE] = node
        tie, excluded = self._restrict_to_reach(doc, machine, notes)
        notes |= _priority_annotation(doc)
        if label is None or key not in self.standing.agree:
            parts = [self._add(key, "", doc, [compute, *io], notes, excluded=excluded)]
        else:
            parts = [self._add(key, "", doc, [compute], notes | {meta.GROUP_MATCH: "numa"}, excluded=excluded)]
            parts += [self._add(key, "io", doc, io, notes, excluded=excluded)] if io else []
        group = None if label is None else (key[0], label)
        return MachineRequest(
            machine=doc,
            parts=tuple(parts),
            amounts=amounts,
            by_numa=by_numa,
            is_on_one_numa_node=machine.spec.numa_policy == machines.SINGLE_NUMA,
            excluded=excluded,
            tie=tie,
            group=group,
        )

    def _move(self, migration: Object, doc: Object, machine: VirtualMachine) -> tuple[MachineKey, MigrationRequest]:
        """Ask for another node for a machine that runs. Each NUMA node of its guest stays one; a guest that sees none
        gets its memory from one, too: it could not be told otherwise while it runs."""
        key, source = MachineView(doc).key, str(MachineView(doc).holder)
        amounts = migrated_amounts(doc, machine)
        of_guest: AmountsByNuma = amounts_by_numa_node(doc)
        by_numa = of_guest or _amounts_by_start(machine, amounts)
        requests = _host_requests(amounts, by_numa)
        if not of_guest:
            requests[0] = replace(requests[0], is_of_one=True)
        notes = {**_priority_annotation(doc)}
        if isinstance(target := MigrationView(migration).spec.get("targetNode"), str) and target:
            notes[meta.NODE] = target
        excluded = frozenset(node for node, pool in self.hosts.items() if not receives_machines(pool)) | {source}
        ties = [] if excluded == {source} else ["only nodes with --migration-address receive machines that run"]
        of_storage, out_of_reach = self._out_of_reach(doc, source)
        ties += filter(None, [of_storage])
        excluded |= out_of_reach
        local = [dict(claim) for claim in local_claims(doc, self.claims, self.networks)]
        ties += ["its claims need devices of the same kind there"] if local else []
        parts, targets = self._move_parts(doc, machine, requests, notes, excluded, local)
        return key, MigrationRequest(
            migration=migration,
            machine=doc,
            parts=parts,
            source=source,
            amounts=amounts,
            by_numa=by_numa,
            is_on_one_numa_node=not by_numa or machine.spec.numa_policy == machines.SINGLE_NUMA,
            excluded=excluded,
            tie="; ".join(ties),
            claims=targets,
        )

    def _move_parts(
        self,
        doc: Object,
        machine: VirtualMachine,
        requests: Sequence[_HostRequest],
        notes: Mapping[str, str],
        excluded: frozenset[str],
        local: Sequence[Object],
    ) -> tuple[tuple[ClaimKey, ...], dict[ClaimKey, ClaimKey]]:
        """Ask for another node, together with devices there for these claims, as for a machine that is to start."""
        key = MachineView(doc).key
        if not local:
            return (self._add(key, "move", doc, requests, notes, excluded=excluded),), {}
        notes = {**notes, meta.GROUP: owner_name(MACHINE, key[1], "move")}
        agree = {meta.GROUP_MATCH: "numa"} if machine.spec.numa_policy == machines.SINGLE_NUMA else {}
        if agree:
            compute = [each for each in requests if each.is_of_numa_nodes]
            others = [each for each in requests if not each.is_of_numa_nodes]
            parts = [self._add(key, "move", doc, compute, {**notes, **agree}, excluded=excluded)]
            parts += [self._add(key, "move-io", doc, others, notes, excluded=excluded)] if others else []
        else:
            parts = [self._add(key, "move", doc, requests, notes, excluded=excluded)]
        targets: dict[ClaimKey, ClaimKey] = {}
        for claim in local:
            name = key[0], owner_name(CLAIM, ClaimView(claim).key[1], "move")
            self.extra.append(moving_claims.target_claim(claim, name, {**notes, **agree}, self.attributes))
            targets[ClaimView(claim).key] = name
        return tuple(parts), targets

    def _restrict_to_reach(
        self, doc: Object, machine: VirtualMachine, notes: dict[str, str]
    ) -> tuple[str, frozenset[str]]:
        """Have a machine that left a node be placed there again, or where its disks are; why, in words, and the nodes
        that do not reach them."""
        last = MachineView(doc).annotation(meta.LAST_NODE)
        if not last or machine.spec.node_name is not None:
            return "", frozenset()
        here = storage_folders(shared_storage(self.hosts.get(last)))
        if parts := local_parts(doc, here):
            notes[meta.NODE] = last
            return f"only node {last} has {' and '.join(parts)}", frozenset()
        return self._out_of_reach(doc, last)

    def _out_of_reach(self, doc: Object, last: str) -> tuple[str, frozenset[str]]:
        """The nodes that do not reach the disks that a machine writes on a node, and why it matters, in words."""
        if not writable_disks(doc):
            return "", frozenset()
        here = storage_folders(shared_storage(self.hosts.get(last)))
        by_node = {node: storage_folders(shared_storage(pool)) for node, pool in self.hosts.items()}
        excluded = frozenset(node for node, there in by_node.items() if not reaches_disks(doc, here, there))
        return f"only nodes with the shared storage of node {last} have its disks", excluded

    def _resize(self, key: MachineKey, doc: Object, entries: Sequence[Any]) -> None:
        """What is to become of what is kept for a placed machine, if its spec says something else by now."""
        machine = decode(doc).object
        node = MachineView(doc).status.get("nodeName")
        if (
            not isinstance(machine, VirtualMachine)
            or not machine.spec.running
            or key in self.standing.running
            or key in self.standing.freed
            or machines.is_leaving(doc)
            or MachineView(doc).migration_state  # what it has stays as it is reserved on its target
            or MachineView(doc).handed_over_to is not None  # until the target has taken it
        ):
            return
        if ObjectView(doc).is_deleting or MachineView(doc).has_ended or machine.spec.node_name not in (None, node):
            return
        if short := missing_amounts(machine.spec, entries):
            by_numa: AmountsByNuma = resize.growth_by_node(doc, machine.spec, entries)
            if not by_numa and (numa := resize.required_numa(doc, entries, self.pools)) is not None:
                by_numa = {numa: _compute_amounts(short)}
            requests = _host_requests(short, by_numa)
            part = self._add(key, "more", doc, requests, {meta.NODE: str(node)} | _priority_annotation(doc))
            self.growing[key] = resize.MachineGrowth(
                machine=doc, parts=(part,), amounts=short, by_numa=by_numa, spec=machine.spec, entries=entries
            )
        elif (settled := resize.resized_entries(doc, machine.spec, entries)) is not None:
            self.fitted[key] = settled

    def _pin(self, doc: Object, machine: VirtualMachine) -> str | None:
        """The node it must be on: its own, or that of a claim that another machine brought there."""
        if machine.node is not None:
            return machine.node
        held = (self.claims[claim] for claim in MachineView(doc).claims)
        return next((node for claim in held if (node := ClaimView(claim).node) is not None), None)

    def _add(
        self,
        key: MachineKey,
        part: str,
        doc: Object,
        requests: Sequence[_HostRequest],
        notes: Mapping[str, str],
        entries: Sequence[Any] = (),
        *,
        excluded: frozenset[str] = frozenset(),
    ) -> ClaimKey:
        """What a machine asks for or holds, or a part of it."""
        name = key[0], owner_name(MACHINE, key[1], part)
        spec = {"claims": [each.to_manifest() for each in requests] or [{}]}
        numbers = ((index, each.numa) for index, each in enumerate(requests) if each.numa is not None)
        values = tuple(ValueRestriction(index, _NUMA, frozenset((one,))) for index, one in numbers)
        barred = (NodeRestriction(_OUT_OF_REACH, excluded),) if excluded else ()
        restrictions = Restrictions(barred, values, host_pool_names.DRIVER)
        self.extra.append(owner_document(name, doc, notes, spec, restrictions, entries))
        return name

    def _hold_moved(self, doc: Object) -> None:
        """Devices that its claims get on the node to which it moves, or has moved, and do not have yet."""
        key = MachineView(doc).key
        for number, devices in enumerate([*booked_devices(doc), *moved_devices(doc)]):
            held = moved_claim(devices, self.claims.get(devices.claim))
            if held is not None:
                name = owner_name(MACHINE, key[1], f"moved-{number}")
                self.extra.append({**held, "metadata": {**held["metadata"], "name": name}, FIELD: Restrictions()})


def _resource_names(entry: Mapping[str, Any]) -> set[str]:
    return {amount.get("name") for amount in entry.get("allocations", ())}


def _host_requests(amounts: Mapping[str, Quantity], by_numa: AmountsByNuma) -> list[_HostRequest]:
    """What is asked for of NUMA nodes, of certain ones by their numbers, and of the node as a whole: other devices than
    theirs have that."""
    compute = [_HostRequest(own, number) for number, own in by_numa.items()] or [
        _HostRequest(_compute_amounts(amounts))
    ]
    others = {name: amount for name, amount in amounts.items() if name not in host_pool_names.COMPUTE}
    return [each for each in (*compute, _HostRequest(others)) if each.amounts]


def _compute_amounts(amounts: Mapping[str, Quantity]) -> dict[str, Quantity]:
    """Of the amounts, those that NUMA nodes have."""
    return {name: amounts[name] for name in host_pool_names.COMPUTE if name in amounts}


def _amounts_by_start(machine: VirtualMachine, amounts: Mapping[str, Quantity]) -> AmountsByNuma:
    """What must come from the NUMA node that a machine starts on; empty if it names none."""
    start = machine.spec.start
    return {} if start is None or start.numa_node is None else {start.numa_node: _compute_amounts(amounts)}


def _priority_annotation(machine: Object) -> dict[str, str]:
    """The annotation of a machine that its claims have too; empty if it has none that can be read."""
    value = MachineView(machine).annotation(meta.PRIORITY)
    return {} if value is None or priority_fault(value) else {meta.PRIORITY: value}


def _match_of_group(claim: Object) -> str:
    return ObjectView(claim).annotation(meta.GROUP_MATCH) or ""


def _with_group(claim: Object, label: str, *, agree: bool) -> Object:
    """A claim in a group, with ``agree`` on one NUMA node with the rest of that."""
    metadata = claim["metadata"]
    annotations = {**metadata.get("annotations", {}), meta.GROUP: label}
    if agree:
        annotations[meta.GROUP_MATCH] = ",".join(filter(None, (_match_of_group(claim), _NUMA)))
    return {**claim, "metadata": {**metadata, "annotations": annotations}, FIELD: claim.get(FIELD) or Restrictions()}
