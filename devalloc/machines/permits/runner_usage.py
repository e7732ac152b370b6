"""What the pods that run machines take of their nodes.

The object of such a machine says on which node it is only while its guest runs. Its pod is there earlier and longer:
from when it is bound until QEMU has ended, also after the object was deleted. A pod counts if a machine that was seen
in its namespace owns it, for at most what that machine may have. Anyone who may create pods there can name any
machine as the owner: so the pods of a machine that are on one node count together as one.

Who begins to lead has not seen the machines that were deleted before. A pod that is there already, and whose owner is
not, counts for what it says itself: its QEMU may still have that. It counts for no more than it says that its machine
may have at most, than Kubernetes lets the pod have, by the limits of its containers where each has one, and than the
node has for machines. Where no policy keeps them from it, or did not yet, anyone who may create pods may have
written what it says.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from devalloc.scaling.permits.ledger import MachineKey
from devalloc.scaling.resources import NO_RESOURCES, Resources

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
    """What it was asked to have."""
    usage: Resources
    """What it says that it has."""
    most: Resources
    """What it says that its machine may have at most."""
    limits: Resources
    """What the kernel lets it have, by the limits of its containers."""

    account: MachineKey
    """By which it counts on its node if its machine does not count there."""

    @property
    def place(self) -> RunnerPlace:
        return self.owner, self.node


@dataclass(frozen=True, slots=True)
class PodOwner:
    """A machine that pods run, as the ledgers know it."""

    uid: str
    most: Resources | None
    """The most that it may have, wherever it is; None if that cannot be read."""


@dataclass(slots=True)
class RunnerUsage:
    """The runner pods of a cluster, and the machines that own them. Each change returns the places that it concerns."""

    pods: dict[MachineKey, RunnerPod] = field(default_factory=dict)
    _of: dict[Owner, set[MachineKey]] = field(default_factory=dict)
    """The pods of each machine."""
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
        """The machines that there are, wherever they are."""
        return self._owners.keys()

    def put(self, pod: RunnerPod, *, is_inherited: bool = False) -> list[RunnerPlace]:
        """Take a pod as it is now. ``is_inherited``: it was there before this process led."""
        before = self.pods.get(pod.key)
        if is_inherited:
            self._inherited[pod.key] = pod.owner
        self.pods[pod.key] = pod
        self._of.setdefault(pod.owner, set()).add(pod.key)
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
        self._of[pod.owner].discard(pod.key)
        if not self._of[pod.owner]:
            del self._of[pod.owner]
            self._forget(pod.owner)

    def _forget(self, owner: Owner) -> None:
        """What a machine may have, unless it is there or has pods."""
        if owner not in self._of and owner not in self._present:
            self._most.pop(owner, None)

    def own(self, key: MachineKey, machine: PodOwner) -> list[RunnerPlace]:
        """Take a machine as it is now."""
        owner = key[0], machine.uid
        concerned = self.disown(key) if self._owners.get(key, owner) != owner else []
        self._owners[key] = owner
        self._present[owner] = key
        if machine.uid and machine.most is not None:
            self._most[owner] = machine.most
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
        return [*dict.fromkeys(self.pods[key].place for key in self._of.get(owner, ()))]

    def place_of(self, key: MachineKey) -> RunnerPlace | None:
        """Where a pod is."""
        return None if (pod := self.pods.get(key)) is None else pod.place

    def at(self, place: RunnerPlace) -> Collection[MachineKey]:
        """The pods of a machine on a node."""
        return [key for key in self._of.get(place[0], ()) if self.pods[key].node == place[1]]

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
