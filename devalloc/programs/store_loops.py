"""The loops on an embedded store: publish this host's devices, and answer the claims."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from devalloc.api.cordon import NODE_KIND
from devalloc.controller.host_inventory import HostInventory, InventorySource
from devalloc.controller.pool_publisher import (
    PublishLock,
    PublishResult,
    withdraw_previous_name,
    withdraw_previous_names,
)
from devalloc.controller.reconcile.device_claims import (
    AllocatorListener,
    DeviceClaimAllocator,
    DeviceClaimRound,
    SolveManifests,
)
from devalloc.controller.reconcile.loop import AllocatorSettings
from devalloc.controller.reconcile.resource_claims.stored import StoredClaimAllocator
from devalloc.inventory.watch import UdevSource
from devalloc.machines.migration_cleanup import MigrationCleanup
from devalloc.machines.replica_sets import KIND as REPLICA_SET_KIND
from devalloc.machines.replica_sets import ReplicaSets
from devalloc.machines.schedule.requester import requesters
from devalloc.program import Loop, Program, ProgressDisplay
from devalloc.service_manager import Round
from devalloc.store import Key, Store, Unavailable, Unusable
from devalloc.store.paths import hold_store
from devalloc.store.sqlite import SQLiteStore
from devalloc.usage.accounting import UsageAccountant
from devalloc.usage.accounting.records import KIND as RECORD_KIND
from devalloc.worker import when_set

GRACE_SECONDS = 2.0
"""How long a stop waits for work that is under way. What it leaves unfinished has written nothing."""
PLUGIN_SECONDS = 5.0
"""How long a stop then waits for the node plugin of the same process. Unfinished work is in its journal."""
_LOCK_CHECK_SECONDS = 1.0
"""From one look to the next whether this process still holds the store, however many messages come."""


@dataclass(slots=True)
class StoreProgress:
    """How far the loops on a store are, and who hears of it. The callbacks come from threads of their own, never two at
    a time from one loop."""

    on_round: Callable[[DeviceClaimRound], None] = lambda done: None
    on_published: Callable[[PublishResult], None] = lambda done: None
    on_granted: Callable[[Iterable[Key]], None] = lambda keys: None
    """Called with ResourceClaims that were given devices."""
    is_looked: threading.Event = field(default_factory=threading.Event)
    """Set when the devices of this host are published for the first time, or are not to be."""
    rounds: list[Round] = field(default_factory=list)
    """Of the loops that must go on, for the watchdog of the service manager."""
    rescan: Callable[[], None] = lambda: None
    """Has this host's devices published soon. From any thread."""


def store_program(
    path: Path,
    inventory: InventorySource | None,
    *,
    settings: AllocatorSettings | None = None,
    resync: float = 60.0,
    progress: StoreProgress | None = None,
    solve: SolveManifests | None = None,
    extra_loops: Sequence[Callable[[Store, threading.Event], None]] = (),
    plugin: Loop | None = None,
) -> Program:
    """The loops of one machine on one store, which this process holds then. ``inventory`` None: answer claims only.
    ``resync``: seconds between looks at the devices without any event. ``extra_loops``: what else runs on the store.
    ``plugin``: the node plugin; it ends last, before another one of this node can begin.

    Raises StoreLocked if another process runs on this store or runs the plugin of this node, Unusable when it is
    damaged, and StillNamed when the host had another name that is in use. The program ends with Unavailable when the
    store's folder goes.
    """
    settings, progress = settings or AllocatorSettings(), progress or StoreProgress()
    with ExitStack() as stack:
        store = stack.enter_context(closing(SQLiteStore(path)))
        is_held = stack.enter_context(hold_store(path))
        if problems := store.check():
            raise Unusable(
                f"the store {path} is damaged: {problems[0]} ({len(problems)} in all). "
                "Put back the last file that `devalloc backup` made with `devalloc restore`"
            )
        host = None
        if inventory is not None:
            host = _publishing(store, path, inventory, resync, progress, stack)
        loops = _allocating(store, settings, progress, solve, host)
        loops += [partial(each, store) for each in extra_loops]
        return Program(
            parts=stack.pop_all(),
            loops=loops,
            endpoints=[] if plugin is None else [plugin],
            rescan=lambda: progress.rescan(),
            check=_lock_check(path, is_held),
            grace=(GRACE_SECONDS, PLUGIN_SECONDS),
            unfinished="stopped in the middle of a solve; nothing of it was written",
        )


