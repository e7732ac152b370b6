"""Have a program of the admin power off nodes that are lost, and then state that they are off.

Kubernetes finds out which nodes are lost: a kubelet renews the Lease of its Node, and if it does not, the node
lifecycle controller sets the condition Ready to Unknown. This module adds a time, a limit and the program, and no
election or liveness of its own. Only the leader calls the program, only for a node that it has itself seen as lost for
the whole time, and that the API server still shows as lost when asked directly. So a controller that is cut off from
the cluster powers off nothing, and a fault of the network that hits many nodes powers off none of them.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from devalloc.api.cordon import is_node
from devalloc.api.fencing import fence_statements, is_lost, is_ready
from devalloc.backoff import backoff_delay
from devalloc.controller.fencing import NodeAnswers, state_fence
from devalloc.controller.reconcile.fenced import held_objects
from devalloc.controller.settings import FencingSettings
from devalloc.store import NotFound, Object, Store, StoreError
from devalloc.worker import repeat

log = logging.getLogger(__name__)

POLL_SECONDS = 5.0
FIRST_RETRY, LAST_RETRY = 30.0, 600.0
"""Seconds before a program that failed is called again for a node."""
_OUTPUT = 2000
"""Characters of the program's output that the log shows."""
_STOP_SECONDS = 0.2
NODE_VARIABLE = "DEVALLOC_NODE"


@dataclass(slots=True)
class _LostNode:
    since: float
    failures: int = 0
    due: float = 0.0


@dataclass(slots=True)
class FencingCounts:
    """For the metrics."""

    results: dict[str, int] = field(default_factory=lambda: {"fenced": 0, "failed": 0, "withheld": 0})
    """Calls of the program by result; ``withheld``: times at which too many nodes were lost."""
    lost: int = 0
    """Nodes that are lost now, and not fenced."""


