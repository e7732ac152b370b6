"""The funnel of a request: how many devices fell at which step (S19)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from devalloc_solver.demand import Slot
from devalloc_solver.dra.candidates import Choice
from devalloc_solver.dra.inventory import Offer
from devalloc_solver.funnel import ARE_EXCLUDED, unavailable
from devalloc_solver.holdings import Ledger
from devalloc_solver.snapshot import Snapshot

SHOWN = 3
"""Examples per step."""
_SHORT = ("have a taint", "have too little", "do not offer", "are of a pool")
"""Steps of which the sentence gives the example: those of selectors are expressions, which the claim has itself."""


def funnel(slot: Slot, offers: Sequence[Offer], snapshot: Snapshot, ledger: Ledger) -> dict[str, Any]:
    """What became of all devices that some node reaches, as one request sees them; ``ledger``: all that is held now."""
    choice: Choice = slot.spec
    accepted = slot.candidates.accepted
    taken, excluded = unavailable(slot, snapshot, accepted, ledger)
    return {
        "request": choice.ask.name,
        "devices": sum(1 for offer in offers if offer.nodes),
        "steps": [
            {"what": what, "count": count, "devices": names} | ({"example": why} if why else {})
            for what, count, names, why in steps(choice, offers)
        ],
        "matching": len(accepted),
        "inUse": len(taken),
        "excluded": excluded,
        "free": len(accepted) - len(taken) - excluded,
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


def sentence(funnel: Mapping[str, Any], *, is_empty: bool = False) -> str:
    """Such as "of 8 devices 6 fail a selector of the class, 2 are in use"; ``is_empty``: where nothing is in use."""
    parts = [f"{step['count']} {step['what']}{_example(step)}" for step in funnel["steps"]]
    if funnel["excluded"] and not is_empty:
        parts.append(f"{funnel['excluded']} {ARE_EXCLUDED}")
    told = ", ".join(parts)
    noun = "device" if funnel["devices"] == 1 else "devices"
    if not funnel["devices"]:
        return "there are no devices"
    return f"of {funnel['devices']} {noun} {told}" if told else f"all {funnel['devices']} {noun} match"


def _example(step: Mapping[str, Any]) -> str:
    return f" ({step['example']})" if "example" in step and step["what"].startswith(_SHORT) else ""
