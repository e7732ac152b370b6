"""This host's devices, kept true in ResourceSlices: the inventory is watched, and so is what becomes of the slices."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from devalloc.api.aside import ALLOCATOR, DEVALLOC, set_aside
from devalloc.api.pool import DevicePool
from devalloc.inventory import Discovery
from devalloc.inventory.events import EventSource
from devalloc.inventory.watch import InventoryWatcher, WatchSettings
from devalloc.store.kubernetes.client import ApiError, Client, segment
from devalloc_node.kube.publisher import SlicePublisher

log = logging.getLogger(__name__)


class NodeSlices:
    """Loops to be run in threads of their own, and a rescan."""

    def __init__(
        self,
        client: Client,
        driver: str,
        node: str,
        discover: Callable[[], Discovery],
        events: EventSource,
        *,
        resync: float = 60.0,
        failed: Callable[[], None] = lambda: None,
        held: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """``resync``: seconds between looks at the devices without any event. ``failed``: called for each look or
        publication that failed. ``held``: the pools of what is prepared, as its claims call them."""
        self._client = client
        self._path = f"/api/v1/nodes/{segment(node)}"
        self._held = held
        self._resync = resync
        self._aside: bool | None = None
        """As it was when the devices were published last."""
        self.publisher = SlicePublisher(client, driver, node, failed=failed)
        settings = WatchSettings(resync=resync)
        self._watcher = InventoryWatcher(discover, self._publish, source=events, settings=settings, failed=failed)

    @property
    def loops(self) -> tuple[Callable[[threading.Event], None], ...]:
        return self._watcher.run, self._mind_label, *self.publisher.loops

    def rescan(self) -> None:
        """Look at the devices now and publish them. From any thread or signal handler."""
        self._watcher.rescan(republish=True)

    def _publish(self, found: Discovery) -> None:
        errors = [problem for problem in found.problems if problem.is_error]
        if errors and not found.pools:
            # A host that cannot be read is not a host without devices.
            raise RuntimeError(f"found no devices, and left the published slices as they are: {errors[0]}")
        self._aside = aside = self._is_set_aside()
        held = frozenset(self._held())
        self.publisher.set([_named(pool, held, aside=aside) for pool in found.pools])

    def _mind_label(self, stop: threading.Event) -> None:
        """Publish anew when the node's label has changed."""
        while not stop.wait(self._resync):
            try:
                if self._aside is not None and self._is_set_aside() != self._aside:
                    self.rescan()
            except ApiError as error:
                log.debug("the labels of the node cannot be read: %s", error)

    def _is_set_aside(self) -> bool:
        """Whether the node's label leaves its devices to devalloc's controller. Raises ApiError."""
        try:
            labels = self._client.get(self._path)["metadata"].get("labels") or {}
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            return False  # as with somebody's own rights
        return bool(labels.get(ALLOCATOR) == DEVALLOC)


def _named(pool: DevicePool, held: frozenset[str], *, aside: bool) -> DevicePool:
    """The pool by the name that tells its allocator. As long as something of it is prepared that is the one whose
    claims hold it: only what is free changes hands (T1)."""
    free, theirs = pool.metadata.name, set_aside(pool.metadata.name)
    wanted, other = (theirs, free) if aside else (free, theirs)
    name = other if other in held else wanted
    return pool.model_copy(update={"metadata": pool.metadata.model_copy(update={"name": name})})
