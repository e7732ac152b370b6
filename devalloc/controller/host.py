"""This host's devices, kept true in the store: published when they change, and again when somebody overwrites them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from devalloc.controller.availability import held_on
from devalloc.controller.claims import as_allocated
from devalloc.controller.publish import Published, Publisher
from devalloc.inventory import Discovery, Known, watch
from devalloc.inventory.events import EventSource
from devalloc.store import Expired, Store, Unusable

log = logging.getLogger(__name__)

_RETRY_SECONDS = 5.0


@dataclass(frozen=True)
class Inventory:
    """How this host's devices are found."""

    node_name: str
    discover: Callable[[Known], Discovery]
    """Takes what is known of the devices beside what the host shows."""


class Host:
    """Two loops, each to be run in a thread of its own: ``watch`` and ``repair``."""

    def __init__(
        self,
        store: Store,
        inventory: Inventory,
        source: EventSource,
        *,
        resync: float,
        on_published: Callable[[Published], None],
    ) -> None:
        """``resync``: seconds between looks at the devices without any event."""
        self.looked = threading.Event()
        """Set once the host's pools are published, or could not be."""
        self._store = store
        self._inventory = inventory
        self._on_published = on_published
        self._resync = resync
        self._publisher = Publisher(store, inventory.node_name)
        self._watcher = watch.InventoryWatcher(
            self._discover, self._publish, source=source, settings=watch.WatchSettings(resync=resync)
        )
        # From before the first publication, so that nothing done to our pools is missed.
        self._since = store.list([]).resource_version

    def rescan(self) -> None:
        """Look at the devices now and publish them. From any thread."""
        self._watcher.rescan(republish=True)

    def watch(self, stop: threading.Event) -> None:
        """Publish what the host has, whenever that changes."""
        self._watcher.run(stop)

    def repair(self, stop: threading.Event) -> None:
        """Publish again what somebody overwrote or deleted: at once where it is seen, now and then in any case."""
        while not stop.is_set():
            try:
                for event in self._store.watch("DevicePool", self._since, timeout=self._resync, stop=stop):
                    self._since = event.resource_version
                    if self._publisher.overwritten(event):
                        self.rescan()
                self.rescan()
            except Expired:
                self._since = self._store.list([]).resource_version
                self.rescan()
            except Unusable:
                raise
            except Exception:
                log.exception("could not watch the pools; trying again in %.0f s", _RETRY_SECONDS)
                stop.wait(_RETRY_SECONDS)

    def _discover(self) -> Discovery:
        try:
            documents = self._store.list(("DeviceClaim", "DeviceClass")).objects
            held = held_on(self._inventory.node_name, as_allocated(documents))
            return self._inventory.discover(Known(held))
        except BaseException:
            self.looked.set()  # the claims on other pools do not wait for this host to be readable
            raise

    def _publish(self, found: Discovery) -> None:
        try:
            errors = [problem for problem in found.problems if problem.is_error]
            if errors and not found.pools:
                # A host that cannot be read is not a host without devices.
                raise RuntimeError(f"found no devices, and left the published pools as they are: {errors[0]}")
            self._on_published(self._publisher.publish(found.pools))
        finally:
            self.looked.set()
