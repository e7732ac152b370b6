"""VirtualMachines, and which claims are for them."""

from __future__ import annotations

from collections.abc import Iterable

from devalloc.api import summaries
from devalloc.controller.overview.model import AmountTexts, MachineSummary, as_mapping, as_mappings, safe_text, shorten
from devalloc.controller.reconcile.claims import ClaimKey
from devalloc.controller.reconcile.vm_scheduling.machines import (
    claim_names,
    machine_key,
    spec_of,
    status_of,
    virtual_machines_in,
)
from devalloc.store import Object


def machine_of_claims(documents: Iterable[Object]) -> dict[ClaimKey, str]:
    """The machine of each claim that a machine names; where several do, the first."""
    by_claim: dict[ClaimKey, str] = {}
    for machine in virtual_machines_in(documents):
        namespace, name = machine_key(machine)
        for claim in claim_names(machine):
            by_claim.setdefault((namespace, claim), name)
    return by_claim


def summarize_machine(doc: Object) -> MachineSummary:
    namespace, name = machine_key(doc)
    status = status_of(doc)
    devices = as_mappings(status.get("devices"))
    return MachineSummary(
        namespace=namespace,
        name=name,
        phase=safe_text(summaries.machine_phase, doc),
        node=safe_text(summaries.machine_node, doc),
        wanted=_wanted_amounts(doc),
        permitted=_amounts(status.get("permitted")),
        applied=_amounts(status.get("applied")),
        observed=_amounts(status.get("observed")),
        claims=tuple(map(shorten, claim_names(doc))),
        devices=tuple(shorten(f"{each.get('pool', '')}/{each.get('device', '')}") for each in devices),
        reason=shorten(status.get("reason", "")),
        message=shorten(status.get("message", "")),
        created=str(doc["metadata"].get("creationTimestamp", "")),
    )


def _wanted_amounts(machine: Object) -> AmountTexts:
    """What its node says that it wants; before that, what its spec says."""
    reported = _amounts(status_of(machine).get("wanted"))
    spec = spec_of(machine)
    cpu, memory = as_mapping(spec.get("cpu")), as_mapping(spec.get("memory"))
    return AmountTexts(
        reported.cpus or shorten(cpu.get("use", cpu.get("min", ""))),
        reported.memory or shorten(memory.get("use", memory.get("min", ""))),
    )


def _amounts(content: object) -> AmountTexts:
    amounts = as_mapping(content)
    return AmountTexts(*(shorten(amounts.get(name) or "") for name in ("cpus", "memory")))
