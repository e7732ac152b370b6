"""VirtualMachines, and which claims are for them."""

from __future__ import annotations

from collections.abc import Iterable

from devalloc.api import inwords
from devalloc.controller.claims import ClaimKey
from devalloc.controller.overview.facts import Amounts, Machine
from devalloc.controller.overview.words import mapping, mappings, said, short
from devalloc.controller.placing.machines import claim_names, machine_key, machines_among, spec_of, status_of
from devalloc.store import Object


def users(documents: Iterable[Object]) -> dict[ClaimKey, str]:
    """The machine of each claim that a machine names; where several do, the first."""
    found: dict[ClaimKey, str] = {}
    for machine in machines_among(documents):
        namespace, name = machine_key(machine)
        for claim in claim_names(machine):
            found.setdefault((namespace, claim), name)
    return found


def machine(doc: Object) -> Machine:
    namespace, name = machine_key(doc)
    status = status_of(doc)
    devices = mappings(status.get("devices"))
    return Machine(
        namespace=namespace,
        name=name,
        phase=said(inwords.machine_phase, doc),
        node=said(inwords.machine_node, doc),
        wanted=_wanted(doc),
        permitted=_amounts(status.get("permitted")),
        applied=_amounts(status.get("applied")),
        observed=_amounts(status.get("observed")),
        claims=tuple(map(short, claim_names(doc))),
        devices=tuple(short(f"{each.get('pool', '')}/{each.get('device', '')}") for each in devices),
        reason=short(status.get("reason", "")),
        message=short(status.get("message", "")),
        created=str(doc["metadata"].get("creationTimestamp", "")),
    )


def _wanted(machine: Object) -> Amounts:
    """What its node says that it wants; before that, what its spec says."""
    told = _amounts(status_of(machine).get("wanted"))
    spec = spec_of(machine)
    cpu, memory = mapping(spec.get("cpu")), mapping(spec.get("memory"))
    return Amounts(
        told.cpus or short(cpu.get("use", cpu.get("min", ""))),
        told.memory or short(memory.get("use", memory.get("min", ""))),
    )


def _amounts(content: object) -> Amounts:
    found = mapping(content)
    return Amounts(*(short(found.get(name) or "") for name in ("cpus", "memory")))
