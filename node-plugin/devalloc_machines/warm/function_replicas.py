"""Replicas of a function as machines: from what its deployment says to a VirtualMachineReplicaSet in warm setups.

Labels are those of OpenFaaS and of fcdaemon. As there, defaults replace counts and sizes that are not valid numbers;
``notes`` reports it. Anything else that is wrong is an error that says what is expected.
"""

from __future__ import annotations

import ipaddress
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from devalloc.api.decode import decode
from devalloc.api.meta import DEVALLOC
from devalloc.api.replica_set import MAX_REPLICAS as MOST
from devalloc.scaling.resources import Resources
from devalloc_machines.qemu.spec import MIB, CloneMode, Disk, DiskFormat, cpus_text, memory_text
from devalloc_machines.warm.setup import is_identifier
from devalloc_node.errors import Denied
from devalloc_node.model.grant import shown

MIN_REPLICAS, MAX_REPLICAS, ENVIRONMENTS = "com.openfaas.scale.min", "com.openfaas.scale.max", "execenvironment.count"
CPU, MEMORY = "com.openfaas.cpu", "com.openfaas.memory"
KEY_ID, SECRET = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"
IMAGE_SUFFIX = ":latest"
_NUMBERS = {MIN_REPLICAS: (0, 0), MAX_REPLICAS: (1, 20), ENVIRONMENTS: (1, 5), CPU: (1, 1), MEMORY: (1, 512)}
"""By label, the least that it may say, and what holds if it says no such number. Memory is in MiB."""
_MOST = (1 << 31) - 1
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_INTERFACE = re.compile(r"[^/\s:]{1,15}")
_WORD = re.compile(r"[^\s\x00-\x1f\x7f]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class ReplicaRequest:
    image: str
    kernel: str
    """Paths that a deployment names; whether a machine may have them is seen when it starts."""
    kernel_args: str
    """One space before, between and after."""
    vm_type: str
    initrd: str
    """Empty: none."""
    image_storage: str
    interface: str
    """The guest's; empty: the guest's choice."""
    nameserver: str
    size: Resources
    min_replicas: int
    max_replicas: int
    environments: int
    """Execution environments of each replica."""
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Environment of the replica's process, never a part of the kernel's arguments, which every process can read."""
    notes: tuple[str, ...] = ()
    """Labels whose default holds, for they say no number that can be."""


def replica_request(labels: Mapping[str, str], environment: Mapping[str, str], image: str) -> ReplicaRequest:
    """Raises Denied ``ReplicaInvalid`` with all that is wrong."""
    wrong: list[str] = []
    numbers = {label: number(labels, label) for label in _NUMBERS}
    least, most = numbers[MIN_REPLICAS][0], numbers[MAX_REPLICAS][0]
    if least > most:
        default = "" if MAX_REPLICAS in labels and not numbers[MAX_REPLICAS][1] else " by default"
        wrong.append(f"label {MIN_REPLICAS} ({least}) must not exceed {MAX_REPLICAS}, which is {most}{default}")
    kind = _label_text(labels, "VM_TYPE", "osv", is_identifier, "a word such as osv or linux", wrong)
    if not labels.get("KERNEL_IMAGE_PATH"):
        wrong.append("label KERNEL_IMAGE_PATH is missing: the path of the kernel that the replica boots")
    request = ReplicaRequest(
        image=_image(image, wrong),
        kernel=_label_text(labels, "KERNEL_IMAGE_PATH", "", _is_path, _PATH, wrong),
        kernel_args=_kernel_args(kind, labels.get("KERNEL_ARGS"), environment, wrong),
        vm_type=kind,
        initrd=_label_text(labels, "INITRD_PATH", "", _is_path, _PATH, wrong),
        image_storage=_label_text(labels, "IMAGE_STORAGE", "/var/run/osv-storage", _is_path, _PATH, wrong),
        interface=_label_text(labels, "INET_DEV", "", _is_interface, "the name of a network interface", wrong),
        nameserver=_label_text(labels, "NAMESERVER", "8.8.8.8", _is_address, "an IP address", wrong),
        size=Resources(numbers[CPU][0] * 1000, numbers[MEMORY][0] * MIB),
        min_replicas=least,
        max_replicas=most,
        environments=numbers[ENVIRONMENTS][0],
        credentials=_credentials(environment, wrong),
        notes=tuple(note for _, note in numbers.values() if note),
    )
    if wrong:
        raise Denied("ReplicaInvalid", "; ".join(wrong))
    return request


def number(labels: Mapping[str, str], label: str) -> tuple[int, str]:
    """What a label says, or its default, and why that holds though there is the label: empty if it does not."""
    least, default = _NUMBERS[label]
    text = labels.get(label)
    if text is None:
        return default, ""
    if _NUMBER.fullmatch(text) and least <= int(text) <= _MOST:
        return int(text), ""
    return default, f"label {label} must be a whole number from {least} to {_MOST}, not {shown(text)}: using {default}"


def image_name(image: str) -> str:
    """Without the tag that kubelets add if there is none: once, and no other tag."""
    return image.removesuffix(IMAGE_SUFFIX)


_PATH = "an absolute path without . or .. in it"


def _is_path(text: str) -> bool:
    return (
        text.startswith("/") and text.isprintable() and str(PurePosixPath(text)) == text and ".." not in text.split("/")
    )


def _is_interface(text: str) -> bool:
    return _INTERFACE.fullmatch(text) is not None and text not in (".", "..")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _label_text(
    labels: Mapping[str, str],
    label: str,
    default: str,
    fits: Callable[[str], bool],
    expected: str,
    wrong: list[str],
) -> str:
    """The label's text; its default if it is not there or empty."""
    text = labels.get(label) or default
    if text != default and not fits(text):
        wrong.append(f"label {label} must be {expected}, not {shown(text)}")
    return text


def _image(image: str, wrong: list[str]) -> str:
    name = image_name(image)
    if _WORD.fullmatch(name) is None:
        wrong.append(f"the image must be a name without spaces, not {shown(image)}")
    return name


def _kernel_args(kind: str, args: str | None, environment: Mapping[str, str], wrong: list[str]) -> str:
    """OSv reads its own options first, and takes the rest for the command; Linux has its arguments first."""
    if args is not None and not args.isprintable():
        wrong.append(f"label KERNEL_ARGS must be one line, not {shown(args)}")
    variables = []
    for name, value in sorted(environment.items()):
        if name in (KEY_ID, SECRET):
            continue
        if _VARIABLE.fullmatch(name) is None:
            wrong.append(f"invalid name of an environment variable: {shown(name)}")
        elif value and _WORD.fullmatch(value) is None:  # and its value may be a secret
            wrong.append(
                f"the variable {name} has spaces or control characters, which a kernel argument cannot contain"
            )
        variables.append(f"--env={name}={value}")
    own = ["--no-pci"] if args is None and kind == "osv" else (args or "").split()
    words = [*variables, *own] if kind == "osv" else [*own, *variables]
    return f" {' '.join(words)} " if words else ""


def _credentials(environment: Mapping[str, str], wrong: list[str]) -> Mapping[str, str]:
    credentials = {name: environment[name] for name in (KEY_ID, SECRET) if environment.get(name)}
    if len(credentials) == 1:
        there = next(iter(credentials))
        missing = SECRET if there == KEY_ID else KEY_ID
        wrong.append(f"the environment has {there} but not {missing}; set both or neither")
    return credentials


FUNCTION = "faas_function"
"""The label that says whose replica a machine is, as OpenFaaS has it."""
_BLOCK = 2
"""MiB that memory of machines comes in."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """What is to be applied, and what a manifest cannot say."""

    manifest: dict[str, Any]
    """A VirtualMachineReplicaSet."""
    notes: Sequence[str]


@dataclass(frozen=True, slots=True)
class OwnDisk:
    """The disk of each replica without an initrd."""

    clone: CloneMode = "overlay"
    most_bytes: int = 0
    """What it can take at most."""


def number_of(request: ReplicaRequest, *, replicas: int | None = None, requests: int | None = None) -> int:
    """How many replicas there are to be: those that are asked for, or as many as ``requests`` at the same time need,
    each having so many execution environments, within the bounds; the least if neither is said.

    Raises Denied ``ReplicaInvalid`` if more or fewer are asked for than there may be.
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
    request: ReplicaRequest,
    function: str,
    number: int,
    disk: OwnDisk,
    *,
    namespace: str = "default",
    node: str = "",
    guest_reports: bool = False,
) -> Replicas:
    """The set of ``number`` machines that is called like the function. If there is an initrd, the image is a disk
    that all of them read; else each has a disk of its own that begins as the image. ``guest_reports``: each is ready
    when its guest reports so. Raises Denied ``ReplicaInvalid``.
    """
    if number > MOST:
        raise Denied("ReplicaInvalid", f"replicas of a function must be at most {MOST}, got {number}")
    if problem := image_problem(request.image):
        raise Denied("ReplicaInvalid", problem)
    notes = list(request.notes)
    mib = request.size.memory // MIB
    memory = -(-mib // _BLOCK) * _BLOCK
    if memory != mib:
        notes.append(f"{mib} MiB of memory are rounded up to {memory}: machines need multiples of 2Mi")
    if request.credentials:
        notes.append(
            f"{', '.join(request.credentials)}: not in the manifest, which other users can read; give them "
            "to the guest in another way"
        )
    if request.interface:
        notes.append(f"INET_DEV {request.interface} has no effect: the guest's card is the one of its setup")
    template = _template(request, function, node, memory, disk)
    if guest_reports:
        template["spec"]["guestReports"] = True
    manifest = {
        "apiVersion": DEVALLOC,
        "kind": "VirtualMachineReplicaSet",
        "metadata": {"name": function, "namespace": namespace, "labels": {FUNCTION: function}},
        "spec": {"replicas": number, "template": template},
    }
    if wrong := [str(problem) for problem in decode(manifest).problems if problem.is_error]:
        raise Denied("ReplicaInvalid", "; ".join(wrong))
    return Replicas(manifest, notes)


def image_disk(request: ReplicaRequest, clone: CloneMode | None) -> Disk:
    """The disk of a replica. The name of the image says its format."""
    image_format: DiskFormat = "qcow2" if request.image.endswith(".qcow2") else "raw"
    if request.initrd:
        return Disk(request.image, image_format, read_only=True)
    return Disk(request.image, image_format, clone=clone)


def _template(request: ReplicaRequest, function: str, node: str, memory: int, own: OwnDisk) -> dict[str, Any]:
    cpus, size, disk = cpus_text(request.size.cpu), f"{memory}Mi", image_disk(request, own.clone)
    how = {"readOnly": True} if disk.read_only else {"clone": disk.clone}
    start = {
        "kernel": request.kernel,
        "initrd": request.initrd,
        "append": _append(request),
        "disks": [{"path": disk.path, "format": disk.format, **how}],
    }
    spec = {
        "nodeName": node,
        "cpu": {"min": cpus, "max": cpus},
        "memory": {"min": size, "max": size},
        "disk": "" if disk.read_only else memory_text(own.most_bytes),
        "start": {key: value for key, value in start.items() if value},
        "nics": [{"backend": "warm"}],
        "restartPolicy": "Never",
    }
    labels = {FUNCTION: function, ENVIRONMENTS: str(request.environments)}
    return {"metadata": {"labels": labels}, "spec": {key: value for key, value in spec.items() if value}}


def _append(request: ReplicaRequest) -> str:
    """With where the root is, which Linux without an initrd must be told."""
    words = request.kernel_args.split()
    is_root = request.vm_type == "linux" and not request.initrd
    root = ["root=/dev/vda", "rw"] if is_root and not any(word.startswith("root=") for word in words) else []
    return " ".join([*root, *words])


def image_problem(text: str) -> str:
    """Why it cannot be the path of an image on a node; empty if it can."""
    path = image_name(text)
    if path.startswith("/") and posixpath.normpath(path) == path and not path.endswith("/"):
        return ""
    return (
        f"the image must be the absolute path of a disk image on the node, not {shown(path)}: devalloc does not pull "
        "from registries"
    )
