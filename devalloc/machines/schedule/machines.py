"""Read VirtualMachines as a store has them, for scheduling: what they hold, what they require, which node runs them,
and the state of each: placed and holding, running with nothing reserved, asking, or waiting."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from devalloc.api import host_pool_names, meta
from devalloc.api.decode import decode
from devalloc.api.fields import name_fault
from devalloc.api.machine_reservation import (
    booked_entries,
    missing_amounts,
    parse_nano,
    readable_entries,
    required_amounts,
    reserved_entries,
    start_refusal,
    sum_entries,
    sum_nano,
)
from devalloc.api.moved_claims import moved_entries
from devalloc.api.quantity import Format, Quantity
from devalloc.api.reasons import Reason
from devalloc.api.views import ClaimKey, ClaimView, MachineKey, MachineView, ObjectView
from devalloc.api.virtual_machine import VirtualMachine, annotation_problems
from devalloc.store import Object

KIND = "VirtualMachine"
SINGLE_NUMA = "single-numa-node"
Place = tuple[str, str, str]
"""Pool, device and resource."""
AmountsByPlace = Mapping[Place, int]
"""Nano units."""
AmountsByNuma = Mapping[int, Mapping[str, Quantity]]
"""Amounts by resource, by the number of a NUMA node."""
_RUNNING_PHASES = ("Starting", "Running", "Paused", "Stopping", "Unknown")
_AMOUNTS = {host_pool_names.CPU: "cpus", **dict.fromkeys(host_pool_names.MEMORY_RESOURCES, "memory")}
_FORMATS = dict.fromkeys((*host_pool_names.MEMORY_RESOURCES, host_pool_names.DISK), Format.BINARY_SI)
"""How amounts of a resource are written, if not as decimal ones."""
_MAX_CODE = 63
_AMOUNT_FIELDS = ("permitted", "applied", "observed")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRequest:
    """What is asked for for a machine in the solver's input: a place."""

    machine: Object
    parts: tuple[ClaimKey, ...]
    """What asks for it there (``owner_names``)."""
    amounts: Mapping[str, Quantity]
    by_numa: AmountsByNuma = field(default_factory=dict)
    """Of the amounts, what must come from NUMA nodes of certain numbers."""
    is_on_one_numa_node: bool = False
    excluded: frozenset[str] = frozenset()
    """Nodes on which it cannot be: they do not receive it, or do not reach its disks."""
    tie: str = ""
    """Why it cannot be on any node, in words."""
    group: tuple[str, str] | None = None
    """Namespace and label of the group that it is in with its claims; None for a machine without any."""


def virtual_machines_in(documents: Iterable[Object]) -> list[Object]:
    """The VirtualMachines, in the order in which they are placed."""
    return in_order(documents, KIND)


def in_order(documents: Iterable[Object], kind: str) -> list[Object]:
    """The objects of one of our kinds, in the order in which they were created."""
    chosen = [doc for doc in documents if doc.get("kind") == kind and doc.get("apiVersion") == meta.DEVALLOC]
    return sorted(chosen, key=lambda doc: (str(doc["metadata"].get("creationTimestamp") or "~"), ObjectView(doc).key))


def is_running(machine: Object) -> bool:
    """Whether its node says that it does, or may; or it is to be adopted, and so runs before its node has it."""
    view = MachineView(machine)
    spec, phase = view.spec, view.status.get("phase")
    if view.holder is not None and phase in _RUNNING_PHASES:
        return True
    is_adopted = spec.get("adopt") is not None and spec.get("running") is not False
    return is_adopted and phase not in ("Stopped", "Failed") and not view.is_deleting


def why_idle(machine: Object) -> str:
    """The code why a machine that its node has does not run, though it is to; empty if it runs, or is about to."""
    view = MachineView(machine)
    reason = view.status.get("reason")
    if view.holder is None or is_running(machine) or view.spec.get("running") is False or not isinstance(reason, str):
        return ""
    return reason if reason.isalnum() and reason.isascii() and len(reason) <= _MAX_CODE else ""


def is_leaving(machine: Object) -> bool:
    """Whether it was evicted from the node that it was placed on, and is still placed there."""
    view = MachineView(machine)
    node = view.status.get("nodeName")
    return not view.is_deleting and isinstance(node, str) and view.must_leave(node)


