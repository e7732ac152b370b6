"""An embedded store as people should see it: machines of a node whose plugin has ended are not known to run.

What a node last wrote of its machines stays in the store when its plugin is killed. Only those who read for people see
it with the phase ``Unknown``; nothing of that is written.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from devalloc.api.cordon import pool_node
from devalloc.api.host_pool_names import node_of_host_pool
from devalloc.api.meta import PUBLISHED_BY
from devalloc.api.reasons import Reason
from devalloc.api.views import ClaimView, MachineView
from devalloc.store.errors import Key, NotFound
from devalloc.store.protocol import Change, CommitOutcomes, CommitResult, Event, Fence, Listing
from devalloc.store.serving import has_lost_plugin
from devalloc.store.sqlite import SQLiteStore

Object = dict[str, Any]
_SHOWN = ("phase", "reason", "message")
"""Fields of a status that are shown otherwise than they are stored."""
_LIVE_PHASES = ("Pending", "Starting", "Running", "Paused", "Stopping")
_LOOK_SECONDS = 1.0
"""How long an answer about a node counts."""


class ServedStore(SQLiteStore):
    """A store whose reads know which nodes are served."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._looks: dict[str, tuple[float, bool]] = {}

    def get(self, kind: str, namespace: str | None, name: str) -> Object:
        return self._as_served(super().get(kind, namespace, name))

    def list(self, *what: Any, **named: Any) -> Listing:
        listing = super().list(*what, **named)
        return Listing([self._as_served(obj) for obj in listing.objects], listing.resource_version)

    def watch(self, *what: Any, **named: Any) -> Generator[Event, None, None]:
        for event in super().watch(*what, **named):
            yield replace(event, object=self._as_served(event.object))

    def commit(self, changes: Sequence[Change], fence: Fence | None = None) -> CommitResult:
        return super().commit([*map(self._as_stored, changes)], fence)

    def commit_each(self, units: Sequence[Sequence[Change]], fence: Fence | None = None) -> CommitOutcomes:
        return super().commit_each([[*map(self._as_stored, unit)] for unit in units], fence)

    def replace_status(self, obj: Object) -> Object:
        key = Key.of(obj)
        change = self._as_stored(Change(key, str(obj["metadata"].get("resourceVersion")), obj.get("status")))
        return super().replace_status({**obj, "status": change.status})

    def _as_stored(self, change: Change) -> Change:
        """Without what was only shown: a status that is written is based on what its node wrote."""
        status = change.status or {}
        if change.key.kind != "VirtualMachine" or status.get("reason") != Reason.NODE_NOT_SERVED.value:
            return change
        try:
            before = super().get(*change.key).get("status") or {}
        except NotFound:
            return change
        theirs = {name: before[name] for name in _SHOWN if name in before}
        rest = {name: value for name, value in status.items() if name not in _SHOWN}
        return replace(change, status={**rest, **theirs})

    def is_unserved(self, node: str) -> bool:
        """Whether a plugin of this node has run on the store, and none does now."""
        until, answer = self._looks.get(node, (0.0, False))
        if time.monotonic() >= until:
            answer = has_lost_plugin(self.path, node)
            self._looks[node] = time.monotonic() + _LOOK_SECONDS, answer
        return answer

    def unserved_nodes(self) -> dict[str, str]:
        """The nodes that no plugin serves though they have prepared claims, machines, or capacity for machines, and
        that as a sentence."""
        objects = self.list(("DevicePool", "DeviceClaim", "VirtualMachine")).objects
        nodes = {node for obj in objects for node in _held(obj)}
        return {node: unserved_text(node) for node in sorted(nodes) if self.is_unserved(node)}

    def _as_served(self, obj: Object) -> Object:
        if obj.get("kind") != "VirtualMachine":
            return obj
        view = MachineView(obj)
        node, phase = view.holder, view.status.get("phase")
        if not node or phase not in _LIVE_PHASES or not self.is_unserved(node):
            return obj
        status = {**view.status, "phase": "Unknown", "reason": Reason.NODE_NOT_SERVED.value}
        status["message"] = f"{unserved_text(node)}; the machine was {phase}"
        return {**obj, "status": status}


def unserved_text(node: str) -> str:
    """That no plugin serves a node, and what to do."""
    return f"no node plugin serves node {node} now: start it again (`devalloc node`, `devalloc up`)"


def _held(obj: Object) -> Iterable[str]:
    """The nodes that have prepared an object, or whose plugin has published what it has for machines."""
    if obj["kind"] == "DevicePool":
        is_ours = obj["metadata"].get("labels", {}).get(PUBLISHED_BY) is not None
        node = pool_node(obj) if is_ours and node_of_host_pool(obj) else None
    else:
        node = (MachineView if obj["kind"] == "VirtualMachine" else ClaimView)(obj).holder
    return [node] if node else []
