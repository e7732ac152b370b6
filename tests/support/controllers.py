"""A controller of a cluster, as its process runs it."""

from __future__ import annotations

from typing import Any

from devalloc.program import Control, run
from devalloc.programs.controller import ClusterProcess


class Controller(ClusterProcess):
    """``run`` it until ``stop``."""

    def __init__(self, *content: Any, **more: Any) -> None:
        super().__init__(*content, **more)
        self.control = Control()

    def run(self) -> None:
        run(self.program(), self.control)

    def stop(self) -> None:
        self.control.stop()
