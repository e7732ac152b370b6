"""What ties a machine to the node that last had it: disks that it writes or has of its own, its UEFI variables, its
TPM; and which other nodes reach its disks, and receive machines that run, as their admins say.

Reads manifests tolerantly: what has another type than the API's is not there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from devalloc.api.conditions import LAST_READY, READY
from devalloc.api.host_pool_names import (
    LIVE_MIGRATION,
    LIVE_MIGRATION_ON,
    SHARED_STORAGE,
    SHARED_STORAGE_SEPARATOR,
)
from devalloc.api.machine_reservation import STARTABLE
from devalloc.api.moved_claims import claim_obstacle, local_claims
from devalloc.api.views import ClaimKey, MachineKey, MachineView, as_mapping, as_mappings

Object = dict[str, Any]

LIVE_MIGRATABLE = "LiveMigratable"
"""Condition of a machine that runs: whether QEMU could move it now, with the devices that it has, as its node says. If
it is False, with the reason."""
NODE_CONDITIONS = (READY, LAST_READY, LIVE_MIGRATABLE, STARTABLE)
"""Conditions of a machine that its node writes."""

_NONE_RECEIVES = "no other node receives machines that run; start the plugin of another node with --migration-address"


def shared_storage(host_pool: Mapping[str, Any] | None) -> str:
    """The attribute of a node's host pool that names its shared storage; empty without any."""
    return _attribute(host_pool, SHARED_STORAGE)


def receives_machines(host_pool: Mapping[str, Any] | None) -> bool:
    """Whether a node receives machines that move to it while they run."""
    return _attribute(host_pool, LIVE_MIGRATION) == LIVE_MIGRATION_ON


def storage_folders(attribute: str) -> frozenset[str]:
    """The folders that such an attribute names."""
    return frozenset(folder.rstrip("/") for folder in attribute.split(SHARED_STORAGE_SEPARATOR) if folder)


def writable_disks(machine: Object) -> list[str]:
    """The paths of the disks that its guest can change. Kernels and read-only disks are not among them: they are the
    same wherever a machine is placed first, too."""
    start = as_mapping(MachineView(machine).spec.get("start"))
    disks = as_mappings(start.get("disks"))
    return [
        disk["path"] for disk in disks if _has_path(disk) and disk.get("readOnly") is not True and not _is_cloned(disk)
    ]


def local_parts(machine: Object, folders: Iterable[str]) -> list[str]:
    """What of a machine no other node has, in words. ``folders``: the shared storage of the node that last had it."""
    start = as_mapping(MachineView(machine).spec.get("start"))
    parts = local_disks(machine, folders)
    parts += ["its UEFI variables"] if as_mapping(start.get("firmware")).get("type") == "uefi" else []
    return parts + (["its TPM"] if start.get("tpm") is True else [])


def local_disks(machine: Object, folders: Iterable[str]) -> list[str]:
    """Those of them that are disks: while it runs, it takes the others along."""
    start = as_mapping(MachineView(machine).spec.get("start"))
    shared = frozenset(folders)
    parts = [f"its disk {path}" for path in writable_disks(machine) if not _is_below(path, shared)]
    disks = as_mappings(start.get("disks"))
    return parts + [f"its own disk made from {disk['path']}" for disk in disks if _has_path(disk) and _is_cloned(disk)]


