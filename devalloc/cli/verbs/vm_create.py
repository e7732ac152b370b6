"""``devalloc vm create``: machines of manifests, which no store has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from devalloc.api.virtual_machine import VirtualMachine
from devalloc.cli.command import BadInput, CommandFailed
from devalloc.cli.documents import read_manifests
from devalloc.cli.node_client import (
    connect_plugin,
    print_result,
)
from devalloc.cli.terminal import print_note
from devalloc_machines.service.spec_messages import fill
from devalloc_node.pb import node_pb2 as pb


def create(files: tuple[str, ...], namespace: str, socket: Path, timeout: float) -> int:
    documents = read_manifests(files, namespace)
    code = documents.exit_code
    machines = []
    for document in documents.good:
        if document.content["kind"] == "VirtualMachine":
            machines.append(document)
        else:
            print_note(
                f"error: {document.source}: `devalloc vm create` creates VirtualMachines only, not "
                f"{document.content['kind']}"
            )
            code = 2
    with connect_plugin(socket):
        pass  # if the plugin does not answer, report it only once
    for document in machines:
        manifest = document.content
        name = f"{manifest['metadata']['namespace']}/{manifest['metadata']['name']}"
        try:
            request = machine_request(manifest)
            with connect_plugin(socket) as node:
                ask = node.AdoptMachine if "adopt" in manifest["spec"] else node.CreateMachine
                result = ask(request, timeout=timeout).result
        except CommandFailed as error:
            print_note(f"error: {document.source}: machine {name}: {error.message}")
            code = max(code, error.exit_code)
        else:
            code = max(code, print_result(name, "adopted" if "adopt" in manifest["spec"] else "created", result))
    return code


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
