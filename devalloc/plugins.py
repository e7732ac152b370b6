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


class BadPackage(Exception):
    """A package that adds to devalloc cannot be used. The message says why, and what to do."""

    def __init__(self, names: str, why: str) -> None:
        super().__init__(f"a package adds {names} to devalloc, but {why}; upgrade it or uninstall it")


def installed(group: str, of_type: type[Any] = object) -> tuple[Any, ...]:
    """Load what installed packages register in a group, in the order of its names. Raises BadPackage."""
    return tuple(load(each, of_type) for each in registered(group))


def load(one: EntryPoint, of_type: type[Any]) -> Any:
    """Load what an entry point names. Raises BadPackage, whatever the package raises."""
    try:
        value = one.load()
    except (Exception, SystemExit) as error:
        raise BadPackage(one.value, f"importing it fails: {type(error).__name__}: {error}") from error
    if not isinstance(value, of_type):
        raise BadPackage(one.value, f"it is no {of_type.__name__}")
    return value


def registered(group: str) -> list[EntryPoint]:
    """What installed packages register in a group, in the order of its names. Raises BadPackage."""
    if not any(map(_has_any, sys.path)):
        return []
    from importlib.metadata import entry_points  # takes 18 ms, and 5 more to read all packages

    try:
        entries = entry_points(group=group)
    except Exception as error:
        raise BadPackage(group, f"an entry_points.txt cannot be read: {type(error).__name__}: {error}") from error
    return sorted(entries, key=lambda each: (each.name, each.value))


def _has_any(folder: str) -> bool:
    """Whether a package in a folder of Python's path registers anything here."""
    with suppress(OSError), os.scandir(folder or ".") as entries:
        for entry in entries:
            if entry.name.endswith((".dist-info", ".egg-info")):
                with suppress(OSError), open(os.path.join(entry.path, "entry_points.txt"), "rb") as file:
                    if _ANY in file.read():
                        return True
    return False
