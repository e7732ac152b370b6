"""Requests to the node plugin: from a VirtualMachine, with amounts as numbers, and from the deployment of an OpenFaaS
function."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devalloc.api.fields import is_label, quote_value
from devalloc.api.virtual_machine import VirtualMachine
from devalloc.cli.command import BadInput
from devalloc.cli.terminal import print_note
from devalloc_machines.service.spec_messages import fill
from devalloc_node.pb import node_pb2 as pb

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
    from devalloc.api.manifests import load
    from devalloc_machines.warm.function_replicas import image_problem

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


def machine_request(manifest: dict[str, Any]) -> pb.CreateMachineRequest | pb.AdoptMachineRequest:
    """The request that creates or adopts the machine of a valid manifest. Raises BadInput if it should not run."""
    machine = VirtualMachine.model_validate(manifest)
    spec = machine.spec
    if not spec.running:
        raise BadInput("spec.running is false, so there is nothing to create")
    ref = pb.MachineRef(namespace=machine.namespace, name=machine.metadata.name)
    claims = [pb.ClaimRef(namespace=machine.namespace, name=name) for name in spec.claims]
    if spec.adopt is not None:
        adopt = pb.AdoptMachineRequest(machine=ref, qmp_socket=spec.adopt.qmp_socket, claims=claims)
        fill(adopt, spec)
        return adopt
    create = pb.CreateMachineRequest(machine=ref, claims=claims)
    fill(create.spec, spec)
    return create
