"""Phrases for the message of a reason."""

from __future__ import annotations

from collections.abc import Sequence

from devalloc_solver.explain.relaxations import Relaxation
from devalloc_solver.problem.allocations import Key

SHOWN = 6
"""Things in the way that the sentence names; the blockers name all of them."""


def describe_remedy(edits: Sequence[Relaxation], claims: Sequence[Key]) -> str:
    """Such as "it fits without the pin to node n1 and once default/a is released"; empty for nothing in the way."""
    if not edits:
        return f"releasing {_claim_names(claims)} would make room" if claims else ""
    words = [edit.words for edit in edits[:SHOWN]]
    if len(edits) > SHOWN:
        words.append(f"with {len(edits) - SHOWN} more changes")
    if claims:
        words.append(f"once {_claim_names(claims)} {'is' if len(claims) == 1 else 'are'} released")
    return f"it fits {' and '.join(words)}"


def _claim_names(claims: Sequence[Key]) -> str:
    names = ", ".join(f"{namespace}/{name}" for namespace, name in claims[:SHOWN])
    return names if len(claims) <= SHOWN else f"{names} and {len(claims) - SHOWN} more claims"


def join_sentences(*parts: str) -> str:
    """The parts that say something, as one sentence."""
    return "; ".join(part for part in parts if part)


def count_devices(count: int, free: str = "") -> str:
    """Such as "1 device", or "2 free devices"; ``free`` is the word before it."""
    return f"{count} {free}{'device' if count == 1 else 'devices'}"
