"""Keep this host's devices up to date in the store: publish them when they change, and again when others overwrite
them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from devalloc.api.decode import decode
from devalloc.api.pool import DevicePool
from devalloc.api.problems import Problem, errors
from devalloc.api.views import MachineView
from devalloc.api.virtual_machine import VirtualMachine
from devalloc.controller.pool_publisher import PoolPublisher, PublishLock, PublishResult
from devalloc.controller.reconcile.availability import device_names_held_on
from devalloc.controller.reconcile.stored_claims import effective_documents
from devalloc.inventory import watch
from devalloc.inventory.capacity import CapacityConfig, CapacityError, discover_capacity, host_pool
from devalloc.inventory.capacity.status import DiskUsageSources, UsageUnknown, stored_bytes
from devalloc.inventory.capacity.stored import reserved_in_stores, stores_of
from devalloc.inventory.config import DeviceRecords
from devalloc.inventory.discover import Discovery
from devalloc.inventory.watch import EventSource
from devalloc.store import Event, Store, StoreError
from devalloc.store.watcher import Listed, Watcher
from devalloc.worker import repeat, when_set

log = logging.getLogger(__name__)

DiscoverFunction = Callable[[DeviceRecords], Discovery]

_LOCK_POLL_SECONDS = 1.0
"""How long it may take until another process stops publishing, or begins."""


@dataclass(frozen=True)
class InventorySource:
    """How this host's devices are found."""

    node_name: str
    discover: Callable[[DeviceRecords], Discovery]
    """Takes what is known of the devices beside what the host shows."""
    standalone: bool = True
    """It is that of `devalloc up`, which marks its pools (``PoolPublisher``)."""
    with_plugin: bool = False
    """The same process runs the node's plugin, which knows what is prepared and what is withheld."""
    previous_name: str | None = None
    """Under which name this host's node plugin last served; None: none has."""


class HostInventory:
    """Two loops, each to be run in a thread of its own: ``watch`` and ``repair``."""

    def __init__(
        self,
        store: Store,
        inventory: InventorySource,
        source: EventSource,
        turn: PublishLock,
        *,
        resync: float,
        on_published: Callable[[PublishResult], None],
        on_failed: Callable[[], None] = lambda: None,
        owner: Callable[[], Mapping[str, Any] | None] = lambda: None,
    ) -> None:
        """``resync``: seconds between looks at the devices without any event. ``on_failed``: called for each look or
        publication that failed. ``owner``: of the pools (``PoolPublisher``)."""
        self.looked = threading.Event()
        """Set once the host's pools are published, or could not be."""
        self._turn = turn
        self._publishes = threading.Event()
        self._store = store
        self._inventory = inventory
        self._on_published = on_published
        self._resync = resync
        self._publisher = PoolPublisher(store, inventory.node_name, owner, standalone=inventory.standalone)
        self._watcher = watch.InventoryWatcher(
            self._discover,
            self._publish,
            source=source,
            settings=watch.WatchSettings(resync=resync),
            failed=on_failed,
            expected=(StoreError,),
        )
        # From before the first publication, so that nothing done to our pools is missed.
        self._since = store.list([]).resource_version

    def rescan(self) -> None:
        """Look at the devices now and publish them. From any thread."""
        self._watcher.rescan(republish=True)

    def watch(self, stop: threading.Event) -> None:
        """Publish what the host has, whenever that changes, while it is our turn."""
        is_logged = False

        def take_turn() -> float:
            nonlocal is_logged
            if not self._turn.acquire():
                if not is_logged:
                    log.warning("another process publishes the devices of node %s", self._inventory.node_name)
                is_logged = True
                self.looked.set()
                return _LOCK_POLL_SECONDS
            self._publishes.set()
            try:
                self._watch_until_yield_requested(stop)
            finally:
                self._publishes.clear()
                self._turn.release()
            return 0.0

        repeat(stop, take_turn, _LOCK_POLL_SECONDS, "cannot publish the devices", fatal=(Exception,))

    def _watch_until_yield_requested(self, stop: threading.Event) -> None:
        over = threading.Event()

        def look() -> None:
            if self._turn.is_yield_requested():
                log.warning("the node plugin publishes the devices of node %s from here on", self._inventory.node_name)
                over.set()

        what, pause = "cannot look whose turn it is to publish", _LOCK_POLL_SECONDS
        looking = threading.Thread(target=partial(repeat, over, look, pause, what, delay=pause), daemon=True)
        looking.start()
        when_set(stop, over.set)
        self._watcher.rescan(republish=True)  # others may have published since
        try:
            self._watcher.run(over)
        finally:
            over.set()
            looking.join()

    def repair(self, stop: threading.Event) -> None:
        """Publish again what others overwrote or deleted: at once if an event shows it, and now and then in any
        case."""
        what, since, relist = "could not watch the pools", self._since, self._resync
        Watcher(self._store, "DevicePool", self._hear, what, lists=False, since=since, relist=relist).run(stop)

    def _hear(self, change: Listed | Event) -> None:
        if isinstance(change, Listed) or (self._publishes.is_set() and self._publisher.is_overwritten(change)):
            self.rescan()

    def _discover(self) -> Discovery:
        try:
            documents = self._store.list(("DeviceClaim", "DeviceClass", "VirtualMachine")).objects
            held = device_names_held_on(self._inventory.node_name, effective_documents(documents))
            return self._inventory.discover(DeviceRecords(held))
        except BaseException:
            self.looked.set()  # the claims on other pools do not wait for this host to be readable
            raise

    def _publish(self, discovery: Discovery) -> None:
        try:
            faults = errors(discovery.problems)
            if faults and not discovery.pools:
                # A host that cannot be read is not a host without devices.
                raise RuntimeError(f"found no devices, and left the published pools as they are: {faults[0]}")
            self._on_published(self._publisher.publish(discovery.pools))
        finally:
            self.looked.set()


