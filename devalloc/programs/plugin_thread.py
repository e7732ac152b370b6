"""The node plugin inside ``devalloc up``: a program of its own, which is started again until it serves."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

from devalloc.backoff import Backoff
from devalloc.inventory.config import DeviceRecords
from devalloc.program import ProgramFailed
from devalloc.programs import node_parts as on
from devalloc.store import StoreError
from devalloc.store.sqlite import SQLiteStore
from devalloc.worker import DONE, repeat, when_set
from devalloc_machines.part import MachineSettings
from devalloc_node.claims.cleanup import check_existence
from devalloc_node.claims.journal_content import inventory_facts
from devalloc_node.claims.store_grants import KIND, StoreGrants
from devalloc_node.errors import NodeError
from devalloc_node.journal import open_journal
from devalloc_node.journal.sqlite import FILE, NODE_NAME
from devalloc_node.node import Node

log = logging.getLogger(__name__)

RETRY_SECONDS, MAX_RETRY_SECONDS = 5.0, 300.0
"""Seconds before another try after a failed start, doubled after each failure; and the maximum."""


class PluginThread:
    """Runs the plugin beside the loops on its store, which hold the store's locks: no other ``devalloc up`` can run."""

    def __init__(
        self,
        store: Path,
        state: Path,
        node_name: str,
        settings: Callable[[], MachineSettings],
        *,
        rescan: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        """``settings``: called at each start, since what they depend on may have changed. ``rescan``: has the devices
        of this host published."""
        self._store = store
        self._state = state
        self._node_name = node_name
        self._settings = settings
        self._rescan = rescan
        self._print = say
        self._reported: set[str] = set()
        """What tries that failed have said already."""
        self._serving = threading.Event()
        self._node: Node | None = None

    @property
    def node(self) -> Node | None:
        """The plugin; None while it is not running."""
        return self._node

    @property
    def is_serving(self) -> bool:
        """Whether it has served since it started."""
        return self._serving.is_set()

    def initial_records(self) -> DeviceRecords:
        """What its journal knows about the devices, before it runs: reading the journal is faster than loading it."""
        try:
            return _recorded(self._state, self._store, self._node_name)
        except StoreError as error:  # the plugin reports the error, and may create a new journal
            self._say(f"cannot read the journal of the node plugin yet: {error}")
            return DeviceRecords()

    def run(self, stop: threading.Event) -> None:
        """Until ``stop`` is set. Raises ProgramFailed if it ends after it has served."""
        when_set(stop, self._end)
        backoff = Backoff(RETRY_SECONDS, MAX_RETRY_SECONDS)

        def serve() -> float:
            try:
                self._serve(stop)
            except Exception as error:
                self._node = None
                if self._serving.is_set():
                    raise ProgramFailed(f"the node plugin ended: {error}") from error
                pause = backoff.next_delay()
                self._print(
                    "WARNING: the node plugin does not run, so devices are allocated but not bound, and machines "
                    f"do not start; next try in {pause:.0f} s: {error}"
                )
                self._rescan()
                return pause
            return DONE

        repeat(stop, serve, RETRY_SECONDS, "the node plugin does not run", fatal=(ProgramFailed,))

    def _end(self) -> None:
        if (node := self._node) is not None:
            node.stop()

    def _say(self, text: str) -> None:
        """Print a line. Until the plugin serves, repeated lines are printed once."""
        if not self._serving.is_set():
            if text in self._reported:
                return
            self._reported.add(text)
        self._print(text)

    def _serve(self, stop: threading.Event) -> None:
        from devalloc_node.daemon import Publisher, run_daemon
        from devalloc_node.node import open_node

        settings = self._settings()
        dry_run = settings.dry_run
        with ExitStack() as stack:
            host = on.make_host(settings, dry_run=dry_run, say=self._say)
            store = stack.enter_context(closing(SQLiteStore(self._store)))
            node = stack.enter_context(open_node(settings, host, on.store_source(store, settings.node_name)))
            node.reconciler.look()
            self._node = node
            if stop.is_set():
                return
            self._rescan()
            loops = [lambda stop: self._serving.set()]
            if not dry_run:  # a dry run neither starts nor ends machines
                loops += on.store_loops(store, node, alone=True, say=self._say)
            run_daemon(node, Publisher((), self._rescan), self._say, extra_loops=loops)


def previous_name(state: Path) -> str | None:
    """The name under which the plugin with this state folder last served; None: none has, or that cannot be read."""
    if not (state / FILE).exists():
        return None
    try:
        with closing(open_journal(state)) as journal:
            return journal.setting(NODE_NAME)
    except (StoreError, NodeError) as error:  # the plugin reports it too, and may create a new journal
        log.warning("cannot read the previous name of this node: %s", error)
        return None


def _recorded(state: Path, store: Path, node_name: str) -> DeviceRecords:
    if not (state / FILE).exists():
        return DeviceRecords()
    with closing(open_journal(state)) as journal, closing(SQLiteStore(store)) as objects:
        try:
            gone = check_existence(journal, {KIND: StoreGrants(objects, node_name)}).unknown
        except NodeError:  # the plugin reports it
            gone = {}
        return inventory_facts(journal, gone)
