"""This host's devices, kept true in ResourceSlices: the inventory is watched, and so is what becomes of the slices."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from devalloc.api.dedicated_pools import dedicated_pool_name
from devalloc.api.pool import DevicePool
from devalloc.inventory import Discovery
from devalloc.inventory.watch import EventSource, InventoryWatcher, WatchSettings
from devalloc.store.kubernetes.client import Client
from devalloc_node.kube.publisher import SlicePublisher


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
        aside: bool = False,
        held: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """``resync``: seconds between looks at the devices without any event. ``failed``: called for each look or
        publication that failed. ``aside``: the devices are set aside for devalloc's controller. ``held``: the pools of
        what is prepared, as its claims call them."""
        self._aside = aside
        self._held = held
        self.publisher = SlicePublisher(client, driver, node, failed=failed)
        settings = WatchSettings(resync=resync)
        self._watcher = InventoryWatcher(discover, self._publish, source=events, settings=settings, failed=failed)

    @property
    def loops(self) -> tuple[Callable[[threading.Event], None], ...]:
        return self._watcher.run, *self.publisher.loops

    def rescan(self) -> None:
        """Look at the devices now and publish them. From any thread or signal handler."""
        self._watcher.rescan(republish=True)

    def _publish(self, discovery: Discovery) -> None:
        errors = [problem for problem in discovery.problems if problem.is_error]
        if errors and not discovery.pools:
            # A host that cannot be read is not a host without devices.
            raise RuntimeError(f"found no devices, and left the published slices as they are: {errors[0]}")
        held = frozenset(self._held())
        self.publisher.set([_named(pool, held, aside=self._aside) for pool in discovery.pools])


def _named(pool: DevicePool, held: frozenset[str], *, aside: bool) -> DevicePool:
    """The pool by the name that tells its allocator. As long as something of it is prepared that is the one whose
    claims hold it: only what is free changes hands (T1)."""
    free, theirs = pool.metadata.name, dedicated_pool_name(pool.metadata.name)
    wanted, other = (theirs, free) if aside else (free, theirs)
    name = other if other in held else wanted
    return pool.model_copy(update={"metadata": pool.metadata.model_copy(update={"name": name})})
