"""What the pods that run NeonVM's machines take of their nodes.

NeonVM's objects say on which node a machine is only while its guest runs. Its pod is there earlier and longer: from
when it is bound until QEMU has ended, also after the object was deleted. A pod counts if a machine of NeonVM that was
seen in its namespace owns it, for at most what that machine may have. Anyone who may create pods there can name any
machine as the owner: so the pods of a machine that are on one node count together as one.

Who begins to lead has not seen the machines that were deleted before. A pod that is there already, and whose owner is
not, counts for what it says itself: its QEMU may still have that. It counts for no more than it says that its machine
may have at most, than Kubernetes lets the pod have, by the limits of its containers where each has one, and than the
node has for machines. Where the policy of ``deploy/neon`` is not installed, or was not yet, anyone who may create pods
may have written what it says.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from devalloc.api.quantity import NANO, Quantity, QuantityError
from devalloc.api.views import as_mapping, as_mappings
from devalloc.controller.permits.neon_vms import GROUP, upper_bound
from devalloc.controller.permits.vm_state import USAGE, read_usage
from devalloc.controller.runner_pods import has_ended
from devalloc.scaling.permits.ledger import NO_RESOURCES, MachineKey
from devalloc.scaling.resources import Resources
from devalloc.scaling.vm_info import from_pod
from devalloc.store import Object

log = logging.getLogger(__name__)

_UNLIMITED = 1 << 63

Owner = tuple[str, str]
"""A machine, by its namespace and the uid of its object: another machine of the name is another one."""
RunnerPlace = tuple[Owner, str]
"""A machine, and a node that has pods of it."""


@dataclass(frozen=True, slots=True)
class RunnerPod:
    """A pod that runs a machine, as it counts."""

    key: MachineKey
    node: str
    owner: Owner
    requested: Resources
    """What NeonVM asks it to have (``vm.neon.tech/resources``)."""
    usage: Resources
    """What it has (``vm.neon.tech/usage``)."""
    most: Resources
    """What it says that its machine may have at most."""
    limits: Resources
    """What the kernel lets it have, by the limits of its containers."""

    @property
    def place(self) -> RunnerPlace:
        return self.owner, self.node


def read_runner_pod(pod: Object) -> RunnerPod | None:
    """What counts of a pod; None for one that is on no node, has ended, or runs no machine of NeonVM."""
    metadata, spec = (as_mapping(pod.get(part)) for part in ("metadata", "spec"))
    node, uid = spec.get("nodeName"), _owner_uid(metadata)
    if not isinstance(node, str) or not node or not uid or has_ended(pod):
        return None
    read = from_pod(pod)
    if read.info is None:
        log.warning("runner pod %s/%s does not count: %s", metadata["namespace"], metadata["name"], read.problems[0])
        return None
    usage = read_usage(as_mapping(metadata.get("annotations")).get(USAGE), read.info.max)
    namespace = metadata["namespace"]
    limits = Resources(_limit(spec, "cpu", NANO // 1000), _limit(spec, "memory", NANO))
    most = read.info.min.most(read.info.max)
    return RunnerPod((namespace, metadata["name"]), node, (namespace, uid), read.info.using, usage, most, limits)


def _limit(spec: Mapping[str, Any], resource: str, unit: int) -> int:
    """That of the pod, or else of its containers together, in whole units. If one of them has none, neither has the
    pod; 0 is none."""
    whole, *parts = (
        as_mapping(as_mapping(each.get("resources")).get("limits")).get(resource)
        for each in (spec, *as_mappings(spec.get("containers")))
    )
    try:
        limits = [Quantity.parse(amount).nano for amount in (parts if whole is None else [whole])]
    except QuantityError:
        return _UNLIMITED
    return -(-sum(limits) // unit) if limits and min(limits) > 0 else _UNLIMITED


def _owner_uid(metadata: Mapping[str, Any]) -> str:
    references = metadata.get("ownerReferences")
    for reference in references if isinstance(references, list) else ():
        of = as_mapping(reference)
        if of.get("kind") == "VirtualMachine" and str(of.get("apiVersion")).startswith(f"{GROUP}/"):
            return str(of.get("uid") or "")
    return ""


@dataclass(slots=True)
class RunnerUsage:
    """The runner pods of a cluster, and the machines that own them. Each change returns the places that it concerns."""

    pods: dict[MachineKey, RunnerPod] = field(default_factory=dict)
    _at: dict[Owner, dict[str, set[MachineKey]]] = field(default_factory=dict)
    """The pods of each machine, by node."""
    _owners: dict[MachineKey, Owner] = field(default_factory=dict)
    """The machines that exist."""
    _present: dict[Owner, MachineKey] = field(default_factory=dict)
    """The same by owner."""
    _most: dict[Owner, Resources] = field(default_factory=dict)
    """What a machine may have. Also of one that is gone, as long as it has pods."""
    _had: dict[MachineKey, Resources] = field(default_factory=dict)
    """What the machine of a pod had when it stopped to count by itself."""
    _inherited: dict[MachineKey, Owner] = field(default_factory=dict)
    """The pods that were there before this process led, with their owners."""

    @property
    def machines(self) -> Collection[MachineKey]:
        """The machines of NeonVM that there are, wherever they are."""
        return self._owners.keys()

    def put(self, pod: RunnerPod, *, is_inherited: bool = False) -> list[RunnerPlace]:
        """A pod as it is now. ``is_inherited``: it was there before this process led."""
        before = self.pods.get(pod.key)
        if is_inherited:
            self._inherited[pod.key] = pod.owner
        self.pods[pod.key] = pod
        self._at.setdefault(pod.owner, {}).setdefault(pod.node, set()).add(pod.key)
        if before is None or before.place == pod.place:
            return [pod.place]
        if before.owner != pod.owner:  # another pod of this name
            self._had.pop(pod.key, None)
        self._leave(before)
        return [before.place, pod.place]

    def drop(self, key: MachineKey) -> list[RunnerPlace]:
        """There is no such pod any more."""
        self._had.pop(key, None)
        self._inherited.pop(key, None)
        if (pod := self.pods.pop(key, None)) is None:
            return []
        self._leave(pod)
        return [pod.place]

    def _leave(self, pod: RunnerPod) -> None:
        nodes = self._at[pod.owner]
        nodes[pod.node].discard(pod.key)
        if not nodes[pod.node]:
            del nodes[pod.node]
        if not nodes:
            del self._at[pod.owner]
            self._forget(pod.owner)

    def _forget(self, owner: Owner) -> None:
        """What a machine may have, unless it is there or has pods."""
        if owner not in self._at and owner not in self._present:
            self._most.pop(owner, None)

    def own(self, key: MachineKey, machine: Object) -> list[RunnerPlace]:
        """A machine of NeonVM as it is now."""
        owner = key[0], str(machine["metadata"].get("uid") or "")
        concerned = self.disown(key) if self._owners.get(key, owner) != owner else []
        self._owners[key] = owner
        self._present[owner] = key
        if owner[1] and (most := upper_bound(machine)) is not None:
            self._most[owner] = most
        return [*concerned, *self._places(owner)]

    def disown(self, key: MachineKey) -> list[RunnerPlace]:
        """A machine's object is gone. Its pods count until they are gone too."""
        if (owner := self._owners.pop(key, None)) is None:
            return []
        if self._present.get(owner) == key:
            del self._present[owner]
        self._forget(owner)
        return self._places(owner)

    def _places(self, owner: Owner) -> list[RunnerPlace]:
        return [(owner, node) for node in self._at.get(owner, ())]

    def place_of(self, key: MachineKey) -> RunnerPlace | None:
        """Where a pod is."""
        return None if (pod := self.pods.get(key)) is None else pod.place

    def at(self, place: RunnerPlace) -> Collection[MachineKey]:
        """The pods of a machine on a node."""
        return self._at.get(place[0], {}).get(place[1], ())

    def had(self, key: MachineKey, amounts: Resources) -> None:
        """The machine of a pod does not count by itself any more, and had this."""
        if key in self.pods:
            self._had[key] = amounts

    def usage(self, key: MachineKey | None, node: str) -> Resources:
        """What a pod says that its machine has, if it is on that node."""
        pod = self.pods.get(key) if key is not None else None
        return pod.usage if pod is not None and pod.node == node else NO_RESOURCES

    def amounts(self, key: MachineKey, room: Resources) -> Resources:
        """What a pod counts for if its machine does not count by itself. ``room``: what its node has for machines."""
        pod = self.pods.get(key)
        most = None if pod is None else self._most.get(pod.owner)
        if pod is None or (most is None and self._inherited.get(key) != pod.owner):
            return NO_RESOURCES
        amounts = pod.requested.most(pod.usage).most(self._had.get(key, NO_RESOURCES))
        return amounts.least(pod.most).least(pod.limits).least(room) if most is None else amounts.least(most)

    def ownerless(self) -> list[RunnerPod]:
        """The pods that count although no machine that was seen owns them."""
        inherited = (self.pods[key] for key, owner in self._inherited.items() if self.pods[key].owner == owner)
        return [pod for pod in inherited if pod.owner not in self._most]
