"""The solver's input with machines in it: each that is placed as a claim that holds, each that waits as one that asks.

The claims of a machine that waits are grouped with it. Those of a machine that cannot be placed yet, whatever there is
room for, are kept back: devices on a node that the machine may never run on are of no use to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from devalloc.api import hostpool, meta
from devalloc.api.decode import decode
from devalloc.api.reservation import lacking, reserved, wants
from devalloc.api.virtualmachine import VirtualMachine
from devalloc.controller.claims import (
    ClaimKey,
    allocations,
    annotation,
    claim_key,
    claims_among,
    group_of,
    is_deleting,
    is_prepared,
    wants_release,
)
from devalloc.controller.placing import asked, growth, machines
from devalloc.controller.placing.joined import Joined
from devalloc.controller.placing.machines import MachineKey
from devalloc.store import Object

Group = tuple[str, str]
"""Namespace, and the label of a group in the solver's input."""
_CLASS: Object = {
    "apiVersion": meta.DEVMGMT,
    "kind": "DeviceClass",
    "metadata": {"name": hostpool.CLASS},
    "spec": {"driver": hostpool.DRIVER},
}


@dataclass(frozen=True, slots=True)
class Wish:
    """A machine that is asked for in the solver's input."""

    machine: Object
    parts: tuple[ClaimKey, ...]
    """The claims that stand for it there."""
    group: Group | None
    """The group that it is in with its claims; None for a machine without any."""


@dataclass(frozen=True, slots=True)
class Placing:
    """What of machines is decided together with claims."""

    documents: Sequence[Object]
    """The solver's input."""
    wishes: Mapping[MachineKey, Wish] = field(default_factory=dict)
    waiting: Mapping[MachineKey, tuple[str, str]] = field(default_factory=dict)
    """Machines that are not asked for, with reason and message."""
    running: Mapping[MachineKey, list[Any]] = field(default_factory=dict)
    """Machines that run without anything being kept for them, and what is to be."""
    growing: Mapping[MachineKey, growth.Growth] = field(default_factory=dict)
    """Placed machines that are to have more."""
    fitted: Mapping[MachineKey, list[Any]] = field(default_factory=dict)
    """Placed machines that want less, or have what they want already, and what is to be kept for them."""
    freed: frozenset[MachineKey] = frozenset()
    """Machines that nobody has begun, and that are not to run any more."""
    members: Mapping[Group, frozenset[ClaimKey]] = field(default_factory=dict)
    """Claims that are asked for, by group; of groups with a machine in them."""
    owners: Mapping[ClaimKey, MachineKey] = field(default_factory=dict)
    """Which machine a claim is placed with, or waits with."""
    kept_back: frozenset[ClaimKey] = frozenset()
    """Claims that wait with a machine, and are not asked for."""
    names: Mapping[ClaimKey, MachineKey] = field(default_factory=dict)
    """Which machine a claim of the input stands for."""
    pools: Mapping[str, Object] = field(default_factory=dict)
    """The pools of what nodes have for machines, by name."""
    objects: Mapping[MachineKey, Object] = field(default_factory=dict)
    """All machines."""


def with_machines(documents: Sequence[Object]) -> Placing:
    """The input for documents in which allocated claims are as they count (``as_allocated``)."""
    found = machines.machines_among(documents)
    named = (doc for doc in documents if hostpool.node_of_host_pool(doc) is not None)
    pools = [doc for doc in named if decode(doc).object is not None]
    if not found or (not pools and all(machines.spec_of(doc).get("nodeName") for doc in found)):
        return Placing(documents)
    return _Reader(documents, found, pools).read()


