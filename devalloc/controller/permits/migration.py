"""Who moves machines to other nodes, if anybody does."""

from __future__ import annotations

from typing import Protocol

from devalloc.scaling.permits.ledger import Key


class Migrator(Protocol):
    """What can migrate a machine. Called from a thread of its own; whatever it raises is a failure."""

    def begin(self, key: Key, node: str) -> bool:
        """Have the machine leave its node. False: it is on its way already."""

    def withdraw(self, key: Key) -> None:
        """Have it stay after all; fine where nothing moves it."""
