"""The daemon: a node begun in order, its loops while it serves, and its end.

Machines and prepared claims outlive it. It may be killed at any moment: what was begun is in the journal, and the next
start undoes it before anybody is served.
"""

from __future__ import annotations

import logging
import resource
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from queue import Empty

from devalloc_node import audit
from devalloc_node.claims.reconcile import Report
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Failed, NodeError
from devalloc_node.machine import house
from devalloc_node.node import Node
from devalloc_node.serving import Say, serving
from devalloc_node.vms.restarts import Restarts
from devalloc_node.warm.keeping import Keeper

log = logging.getLogger(__name__)

Loop = Callable[[threading.Event], None]
"""Runs in a thread of its own until the event is set."""
FILES = 65536
"""Open files that are enough for all machines of a host."""
LOOP_SECONDS = 2.0
"""How long a stop waits for all loops. What they leave unfinished is in the journal, or was not begun."""


@dataclass(frozen=True, slots=True)
class Publishing:
    """What keeps the node's devices published where claims can find them; it looks with ``Survey.discover``."""

    loops: Sequence[Loop] = ()
    rescan: Callable[[], None] | None = None
    """Look at the devices and publish them soon. From any thread. None: nobody publishes them."""


def run(node: Node, publishing: Publishing | None = None, say: Say = log.info, *, beside: Sequence[Loop] = ()) -> None:
    """Recover what a crash left, then serve until ``Node.stop``. ``beside``: what else is to go on meanwhile.

    Raises Denied and Failed where a socket cannot be served or the audit log not written, and what ended a loop.
    """
    publishing = publishing or Publishing()
    _open_many_files()
    node.survey.rescan = publishing.rescan
    stop = threading.Event()
    failures: list[BaseException] = []

    def guarded(loop: Loop) -> None:
        """A loop that ends with an error ends everything."""
        try:
            loop(stop)
        except BaseException as error:
            failures.append(error)
            node.stop()

    with ExitStack() as stack:
        try:
            stack.enter_context(audit.to_file(node.settings.state / "audit.log"))
        except OSError as error:
            raise Failed("JournalUnavailable", f"cannot write the audit log: {error}") from error
        stack.callback(node.machines.close)
        node.machines.recover()
        _tell(node.reconciler.recover(), say)
        stack.enter_context(serving(node, say))
        restarts = Restarts(node.platform, node.pulse, node.machines.to_restart)
        own: list[Loop] = [node.health.run, node.telling.run, partial(house.keep, node.machines), restarts.run]
        if (pool := node.warm) is not None and (homes := node.homes) is not None:
            own.append(Keeper(pool, sweep=lambda: homes.sweep(node.machines.lives_in)).keep)
        node.reconciler.look()
        loops = [*own, *publishing.loops, *beside]
        threads = [threading.Thread(target=guarded, args=(loop,), daemon=True) for loop in loops]
        for thread in threads:
            thread.start()
        _reconcile(node, say)
        stop.set()
        node.claims_changed()
        until = Deadline.after(LOOP_SECONDS)
        for thread in threads:
            thread.join(until.seconds)
    if failures:
        raise failures[-1]


def _open_many_files() -> None:
    """As many as there may be: each machine takes some, and what is usual is too little for hundreds of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES if hard == resource.RLIM_INFINITY else min(hard, FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _reconcile(node: Node, say: Say) -> None:
    """Look at the claims now, now and then, and when asked to, until ``stop``."""
    pause = 0.0
    while True:
        try:
            message = node.messages.get(timeout=pause)
        except Empty:
            pass
        else:
            if message == "stop":
                return
            node.health.poke()
            node.survey.republish()
        pause = node.settings.resync
        try:
            node.journal.refuse_lost()
            before, report = node.reconciler.gone, node.reconciler.reconcile()
            if report.removed:
                node.metrics.removed("claim", len(report.removed))
            if report.finished or report.removed or before != node.reconciler.gone:
                node.claims_changed()
            _tell(report, say)
        except NodeError as error:
            log.error("could not look at the claims; trying again in %.0f s: %s", node.settings.resync, error)
        except Exception:
            log.exception("could not look at the claims; trying again in %.0f s", node.settings.resync)


def _tell(report: Report, say: Say) -> None:
    """What was done. What could not be is in the log."""
    for text in (*report.finished, *report.removed):
        say(text)