class NodeFencer:
    """Run ``run`` in a thread of the leader."""

    def __init__(
        self,
        store: Store,
        settings: FencingSettings,
        may_act: Callable[[], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
        call: Callable[[Sequence[str], Mapping[str, str], float, threading.Event], tuple[int, str]] | None = None,
    ) -> None:
        """``may_act``: whether this process leads at this moment. ``call``: runs a program, and returns its exit code
        and output."""
        self._store = store
        self._settings = settings
        self._may_act = may_act
        self._clock = clock
        self._call = call or run_program
        self._lost: dict[str, _LostNode] = {}
        self._is_withheld = False
        self.counts = FencingCounts()

    def run(self, stop: threading.Event) -> None:
        """Until ``stop`` is set. Logs errors of the store and goes on."""
        what = "cannot see which nodes are lost"
        repeat(stop, lambda: self.look(stop), POLL_SECONDS, what, expected=(StoreError,))

    def look(self, stop: threading.Event) -> None:
        """See which nodes are lost, and fence one that is due. Raises StoreError."""
        try:
            self._look(stop)
        except StoreError:
            # Who does not see the nodes does not know that they are lost. And one that was powered off while that could
            # not be stated has time to come back before it is powered off again.
            self._lost.clear()
            raise

    def _look(self, stop: threading.Event) -> None:
        documents = self._store.list(("Node", "DevicePool")).objects
        nodes = {doc["metadata"]["name"]: doc for doc in documents if is_node(doc)}
        stated, now = fence_statements(documents), self._clock()
        lost = {name for name, node in nodes.items() if is_lost(node)}
        self._lost = {name: self._lost.get(name) or _LostNode(now) for name in sorted(lost - stated.keys())}
        self.counts.lost = len(self._lost)
        due = [
            name
            for name, one in self._lost.items()
            if now - one.since >= self._settings.after and now >= one.due and held_objects(self._store, name)
        ]
        if due and self._may_fence(nodes, lost | (stated.keys() & nodes.keys())):
            self._fence(min(due, key=lambda name: (self._lost[name].since, name)), stop)

    def _may_fence(self, nodes: Mapping[str, Object], gone: Iterable[str]) -> bool:
        """Whether few enough nodes are lost: otherwise the fault is one of the network, or of this cluster."""
        gone = set(gone)
        limit = max(1, len(nodes) // self._settings.one_in)
        others_answer = any(is_ready(node) for name, node in nodes.items() if name not in gone)
        is_allowed = len(gone) <= limit and others_answer
        if not is_allowed and not self._is_withheld:
            self.counts.results["withheld"] += 1
            log.error(
                "%d of %d nodes are lost or fenced, so no node is fenced by the program: at most %d may be "
                "(--fencing-one-in), and another one must be Ready. Fence nodes that are off by hand: devalloc fence",
                len(gone),
                len(nodes),
                limit,
            )
        self._is_withheld = not is_allowed
        return is_allowed

    def _fence(self, name: str, stop: threading.Event) -> None:
        """Raises StoreError."""
        if not self._is_still_lost(name):
            self._lost.pop(name, None)
            return
        since = self._clock() - self._lost[name].since
        log.warning("node %s has been lost for %.0f s: calling %s", name, since, self._settings.command)
        variables = {"PATH": os.defpath, NODE_VARIABLE: name}
        code, output = self._call([str(self._settings.command), name], variables, self._settings.timeout, stop)
        shown = f": {output[-_OUTPUT:].strip()}" if output.strip() else ""
        if code != 0:
            one = self._lost[name]
            one.failures += 1
            delay = backoff_delay(one.failures, FIRST_RETRY, LAST_RETRY)
            one.due = self._clock() + delay
            self.counts.results["failed"] += 1
            log.error(
                "node %s is not fenced: the program ended with %d; next try in %.0f s%s", name, code, delay, shown
            )
            return
        if not self._may_act():
            log.error("node %s is off, but this controller no longer leads: the next one calls the program again", name)
            return
        try:
            is_stated = state_fence(self._store, name, f"by {self._settings.command}")
        except NodeAnswers as error:
            self._lost.pop(name, None)
            log.error("node %s was reported to be off, but is back: %s", name, error)
            return
        self.counts.results["fenced" if is_stated else "failed"] += 1
        self._lost.pop(name, None)
        log.warning("node %s is fenced%s", name, shown)

    def _is_still_lost(self, name: str) -> bool:
        """Ask the API server directly, as the leader. Raises StoreError."""
        try:
            return self._may_act() and is_lost(self._store.get("Node", None, name))
        except NotFound:
            return False


def run_program(
    command: Sequence[str], variables: Mapping[str, str], seconds: float, stop: threading.Event
) -> tuple[int, str]:
    """Run a program without a shell, in a process group of its own, with these variables only; its exit code, and what
    it printed. -1 if it cannot be started, takes longer than ``seconds``, or ``stop`` is set: it is killed then."""
    try:
        process = subprocess.Popen(
            command,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return -1, f"cannot start {command[0]}: {error.strerror or error}"
    lines: list[str] = []
    reader = threading.Thread(target=_read_end, args=(process, lines), daemon=True)
    reader.start()
    until = time.monotonic() + seconds
    why = ""
    while process.poll() is None and not why:
        if stop.wait(_STOP_SECONDS):
            why = "the controller stops"
        elif time.monotonic() > until:
            why = f"it took longer than {seconds:g} s"
    if why:
        with suppress(ProcessLookupError):  # it ended meanwhile
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    reader.join(1.0)
    return (-1, f"{''.join(lines)}{why}") if why else (process.returncode, "".join(lines))


def _read_end(process: subprocess.Popen[str], lines: list[str]) -> None:
    """Read all that it prints, and keep the end."""
    assert process.stdout is not None
    while chunk := process.stdout.read(4096):
        lines[:] = ["".join((*lines, chunk))[-2 * _OUTPUT :]]