class _Reader:
    """Lives for one call."""

    def __init__(self, documents: Sequence[Object], found: Sequence[Object], pools: Iterable[Object]) -> None:
        self.documents = documents
        self.found = found
        self.hosts = {node: pool for pool in pools if (node := hostpool.node_of_host_pool(pool)) is not None}
        self.pools = {pool["metadata"]["name"]: pool for pool in self.hosts.values()}
        self.claims = {claim_key(doc): doc for doc in claims_among(documents)}
        self.owners: dict[ClaimKey, MachineKey] = {}
        self.extra: list[Object] = []
        """claims that stand for machines"""
        self.names: dict[ClaimKey, MachineKey] = {}
        self.waiting: dict[MachineKey, tuple[str, str]] = {}
        self.running: dict[MachineKey, list[Any]] = {}
        self.freed: set[MachineKey] = set()
        self.asking: dict[MachineKey, tuple[Object, VirtualMachine]] = {}
        self.placed: dict[MachineKey, tuple[Object, list[Any]]] = {}
        self.growing: dict[MachineKey, growth.Growth] = {}
        self.fitted: dict[MachineKey, list[Any]] = {}
        self.agree: set[MachineKey] = set()
        """machines that are to be on one NUMA node with their devices"""
        self.blocked: dict[Group, tuple[str, str]] = {}
        """groups that are not asked for, and why"""
        self.unowned: dict[ClaimKey, MachineKey] = {}
        """claims that wait with their machine"""

    def read(self) -> Placing:
        taken: dict[tuple[str, str, str], int] = {}
        for doc in self.found:
            if entries := self._held(doc):
                self.placed[machines.machine_key(doc)] = doc, entries
                for place, nano in machines.taken_by(entries).items():
                    taken[place] = taken.get(place, 0) + nano
        for doc in self.found:
            key = machines.machine_key(doc)
            if key not in self.placed:
                self._sort(key, doc, taken)
        for key, (doc, _) in self.placed.items():
            self._own(key, doc)
        for key, (doc, machine) in list(self.asking.items()):
            if (why := self._obstacle(key, doc)) is not None:
                del self.asking[key]
                self.waiting[key] = why
                self.unowned |= {claim: key for claim in self._claims_of(doc) if claim not in self.owners}
            else:
                self._own(key, doc)
                if machine.spec.numa_policy == machines.SINGLE_NUMA:
                    self.agree.add(key)
        return self._written()

    # -- which machine is what ---------------------------------------------------------------------------------------

    def _held(self, doc: Object) -> list[Any]:
        """What a placed machine counts for, on a node that still says what it has."""
        key, holder = machines.machine_key(doc), machines.holder_of(doc)
        spec, status = machines.spec_of(doc), machines.status_of(doc)
        if not reserved(doc) or status["nodeName"] not in self.hosts:
            return []
        if holder is None and not machines.is_deleting(doc):
            if spec.get("running") is False or self._has_outgrown(doc):
                self.freed.add(key)
            if spec.get("nodeName") not in (None, status["nodeName"]):
                return []  # it was sent elsewhere before its node began anything
        return machines.counted(doc)

    def _has_outgrown(self, doc: Object) -> bool:
        """Whether it was placed with less than what it is to be started with by now: then it is placed anew."""
        machine = decode(doc).object
        return isinstance(machine, VirtualMachine) and bool(lacking(machine.spec, reserved(doc)))

    def _sort(self, key: MachineKey, doc: Object, taken: dict[tuple[str, str, str], int]) -> None:
        """What becomes of a machine that nothing is kept for."""
        decoded = decode(doc)
        machine = decoded.object if isinstance(decoded.object, VirtualMachine) else None
        holder = machines.holder_of(doc)
        if machine is None:
            if machines.spec_of(doc).get("nodeName") not in (None, *self.hosts):
                return
            problem = next((problem for problem in decoded.problems if problem.is_error), None)
            self.waiting[key] = "MachineInvalid", str(problem or "it cannot be read")
        elif machines.runs(doc):
            if (node := machines.running_on(doc)) in self.hosts:
                entries = machines.entries_of_running(machine, self.hosts[node], taken)
                self.running[key] = entries
                self.placed[key] = doc, entries
                for place, nano in machines.taken_by(entries).items():
                    taken[place] = taken.get(place, 0) + nano
        elif machines.is_deleting(doc) or not machine.spec.running or machines.has_ended(machine):
            return
        elif machine.node is None and not self.hosts:
            self.waiting[key] = (
                "NoHostCapacity",
                "no node says what it has for machines: run its plugin or `devalloc up` with --host-capacity, "
                "or name the node in spec.nodeName",
            )
        elif machine.node is not None and machine.node not in self.hosts:
            return  # its node admits whatever it is told to run
        elif holder in (None, machine.node):
            self.asking[key] = doc, machine

    def _obstacle(self, key: MachineKey, doc: Object) -> tuple[str, str] | None:
        """What must change before it makes sense to look for a place."""
        for claim in self._claims_of(doc):
            name, found = "/".join(claim), self.claims.get(claim)
            if found is None:
                return "ClaimNotFound", f"claim {name} does not exist"
            if allocations(found):
                if wants_release(found):
                    return "ClaimReleased", f"claim {name} is being released"
            elif is_deleting(found):
                return "ClaimBeingDeleted", f"claim {name} is being deleted"
            elif is_prepared(found):
                return "StillPrepared", f"the node of claim {name} has not let go of what the claim held before"
            elif (owner := self.owners.get(claim, key)) != key:
                return "ClaimNotAllocated", f"claim {name} is placed with machine {'/'.join(owner)} first"
        return None

    def _claims_of(self, doc: Object) -> list[ClaimKey]:
        namespace = machines.machine_key(doc)[0]
        return [(namespace, name) for name in machines.claim_names(doc)]

    def _own(self, key: MachineKey, doc: Object) -> None:
        for claim in self._claims_of(doc):
            if claim in self.claims:
                self.owners.setdefault(claim, key)
        policy = machines.spec_of(doc).get("numaPolicy")
        if policy == machines.SINGLE_NUMA:
            self.agree.add(key)

    # -- the input ---------------------------------------------------------------------------------------------------

    def _written(self) -> Placing:
        labels = self._labels()
        kept_back = self._kept_back(labels)
        members: dict[Group, set[ClaimKey]] = {}
        changed: dict[ClaimKey, Object] = {}
        for claim, doc in self.claims.items():
            label = labels.get(("claim", *claim))
            if label is not None and claim not in kept_back:
                agree = self.owners.get(claim) in self.agree
                changed[claim] = asked.labelled(doc, label, agree=agree)
                if not allocations(doc):
                    members.setdefault((claim[0], label), set()).add(claim)
        wishes = {}
        for key, (doc, entries) in self.placed.items():
            self._hold(key, doc, entries, labels.get(("machine", *key)))
            self._resize(key, doc, entries)
        self._fill()
        for key, (doc, machine) in self.asking.items():
            label = labels.get(("machine", *key))
            if label is not None and (key[0], label) in self.blocked:
                self.waiting[key] = self.blocked[key[0], label]
                continue
            wishes[key] = self._ask(key, doc, machine, label)
        rest = [
            changed.get(claim_key(doc), doc) if doc.get("kind") == "DeviceClaim" else doc
            for doc in self.documents
            if not _is_class(doc) and not (doc.get("kind") == "DeviceClaim" and claim_key(doc) in kept_back)
        ]
        return Placing(
            documents=[*rest, _CLASS, *self.extra],
            wishes=wishes,
            waiting=self.waiting,
            running=self.running,
            growing=self.growing,
            fitted=self.fitted,
            freed=frozenset(self.freed),
            members={group: frozenset(claims) for group, claims in members.items()},
            owners={**self.unowned, **self.owners},
            kept_back=frozenset(kept_back),
            names=self.names,
            pools=self.pools,
            objects={machines.machine_key(doc): doc for doc in self.found},
        )

    def _labels(self) -> dict[tuple[str, str, str], str]:
        """The group of each claim and machine that is grouped by a machine: ``("claim", namespace, name)`` -> label.

        A group that claims name themselves takes in their machine, and with it its other claims.
        """
        joined = Joined()
        for claim, owner in self.owners.items():
            joined.join(("machine", *owner), ("claim", *claim))
        for claim, doc in self.claims.items():
            if (group := group_of(doc)) is not None:
                joined.join(("group", claim[0], group), ("claim", *claim))
        labels: dict[tuple[str, str, str], str] = {}
        for members in joined.sets():
            groups = [name for kind, _, name in members if kind == "group"]
            owners = [name for kind, _, name in members if kind == "machine"]
            if owners:
                label = groups[0] if len(groups) == 1 else asked.group_of(owners[0])
                labels |= dict.fromkeys((one for one in members if one[0] != "group"), label)
        return labels

    def _kept_back(self, labels: Mapping[tuple[str, str, str], str]) -> set[ClaimKey]:
        """Claims that are not asked for: those of machines that wait, and whoever is in one group with them."""
        waiting = {claim for claim in self.unowned if claim in self.claims and not allocations(self.claims[claim])}
        groups = {(claim[0], group) for claim in waiting if (group := group_of(self.claims[claim])) is not None}
        for claim, doc in self.claims.items():
            if not allocations(doc) and (claim[0], group_of(doc)) in groups:
                waiting.add(claim)
                if (label := labels.get(("claim", *claim))) is not None:
                    told = f"claim {'/'.join(claim)} is in a group with a claim whose machine waits"
                    self.blocked[claim[0], label] = "ClaimNotAllocated", told
        return waiting

    def _hold(self, key: MachineKey, doc: Object, entries: Sequence[Any], label: str | None) -> None:
        """A machine that is placed, as claims that hold: those on NUMA nodes apart where others are to agree."""
        node = machines.running_on(doc) if key in self.running else machines.status_of(doc)["nodeName"]
        notes = {meta.ALLOCATED_NODE: str(node)}
        if label is None or key not in self.agree:
            self._add(key, "", doc, [{}], notes | ({} if label is None else {meta.GROUP: label}), entries)
            return
        notes[meta.GROUP] = label
        compute = [entry for entry in entries if _names(entry) & {*hostpool.COMPUTE}]
        others = [entry for entry in entries if not _names(entry) & {*hostpool.COMPUTE}]
        self._add(key, "", doc, [{}], notes | {meta.GROUP_MATCH: "numa"}, compute)
        if others:
            self._add(key, "io", doc, [{}], notes, others)

    def _fill(self) -> None:
        """Hold what machines count for beyond what the devices that it is counted on have, on others of their pool."""
        taken: dict[tuple[str, str, str], int] = {}
        for _, entries in self.placed.values():
            for place, nano in machines.taken_by(entries).items():
                taken[place] = taken.get(place, 0) + nano
        for node, pool in self.hosts.items():
            if entries := machines.elsewhere(pool, taken):
                name = pool["metadata"]["name"]
                on_it = ((key, doc) for key, (doc, held) in self.placed.items() if _is_of(name, held))
                key, doc = next(on_it)  # none of it is there without one
                self._add(key, "over", doc, [{}], {meta.ALLOCATED_NODE: node}, entries)

    def _ask(self, key: MachineKey, doc: Object, machine: VirtualMachine, label: str | None) -> Wish:
        compute, *io = asked.details(wants(machine.spec))
        if key in self.agree:
            compute["limits"] = {"count": "1"}
        if (start := machine.spec.start) is not None and start.numa_node is not None:
            asked.keep_on_numa(compute, start.numa_node)
        notes = {} if label is None else {meta.GROUP: label}
        if (node := self._pin(doc, machine)) is not None:
            notes[meta.NODE] = node
        notes |= asked.priority(doc)
        if label is None or key not in self.agree:
            parts = [self._add(key, "", doc, [compute, *io], notes)]
        else:
            parts = [self._add(key, "", doc, [compute], notes | {meta.GROUP_MATCH: "numa"})]
            parts += [self._add(key, "io", doc, io, notes)] if io else []
        return Wish(doc, tuple(parts), None if label is None else (key[0], label))

    def _resize(self, key: MachineKey, doc: Object, entries: Sequence[Any]) -> None:
        """What is to become of what is kept for a placed machine, where its spec says something else by now."""
        machine = decode(doc).object
        node = machines.status_of(doc).get("nodeName")
        if (
            not isinstance(machine, VirtualMachine)
            or not machine.spec.running
            or key in self.running
            or key in self.freed
        ):
            return
        if machines.is_deleting(doc) or machines.has_ended(machine) or machine.spec.node_name not in (None, node):
            return
        if short := lacking(machine.spec, entries):
            details = asked.details(short)
            if (numa := growth.numa_of(doc, entries, self.pools)) is not None:
                for detail in details:
                    asked.keep_on_numa(detail, numa)
            part = self._add(key, "more", doc, details, {meta.NODE: str(node)} | asked.priority(doc))
            self.growing[key] = growth.Growth(doc, machine.spec, part, entries)
        elif (kept := growth.settled(doc, machine.spec, entries)) is not None:
            self.fitted[key] = kept

    def _pin(self, doc: Object, machine: VirtualMachine) -> str | None:
        """The node it must be on: its own, or that of a claim that another machine brought there."""
        if machine.node is not None:
            return machine.node
        held = (self.claims[claim] for claim in self._claims_of(doc))
        return next((node for claim in held if (node := annotation(claim, meta.ALLOCATED_NODE)) is not None), None)

    def _add(
        self,
        key: MachineKey,
        part: str,
        doc: Object,
        details: Sequence[Any],
        notes: Mapping[str, str],
        entries: Sequence[Any] = (),
    ) -> ClaimKey:
        """A claim that stands for a machine, or for a part of one."""
        name = key[1][:180].rstrip(".-") + (f".{part}" if part else "") + ".virtualmachine.devalloc.io"
        while (key[0], name) in self.claims or (key[0], name) in self.names:
            name = f"x{name}"
        metadata: Object = {"namespace": key[0], "name": name, "annotations": dict(notes)}
        if (created := doc["metadata"].get("creationTimestamp")) is not None:
            metadata["creationTimestamp"] = created
        claim: Object = {"apiVersion": meta.DEVMGMT, "kind": "DeviceClaim", "metadata": metadata}
        claim["spec"] = {"claims": [{"deviceClass": hostpool.CLASS, **detail} for detail in details]}
        if entries:
            claim["status"] = {"allocations": [*entries]}
        self.extra.append(claim)
        self.names[key[0], name] = key
        return key[0], name


def _is_class(doc: Object) -> bool:
    return doc.get("kind") == "DeviceClass" and doc["metadata"]["name"] == hostpool.CLASS


def _is_of(pool: str, entries: Sequence[Any]) -> bool:
    return any(entry["devicePoolName"] == pool for entry in entries)


def _names(entry: Mapping[str, Any]) -> set[str]:
    return {amount.get("name") for amount in entry.get("allocations", ())}
