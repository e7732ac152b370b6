"""Errors of the pool."""

from __future__ import annotations

from devalloc_node.errors import Denied
from devalloc_node.model.names import shown


class NotEnoughSetups(Denied):
    """There is not enough now, and there may be soon: the same request may succeed later. Nothing was changed."""

    def __init__(self, short: str, message: str) -> None:
        """``short``: what there is not enough of, such as ``setups`` or ``cpus``."""
        super().__init__("TryAgain", message, retryable=True)
        self.short = short


class SetupNotTaken(Denied):
    """A setup was to be given back that has no owner: it never existed, or was given back already."""

    def __init__(self, setup: str) -> None:
        super().__init__(
            "SetupNotTaken",
            f"setup {shown(setup)} is not taken: it was given back already, or this node has no setup with that id",
        )
