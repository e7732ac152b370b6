"""What installed packages add: by entry points, a group for each registry."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any


def installed(group: str) -> tuple[Any, ...]:
    """Load what installed packages register in a group, in the order of their names."""
    return tuple(each.load() for each in sorted(entry_points(group=group), key=lambda each: each.name))
