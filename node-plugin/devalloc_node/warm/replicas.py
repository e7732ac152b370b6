"""Replicas of a function as machines: from what its deployment says to VirtualMachine objects in warm setups."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from devalloc.api.decode import decode
from devalloc_node.errors import Denied
from devalloc_node.machine.spec import cpus_text
from devalloc_node.model.names import shown
from devalloc_node.warm.requests import ENVIRONMENTS, MAX_REPLICAS, MIN_REPLICAS, ReplicaRequest

FUNCTION = "faas_function"
"""The label that says whose replica a machine is, as OpenFaaS has it."""
MOST = 10_000
"""Replicas of a function: labels may say any number."""
_MIB = 1 << 20
_BLOCK = 2
"""MiB that memory of machines comes in."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """What is to be applied, and what a manifest cannot say."""

    manifests: Sequence[dict[str, Any]]
    """VirtualMachine objects, one for each replica."""
    notes: Sequence[str]


def number_of(request: ReplicaRequest, *, replicas: int | None = None, requests: int | None = None) -> int:
    """How many replicas there are to be: those that are asked for, or as many as ``requests`` at the same time need,
    each having so many execution environments, within the bounds; the least where neither is said.

    Raises Denied ``ReplicaInvalid`` where more or fewer are asked for than there may be.
    """
    least, most = request.min_replicas, request.max_replicas
    if requests is not None:
        return min(max(-(-requests // request.environments), least), most)
    if replicas is not None and not least <= replicas <= most:
        raise Denied(
            "ReplicaInvalid",
            f"replicas must be between {least} ({MIN_REPLICAS}) and {most} ({MAX_REPLICAS}), got {replicas}",
        )
    return least if replicas is None else replicas


def replicas_of(
    request: ReplicaRequest, function: str, number: int, *, namespace: str = "default", node: str = ""
) -> Replicas:
    """The machines ``function-1`` to ``function-number``. Where there is an initrd the image is a disk that all of them
    read; else each has a copy of its own, which must exist before it starts. Raises Denied ``ReplicaInvalid``."""
    if number > MOST:
        raise Denied("ReplicaInvalid", f"replicas of a function must be at most {MOST}, got {number}")
    if not _is_image_path(request.image):
        raise Denied(
            "ReplicaInvalid",
            f"the image must be the absolute path of a disk image on the node, not {shown(request.image)}: devalloc "
            "does not pull from registries",
        )
    notes = list(request.notes)
    mib = request.size.memory // _MIB
    memory = -(-mib // _BLOCK) * _BLOCK
    if memory != mib:
        notes.append(f"{mib} MiB of memory are rounded up to {memory}: machines need multiples of 2Mi")
    if request.credentials:
        notes.append(
            f"{', '.join(request.credentials)}: not in the manifests, which other users can read; give them "
            "to the guest in another way"
        )
    if request.interface:
        notes.append(f"INET_DEV {request.interface} has no effect: the guest's card is the one of its setup")
    manifests = []
    for each in range(1, number + 1):
        name = f"{function}-{each}"
        disk, copied = _disk(request, name)
        if copied is not None:
            folder, source, copy = map(shlex.quote, (posixpath.dirname(copied), request.image, copied))
            notes.append(f"before {name} starts: mkdir -p {folder} && cp --sparse=always {source} {copy}")
        manifests.append(_manifest(request, function, name, namespace, node, memory, disk))
    for manifest in manifests[:1]:
        if wrong := [str(problem) for problem in decode(manifest).problems if problem.is_error]:
            raise Denied("ReplicaInvalid", "; ".join(wrong))
    return Replicas(manifests, notes)


def _manifest(
    request: ReplicaRequest,
    function: str,
    name: str,
    namespace: str,
    node: str,
    memory: int,
    disk: dict[str, Any],
) -> dict[str, Any]:
    cpus, size = cpus_text(request.size.cpu), f"{memory}Mi"
    start = {"kernel": request.kernel, "initrd": request.initrd, "append": _append(request), "disks": [disk]}
    spec = {
        "nodeName": node,
        "cpu": {"min": cpus, "max": cpus},
        "memory": {"min": size, "max": size},
        "start": {key: value for key, value in start.items() if value},
        "nics": [{"backend": "warm"}],
    }
    labels = {FUNCTION: function, ENVIRONMENTS: str(request.environments)}
    return {
        "apiVersion": "devalloc.io/v1alpha1",
        "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {key: value for key, value in spec.items() if value},
    }


def _disk(request: ReplicaRequest, name: str) -> tuple[dict[str, Any], str | None]:
    """The replica's disk, and where its copy is to be, if it has one of its own."""
    if request.initrd:
        return {"path": request.image, "format": "raw", "readOnly": True}, None
    copy = posixpath.join(request.image_storage, name, PurePosixPath(request.image).name)
    return {"path": copy, "format": "raw"}, copy


def _append(request: ReplicaRequest) -> str:
    """With where the root is, which Linux without an initrd must be told."""
    words = request.kernel_args.split()
    is_root = request.vm_type == "linux" and not request.initrd
    root = ["root=/dev/vda", "rw"] if is_root and not any(word.startswith("root=") for word in words) else []
    return " ".join([*root, *words])


def _is_image_path(text: str) -> bool:
    return text.startswith("/") and posixpath.normpath(text) == text and not text.endswith("/")
