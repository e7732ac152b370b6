"""The state of each machine as the solver sees it: placed and holding, running with nothing reserved, asking, or
waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from devalloc.api.decode import decode
from devalloc.api.machine_reservation import missing_amounts, reserved_entries
from devalloc.api.virtual_machine import VirtualMachine
from devalloc.controller.reconcile.claims import ClaimKey, allocation_entries, is_deleting, is_prepared, wants_release
from devalloc.controller.reconcile.vm_scheduling import machines
from devalloc.controller.reconcile.vm_scheduling.machines import MachineKey
from devalloc.store import Object


@dataclass(frozen=True, slots=True)
class MachineStates:
    """Of all machines of one input."""

    placed: Mapping[MachineKey, tuple[Object, list[Any]]]
    """Those that something is kept for, and what they count for."""
    running: Mapping[MachineKey, list[Any]]
    """Those of them that run without anything being kept for them yet, and what is to be."""
    asking: Mapping[MachineKey, tuple[Object, VirtualMachine]]
    """Those that a place is looked for."""
    waiting: Mapping[MachineKey, tuple[str, str]]
    """Those that none is looked for, with reason and message."""
    freed: frozenset[MachineKey]
    """Placed ones that have not begun, and that must not run any more, or not as they were placed."""
    agree: frozenset[MachineKey]
    """Those that are to be on one NUMA node with their devices."""
    owners: Mapping[ClaimKey, MachineKey]
    """Which machine a claim is placed with."""
    unowned: Mapping[ClaimKey, MachineKey]
    """Claims that wait with their machine."""


def machine_states(
    docs: Sequence[Object], hosts: Mapping[str, Object], claims: Mapping[ClaimKey, Object]
) -> MachineStates:
    """``hosts``: the pools of what nodes have for machines, by node."""
    return _MachineSorter(hosts, claims).sorted(docs)


class _MachineSorter:
    """Lives for one call."""

    def __init__(self, hosts: Mapping[str, Object], claims: Mapping[ClaimKey, Object]) -> None:
        self.hosts = hosts
        self.claims = claims
        self.owners: dict[ClaimKey, MachineKey] = {}
        self.waiting: dict[MachineKey, tuple[str, str]] = {}
        self.running: dict[MachineKey, list[Any]] = {}
        self.freed: set[MachineKey] = set()
        self.asking: dict[MachineKey, tuple[Object, VirtualMachine]] = {}
        self.placed: dict[MachineKey, tuple[Object, list[Any]]] = {}
        self.agree: set[MachineKey] = set()
        self.unowned: dict[ClaimKey, MachineKey] = {}

    def sorted(self, docs: Sequence[Object]) -> MachineStates:
        taken: dict[tuple[str, str, str], int] = {}
        for doc in docs:
            if entries := self._held(doc):
                self.placed[machines.machine_key(doc)] = doc, entries
                for place, nano in machines.sum_entries(entries).items():
                    taken[place] = taken.get(place, 0) + nano
        for doc in docs:
            key = machines.machine_key(doc)
            if key not in self.placed:
                self._sort(key, doc, taken)
        for key, (doc, _) in self.placed.items():
            self._own(key, doc)
        for key, (doc, machine) in list(self.asking.items()):
            if (why := self._obstacle(key, doc)) is not None:
                del self.asking[key]
                self.waiting[key] = why
                self.unowned |= {claim: key for claim in machines.claims_of(doc) if claim not in self.owners}
            else:
                self._own(key, doc)
                if machine.spec.numa_policy == machines.SINGLE_NUMA:
                    self.agree.add(key)
        return MachineStates(
            placed=self.placed,
            running=self.running,
            asking=self.asking,
            waiting=self.waiting,
            freed=frozenset(self.freed),
            agree=frozenset(self.agree),
            owners=self.owners,
            unowned=self.unowned,
        )

    def _held(self, doc: Object) -> list[Any]:
        """What a placed machine counts for, on a node that still says what it has."""
        key, holder = machines.machine_key(doc), machines.holding_node(doc)
        spec, status = machines.spec_of(doc), machines.status_of(doc)
        if not reserved_entries(doc) or status["nodeName"] not in self.hosts:
            return []
        if holder is None and not machines.is_deleting(doc):
            if spec.get("running") is False or self._has_outgrown(doc):
                self.freed.add(key)
            if spec.get("nodeName") not in (None, status["nodeName"]):
                return []  # it was sent elsewhere before its node began anything
        return machines.counted_entries(doc)

    def _has_outgrown(self, doc: Object) -> bool:
        """Whether it was placed with less than what it is to be started with by now: then it is placed anew."""
        machine = decode(doc).object
        return isinstance(machine, VirtualMachine) and bool(missing_amounts(machine.spec, reserved_entries(doc)))

    def _sort(self, key: MachineKey, doc: Object, taken: dict[tuple[str, str, str], int]) -> None:
        """What becomes of a machine that nothing is kept for."""
        decoded = decode(doc)
        machine = decoded.object if isinstance(decoded.object, VirtualMachine) else None
        holder = machines.holding_node(doc)
        if machine is None:
            if machines.spec_of(doc).get("nodeName") not in (None, *self.hosts):
                return
            problem = next((problem for problem in decoded.problems if problem.is_error), None)
            self.waiting[key] = "MachineInvalid", str(problem or "it cannot be read")
        elif machines.is_running(doc):
            if (node := machines.running_node(doc)) in self.hosts:
                entries = machines.entries_of_running(machine, self.hosts[node], taken)
                self.running[key] = entries
                self.placed[key] = doc, entries
                for place, nano in machines.sum_entries(entries).items():
                    taken[place] = taken.get(place, 0) + nano
        elif machines.is_deleting(doc) or not machine.spec.running or machines.has_ended(machine):
            return
        elif machine.node is None and not self.hosts:
            self.waiting[key] = (
                "NoHostCapacity",
                "no node has published its capacity for machines: run its plugin or `devalloc up` with "
                "--host-capacity, or name the node in spec.nodeName",
            )
        elif machine.node is not None and machine.node not in self.hosts:
            return  # its node admits any machine that it must run
        elif holder in (None, machine.node):
            self.asking[key] = doc, machine

    def _obstacle(self, key: MachineKey, doc: Object) -> tuple[str, str] | None:
        """What must change before it makes sense to look for a place."""
        for claim in machines.claims_of(doc):
            name, claim_doc = "/".join(claim), self.claims.get(claim)
            if claim_doc is None:
                return "ClaimNotFound", f"claim {name} does not exist"
            if allocation_entries(claim_doc):
                if wants_release(claim_doc):
                    return "ClaimReleased", f"claim {name} is being released"
            elif is_deleting(claim_doc):
                return "ClaimBeingDeleted", f"claim {name} is being deleted"
            elif is_prepared(claim_doc):
                return "StillPrepared", f"the node of claim {name} has not released what the claim held before"
            elif (owner := self.owners.get(claim, key)) != key:
                return "ClaimNotAllocated", f"claim {name} is placed with machine {'/'.join(owner)} first"
        return None

    def _own(self, key: MachineKey, doc: Object) -> None:
        for claim in machines.claims_of(doc):
            if claim in self.claims:
                self.owners.setdefault(claim, key)
        policy = machines.spec_of(doc).get("numaPolicy")
        if policy == machines.SINGLE_NUMA:
            self.agree.add(key)
