"""``devalloc drain``: cordon a node, and have its machines and claims leave it."""

from __future__ import annotations

from devalloc.cli.drain_run import drain_node
from devalloc.cli.options.places import StoreTarget


def drain(name: str, reason: str, dry_run: bool, force: bool, timeout: float, place: StoreTarget) -> int:
    return drain_node(name, reason, place, dry_run=dry_run, force=force, timeout=timeout)
