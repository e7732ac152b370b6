"""The solver's input with machines in it: each that is placed as a claim that holds, each that waits as one that asks.

The claims of a machine that waits are grouped with it. Those of a machine that cannot be placed yet, whatever there is
room for, are kept back: devices on a node that the machine may never run on are of no use to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from devalloc.api import hostpool, meta
from devalloc.api.decode import decode
from devalloc.api.reservation import lacking, wants
from devalloc.api.virtualmachine import VirtualMachine
from devalloc.controller.claims import (
    ClaimKey,
    allocations,
    annotation,
    claim_key,
    claims_among,
    group_of,
)
from devalloc.controller.placing import asked, growth, machines
from devalloc.controller.placing.joined import Joined
from devalloc.controller.placing.machines import MachineKey
from devalloc.controller.placing.standing import standing_of
from devalloc.controller.reading import Made
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


def with_machines(documents: Sequence[Object], made: Made | None = None) -> Placing:
    """The input for documents in which allocated claims are as they count (``as_allocated``)."""
    found, made = machines.machines_among(documents), made or Made()
    named = (doc for doc in documents if hostpool.node_of_host_pool(doc) is not None)
    pools = [doc for doc in named if made.of("readable", doc, partial(_is_readable, doc))]
    if not found or (not pools and all(machines.spec_of(doc).get("nodeName") for doc in found)):
        return Placing(documents)
    return _Writer(documents, found, pools).written()


def _is_readable(pool: Object) -> bool:
    return decode(pool).object is not None


class _Writer:
    """Lives for one call."""

    def __init__(self, documents: Sequence[Object], found: Sequence[Object], pools: Iterable[Object]) -> None:
        self.documents = documents
        self.found = found
        self.hosts = {node: pool for pool in pools if (node := hostpool.node_of_host_pool(pool)) is not None}
        self.pools = {pool["metadata"]["name"]: pool for pool in self.hosts.values()}
        self.claims = {claim_key(doc): doc for doc in claims_among(documents)}
        self.standing = standing_of(found, self.hosts, self.claims)
        self.extra: list[Object] = []
        """claims that stand for machines"""
        self.names: dict[ClaimKey, MachineKey] = {}
        self.growing: dict[MachineKey, growth.Growth] = {}
        self.fitted: dict[MachineKey, list[Any]] = {}
        self.blocked: dict[Group, tuple[str, str]] = {}
        """groups that are not asked for, and why"""

    def written(self) -> Placing:
        labels, standing = self._labels(), self.standing
        waiting = {**standing.waiting}
        kept_back = self._kept_back(labels)
        members: dict[Group, set[ClaimKey]] = {}
        changed: dict[ClaimKey, Object] = {}
        for claim, doc in self.claims.items():
            label = labels.get(("claim", *claim))
            if label is not None and claim not in kept_back:
                agree = standing.owners.get(claim) in standing.agree
                changed[claim] = asked.labelled(doc, label, agree=agree)
                if not allocations(doc):
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
            changed.get(claim_key(doc), doc) if doc.get("kind") == "DeviceClaim" else doc
            for doc in self.documents
            if not _is_class(doc) and not (doc.get("kind") == "DeviceClaim" and claim_key(doc) in kept_back)
        ]
        return Placing(
            documents=[*rest, _CLASS, *self.extra],
            wishes=wishes,
            waiting=waiting,
            running=standing.running,
            growing=self.growing,
            fitted=self.fitted,
            freed=standing.freed,
            members={group: frozenset(claims) for group, claims in members.items()},
            owners={**standing.unowned, **standing.owners},
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
        for claim, owner in self.standing.owners.items():
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
        waiting = {
            claim for claim in self.standing.unowned if claim in self.claims and not allocations(self.claims[claim])
        }
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
        node = machines.running_on(doc) if key in self.standing.running else machines.status_of(doc)["nodeName"]
        notes = {meta.ALLOCATED_NODE: str(node)}
        if label is None or key not in self.standing.agree:
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
        for _, entries in self.standing.placed.values():
            for place, nano in machines.taken_by(entries).items():
                taken[place] = taken.get(place, 0) + nano
        for node, pool in self.hosts.items():
            if entries := machines.elsewhere(pool, taken):
                name = pool["metadata"]["name"]
                on_it = ((key, doc) for key, (doc, held) in self.standing.placed.items() if _is_of(name, held))
                key, doc = next(on_it)  # none of it is there without one
                self._add(key, "over", doc, [{}], {meta.ALLOCATED_NODE: node}, entries)

    def _ask(self, key: MachineKey, doc: Object, machine: VirtualMachine, label: str | None) -> Wish:
        compute, *io = asked.details(wants(machine.spec))
        if key in self.standing.agree:
            compute["limits"] = {"count": "1"}
        if (start := machine.spec.start) is not None and start.numa_node is not None:
            asked.keep_on_numa(compute, start.numa_node)
        notes = {} if label is None else {meta.GROUP: label}
        if (node := self._pin(doc, machine)) is not None:
            notes[meta.NODE] = node
        notes |= asked.priority(doc)
        if label is None or key not in self.standing.agree:
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
            or key in self.standing.running
            or key in self.standing.freed
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
        held = (self.claims[claim] for claim in machines.claims_of(doc))
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
