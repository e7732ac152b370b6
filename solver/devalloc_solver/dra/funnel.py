"""The funnel of a request: how many devices fell at which step (S19)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from devalloc_solver.dra.allocate import Manifest, prepare
from devalloc_solver.dra.candidates import Choice
from devalloc_solver.dra.inventory import Offer
from devalloc_solver.holdings import Ledger
from devalloc_solver.snapshot import Snapshot

SHOWN = 3
"""Examples per step."""


def explain(
    node: Manifest | str,
    claims: Iterable[Manifest],
    classes: Iterable[Manifest],
    slices: Iterable[Manifest],
    *,
    allocated: Manifest | None = None,
    features: Iterable[str] | None = None,
) -> dict[str, Any]:
    """What ``allocate`` saw: the funnel of each request, pools that cannot be used, and slices that were left out.

    Returns ``{"claims": [{namespace, name, requests: [funnel]}], "pools": [{name, state, why}], "ignored": [{name,
    why}]}``; a funnel has ``request, devices, steps: [{what, count, devices, example?}], matching, inUse, free``.

    Raises AllocationError as ``allocate`` does.
    """
    task = prepare(node, claims, classes, slices, allocated=allocated, features=features)
    if task is None:
        return {"claims": [], "pools": [], "ignored": []}
    ledger = Ledger.of(task.snapshot, task.holdings)
    return {
        "claims": [
            {
                "namespace": demand.claim.claim.namespace,
                "name": demand.claim.claim.name,
                "requests": [funnel(slot.spec, task.offers, task.snapshot, ledger) for slot in demand.slots],
            }
            for demand in task.unit.demands
        ],
        "pools": [{"name": p.title, "state": p.state.value, "why": p.why} for p in task.pools if p.why],
        "ignored": [{"name": ignored.name, "why": ignored.why} for ignored in task.ignored],
    }


def funnel(choice: Choice, offers: Sequence[Offer], snapshot: Snapshot, ledger: Ledger) -> dict[str, Any]:
    """What became of all devices that some node reaches, as one request sees them."""
    accepted = choice.candidates().accepted
    used = sum(1 for index in accepted if ledger.in_use(snapshot.devices[index]))
    return {
        "request": choice.ask.name,
        "devices": sum(1 for offer in offers if offer.nodes),
        "steps": [
            {"what": what, "count": count, "devices": names} | ({"example": why} if why else {})
            for what, count, names, why in steps(choice, offers)
        ],
        "matching": len(accepted),
        "inUse": used,
        "free": len(accepted) - used,
    }


def steps(choice: Choice, offers: Sequence[Offer]) -> list[tuple[str, int, list[str], str]]:
    """(step, devices, first names, what there is to say of the first of them)"""
    verdict = choice.verdict
    found: dict[str, list[tuple[int, str]]] = {what: [*fallen] for what, fallen in verdict.fallen.items()}
    for index, fall in verdict.blocked.items():
        found.setdefault(fall.what, []).append((index, fall.why))
    return [
        (what, len(fallen), [offers[index].title for index, _ in fallen[:SHOWN]], fallen[0][1])
        for what, fallen in found.items()
    ]


def sentence(funnel: Mapping[str, Any]) -> str:
    """Such as "of 8 devices 6 fail a selector of the class, 2 are in use"."""
    told = ", ".join(f"{step['count']} {step['what']}" for step in funnel["steps"])
    noun = "device" if funnel["devices"] == 1 else "devices"
    if not funnel["devices"]:
        return "there are no devices"
    return f"of {funnel['devices']} {noun} {told}" if told else f"all {funnel['devices']} {noun} match"
