"""How migrations of machines are shown."""

from __future__ import annotations

from typing import Any

from devalloc.api.quantity import NANO, Format, Quantity
from devalloc.api.views import MigrationView, as_mapping

MIB = 2**20


def progress_text(migration: dict[str, Any]) -> str:
    """How much of the machine's memory was sent, and how long its guest stood still; empty if nothing is known."""
    progress = as_mapping(MigrationView(migration).status.get("progress"))
    parts = []
    sent, left = progress.get("transferred"), progress.get("remaining")
    if isinstance(sent, int) and isinstance(left, int) and (sent or left):
        parts.append(f"{_size(sent)} sent, {_size(left)} left")
    if (still := progress.get("downtimeSeconds")) is not None:
        seconds = Quantity.parse(still).nano / NANO
        parts.append(f"its guest stood still for {seconds:.3g} s")
    return "; ".join(parts)


def _size(count: int) -> str:
    return str(Quantity(-(-count // MIB) * MIB * NANO, Format.BINARY_SI))