def _publishing(
    store: SQLiteStore,
    path: Path,
    inventory: InventorySource,
    resync: float,
    progress: StoreProgress,
    stack: ExitStack,
) -> HostInventory:
    name, previous = inventory.node_name, inventory.previous_name
    # Before anything is changed: the plugin of this node may run already, in another process.
    turn = stack.enter_context(closing(PublishLock(path, name, is_plugin=inventory.with_plugin)))
    withdrawn = withdraw_previous_names(store, path, name)
    if previous not in (None, name):
        withdrawn += withdraw_previous_name(store, path, name, previous)
    if withdrawn:
        progress.on_published(PublishResult(deleted=withdrawn))
    source = stack.enter_context(closing(UdevSource()))
    host = HostInventory(store, inventory, source, turn, resync=resync, on_published=progress.on_published)
    progress.rescan = host.rescan
    return host


def _allocating(
    store: SQLiteStore,
    settings: AllocatorSettings,
    progress: StoreProgress,
    solve: SolveManifests | None,
    host: HostInventory | None,
) -> list[Loop]:
    store.call_by_group()
    listener = AllocatorListener(progress=progress.on_round)
    answering = replace(settings, requesters=requesters())
    allocator = DeviceClaimAllocator(store, settings=answering, solve=solve, listener=listener)
    for kind in (NODE_KIND, RECORD_KIND, REPLICA_SET_KIND):  # none of these changes an answer
        allocator.loop.ignore_kind(kind)
    resources = StoredClaimAllocator(store, settings, progress.on_granted)
    progress.rounds += [lambda: allocator.loop.began, lambda: resources.loop.began]
    loops: list[Loop] = [allocator.run, resources.run]
    if host is None:
        progress.is_looked.set()
    else:
        loops = [host.watch, host.repair, resources.run, _start_after(host.looked, allocator.run)]
        loops.append(_start_after(host.looked, lambda stop: progress.is_looked.set()))
    loops.append(UsageAccountant([store], store, f"{socket.gethostname()}-{os.getpid()}").run)
    loops.append(ReplicaSets(store, collects=True).run)
    loops.append(MigrationCleanup(store, settings.migrations).run)
    return loops


def _lock_check(path: Path, is_held: Callable[[], bool]) -> Callable[[], None]:
    next_look = time.monotonic() + _LOCK_CHECK_SECONDS

    def check() -> None:
        nonlocal next_look
        if time.monotonic() < next_look:
            return
        next_look = time.monotonic() + _LOCK_CHECK_SECONDS
        if not is_held():
            raise Unavailable(
                f"the folder {path.absolute().parent} was removed or replaced while `devalloc up` ran on "
                f"the store {path.name} in it. Put the folder back, or a backup with `devalloc restore`, "
                "and start `devalloc up` again"
            )

    return check


def _start_after(ready: threading.Event, loop: Loop) -> Loop:
    """A loop that begins when ``ready`` is set: a device may have gone meanwhile."""

    def run(stop: threading.Event) -> None:
        when_set(stop, ready.set)
        ready.wait()
        loop(stop)

    return run


def show_published(display: ProgressDisplay, done: PublishResult) -> None:
    """Report changes of the pools, if there are any: they are compared after every change of a claim or machine."""
    if done.changed:
        display.say(f"pools: {done}")
