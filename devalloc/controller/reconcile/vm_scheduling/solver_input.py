"""The solver's input with machines in it: a placed machine is an allocated claim, a waiting machine is a pending one.

The claims of a machine that waits are grouped with it. Those of a machine that cannot be placed yet, whatever there is
room for, are kept back: devices on a node that the machine may never run on are of no use to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Any

from devalloc.api import host_pool_names, meta
from devalloc.api.claim import MAX_NAME
from devalloc.api.decode import decode
from devalloc.api.machine_location import local_parts, reaches_disks, shared_storage, storage_folders, writable_disks
from devalloc.api.machine_reservation import missing_amounts, required_amounts
from devalloc.api.reasons import Reason
from devalloc.api.views import ClaimKey, ClaimView, MachineView, ObjectView, device_claims_in
from devalloc.api.virtual_machine import VirtualMachine
from devalloc.controller.reconcile.snapshot import Memo
from devalloc.controller.reconcile.stored_claims import DisjointSets
from devalloc.controller.reconcile.vm_scheduling import machines, resize
from devalloc.controller.reconcile.vm_scheduling.machines import MachineKey, machine_states
from devalloc.store import Object

_FUNCTION_EXPRESSION = "device.function == '{}'"
_COMPUTE_EXPRESSION = _FUNCTION_EXPRESSION.format(host_pool_names.FUNCTION_COMPUTE)


Group = tuple[str, str]
"""Namespace, and the label of a group in the solver's input."""
_HOST_CLASS: Object = {
    "apiVersion": meta.DEVMGMT,
    "kind": "DeviceClass",
    "metadata": {"name": host_pool_names.CLASS},
    "spec": {"driver": host_pool_names.DRIVER},
}


@dataclass(frozen=True, slots=True)
class MachineRequest:
    """A machine that is asked for in the solver's input."""

    machine: Object
    parts: tuple[ClaimKey, ...]
    """The claims that stand for it there."""
    group: Group | None
    """The group that it is in with its claims; None for a machine without any."""
    tie: str = ""
    """Why it cannot be on any node, if it left one; in words."""


@dataclass(frozen=True, slots=True)
class SchedulingInput:
    """What of machines is decided together with claims."""

    documents: Sequence[Object]
    """The solver's input."""
    wishes: Mapping[MachineKey, MachineRequest] = field(default_factory=dict)
    waiting: Mapping[MachineKey, tuple[str, str]] = field(default_factory=dict)
    """Machines that are not asked for, with reason and message."""
    running: Mapping[MachineKey, list[Any]] = field(default_factory=dict)
    """Machines that run without anything being kept for them, and what is to be."""
    growing: Mapping[MachineKey, resize.MachineGrowth] = field(default_factory=dict)
    """Placed machines that are to have more."""
    fitted: Mapping[MachineKey, list[Any]] = field(default_factory=dict)
    """Placed machines that want less, or have what they want already, and what is to be kept for them."""
    freed: frozenset[MachineKey] = frozenset()
    """Machines that have not begun, and that must not run any more, or not on their node."""
    evicted: Mapping[MachineKey, Sequence[Object]] = field(default_factory=dict)
    """Those of them that leave their node, and their claims that are released with that."""
    resting: frozenset[MachineKey] = frozenset()
    """Machines that left a node and are not to run."""
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


def scheduling_input(documents: Sequence[Object], memo: Memo | None = None) -> SchedulingInput:
    """The input for documents in which allocated claims are as they count (``effective_documents``)."""
    machine_docs, memo = machines.virtual_machines_in(documents), memo or Memo()
    named = (doc for doc in documents if host_pool_names.node_of_host_pool(doc) is not None)
    pools = [doc for doc in named if memo.of("readable", doc, partial(_is_readable, doc))]
    if not machine_docs or (not pools and all(MachineView(doc).spec.get("nodeName") for doc in machine_docs)):
        return SchedulingInput(documents)
    return _InputBuilder(documents, machine_docs, pools).written()


def _is_readable(pool: Object) -> bool:
    return decode(pool).object is not None


