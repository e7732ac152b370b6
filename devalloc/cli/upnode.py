"""The node plugin beside the loops of ``devalloc up``: in the same process, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from devalloc.cli.verb import Failed

if TYPE_CHECKING:
    from devalloc.controller.up import Up
    from devalloc.inventory import Known
    from devalloc_node.node import Node

NEEDED = ("grpc", "qemu.qmp", "pyroute2", "prometheus_client")
"""Packages that the node plugin needs and the rest of ``devalloc up`` does not."""
RETRY_SECONDS, MOST_SECONDS = 5.0, 300.0
"""The pause after its first start that failed, twice as long after each further one; and the longest."""
STOP_SECONDS = 5.0
"""How long a stop waits for it. What it leaves unfinished is in its journal."""


def missing() -> str | None:
    """Why it cannot run in this process; None when it can."""
    absent = [name for name in NEEDED if not _is_there(name)]
    return f"there is no {', '.join(absent)}; pip install 'devalloc[node]'" if absent else None


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # the package above it is missing
        return False


class UpNode:
    """Starts with the first look at the devices, for only then it is sure that no other ``devalloc up`` runs."""

    def __init__(
        self,
        store: Path,
        state: Path,
        options: dict[str, Any],
        *,
        rescan: Callable[[], None],
        say: Callable[[str], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """``options``: the arguments of ``node_settings``. ``failed``: told of what ends it once it has served."""
        self._store = store
        self._state = state
        self._options = options
        self._rescan = rescan
        self._say = say
        self._failed = failed
        self._serving = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._node: Node | None = None

    @property
    def node(self) -> Node | None:
        """The plugin; None while it is not there (yet)."""
        return self._node

    def first_look(self) -> Known:
        """What its journal says of the devices, before it runs: loading it takes longer than looking there."""
        from devalloc.inventory import Known
        from devalloc.store import StoreError

        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="node-plugin", daemon=True)
            self._thread.start()
        try:
            return _recorded(self._state, self._store, self._options["node"])
        except StoreError as error:  # the plugin says what is wrong with it, and may begin a new one
            self._say(f"the journal of the node plugin cannot be read yet: {error}")
            return Known()

    def stop(self) -> None:
        """End it, and wait a little."""
        self._stopped.set()
        if (node := self._node) is not None:
            node.stop()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        pause = RETRY_SECONDS
        while not self._stopped.is_set():
            try:
                self._serve()
                return
            except Exception as error:
                self._node = None
                if self._serving.is_set():
                    ended = Failed(f"the node plugin ended: {error}")
                    ended.__cause__ = error
                    self._failed(ended)
                    return
                self._say(
                    f"WARNING: the node plugin does not run, so that devices are allocated and not bound and no "
                    f"machine is started; correct this; it is tried again in {pause:.0f} s: {error}"
                )
                self._rescan()
            self._stopped.wait(pause)
            pause = min(2 * pause, MOST_SECONDS)

    def _serve(self) -> None:
        from devalloc.cli import nodesources as on
        from devalloc.cli.nodeoptions import node_settings
        from devalloc.store.sqlite import SQLiteStore
        from devalloc_node.daemon import Publishing, run
        from devalloc_node.node import opened

        settings = node_settings(**self._options)
        with ExitStack() as stack:
            host = on.host_of(settings, dry_run=self._options["dry_run"], say=self._say)
            store = stack.enter_context(closing(SQLiteStore(self._store)))
            node = stack.enter_context(opened(settings, host, on.store_source(store, settings.node_name)))
            node.reconciler.look()
            self._node = node
            if self._stopped.is_set():
                return
            self._rescan()
            beside: list[Callable[[threading.Event], None]] = [self._has_begun]
            if not self._options["dry_run"]:  # nothing is started in one, and nothing ended either
                beside += on.store_loops(store, node, self._options["limits"], alone=True, say=self._say)
            run(node, Publishing((), self._rescan), self._say, beside=beside)

    def _has_begun(self, stop: threading.Event) -> None:
        self._serving.set()


@dataclass(frozen=True)
class Both:
    """The loops and the plugin, for signals."""

    loops: Up
    plugin: UpNode

    def stop(self) -> None:
        self.loops.stop()

    def rescan(self) -> None:
        node = self.plugin.node  # it looks at its claims as well
        (self.loops if node is None else node).rescan()


def _recorded(state: Path, store: Path, node_name: str) -> Known:
    from devalloc.inventory import Known
    from devalloc.store.sqlite import SQLiteStore
    from devalloc_node.claims.store_grants import KIND, StoreGrants
    from devalloc_node.claims.whereabouts import whereabouts
    from devalloc_node.errors import NodeError
    from devalloc_node.journal import open_journal
    from devalloc_node.journal.sqlite import FILE
    from devalloc_node.recorded import recorded

    if not (state / FILE).exists():
        return Known()
    with closing(open_journal(state)) as journal, closing(SQLiteStore(store)) as objects:
        try:
            gone = whereabouts(journal, {KIND: StoreGrants(objects, node_name)}).unknown
        except NodeError:  # the plugin says it
            gone = {}
        return recorded(journal, gone)
