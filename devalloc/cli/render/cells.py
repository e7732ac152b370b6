"""Cells that several tables and texts have: states in their colours, ages, amounts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from devalloc.api.conditions import DEVICE_LOST
from devalloc.api.meta import parse_time
from devalloc.api.quantity import NANO, Quantity
from devalloc.api.views import MigrationView, as_mapping
from devalloc.cli.render.output import Cell, StyledText

Object = dict[str, Any]
_STYLES = {
    **dict.fromkeys(("Allocated", "Prepared", "Running", "Succeeded", "Ready"), "green"),
    **dict.fromkeys((DEVICE_LOST, "Failed", "Unknown", "NotServed", "Lost", "Missing", "Fenced"), "red"),
    "Stopped": "",
}
"""Of the states of claims and nodes, and the phases of machines and migrations; all others are on their way."""
_UNITS = ((2**40, "Ti"), (2**30, "Gi"), (2**20, "Mi"), (2**10, "Ki"))


def state_cell(state: str) -> Cell:
    """The state or phase of any object, in its colour."""
    style = _STYLES.get(state, "yellow")
    return StyledText(state, style) if style else state


def age_cell(obj: Object) -> str:
    """How old an object is."""
    return ago(str(obj["metadata"].get("creationTimestamp") or ""))


def ago(moment: str) -> str:
    """How long ago a moment of an object was, as ``format_elapsed``; empty without one, or if it cannot be read."""
    try:
        return format_elapsed(parse_time(moment)) if moment else ""
    except ValueError:
        return ""


def format_elapsed(since: datetime) -> str:
    """How long ago a moment was, written like an age: 42s, 5m, 3h, 12d."""
    seconds = int((datetime.now(UTC) - since).total_seconds())
    for unit, size, limit in (("s", 1, 120), ("m", 60, 7200), ("h", 3600, 172800)):
        if seconds < limit:
            return f"{max(seconds, 0) // size}{unit}"
    return f"{seconds // 86400}d"


def amounts_cell(cpus: str, memory: str) -> str:
    """CPUs and memory: ``1500m 2Gi``; "-" for what is not known."""
    return f"{cpus or '-'} {memory or '-'}" if cpus or memory else "-"


def format_cores(milli: int) -> str:
    """Thousandths of a core as text: 1500m, 2."""
    return f"{milli}m" if milli % 1000 else str(milli // 1000)


def format_size(number: int) -> str:
    """Bytes as text: 512Mi, 1.5Gi; fractions of the unit are rounded to a tenth."""
    for factor, unit in _UNITS:
        if number >= factor:
            return f"{number // factor}{unit}" if number % factor == 0 else f"{number / factor:.1f}{unit}"
    return str(number)


def progress_text(migration: Object) -> str:
    """How much of a machine's memory was sent, and how long its guest stood still; empty if nothing is known."""
    progress = as_mapping(MigrationView(migration).status.get("progress"))
    parts = []
    sent, left = progress.get("transferred"), progress.get("remaining")
    if isinstance(sent, int) and isinstance(left, int) and (sent or left):
        parts.append(f"{format_size(sent)} sent, {format_size(left)} left")
    if (still := progress.get("downtimeSeconds")) is not None:
        seconds = Quantity.parse(still).nano / NANO
        parts.append(f"its guest stood still for {seconds:.3g} s")
    return "; ".join(parts)