class _InputBuilder:
    """Lives for one call."""

    def __init__(self, documents: Sequence[Object], machine_docs: Sequence[Object], pools: Iterable[Object]) -> None:
        self.documents = documents
        self.machine_docs = machine_docs
        self.hosts = {node: pool for pool in pools if (node := host_pool_names.node_of_host_pool(pool)) is not None}
        self.pools = {pool["metadata"]["name"]: pool for pool in self.hosts.values()}
        self.claims = {ClaimView(doc).key: doc for doc in device_claims_in(documents)}
        self.standing = machine_states(machine_docs, self.hosts, self.claims)
        self.extra: list[Object] = []
        """claims that stand for machines"""
        self.names: dict[ClaimKey, MachineKey] = {}
        self.growing: dict[MachineKey, resize.MachineGrowth] = {}
        self.fitted: dict[MachineKey, list[Any]] = {}
        self.blocked: dict[Group, tuple[str, str]] = {}
        """groups that are not asked for, and why"""

    def written(self) -> SchedulingInput:
        labels, standing = self._labels(), self.standing
        waiting = {**standing.waiting}
        kept_back = self._kept_back(labels)
        members: dict[Group, set[ClaimKey]] = {}
        changed: dict[ClaimKey, Object] = {}
        for claim, doc in self.claims.items():
            label = labels.get(("claim", *claim))
            if label is not None and claim not in kept_back:
                agree = standing.owners.get(claim) in standing.agree
                changed[claim] = _with_group(doc, label, agree=agree)
                if not ClaimView(doc).entries:
                    members.setdefault((claim[0], label), set()).add(claim)
        wishes = {}
        for key, (doc, entries) in standing.placed.items():
            self._hold(key, doc, entries, labels.get(("machine", *key)))
            self._resize(key, doc, entries)
        self._fill()
        for key, (doc, machine) in standing.asking.items():
            label = labels.get(("machine", *key))
            if label is not None and (key[0], label) in self.blocked:
                waiting[key] = self.blocked[key[0], label]
                continue
            wishes[key] = self._ask(key, doc, machine, label)
        rest = [
            changed.get(ClaimView(doc).key, doc) if doc.get("kind") == "DeviceClaim" else doc
            for doc in self.documents
            if not _is_class(doc) and not (doc.get("kind") == "DeviceClaim" and ClaimView(doc).key in kept_back)
        ]
        return SchedulingInput(
            documents=[*rest, _HOST_CLASS, *self.extra],
            wishes=wishes,
            waiting=waiting,
            running=standing.running,
            growing=self.growing,
            fitted=self.fitted,
            freed=standing.freed,
            evicted=standing.evicted,
            resting=standing.resting,
            members={group: frozenset(claims) for group, claims in members.items()},
            owners={**standing.unowned, **standing.owners},
            kept_back=frozenset(kept_back),
            names=self.names,
            pools=self.pools,
            objects={MachineView(doc).key: doc for doc in self.machine_docs},
        )

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
                label = groups[0] if len(groups) == 1 else _group_label(owners[0])
                labels |= dict.fromkeys((one for one in members if one[0] != "group"), label)
        return labels

    def _kept_back(self, labels: Mapping[tuple[str, str, str], str]) -> set[ClaimKey]:
        """Claims that are not solved: those of machines that wait, and the other members of their groups."""
        waiting = {
            claim
            for claim in self.standing.unowned
            if claim in self.claims and not ClaimView(self.claims[claim]).entries
        }
        groups = {(claim[0], group) for claim in waiting if (group := ClaimView(self.claims[claim]).group) is not None}
        for claim, doc in self.claims.items():
            if not ClaimView(doc).entries and (claim[0], ClaimView(doc).group) in groups:
                waiting.add(claim)
                if (label := labels.get(("claim", *claim))) is not None:
                    message = f"claim {'/'.join(claim)} is in a group with a claim whose machine waits"
                    self.blocked[claim[0], label] = Reason.CLAIM_NOT_ALLOCATED.value, message
        return waiting

    def _hold(self, key: MachineKey, doc: Object, entries: Sequence[Any], label: str | None) -> None:
        """A machine that is placed, as claims that hold: those on NUMA nodes apart where others are to agree."""
        node = machines.running_node(doc) if key in self.standing.running else MachineView(doc).status["nodeName"]
        notes = {meta.ALLOCATED_NODE: str(node)}
        if label is None or key not in self.standing.agree:
            self._add(key, "", doc, [{}], notes | ({} if label is None else {meta.GROUP: label}), entries)
            return
        notes[meta.GROUP] = label
        compute = [entry for entry in entries if _resource_names(entry) & {*host_pool_names.COMPUTE}]
        others = [entry for entry in entries if not _resource_names(entry) & {*host_pool_names.COMPUTE}]
        self._add(key, "", doc, [{}], notes | {meta.GROUP_MATCH: "numa"}, compute)
        if others:
            self._add(key, "io", doc, [{}], notes, others)

    def _fill(self) -> None:
        """Hold what machines count for beyond what the devices that it is counted on have, on others of their pool."""
        taken: dict[tuple[str, str, str], int] = {}
        for _, entries in self.standing.placed.values():
            for place, nano in machines.sum_entries(entries).items():
                taken[place] = taken.get(place, 0) + nano
        for node, pool in self.hosts.items():
            if entries := machines.moved_entries(pool, taken):
                name = pool["metadata"]["name"]
                on_it = ((key, doc) for key, (doc, held) in self.standing.placed.items() if _has_entries_in(name, held))
                key, doc = next(on_it)  # none of it is there without one
                self._add(key, "over", doc, [{}], {meta.ALLOCATED_NODE: node}, entries)

    def _ask(self, key: MachineKey, doc: Object, machine: VirtualMachine, label: str | None) -> MachineRequest:
        compute, *io = _machine_details(required_amounts(machine.spec))
        if key in self.standing.agree:
            compute["limits"] = {"count": "1"}
        if (start := machine.spec.start) is not None and start.numa_node is not None:
            _restrict_to_numa(compute, start.numa_node)
        notes = {} if label is None else {meta.GROUP: label}
        if (node := self._pin(doc, machine)) is not None:
            notes[meta.NODE] = node
        tie = self._restrict_to_reach(doc, machine, compute, notes)
        notes |= _priority_annotation(doc)
        if label is None or key not in self.standing.agree:
            parts = [self._add(key, "", doc, [compute, *io], notes)]
        else:
            parts = [self._add(key, "", doc, [compute], notes | {meta.GROUP_MATCH: "numa"})]
            parts += [self._add(key, "io", doc, io, notes)] if io else []
        return MachineRequest(doc, tuple(parts), None if label is None else (key[0], label), tie)

    def _restrict_to_reach(self, doc: Object, machine: VirtualMachine, compute: Object, notes: dict[str, str]) -> str:
        """Have a machine that left a node be placed there again, or where its disks are; why, in words."""
        last = MachineView(doc).annotation(meta.LAST_NODE)
        if not last or machine.spec.node_name is not None:
            return ""
        here = storage_folders(shared_storage(self.hosts.get(last)))
        if parts := local_parts(doc, here):
            notes[meta.NODE] = last
            return f"only node {last} has {' and '.join(parts)}"
        if writable_disks(doc):
            named = {shared_storage(pool) for pool in self.hosts.values()}
            values = sorted(one for one in named if reaches_disks(doc, here, storage_folders(one)))
            listed = json.dumps(values, ensure_ascii=False)
            compute["constraints"] += f" && device.{host_pool_names.SHARED_STORAGE} in {listed}"
            return f"only nodes with the shared storage of node {last} have its disks"
        return ""

    def _resize(self, key: MachineKey, doc: Object, entries: Sequence[Any]) -> None:
        """What is to become of what is kept for a placed machine, where its spec says something else by now."""
        machine = decode(doc).object
        node = MachineView(doc).status.get("nodeName")
        if (
            not isinstance(machine, VirtualMachine)
            or not machine.spec.running
            or key in self.standing.running
            or key in self.standing.freed
            or machines.is_leaving(doc)
        ):
            return
        if ObjectView(doc).is_deleting or machines.has_ended(machine) or machine.spec.node_name not in (None, node):
            return
        if short := missing_amounts(machine.spec, entries):
            details = _machine_details(short)
            if by_node := resize.growth_by_node(doc, machine.spec, entries):
                others = {name: amount for name, amount in short.items() if name not in host_pool_names.COMPUTE}
                details = _machine_details(others)
                for number, amounts in by_node.items():
                    (detail,) = _machine_details(amounts)
                    _restrict_to_numa(detail, number)
                    details.append(detail)
            elif (numa := resize.required_numa(doc, entries, self.pools)) is not None:
                for detail in details:
                    _restrict_to_numa(detail, numa)
            part = self._add(key, "more", doc, details, {meta.NODE: str(node)} | _priority_annotation(doc))
            self.growing[key] = resize.MachineGrowth(doc, machine.spec, part, entries)
        elif (settled := resize.resized_entries(doc, machine.spec, entries)) is not None:
            self.fitted[key] = settled

    def _pin(self, doc: Object, machine: VirtualMachine) -> str | None:
        """The node it must be on: its own, or that of a claim that another machine brought there."""
        if machine.node is not None:
            return machine.node
        held = (self.claims[claim] for claim in machines.claims_of(doc))
        return next((node for claim in held if (node := ClaimView(claim).node) is not None), None)

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
        claim["spec"] = {"claims": [{"deviceClass": host_pool_names.CLASS, **detail} for detail in details]}
        if entries:
            claim["status"] = {"allocations": [*entries]}
        self.extra.append(claim)
        self.names[key[0], name] = key
        return key[0], name


