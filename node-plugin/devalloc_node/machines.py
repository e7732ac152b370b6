"""What parts of a node give to its machines."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from devalloc.inventory.capacity.machines import MachineUsage
from devalloc_node.machine.spec import SandboxProvider
from devalloc_node.parts import NodePart


class MachineHomes(NodePart):
    """A part that has places where machines start at once. A node has one at most."""

    homes: SandboxProvider | None = None
    """Who gives them; None: it has none to give."""
    lent: Path | None = None
    """The folder of machines that wait there, which who takes such a place may adopt."""

    def uses(self) -> Iterable[MachineUsage]:
        """What all that waits or lives there takes of the host."""
        return ()
