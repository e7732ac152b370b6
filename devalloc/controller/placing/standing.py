"""What each machine is to the solver: placed and holding, running with nothing kept for it, asking, or waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from devalloc.api.decode import decode
from devalloc.api.reservation import lacking, reserved
from devalloc.api.virtualmachine import VirtualMachine
from devalloc.controller.claims import ClaimKey, allocations, is_deleting, is_prepared, wants_release
from devalloc.controller.placing import machines
from devalloc.controller.placing.machines import MachineKey
from devalloc.store import Object


@dataclass(frozen=True, slots=True)
class Standing:
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
    """Placed ones that nobody has begun, and that are not to run any more, or not as they were placed."""
    agree: frozenset[MachineKey]
    """Those that are to be on one NUMA node with their devices."""
    owners: Mapping[ClaimKey, MachineKey]
    """Which machine a claim is placed with."""
    unowned: Mapping[ClaimKey, MachineKey]
    """Claims that wait with their machine."""


def standing_of(found: Sequence[Object], hosts: Mapping[str, Object], claims: Mapping[ClaimKey, Object]) -> Standing:
    """``hosts``: the pools of what nodes have for machines, by node."""
    return _Sorter(hosts, claims).sorted(found)


class _Sorter:
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

    def sorted(self, found: Sequence[Object]) -> Standing:
        taken: dict[tuple[str, str, str], int] = {}
        for doc in found:
            if entries := self._held(doc):
                self.placed[machines.machine_key(doc)] = doc, entries
                for place, nano in machines.taken_by(entries).items():
                    taken[place] = taken.get(place, 0) + nano
        for doc in found:
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
        return Standing(
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
                "no node has published its capacity for machines: run its plugin or `devalloc up` with "
                "--host-capacity, or name the node in spec.nodeName",
            )
        elif machine.node is not None and machine.node not in self.hosts:
            return  # its node admits whatever it is told to run
        elif holder in (None, machine.node):
            self.asking[key] = doc, machine

    def _obstacle(self, key: MachineKey, doc: Object) -> tuple[str, str] | None:
        """What must change before it makes sense to look for a place."""
        for claim in machines.claims_of(doc):
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

    def _own(self, key: MachineKey, doc: Object) -> None:
        for claim in machines.claims_of(doc):
            if claim in self.claims:
                self.owners.setdefault(claim, key)
        policy = machines.spec_of(doc).get("numaPolicy")
        if policy == machines.SINGLE_NUMA:
            self.agree.add(key)