def _is_class(doc: Object) -> bool:
    return doc.get("kind") == "DeviceClass" and doc["metadata"]["name"] == host_pool_names.CLASS


def _has_entries_in(pool: str, entries: Sequence[Any]) -> bool:
    return any(entry["devicePoolName"] == pool for entry in entries)


def _resource_names(entry: Mapping[str, Any]) -> set[str]:
    return {amount.get("name") for amount in entry.get("allocations", ())}


def _machine_details(amounts: Mapping[str, Any]) -> list[Object]:
    """What is asked for of NUMA nodes, and of the node as a whole."""
    compute = {name: amounts[name] for name in host_pool_names.COMPUTE if name in amounts}
    others = {name: amount for name, amount in amounts.items() if name not in compute}
    entries = [_detail(host_pool_names.FUNCTION_COMPUTE, compute)] if compute else []
    return [*entries, _detail(host_pool_names.FUNCTION_IO, others)] if others else entries


def _restrict_to_numa(detail: Object, number: int) -> None:
    """Have what is of NUMA nodes come from that one."""
    if _COMPUTE_EXPRESSION in detail["constraints"]:
        detail["constraints"] += f" && device.numa == {number}"


def _priority_annotation(machine: Object) -> dict[str, str]:
    """The annotation of a machine that its claims have too; empty where it has none."""
    value = machine["metadata"].get("annotations", {}).get(meta.PRIORITY)
    return {} if value is None else {meta.PRIORITY: value}


def _group_label(machine: str) -> str:
    """The label of the group that a machine and its claims are, as long at most as groups' names are."""
    label = f"of machine {machine}"
    return label if len(label) <= MAX_NAME else f"{label[: MAX_NAME - 17]}-{sha256(machine.encode()).hexdigest()[:16]}"


def _detail(function: str, amounts: Mapping[str, Any]) -> Object:
    requests = {name: str(amount) for name, amount in amounts.items()}
    return {"constraints": _FUNCTION_EXPRESSION.format(function), "requests": requests}


def _with_group(claim: Object, label: str, *, agree: bool) -> Object:
    """A claim in a group, with ``agree`` on one NUMA node with the rest of that."""
    metadata = claim["metadata"]
    annotations = {**metadata.get("annotations", {}), meta.GROUP: label}
    if agree:
        before = annotations.get(meta.GROUP_MATCH)
        annotations[meta.GROUP_MATCH] = "numa" if before is None else f"{before},numa"
    return {**claim, "metadata": {**metadata, "annotations": annotations}}