def counted_entries(machine: Object) -> list[Any]:
    """The entries that a placed machine counts for: what is kept for it, or what it is permitted or was seen to have
    if that is more (T25)."""
    entries = [{**entry, "allocations": [*entry.get("allocations", ())]} for entry in reserved_entries(machine)]
    reported = [
        section for name in _AMOUNT_FIELDS if isinstance(section := MachineView(machine).status.get(name), dict)
    ]
    reported += [previous for permit in reported if isinstance(previous := permit.get("kept"), dict)]
    for resource, name in _AMOUNTS.items():
        more = max((parse_nano(amounts.get(name)) for amounts in reported), default=0) - sum_nano(entries, resource)
        for entry in entries if more > 0 else ():
            amounts = entry["allocations"]
            place = next((i for i, amount in enumerate(amounts) if amount.get("name") == resource), None)
            if place is not None:
                total = Quantity.capped(parse_nano(amounts[place].get("allocation")) + more)
                amounts[place] = {"name": resource, "allocation": str(total)}
                break
    return entries


def held_entries(obj: Object) -> list[Any]:
    """All that a machine counts for, also on the node to which it is moving, and what waits for its claims."""
    if obj["kind"] != KIND:
        return []
    return [*counted_entries(obj), *booked_entries(obj), *readable_entries(moved_entries(obj))]


def entries_of_running(amounts: Mapping[str, int], pool: Object, taken: AmountsByPlace) -> list[Any]:
    """What a machine that is on a node already counts for there, whether it fits or not: no machine is ended for that.
    ``amounts``: by resource, in nano units.

    Devices with the most room come first; what has room nowhere is on the first of them.
    """
    rooms, given = _rooms(pool, taken), dict[Place, int]()
    for resource, amount in amounts.items():
        given |= (parts := _spread(amount, rooms.get(resource, {})))
        if rooms.get(resource) and (left := amount - sum(parts.values())):
            first = next(iter(rooms[resource]))
            given[first] = given.get(first, 0) + left
    return entries_of(given)


def counted_amounts(machine: Object) -> dict[str, int]:
    """What a placed machine counts for, by resource, in nano units."""
    amounts: dict[str, int] = defaultdict(int)
    for (_, _, resource), nano in sum_entries(counted_entries(machine)).items():
        amounts[resource] += nano
    return dict(amounts)


def excess_entries(pool: Object, taken: AmountsByPlace) -> list[Any]:
    """What is counted on devices of a pool beyond what they have, as entries on those that have room.

    A machine counts on one device for what it was told to have beyond what is kept for it, though it may run on all:
    the room that the others seem to have is not there either.
    """
    given: dict[Place, int] = {}
    for rooms in _rooms(pool, taken).values():
        given |= _spread(-sum(min(0, room) for room in rooms.values()), rooms)
    return entries_of(given)


def _rooms(pool: Object, taken: AmountsByPlace) -> dict[str, dict[Place, int]]:
    """By resource, what devices of a pool have left, the most first; below zero where more is counted."""
    rooms: dict[str, dict[Place, int]] = defaultdict(dict)
    for device in pool["spec"].get("devices") or ():
        for one in device.get("resources") or ():
            place = pool["metadata"]["name"], device["name"], one.get("name")
            rooms[place[2]][place] = parse_nano(one.get("capacity")) - taken.get(place, 0)
    return {name: dict(sorted(left.items(), key=lambda room: (-room[1], room[0]))) for name, left in rooms.items()}


def _spread(amount: int, rooms: Mapping[Place, int]) -> dict[Place, int]:
    """As much of an amount as there is room for."""
    parts: dict[Place, int] = {}
    for place, room in rooms.items():
        if (part := min(amount, room)) > 0:
            parts[place] = part
            amount -= part
    return parts


def quantity_of(resource: str, nano: int) -> Quantity:
    """An amount of a resource, as it is written."""
    return Quantity.capped(nano, _FORMATS.get(resource, Format.DECIMAL_SI))


def entries_of(amounts: AmountsByPlace) -> list[Any]:
    """The entries that take these amounts."""
    by_device: dict[tuple[str, str], list[Any]] = {}
    for (pool, device, resource), nano in amounts.items():
        if nano:
            entry = {"name": resource, "allocation": str(quantity_of(resource, nano))}
            by_device.setdefault((pool, device), []).append(entry)
    return [
        {"devicePoolName": pool, "deviceName": device, "allocations": given}
        for (pool, device), given in by_device.items()
    ]


def single_numa(entries: Sequence[Any], pools: Mapping[str, Object]) -> int | None:
    """The one NUMA node that entries are on; None if they are on none, or on several."""
    numbers = set()
    for entry in entries:
        pool = pools.get(entry["devicePoolName"], {"spec": {}})
        for device in pool["spec"].get("devices") or ():
            if device.get("name") == entry["deviceName"]:
                numbers |= {one["intValue"] for one in device.get("attributes", ()) if one.get("name") == "numa"}
    return numbers.pop() if len(numbers) == 1 else None


