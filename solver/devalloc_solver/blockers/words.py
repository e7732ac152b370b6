"""How the sentence of a reason says what is in the way."""

from __future__ import annotations

from collections.abc import Sequence

from devalloc_solver.blockers.edits import Edit
from devalloc_solver.holdings import Key

SHOWN = 6
"""Things in the way that the sentence names; the blockers name all of them."""


def remedy(edits: Sequence[Edit], claims: Sequence[Key]) -> str:
    """Such as "it fits without the pin to node n1 and once default/a is released"; empty for nothing in the way."""
    if not edits:
        return f"releasing {_names(claims)} would make room" if claims else ""
    words = [edit.words for edit in edits[:SHOWN]]
    if len(edits) > SHOWN:
        words.append(f"with {len(edits) - SHOWN} more changes")
    if claims:
        words.append(f"once {_names(claims)} {'is' if len(claims) == 1 else 'are'} released")
    return f"it fits {' and '.join(words)}"


def _names(claims: Sequence[Key]) -> str:
    names = ", ".join(f"{namespace}/{name}" for namespace, name in claims[:SHOWN])
    return names if len(claims) <= SHOWN else f"{names} and {len(claims) - SHOWN} more claims"


def joined(*parts: str) -> str:
    """The parts that say something, as one sentence."""
    return "; ".join(part for part in parts if part)


def devices(count: int) -> str:
    """Such as "1 device"."""
    return "1 device" if count == 1 else f"{count} devices"
