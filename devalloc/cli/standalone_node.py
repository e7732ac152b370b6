"""The node plugin inside ``devalloc up``: in the same process, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from devalloc.backoff import Backoff
from devalloc.cli.command import CommandFailed
from devalloc_node.errors import NodeError

if TYPE_CHECKING:
    from devalloc.cli.options.capacity import CapacityOptions
    from devalloc.controller.standalone import Standalone
    from devalloc.inventory import DeviceRecords
    from devalloc_node.node import Node
    from devalloc_node.settings import NodeSettings

REQUIRED_PACKAGES = ("grpc", "qemu.qmp", "pyroute2", "prometheus_client")
"""Packages that only the node plugin needs, not the rest of ``devalloc up``."""
RETRY_SECONDS, MAX_RETRY_SECONDS = 5.0, 300.0
"""Seconds before another try after a failed start, doubled after each failure; and the maximum."""
STOP_SECONDS = 5.0
"""How long a stop waits for it, in seconds. Unfinished work is in its journal."""


def missing_requirement() -> str | None:
    """Why it cannot run in this process; None if it can."""
    absent = [name for name in REQUIRED_PACKAGES if not _is_there(name)]
    return f"missing packages: {', '.join(absent)}; pip install 'devalloc[node]'" if absent else None


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False


class StandaloneNode:
    """The plugin's thread. It starts with the first look at the devices: only then no other ``devalloc up`` can run."""

    def __init__(
        self,
        store: Path,
        state: Path,
        node_name: str,
        settings: Callable[[], NodeSettings],
        *,
        limits: CapacityOptions,
        rescan: Callable[[], None],
        say: Callable[[str], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """``settings``: called at each start, since what they depend on may have changed. ``failed``: called with the
        error that ends the plugin after it has served."""
        self._store = store
        self._state = state
        self._node_name = node_name
        self._settings = settings
        self._limits = limits
        self._rescan = rescan
        self._say = say
        self._failed = failed
        self._serving = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._node: Node | None = None

    @property
    def node(self) -> Node | None:
        """The plugin; None while it is not running."""
        return self._node

    def initial_records(self) -> DeviceRecords:
        """What its journal knows about the devices, before it runs: reading the journal is faster than loading it."""
        from devalloc.inventory import DeviceRecords
        from devalloc.store import StoreError

        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="node-plugin", daemon=True)
            self._thread.start()
        try:
            return _recorded(self._state, self._store, self._node_name)
        except StoreError as error:  # the plugin reports the error, and may create a new journal
            self._say(f"cannot read the journal of the node plugin yet: {error}")
            return DeviceRecords()

    def stop(self) -> None:
        """Stop it, and wait for a short time."""
        self._stopped.set()
        if (node := self._node) is not None:
            node.stop()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        backoff = Backoff(RETRY_SECONDS, MAX_RETRY_SECONDS)
        while not self._stopped.is_set():
            try:
                self._serve()
                return
            except Exception as error:
                self._node = None
                if self._serving.is_set():
                    ended = CommandFailed(f"the node plugin ended: {error}")
                    ended.__cause__ = error
                    self._failed(ended)
                    return
                pause = backoff.next_delay()
                self._say(
                    f"WARNING: the node plugin does not run, so devices are allocated but not bound, and machines do "
                    f"not start; next try in {pause:.0f} s: {error}"
                )
                self._rescan()
            self._stopped.wait(pause)

    def _serve(self) -> None:
        from devalloc.cli import node_wiring as on
        from devalloc.store.sqlite import SQLiteStore
        from devalloc_node.daemon import Publisher, run_daemon
        from devalloc_node.node import open_node

        settings = self._settings()
        dry_run = settings.machines.dry_run
        with ExitStack() as stack:
            host = on.make_host(settings, dry_run=dry_run, say=self._say)
            store = stack.enter_context(closing(SQLiteStore(self._store)))
            node = stack.enter_context(open_node(settings, host, on.store_source(store, settings.node_name)))
            node.reconciler.look()
            self._node = node
            if self._stopped.is_set():
                return
            self._rescan()
            extra_loops: list[Callable[[threading.Event], None]] = [self._has_begun]
            if not dry_run:  # a dry run neither starts nor ends machines
                extra_loops += on.store_loops(store, node, self._limits, alone=True, say=self._say)
            run_daemon(node, Publisher((), self._rescan), self._say, extra_loops=extra_loops)

    def _has_begun(self, stop: threading.Event) -> None:
        self._serving.set()


@dataclass(frozen=True)
class LoopsAndPlugin:
    """The loops and the plugin together, for signals."""

    loops: Standalone
    plugin: StandaloneNode

    def stop(self) -> None:
        self.loops.stop()

    def rescan(self) -> None:
        node = self.plugin.node  # it checks its claims, too
        (self.loops if node is None else node).rescan()


def _recorded(state: Path, store: Path, node_name: str) -> DeviceRecords:
    from devalloc.inventory import DeviceRecords
    from devalloc.store.sqlite import SQLiteStore
    from devalloc_node.claims.existence import check_existence
    from devalloc_node.claims.inventory_facts import inventory_facts
    from devalloc_node.claims.store_grants import KIND, StoreGrants
    from devalloc_node.journal import open_journal
    from devalloc_node.journal.sqlite import FILE

    if not (state / FILE).exists():
        return DeviceRecords()
    with closing(open_journal(state)) as journal, closing(SQLiteStore(store)) as objects:
        try:
            gone = check_existence(journal, {KIND: StoreGrants(objects, node_name)}).unknown
        except NodeError:  # the plugin reports it
            gone = {}
        return inventory_facts(journal, gone)
