"""The host's devices as they were last looked at; and having them looked at anew, and published."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from devalloc.api.pool import DevicePool
from devalloc.inventory import Discovery, Known, discover
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Failed
from devalloc_node.settings import NodeSettings


class Survey:
    """Safe for threads."""

    def __init__(self, settings: NodeSettings, known: Callable[[Known], Known], changed: Callable[[], None]) -> None:
        """``known`` adds what the node knows of its devices. ``changed`` is called after each look."""
        self._settings = settings
        self._known = known
        self._changed = changed
        self.pools: list[DevicePool] = []
        self.rescan: Callable[[], None] | None = None
        """Has the devices looked at and published soon, from any thread. None: nobody publishes them."""
        self._begun = self._done = 0
        """The last look that was begun, and that was done."""
        self._looked = threading.Condition()

    def discover(self, known: Known) -> Discovery:
        """The devices of the host, of which more is known than ``known``: what is prepared, and what is withheld."""
        with self._looked:
            self._begun += 1
            number = self._begun
        config = self._settings.inventory.knowing(self._known(known))
        config = replace(config, allowed=self._settings.bindings.allowed)
        found = discover(self._settings.root, node_name=self._settings.node_name, config=config)
        with self._looked:
            if found.pools or not any(problem.is_error for problem in found.problems):
                self.pools = found.pools
            self._done = max(self._done, number)
            self._looked.notify_all()
        self._changed()
        return found

    def look(self, deadline: Deadline) -> list[DevicePool]:
        """Look at the devices, publish them, and return them. Raises Failed where that was not done in time."""
        if self.rescan is None:
            return self.discover(Known()).pools
        with self._looked:
            begun = self._begun  # one that is under way may have missed what this is asked for
            self.rescan()
            if not self._looked.wait_for(lambda: self._done > begun, deadline.seconds):
                raise Failed("DeadlineExceeded", "the host's devices could not be looked at in time; ask again")
            return self.pools

    def republish(self) -> None:
        """What is published of the devices is out of date."""
        if self.rescan is not None:
            self.rescan()
