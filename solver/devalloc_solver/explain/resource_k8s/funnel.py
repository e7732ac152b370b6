"""The funnel of a ResourceClaim's request: how many devices drop out at which step (S19)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from devalloc_solver.dialects.resource_k8s.candidates import RequestCandidates
from devalloc_solver.dialects.resource_k8s.published_devices import PublishedDevice
from devalloc_solver.explain.funnel import ARE_EXCLUDED, count_unavailable
from devalloc_solver.problem.allocations import Usage
from devalloc_solver.problem.demand import Request
from devalloc_solver.problem.snapshot import Snapshot

SHOWN = 3
"""Examples per step."""
_STEPS_WITH_EXAMPLE = ("have a taint", "have too little", "do not offer", "are of a pool")
"""Steps of which the sentence gives the example: those of selectors are expressions, which the claim has itself."""


def make_funnel(
    request: Request, offers: Sequence[PublishedDevice], snapshot: Snapshot, ledger: Usage
) -> dict[str, Any]:
    """What became of all devices that some node reaches, as one request sees them; ``ledger``: all that is held now."""
    choice: RequestCandidates = request.spec
    accepted = request.candidates.accepted
    taken, excluded = count_unavailable(request, snapshot, accepted, ledger)
    return {
        "request": choice.ask.name,
        "devices": sum(1 for offer in offers if offer.nodes),
        "steps": [
            {"what": what, "count": count, "devices": names} | ({"example": why} if why else {})
            for what, count, names, why in funnel_steps(choice, offers)
        ],
        "matching": len(accepted),
        "inUse": len(taken),
        "excluded": excluded,
        "free": len(accepted) - len(taken) - excluded,
    }


def funnel_steps(choice: RequestCandidates, offers: Sequence[PublishedDevice]) -> list[tuple[str, int, list[str], str]]:
    """(step, devices, first names, what there is to say of the first of them)"""
    verdict = choice.verdict
    by_step: dict[str, list[tuple[int, str]]] = {what: [*fallen] for what, fallen in verdict.fallen.items()}
    for index, fall in verdict.blocked.items():
        by_step.setdefault(fall.what, []).append((index, fall.why))
    return [
        (what, len(fallen), [offers[index].title for index, _ in fallen[:SHOWN]], fallen[0][1])
        for what, fallen in by_step.items()
    ]


def describe_funnel(funnel: Mapping[str, Any], *, is_empty: bool = False) -> str:
    """Such as "of 8 devices 6 fail a selector of the class, 2 are in use"; ``is_empty``: where nothing is in use."""
    parts = [f"{step['count']} {step['what']}{_example(step)}" for step in funnel["steps"]]
    if funnel["excluded"] and not is_empty:
        parts.append(f"{funnel['excluded']} {ARE_EXCLUDED}")
    losses = ", ".join(parts)
    noun = "device" if funnel["devices"] == 1 else "devices"
    if not funnel["devices"]:
        return "there are no devices"
    return f"of {funnel['devices']} {noun} {losses}" if losses else f"all {funnel['devices']} {noun} match"


def _example(step: Mapping[str, Any]) -> str:
    return f" ({step['example']})" if "example" in step and step["what"].startswith(_STEPS_WITH_EXAMPLE) else ""