def network_pool_names(documents: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """The pools among documents that every node reaches."""
    return frozenset(
        doc["metadata"]["name"]
        for doc in documents
        if doc.get("kind") == "DevicePool" and not as_mapping(doc.get("spec")).get("nodeName")
    )


def migration_obstacle(
    machine: Object,
    folders: Iterable[str],
    claims: Mapping[ClaimKey, Object],
    users: Mapping[ClaimKey, Sequence[MachineKey]],
    network_pools: Container[str],
) -> str:
    """What keeps a machine from moving while it runs, as far as objects say it; empty if nothing does.

    ``folders``: the shared storage of its node. ``claims``: all DeviceClaims. ``users``: ``claim_users`` of all
    machines. ``network_pools``: names of the pools that every node reaches.
    """
    view = MachineView(machine)
    start = as_mapping(view.spec.get("start"))
    if view.spec.get("adopt") is not None:
        return "the machine was adopted: the one who started its QEMU must move it"
    if isinstance(name := view.spec.get("nodeName"), str) and name:
        return f"spec.nodeName names node {name}; remove it"
    if obstacle := claim_obstacle(machine, claims, users, network_pools):
        return obstacle
    if parts := local_disks(machine, folders):
        return f"only its node has {' and '.join(parts)}"
    if any(disk.get("device") == "nvme" for disk in as_mappings(start.get("disks"))):
        return "QEMU cannot move disks with device nvme; use virtio"
    if any(nic.get("backend") == "warm" for nic in as_mappings(view.spec.get("nics"))):
        return "its network is a warm setup of its node"
    condition = view.condition(LIVE_MIGRATABLE)
    if condition.get("status") == "False":
        return str(condition.get("message") or condition.get("reason") or "its node says so")
    return ""


def is_migratability_unknown(machine: Object, claims: Mapping[ClaimKey, Object], network_pools: Container[str]) -> bool:
    """Whether a machine has devices of its node, and the node has not said yet whether QEMU can move it with them."""
    has_devices = bool(local_claims(machine, claims, network_pools))
    return has_devices and MachineView(machine).condition(LIVE_MIGRATABLE).get("status") not in ("True", "False")


@dataclass(frozen=True, slots=True)
class MigrationTargets:
    """The nodes that can have machines that run, as their host pools say it. Made once for many machines, so that these
    do not look at every node."""

    folders: Mapping[str, frozenset[str]]
    """The shared storage of each node that has published its capacity."""
    receiving: Mapping[frozenset[str], Sequence[str]]
    """The nodes that receive machines that run, by their shared storage."""

    @classmethod
    def of(cls, host_pools: Mapping[str, Mapping[str, Any]]) -> MigrationTargets:
        """``host_pools``: by node."""
        folders = {node: storage_folders(shared_storage(pool)) for node, pool in host_pools.items()}
        receiving: dict[frozenset[str], list[str]] = defaultdict(list)
        for node, pool in host_pools.items():
            if receives_machines(pool):
                receiving[folders[node]].append(node)
        return cls(folders, dict(receiving))

    def why_none_receives(self, source: str, target: str | None = None) -> str:
        """Why no node receives machines that run on ``source``, in words; empty if one does, or if ``target``, the only
        node that will do, has not published its capacity."""
        if target is not None:
            if target == source or target not in self.folders or target in self.receiving.get(self.folders[target], ()):
                return ""
            return f"node {target} receives no machines that run; start its plugin with --migration-address"
        if not self.folders.keys() - {source}:
            return "no other node has published its capacity for machines"
        if all(nodes == [source] for nodes in self.receiving.values()):
            return _NONE_RECEIVES
        return ""

    def why_none(self, machine: Object, source: str) -> str:
        """Why no other node can have a machine that runs, whatever there is room for; empty if one can."""
        if why := self.why_none_receives(source):
            return why
        here = self.folders.get(source, frozenset())
        others = (folders for folders, nodes in self.receiving.items() if nodes != [source])
        if any(reaches_disks(machine, here, there) for there in others):
            return ""
        return f"no other node that receives machines has the shared storage of node {source}, where its disks are"


def reaches_disks(machine: Object, here: Iterable[str], there: Iterable[str]) -> bool:
    """Whether the disks that a machine writes are in shared storage of both nodes."""
    both = frozenset(here) & frozenset(there)
    return all(_is_below(path, both) for path in writable_disks(machine))


def _attribute(host_pool: Mapping[str, Any] | None, name: str) -> str:
    """The text that an attribute of a pool has; empty without it."""
    spec = as_mapping(as_mapping(host_pool).get("spec"))
    for attribute in as_mappings(spec.get("attributes")):
        if attribute.get("name") == name and isinstance(value := attribute.get("stringValue"), str):
            return value
    return ""


def _has_path(disk: Mapping[str, Any]) -> bool:
    return isinstance(disk.get("path"), str)


def _is_cloned(disk: Mapping[str, Any]) -> bool:
    return isinstance(disk.get("clone"), str)


def _is_below(path: str, folders: frozenset[str]) -> bool:
    return any(path.startswith(f"{folder}/") for folder in folders)
