"""``devalloc fence`` and ``unfence``: state that a lost node is powered off, and that it is back."""

from __future__ import annotations

from devalloc.cli.fence_run import fence_node, unfence_node
from devalloc.cli.options.places import StoreTarget


def fence(name: str, reason: str, dry_run: bool, yes: bool, timeout: float, place: StoreTarget) -> int:
    return fence_node(name, reason, place, dry_run=dry_run, yes=yes, timeout=timeout)


def unfence(name: str, place: StoreTarget) -> int:
    return unfence_node(name, place)
