"""The loops on an embedded store, as ``devalloc up`` runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from devalloc.controller.host_inventory import InventorySource
from devalloc.program import Control, run
from devalloc.programs.store_loops import StoreProgress, store_program


class StoreLoops(Control):
    """``run`` them until ``stop``."""

    def __init__(self, path: Path, inventory: InventorySource | None, **content: Any) -> None:
        """``content``: of ``StoreProgress`` and ``store_program``."""
        super().__init__()
        shown = {name: content.pop(name) for name in ("on_round", "on_published", "on_granted") if name in content}
        self.progress = StoreProgress(**shown)
        self._path, self._inventory, self._content = path, inventory, content

    def run(self) -> None:
        run(store_program(self._path, self._inventory, progress=self.progress, **self._content), self)
