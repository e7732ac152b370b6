"""Write on the machines of a node whose plugin does not run any more that no one knows whether they run.

As the node lifecycle controller of Kubernetes does on pods: the leader writes once for each machine when the node falls
silent, and the plugin writes what is true when it is back. Nothing else follows: a machine that may run goes nowhere
until its node is fenced.

A node counts as silent when its plugin's Lease says so by its times, and was not renewed for a while as this process
has seen it: so neither a clock that is wrong nor the restart of a plugin writes anything. Where there is no Lease, as
of plugins of earlier versions, the kubelet counts instead. A plugin that writes on a machine nevertheless does run: its
node is left alone until its Lease changes, so that the two do not write against each other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from devalloc.api.conditions import READY
from devalloc.api.cordon import NODE_KIND
from devalloc.api.fencing import is_lost
from devalloc.api.reasons import Reason
from devalloc.api.serving import SILENT_SECONDS, is_of_unserved, served_conditions, unserved_status, unserved_text
from devalloc.api.views import MachineView
from devalloc.store import OBJECT_FAILURES, Conflict, NotFound, Object, Store, StoreError
from devalloc.store.kubernetes.node_leases import PluginLease
from devalloc.worker import repeat

log = logging.getLogger(__name__)

KIND = "VirtualMachine"
CONFIRM_SECONDS = 60.0
"""For how long a Lease must have been as it is: plugins renew theirs twice in this time."""
LOOK_SECONDS = 15.0
BURST = 50
"""Machines that are written at once; then a pause. A node of a thousand machines takes 20 s."""
PAUSE_SECONDS = 1.0
_RUNNING_PHASES = ("Starting", "Running", "Paused", "Stopping")
"""Phases that may be true no more. A machine that waits has nothing to lose, and is not ready in any case."""


@dataclass(slots=True)
class _Seen:
    """A node as this process sees it."""

    renewal: str
    since: float
    """When it first had this renewal."""
    written: dict[str, str] = field(default_factory=dict)
    """Its machines that were written since then: by UID, the version that they had before."""
    refused: dict[str, str] = field(default_factory=dict)
    """The same of those that the store refused to change."""
    answers: bool = False
    """Its plugin has written on one of these since."""


class UnservedMachines:
    """``run`` in one thread of the process that leads."""

    def __init__(
        self,
        store: Store,
        leases: Callable[[], Mapping[str, PluginLease] | None],
        *,
        reads_nodes: bool = True,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """``leases``: those of plugins, by node; None if they cannot be read. ``reads_nodes``: this process may read
        Nodes."""
        self._store, self._leases, self._clock, self._now = store, leases, clock, now
        self._reads_nodes = reads_nodes
        self._nodes: dict[str, _Seen] = {}
        self._may_be_written = True
        """Whether a machine may have what was written of it here, or by an earlier leader: else there is nothing to
        look at while all nodes are served."""

    def run(self, stop: threading.Event) -> None:
        """Look again and again until ``stop`` is set. What cannot be written is tried again."""
        what = "cannot write on machines that their nodes do not answer"
        repeat(stop, lambda: PAUSE_SECONDS if self.look() else None, LOOK_SECONDS, what, expected=(StoreError,))

    def look(self) -> bool:
        """Write what is due, as much as may be written at once; whether there is more. Raises StoreError."""
        if (leases := self._leases()) is None:
            return False
        silent = self._silent(leases, self._store.list(NODE_KIND).objects if self._reads_nodes else [])
        if not silent and not self._may_be_written:
            return False
        machines = self._store.list(KIND).objects
        due = list(self._due(machines, silent))
        self._may_be_written = bool(silent) or any(map(_is_written, machines))
        for obj, status, node in due[:BURST]:
            if node in silent and not self._nodes[node].written:
                log.warning("its machines may run or not: %s", silent[node])
            try:
                self._store.replace_status({**obj, "status": status})
            except (Conflict, NotFound):
                continue  # it is looked at again
            except OBJECT_FAILURES as error:
                log.warning("cannot write on machine %s whether node %s is silent: %s", _key(obj), node, error)
                noted = self._nodes[node].refused
            else:
                noted = self._nodes[node].written
            noted[obj["metadata"]["uid"]] = obj["metadata"]["resourceVersion"]
        return len(due) > BURST

    def _silent(self, leases: Mapping[str, PluginLease], nodes: Iterable[Object]) -> dict[str, str]:
        """The nodes that no plugin serves, and that as a sentence."""
        now, silent = self._clock(), {}
        lost = {obj["metadata"]["name"]: is_lost(obj) for obj in nodes}
        renewals = {node: "lost" if is_lost else "" for node, is_lost in lost.items()}
        renewals |= {node: lease.renewal for node, lease in leases.items()}
        self._nodes = {
            node: seen if (seen := self._nodes.get(node)) and seen.renewal == renewal else _Seen(renewal, now)
            for node, renewal in renewals.items()
        }
        for node, seen in self._nodes.items():
            lease, unchanged = leases.get(node), now - seen.since
            why = "" if lease is None else lease.why_ended
            if lease is not None and lease.is_ahead and unchanged >= SILENT_SECONDS:
                why = "it does not renew its Lease, whose time is in the future: a clock is wrong"
            if unchanged >= CONFIRM_SECONDS and (why or (lease is None and lost[node])):
                silent[node] = _lost_text(node) if lost.get(node) else unserved_text(node, why)
        return silent

    def _due(self, machines: Iterable[Object], silent: Mapping[str, str]) -> Iterator[tuple[Object, Object, str]]:
        """Machines that say what is not true, with what their status is to be and their node."""
        for obj in machines:
            view = MachineView(obj)
            if (node := view.holder) is None:
                continue
            uid, version = obj["metadata"]["uid"], obj["metadata"]["resourceVersion"]
            seen = self._nodes.setdefault(node, _Seen("", self._clock()))
            if seen.refused.get(uid) == version:
                continue
            if (why := silent.get(node)) is None:
                if _is_written(obj) and view.status.get("reason") != Reason.NODE_NOT_SERVED:
                    yield obj, {**view.status, "conditions": served_conditions(view.status["conditions"])}, node
                continue
            if view.status.get("phase") not in _RUNNING_PHASES or seen.answers:
                continue
            if (before := seen.written.get(uid)) is not None:
                if before != version:  # so its plugin has written since
                    seen.answers = True
                    log.warning("the plugin of node %s writes, though it does not renew its Lease", node)
                continue
            yield obj, unserved_status(view, why, self._now().strftime("%Y-%m-%dT%H:%M:%SZ")), node


def _is_written(machine: Object) -> bool:
    return is_of_unserved(MachineView(machine).condition(READY))


def _lost_text(node: str) -> str:
    return f"node {node} does not answer, nor does its kubelet; if its host is off: devalloc fence node/{node}"


def _key(obj: Object) -> str:
    return "/".join(MachineView(obj).key)