class MachineStates:
    """Of all machines of one input."""

    def __init__(self, docs: Sequence[Object], hosts: Mapping[str, Object], claims: Mapping[ClaimKey, Object]) -> None:
        """``hosts``: the pools of what nodes have for machines, by node."""
        self._hosts = hosts
        self._claims = claims
        self.placed: dict[MachineKey, tuple[Object, list[Any]]] = {}
        """Those that something is kept for, and what they count for."""
        self.running: dict[MachineKey, list[Any]] = {}
        """Those of them that run without anything being kept for them yet, and what is to be."""
        self.asking: dict[MachineKey, tuple[Object, VirtualMachine]] = {}
        """Those that a place is looked for."""
        self.waiting: dict[MachineKey, tuple[str, str]] = {}
        """Those that none is looked for, with reason and message."""
        self.freed: set[MachineKey] = set()
        """Placed ones that have not begun, and that must not run any more, or not as or where they were placed."""
        self.evicted: dict[MachineKey, Sequence[Object]] = {}
        """Those of them that were evicted from their node, and their claims that have devices there."""
        self.resting: dict[MachineKey, Object] = {}
        """Those that left a node and are not to run: their claims wait for them."""
        self.agree: set[MachineKey] = set()
        """Those that are to be on one NUMA node with their devices."""
        self.owners: dict[ClaimKey, MachineKey] = {}
        """Which machine a claim is placed with."""
        self.unowned: dict[ClaimKey, MachineKey] = {}
        """Claims that wait with their machine."""
        self.on_second_node: dict[MachineKey, tuple[Object, list[Any]]] = {}
        """Those that count on two nodes that say what they have, and what is kept for them on the second: their target,
        or once they are handed over, their source, which has them paused until the target takes them."""
        self._sort_all(docs)

    def _sort_all(self, docs: Sequence[Object]) -> None:
        taken: dict[tuple[str, str, str], int] = {}
        for doc in docs:
            if is_leaving(doc) and MachineView(doc).holder is None:
                self._evict(MachineView(doc).key, doc)
            entries, target = self._held(doc), MachineView(doc).migration_target
            booked = booked_entries(doc) if target in self._hosts else []
            if entries:
                self.placed[MachineView(doc).key] = doc, entries
            if booked:
                self.on_second_node[MachineView(doc).key] = doc, booked
            for place, nano in sum_entries([*entries, *booked]).items():
                taken[place] = taken.get(place, 0) + nano
        for doc in docs:
            key = MachineView(doc).key
            self._count_on_source(key, doc, taken)
            if key not in self.placed:
                self._sort(key, doc, taken)
        for key, (doc, _) in self.placed.items():
            if MachineView(doc).migration_state or MachineView(doc).moved_claims:
                self._keep_back_new_claims(key, doc)
            else:
                self._own(key, doc)
        for key, (doc, machine) in list(self.asking.items()):
            if (why := self._obstacle(key, doc)) is not None:
                del self.asking[key]
                self.waiting[key] = why
                self.unowned |= {claim: key for claim in MachineView(doc).claims if claim not in self.owners}
            else:
                self._own(key, doc)
                if machine.spec.numa_policy == SINGLE_NUMA:
                    self.agree.add(key)
        for key, doc in self.resting.items():
            self.unowned |= {claim: key for claim in MachineView(doc).claims if claim not in self.owners}

    def _evict(self, key: MachineKey, doc: Object) -> None:
        """Nothing of it is on its node: it leaves together with its claims, once the node has released them."""
        claims = [self._claims[claim] for claim in MachineView(doc).claims if claim in self._claims]
        node = MachineView(doc).status["nodeName"]
        on_node = [claim for claim in claims if ClaimView(claim).entries and ClaimView(claim).node == node]
        for claim in on_node:
            if ClaimView(claim).is_held:
                name = "/".join(ClaimView(claim).key)
                why = f"it leaves node {node} when that has released the devices of claim {name}"
                self.waiting[key] = Reason.STILL_PREPARED.value, why
                return
        self.freed.add(key)
        self.evicted[key] = on_node

    def _held(self, doc: Object) -> list[Any]:
        """What a placed machine counts for, on a node that still says what it has."""
        view = MachineView(doc)
        key, holder = view.key, view.holder
        spec, status = view.spec, view.status
        if not reserved_entries(doc) or status["nodeName"] not in self._hosts:
            return []
        if holder is None and not ObjectView(doc).is_deleting and not is_leaving(doc):
            if spec.get("running") is False or self._has_outgrown(doc):
                self.freed.add(key)
            if spec.get("nodeName") not in (None, status["nodeName"]):
                return []  # it was sent elsewhere before its node began anything
        return counted_entries(doc)

    def _count_on_source(self, key: MachineKey, doc: Object, taken: dict[tuple[str, str, str], int]) -> None:
        """A machine that was handed over has its memory on its source, too, until its target takes it."""
        view = MachineView(doc)
        node = view.holder
        if view.handed_over_to is not None and node is not None and node in self._hosts:
            self.on_second_node[key] = doc, self._count(counted_amounts(doc), node, taken)

    def _count(self, amounts: Mapping[str, int], node: str, taken: dict[tuple[str, str, str], int]) -> list[Any]:
        """Entries for these amounts on a node that has the machine already; they are added to ``taken``."""
        entries = entries_of_running(amounts, self._hosts[node], taken)
        for place, nano in sum_entries(entries).items():
            taken[place] = taken.get(place, 0) + nano
        return entries

    def _keep_back_new_claims(self, key: MachineKey, doc: Object) -> None:
        """A claim that comes while its machine moves waits: the devices of neither node would be of use to it."""
        for claim in MachineView(doc).claims:
            if claim in self._claims and ClaimView(self._claims[claim]).entries:
                self.owners.setdefault(claim, key)
            elif claim not in self.owners:
                self.unowned[claim] = key

    def _has_outgrown(self, doc: Object) -> bool:
        """Whether it was placed with less than what it is to be started with by now: then it is placed anew."""
        machine = decode(doc).object
        return isinstance(machine, VirtualMachine) and bool(missing_amounts(machine.spec, reserved_entries(doc)))

    def _sort(self, key: MachineKey, doc: Object, taken: dict[tuple[str, str, str], int]) -> None:
        """What becomes of a machine that nothing is kept for."""
        if MachineView(doc).handed_over_to is not None:
            return  # to a node that does not say what it has
        decoded = decode(doc)
        machine = decoded.object if isinstance(decoded.object, VirtualMachine) else None
        holder = MachineView(doc).holder
        if machine is None:
            if MachineView(doc).spec.get("nodeName") not in (None, *self._hosts):
                return
            self.waiting[key] = Reason.MACHINE_INVALID.value, str(decoded.error or "it cannot be read")
        elif is_running(doc):
            if (node := MachineView(doc).running_node) in self._hosts:
                amounts = {name: amount.nano for name, amount in required_amounts(machine.spec).items()}
                entries = self._count(amounts, node, taken)
                self.running[key] = entries
                self.placed[key] = doc, entries
        elif ObjectView(doc).is_deleting or not machine.spec.running or MachineView(doc).has_ended:
            if not ObjectView(doc).is_deleting and MachineView(doc).annotation(meta.LAST_NODE) and machine.node is None:
                self.resting[key] = doc
        elif is_leaving(doc):
            return
        elif machine.node is None and not self._hosts:
            self.waiting[key] = (
                Reason.NO_HOST_CAPACITY.value,
                "no node has published its capacity for machines: run its plugin or `devalloc up` with "
                "--host-capacity, or name the node in spec.nodeName",
            )
        elif machine.node is not None and machine.node not in self._hosts:
            return  # its node admits any machine that it must run
        elif holder in (None, machine.node):
            self.asking[key] = doc, machine

    def _obstacle(self, key: MachineKey, doc: Object) -> tuple[str, str] | None:
        """What must change before it makes sense to look for a place."""
        if problem := next(iter(annotation_problems(doc)), None):
            return Reason.MACHINE_INVALID.value, str(problem)
        if refused := start_refusal(doc):
            refusal = f"{refused.get('reason')}: {refused.get('message')}"
            why = f"node {MachineView(doc).running_node} cannot start it: {refusal}"
            return Reason.START_REFUSED.value, why
        for claim in MachineView(doc).claims:
            name, claim_doc = "/".join(claim), self._claims.get(claim)
            if claim_doc is None:
                return Reason.CLAIM_NOT_FOUND.value, f"claim {name} does not exist; create it"
            if ClaimView(claim_doc).entries:
                if ClaimView(claim_doc).wants_release:
                    return Reason.CLAIM_RELEASED.value, f"claim {name} is being released"
            elif fault := name_fault(ClaimView(claim_doc).group or name):
                return Reason.GROUP_UNSATISFIABLE.value, f"claim {name}: metadata.annotations[{meta.GROUP}]: {fault}"
            elif ObjectView(claim_doc).is_deleting:
                return Reason.CLAIM_BEING_DELETED.value, f"claim {name} is being deleted"
            elif ClaimView(claim_doc).is_held:
                return (
                    Reason.STILL_PREPARED.value,
                    f"the node of claim {name} has not released what the claim held before",
                )
            elif (owner := self.owners.get(claim, key)) != key:
                return Reason.CLAIM_NOT_ALLOCATED.value, f"claim {name} is placed with machine {'/'.join(owner)} first"
        return None

    def _own(self, key: MachineKey, doc: Object) -> None:
        for claim in MachineView(doc).claims:
            if claim in self._claims:
                self.owners.setdefault(claim, key)
        policy = MachineView(doc).spec.get("numaPolicy")
        if policy == SINGLE_NUMA:
            self.agree.add(key)
