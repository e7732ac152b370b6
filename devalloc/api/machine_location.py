"""What ties a machine to the node that last had it: disks that it writes, its UEFI variables, its TPM; and which other
nodes reach its disks, as their admins say.

Reads manifests tolerantly: what has another type than the API's is not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from devalloc.api.host_pool_names import SHARED_STORAGE, SHARED_STORAGE_SEPARATOR
from devalloc.api.views import MachineView, as_mapping, as_mappings


def shared_storage(host_pool: Mapping[str, Any] | None) -> str:
    """The attribute of a node's host pool that names its shared storage; empty without any."""
    spec = as_mapping(as_mapping(host_pool).get("spec"))
    for attribute in as_mappings(spec.get("attributes")):
        if attribute.get("name") == SHARED_STORAGE and isinstance(value := attribute.get("stringValue"), str):
            return value
    return ""


def storage_folders(attribute: str) -> frozenset[str]:
    """The folders that such an attribute names."""
    return frozenset(folder.rstrip("/") for folder in attribute.split(SHARED_STORAGE_SEPARATOR) if folder)


def writable_disks(machine: Mapping[str, Any]) -> list[str]:
    """The paths of the disks that its guest can change. Kernels and read-only disks are not among them: they are the
    same wherever a machine is placed first, too."""
    start = as_mapping(MachineView(machine).spec.get("start"))
    disks = as_mappings(start.get("disks"))
    return [disk["path"] for disk in disks if isinstance(disk.get("path"), str) and disk.get("readOnly") is not True]


def local_parts(machine: Mapping[str, Any], folders: Iterable[str]) -> list[str]:
    """What of a machine no other node has, in words. ``folders``: the shared storage of the node that last had it."""
    start = as_mapping(MachineView(machine).spec.get("start"))
    shared = frozenset(folders)
    parts = [f"its disk {path}" for path in writable_disks(machine) if not _is_below(path, shared)]
    parts += ["its UEFI variables"] if as_mapping(start.get("firmware")).get("type") == "uefi" else []
    return parts + (["its TPM"] if start.get("tpm") is True else [])


def reaches_disks(machine: Mapping[str, Any], here: Iterable[str], there: Iterable[str]) -> bool:
    """Whether the disks that a machine writes are in shared storage of both nodes."""
    both = frozenset(here) & frozenset(there)
    return all(_is_below(path, both) for path in writable_disks(machine))


def _is_below(path: str, folders: frozenset[str]) -> bool:
    return any(path.startswith(f"{folder}/") for folder in folders)
