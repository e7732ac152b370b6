"""Cache the devices found by the last discovery; rediscover and republish them on request."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from devalloc.api.pool import DevicePool
from devalloc.inventory import DeviceRecords, Discovery, discover
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Failed
from devalloc_node.settings import NodeSettings


class InventoryCache:
    """Safe for threads."""

    def __init__(
        self, settings: NodeSettings, extend: Callable[[DeviceRecords], DeviceRecords], changed: Callable[[], None]
    ) -> None:
        """``extend`` adds what the node knows of its devices. ``changed`` is called after each look."""
        self._settings = settings
        self._extend = extend
        self._changed = changed
        self.pools: list[DevicePool] = []
        self.rescan: Callable[[], None] | None = None
        """Has the devices discovered and published soon, from any thread. None: nothing publishes them."""
        self._begun = self._done = 0
        """The last look that was begun, and that was done."""
        self._looked = threading.Condition()

    def discover(self, devices: DeviceRecords) -> Discovery:
        """The devices of the host, of which more is known than ``devices``: what is prepared, and what is withheld."""
        with self._looked:
            self._begun += 1
            number = self._begun
        config = replace(self._settings.inventory, records=self._extend(devices))
        config = replace(config, allowed=self._settings.bindings.allowed)
        discovery = discover(self._settings.root, node_name=self._settings.node_name, config=config)
        with self._looked:
            if discovery.pools or not any(problem.is_error for problem in discovery.problems):
                self.pools = discovery.pools
            self._done = max(self._done, number)
            self._looked.notify_all()
        self._changed()
        return discovery

    def look(self, deadline: Deadline) -> list[DevicePool]:
        """Look at the devices, publish them, and return them. Raises Failed where that was not done in time."""
        if self.rescan is None:
            return self.discover(DeviceRecords()).pools
        with self._looked:
            begun = self._begun  # one that is under way may have missed what this is asked for
            self.rescan()
            if not self._looked.wait_for(lambda: self._done > begun, deadline.seconds):
                raise Failed("DeadlineExceeded", "cannot observe the host's devices in time; try again")
            return self.pools

    def republish(self) -> None:
        """What is published of the devices is out of date."""
        if self.rescan is not None:
            self.rescan()