def with_host_pool(
    look: DiscoverFunction,
    root: Path,
    node_name: str,
    config: CapacityConfig,
    shared_storage: Sequence[str] = (),
    machines: Callable[[], Iterable[VirtualMachine]] = tuple,
    *,
    live_migration: bool = False,
) -> DiscoverFunction:
    """Extend ``look`` to find the host's pool, too.

    ``shared_storage``: folders that are the same on all nodes that name them. ``machines``: those of this node, whose
    reservations of disk count against the pool; raises StoreError. ``live_migration``: whether the node receives
    machines that move to it while they run.

    If the host's capacity cannot be read any more, the last known pool stays: without a pool the host would admit
    anything. Raises CapacityError if it cannot be read at the start.
    """
    for_others = config.for_others or (0, 0)
    stores: DiskUsageSources | None = None
    stored = 0

    def pool() -> tuple[DevicePool, list[Problem]]:
        nonlocal stores, stored
        capacity = discover_capacity(root, config)
        problems = [*capacity.problems]
        stores = stores or stores_of(capacity)
        try:
            if stores is not None:
                stored = max(0, stored_bytes(stores) - sum(reserved_in_stores(capacity, each) for each in machines()))
        except (UsageUnknown, StoreError) as error:  # the last count stands
            problems.append(Problem(str(error), path="disk", source="capacity", severity="warning"))
        published = host_pool(
            capacity,
            node_name,
            stored,
            shared_storage,
            live_migration=live_migration,
            for_others=for_others,
        )
        return published, problems

    try:
        last, _ = pool()
    except CapacityError as error:
        raise CapacityError(f"--host-capacity: {error}") from error

    def look_with_host(records: DeviceRecords) -> Discovery:
        nonlocal last
        devices = look(records)
        try:
            last, problems = pool()
        except CapacityError as error:
            problems = [Problem(str(error), source="capacity", severity="warning")]
        return replace(devices, pools=[*devices.pools, last], problems=[*devices.problems, *problems])

    return look_with_host


def machines_with_disk(objects: Store, node_name: str) -> list[VirtualMachine]:
    """The machines of a node that reserve disk. Raises StoreError."""
    listed = objects.list("VirtualMachine").objects
    some = (obj for obj in listed if "disk" in obj["spec"] and MachineView(obj).node == node_name)
    return [each for each in (decode(obj).object for obj in some) if isinstance(each, VirtualMachine)]
