"""Files of /proc that are tables."""

from __future__ import annotations

from collections.abc import Collection

from devalloc.inventory.sysfs import Folder, Tree


def table(tree: Tree, *names: str) -> list[list[str]]:
    """The words of each line of a file below /proc; nothing where it cannot be read."""
    *folders, name = names
    place: Folder | None = tree.proc
    if place is not None and folders:
        place = place.folder(*folders)
    return [row.split() for row in ((place.text(name) if place else None) or "").splitlines() if row.strip()]


def first_unreadable(tree: Tree, files: Collection[str]) -> str | None:
    """The first of these files below /proc that is there and could not be read."""
    names = {fault.path.rpartition("/")[2] for fault in tree.faults if fault.path.startswith("/proc/")}
    return min(names & set(files), default=None)
