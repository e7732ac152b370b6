"""``devalloc warm replica``: a set of machines from the deployment of an OpenFaaS function."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

import click
from click.core import ParameterSource

from devalloc.api.fields import is_label, quote_value
from devalloc.api.manifests import load
from devalloc.api.quantity import NANO, Quantity, QuantityError
from devalloc.cli.command import BadInput
from devalloc.cli.render.output import print_objects
from devalloc.cli.storage import open_embedded_store
from devalloc.cli.terminal import print_line, print_note
from devalloc_machines.qemu.cloned_disks import most_bytes
from devalloc_machines.qemu.spec import CloneMode
from devalloc_machines.warm.function_replicas import (
    OwnDisk,
    ReplicaRequest,
    image_disk,
    image_problem,
    number_of,
    replica_request,
    replicas_of,
)
from devalloc_node.errors import Denied

MIB = 1 << 20


class ReplicaOptions(TypedDict):
    """What replicas are to be like."""

    replicas: int | None
    requests: int | None
    clone: CloneMode
    disk: str | None
    node: str
    guest_reports: bool


def replica(
    file: str, applies: bool, namespace: str, output: str, store: Path | None, **options: Unpack[ReplicaOptions]
) -> int:
    requests, clone = options["requests"], options["clone"]
    if options["replicas"] is not None and requests is not None:
        raise BadInput("give --replicas or --requests, not both")
    function = read_function(file)
    wrong = [*function.problems]
    try:
        request = replica_request(function.labels, function.environment, function.image)
    except Denied as error:
        wrong.append(error.message)
    if wrong:
        raise BadInput("; ".join(f"{file}: {each}" for each in wrong))
    try:
        number = number_of(request, replicas=options["replicas"], requests=requests)
        own = OwnDisk(clone, _disk_bytes(request, clone, options["disk"]))
        planned = replicas_of(
            request,
            function.name,
            number,
            own,
            namespace=namespace,
            node=options["node"],
            guest_reports=options["guest_reports"],
        )
    except Denied as error:
        raise BadInput(f"{file}: {error.message}") from None
    served = number * request.environments
    for text in (*function.notes, *planned.notes):
        print_note(f"note: {text}")
    if requests is not None and requests > served:
        print_note(f"note: {number} replicas of {request.environments} execution environments serve {served} requests "
             f"at the same time; {requests - served} of {requests} wait")  # fmt: skip
    if not number:
        print_note("note: the number of replicas is 0; use --replicas or --requests")
    if not applies:
        print_objects([planned.manifest], output)
        return 0
    from devalloc.cli.verbs.apply import apply_object

    with open_embedded_store(store, create=True) as objects:
        refusal, outcome = apply_object(objects, planned.manifest, dry_run=False)
    if refusal:
        print_note(f"error: {refusal}")
        return 1
    print_line(f"virtualmachinereplicaset/{function.name} {outcome}")
    return 0


def _disk_bytes(request: ReplicaRequest, clone: CloneMode, disk: str | None) -> int:
    """What the disk of a replica can take: as said, or what its image needs. Raises BadInput, Denied."""
    if request.initrd:
        source_of = click.get_current_context().get_parameter_source
        for name in ("disk", "clone"):
            if source_of(name) is not ParameterSource.DEFAULT:
                raise BadInput(
                    f"--{name} has no effect: with an initrd (label INITRD_PATH) all replicas read the image, and none "
                    f"has a disk of its own; leave out --{name}, or remove the label"
                )
        return 0
    if disk is not None:
        try:
            amount = Quantity.parse(disk)
        except QuantityError as error:
            raise BadInput(f"--disk: {error}") from None
        return -(-amount.nano // NANO)
    try:
        size = most_bytes(image_disk(request, clone), Path(request.image))
    except OSError as error:
        raise BadInput(
            f"cannot read the image {request.image} here: {error.strerror}; name the most that a replica's disk can "
            "take with --disk, such as --disk 2Gi"
        ) from None
    return -(-size // MIB) * MIB


_READ = ("service", "image", "labels", "envVars")


_MAX_NAME = 50
"""Characters of a service name; replica numbers are appended to it."""


_MAX_ERRORS = 10
"""How many errors of a file or folder a message contains."""


@dataclass(frozen=True, slots=True)
class OpenFaasFunction:
    name: str
    image: str
    labels: Mapping[str, str]
    environment: Mapping[str, str]
    notes: Sequence[str]
    """Fields of the deployment that replicas ignore."""
    problems: Sequence[str]
    """What is wrong with its fields, apart from what the labels and variables say."""


def read_function(file: str) -> OpenFaasFunction:
    """Read one from a file or ``-``. Raises BadInput if it contains none."""
    if Path(file).is_dir():
        raise BadInput(f"{file} is a folder; name the file of one deployment")
    manifests = load([file], stdin=sys.stdin.buffer if file == "-" else None)
    for warning in (problem for problem in manifests.problems if problem.severity == "warning"):
        print_note(str(warning))  # its text begins with "warning:"
    if errors := [str(problem) for problem in manifests.problems if problem.severity == "error"]:
        more = f"; and {len(errors) - _MAX_ERRORS} more" if len(errors) > _MAX_ERRORS else ""
        raise BadInput("; ".join(errors[:_MAX_ERRORS]) + more)
    if len(manifests.documents) != 1 or not isinstance(manifests.documents[0].content, dict):
        raise BadInput(f"{file} must contain one deployment of a function, with {', '.join(_READ)}, and nothing else")
    content: dict[str, Any] = manifests.documents[0].content
    wrong = []
    name, image = content.get("service"), content.get("image")
    if not isinstance(name, str) or not is_label(name) or len(name) > _MAX_NAME:
        wrong.append(
            f"service must be a DNS label in lower case of at most {_MAX_NAME} characters, not {quote_value(name)}"
        )
    if not isinstance(image, str):
        wrong.append(f"image must be the path of a disk image, not {quote_value(image)}")
    elif problem := image_problem(image):
        wrong.append(problem)
    labels, environment = (_text_map(content.get(key) or {}, key, wrong) for key in ("labels", "envVars"))
    notes = [f"replicas ignore {key} of the deployment" for key in content if key not in _READ]
    return OpenFaasFunction(str(name), str(image), labels, environment, notes, wrong)


def _text_map(value: object, where: str, wrong: list[str]) -> Mapping[str, str]:
    """A map of texts; YAML numbers without quotes become texts. Messages never contain the value of a variable."""
    if not isinstance(value, dict):
        wrong.append(f"{where} must be a map of strings")
        return {}
    texts = {}
    for name, text in value.items():
        if not isinstance(text, str | int) or isinstance(text, bool):
            wrong.append(f"{where}.{name} must be a string or a whole number")
        texts[str(name)] = str(text)
    return texts
