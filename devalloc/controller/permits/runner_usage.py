"""What the pods that run NeonVM's machines take of their nodes.

NeonVM's objects say on which node a machine is only while its guest runs. Its pod is there earlier and longer: from
when it is bound until QEMU has ended, also after the object was deleted. A pod counts if a machine of NeonVM that was
seen owns it, for at most what that machine may have: so only those who may write such machines can take room.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from devalloc.api.views import as_mapping
from devalloc.controller.permits.neon_vms import GROUP, upper_bound
from devalloc.controller.permits.vm_state import USAGE, read_usage
from devalloc.scaling.permits.ledger import NO_RESOURCES, MachineKey
from devalloc.scaling.resources import Resources
from devalloc.scaling.vm_info import from_pod
from devalloc.store import Object

log = logging.getLogger(__name__)

_HAS_ENDED = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class RunnerPod:
    """A pod that runs a machine, as it counts."""

    key: MachineKey
    node: str
    owner: str
    """The uid of its machine's object."""
    requested: Resources
    """What NeonVM asks it to have (``vm.neon.tech/resources``)."""
    usage: Resources
    """What it has (``vm.neon.tech/usage``)."""


def read_runner_pod(pod: Object) -> RunnerPod | None:
    """What counts of a pod; None for one that is on no node, has ended, or runs no machine of NeonVM."""
    metadata, spec, status = (as_mapping(pod.get(part)) for part in ("metadata", "spec", "status"))
    node, owner = spec.get("nodeName"), _owner(metadata)
    if not isinstance(node, str) or not node or not owner or status.get("phase") in _HAS_ENDED:
        return None
    read = from_pod(pod)
    if read.info is None:
        log.warning("runner pod %s/%s does not count: %s", metadata["namespace"], metadata["name"], read.problems[0])
        return None
    usage = read_usage(as_mapping(metadata.get("annotations")).get(USAGE), read.info.max)
    return RunnerPod((metadata["namespace"], metadata["name"]), node, owner, read.info.using, usage)


def _owner(metadata: Mapping[str, Any]) -> str:
    references = metadata.get("ownerReferences")
    for reference in references if isinstance(references, list) else ():
        of = as_mapping(reference)
        if of.get("kind") == "VirtualMachine" and str(of.get("apiVersion")).startswith(f"{GROUP}/"):
            return str(of.get("uid") or "")
    return ""


@dataclass(slots=True)
class RunnerUsage:
    """The runner pods of a cluster, and the machines that own them."""

    pods: dict[MachineKey, RunnerPod] = field(default_factory=dict)
    _of_owner: dict[str, set[MachineKey]] = field(default_factory=dict)
    """The pods of each machine, by its uid."""
    _uids: dict[MachineKey, str] = field(default_factory=dict)
    """Of the machines that exist."""
    _existing: set[str] = field(default_factory=set)
    """The same uids."""
    _most: dict[str, Resources] = field(default_factory=dict)
    """By the uid of a machine: what it may have. Also of one that is gone, as long as it has pods."""
    _had: dict[MachineKey, Resources] = field(default_factory=dict)
    """What the machine of a pod had when it stopped to count by itself."""

    @property
    def machines(self) -> Collection[MachineKey]:
        """The machines of NeonVM that there are, wherever they are."""
        return self._uids.keys()

    def put(self, pod: RunnerPod) -> None:
        """A pod as it is now."""
        before = self.pods.get(pod.key)
        if before is not None and before.owner != pod.owner:  # another pod of this name
            self.drop(pod.key)
        self.pods[pod.key] = pod
        self._of_owner.setdefault(pod.owner, set()).add(pod.key)

    def drop(self, key: MachineKey) -> None:
        """There is no such pod any more."""
        self._had.pop(key, None)
        if (pod := self.pods.pop(key, None)) is None:
            return
        others = self._of_owner[pod.owner]
        others.discard(key)
        if not others:
            del self._of_owner[pod.owner]
            if pod.owner not in self._existing:
                self._most.pop(pod.owner, None)

    def own(self, key: MachineKey, machine: Object) -> list[MachineKey]:
        """A machine of NeonVM as it is now; the pods that this concerns."""
        uid = str(machine["metadata"].get("uid") or "")
        concerned = self.disown(key) if self._uids.get(key, uid) != uid else []
        self._uids[key] = uid
        self._existing.add(uid)
        if uid and (most := upper_bound(machine)) is not None:
            self._most[uid] = most
        return [*concerned, *self._of_owner.get(uid, ())]

    def disown(self, key: MachineKey) -> list[MachineKey]:
        """A machine's object is gone; its pods, which count until they are gone too."""
        uid = self._uids.pop(key, "")
        self._existing.discard(uid)
        if uid not in self._of_owner:
            self._most.pop(uid, None)
        return [*self._of_owner.get(uid, ())]

    def had(self, key: MachineKey, amounts: Resources) -> None:
        """The machine of a pod does not count by itself any more, and had this."""
        if key in self.pods:
            self._had[key] = amounts

    def usage(self, key: MachineKey | None, node: str) -> Resources:
        """What a pod says that its machine has, if it is on that node."""
        pod = self.pods.get(key) if key is not None else None
        return pod.usage if pod is not None and pod.node == node else NO_RESOURCES

    def amounts(self, key: MachineKey) -> Resources:
        """What a pod counts for if its machine does not count by itself."""
        pod = self.pods.get(key)
        most = None if pod is None else self._most.get(pod.owner)
        if pod is None or most is None:
            return NO_RESOURCES
        return pod.requested.most(pod.usage).most(self._had.get(key, NO_RESOURCES)).least(most)
