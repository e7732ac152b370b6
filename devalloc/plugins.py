"""What installed packages add to devalloc: by entry points, a group for each registry."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

KINDS = "devalloc.kinds"
"""Rows of ``devalloc.api.kinds.API_KINDS``, in modules that import ``devalloc.api.api_kind`` only."""
NODE_PARTS = "devalloc.node_parts"
"""Functions of a node that return a ``devalloc_node.parts.NodePart``."""
REQUESTERS = "devalloc.requesters"
"""Each a ``devalloc.controller.reconcile.requester.Requester``."""
VERBS = "devalloc.verbs"
"""Functions under ``devalloc.cli.command.verb``, by the name of the verb."""
_ANY = b"[devalloc."


def installed(group: str) -> tuple[Any, ...]:
    """Load what installed packages register in a group, in the order of its names."""
    return tuple(each.load() for each in registered(group).values())


def registered(group: str) -> dict[str, EntryPoint]:
    """What installed packages register in a group, by name and in that order."""
    if not any(map(_has_any, sys.path)):
        return {}
    from importlib.metadata import entry_points  # takes 15 ms, and as long again to read all packages

    return {each.name: each for each in sorted(entry_points(group=group), key=lambda each: each.name)}


def _has_any(folder: str) -> bool:
    """Whether a package in a folder of Python's path registers anything here."""
    with suppress(OSError), os.scandir(folder or ".") as entries:
        for entry in entries:
            if entry.name.endswith((".dist-info", ".egg-info")):
                with suppress(OSError), open(os.path.join(entry.path, "entry_points.txt"), "rb") as file:
                    if _ANY in file.read():
                        return True
    return False
