"""Read what a replica of a function should be from the labels and the environment of its deployment.

Labels are those of OpenFaaS and of fcdaemon. As there, defaults replace counts and sizes that are not valid numbers;
``notes`` reports it. Anything else that is wrong is an error that says what is expected.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from devalloc.scaling.resources import Resources
from devalloc_node.errors import Denied
from devalloc_node.model.names import shown
from devalloc_node.warm.setup import is_identifier

MIN_REPLICAS, MAX_REPLICAS, ENVIRONMENTS = "com.openfaas.scale.min", "com.openfaas.scale.max", "execenvironment.count"
CPU, MEMORY = "com.openfaas.cpu", "com.openfaas.memory"
KEY_ID, SECRET = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"
IMAGE_SUFFIX = ":latest"
_NUMBERS = {MIN_REPLICAS: (0, 0), MAX_REPLICAS: (1, 20), ENVIRONMENTS: (1, 5), CPU: (1, 1), MEMORY: (1, 512)}
"""By label, the least that it may say, and what holds where it says no such number. Memory is in MiB."""
_MOST = (1 << 31) - 1
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_INTERFACE = re.compile(r"[^/\s:]{1,15}")
_WORD = re.compile(r"[^\s\x00-\x1f\x7f]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MIB = 1 << 20


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
        size=Resources(numbers[CPU][0] * 1000, numbers[MEMORY][0] * _MIB),
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
    """What a label says, or its default, and why that holds though there is the label: empty where it does not."""
    least, default = _NUMBERS[label]
    text = labels.get(label)
    if text is None:
        return default, ""
    if _NUMBER.fullmatch(text) and least <= int(text) <= _MOST:
        return int(text), ""
    return default, f"label {label} must be a whole number of at least {least}, not {shown(text)}: using {default}"


def image_name(image: str) -> str:
    """Without the tag that kubelets add where there is none: once, and no other tag."""
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
    """The label's text; its default where it is not there or empty."""
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
