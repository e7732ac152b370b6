"""An embedded store as people should see it: machines of a node whose plugin has ended are not known to run."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from devalloc.api.reasons import Reason
from devalloc.api.serving import HELD_KINDS, SHOWN_FIELDS, as_served, unserved_text, unserved_with_objects
from devalloc.api.views import MachineView
from devalloc.controller.reconcile.decision import with_shown_answer
from devalloc.store.errors import Key, NotFound
from devalloc.store.protocol import Change, CommitOutcomes, CommitResult, Event, Fence, Listing, Store
from devalloc.store.serving import has_lost_plugin, lacks_plugin
from devalloc.store.sqlite import SQLiteStore

Object = dict[str, Any]
_LOOK_SECONDS = 1.0
"""How long an answer about a node counts."""


class ServedView:
    """Objects of a store as people should see them, and back. Nothing of what is only shown is written."""

    def __init__(self, why_unserved: Callable[[str], str]) -> None:
        """``why_unserved``: of a node, as ``unserved_text``; empty if it is served, or if that cannot be told."""
        self.why_unserved = why_unserved

    def unserved_nodes(self, store: Store) -> dict[str, str]:
        """The nodes that no plugin serves though they have something, and that as a sentence. Raises StoreError."""
        return unserved_with_objects(store.list(HELD_KINDS).objects, self.why_unserved)

    def shown(self, obj: Object) -> Object:
        return as_served(obj, self.why_unserved)

    def listed(self, listing: Listing) -> Listing:
        return Listing([self.shown(obj) for obj in listing.objects], listing.resource_version)

    def watched(self, events: Generator[Event, None, None]) -> Iterator[Event]:
        for event in events:
            yield replace(event, object=self.shown(event.object))

    def stored(self, change: Change, read: Callable[[str, str | None, str], Object]) -> Change:
        """A change based on what its node wrote. ``read``: the object as it is stored; raises NotFound."""
        status = change.status or {}
        if change.key.kind != "VirtualMachine" or status.get("reason") != Reason.NODE_NOT_SERVED.value:
            return change
        try:
            before = read(*change.key).get("status") or {}
        except NotFound:
            return change
        theirs = {name: before[name] for name in SHOWN_FIELDS if name in before}
        rest = {name: value for name, value in status.items() if name not in SHOWN_FIELDS}
        return replace(change, status={**rest, **theirs})


def served_view(store: Store) -> ServedView | None:
    """How a store sees which nodes are served; None for one that does not."""
    view = getattr(store, "served", None)
    return view if isinstance(view, ServedView) else None


class ServedReads:
    """What a store has in front of its own reads and writes to show which nodes are served."""

    served: ServedView

    def get(self, kind: str, namespace: str | None, name: str) -> Object:
        plain: Any = super()
        return self.served.shown(plain.get(kind, namespace, name))

    def list(self, *what: Any, **named: Any) -> Listing:
        plain: Any = super()
        return self.served.listed(plain.list(*what, **named))

    def watch(self, *what: Any, **named: Any) -> Generator[Event, None, None]:
        plain: Any = super()
        yield from self.served.watched(plain.watch(*what, **named))

    def commit(self, changes: Sequence[Change], fence: Fence | None = None) -> CommitResult:
        plain: Any = super()
        done: CommitResult = plain.commit([self.served.stored(each, plain.get) for each in changes], fence)
        return done

    def commit_each(self, units: Sequence[Sequence[Change]], fence: Fence | None = None) -> CommitOutcomes:
        plain: Any = super()
        stored = [[self.served.stored(each, plain.get) for each in unit] for unit in units]
        done: CommitOutcomes = plain.commit_each(stored, fence)
        return done

    def replace_status(self, obj: Object) -> Object:
        plain: Any = super()
        change = Change(Key.of(obj), str(obj["metadata"].get("resourceVersion")), obj.get("status"))
        done: Object = plain.replace_status({**obj, "status": self.served.stored(change, plain.get).status})
        return done


class ServedStore(ServedReads, SQLiteStore):
    """A store whose reads know which nodes are served."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.explains_waiting = False
        """Machines that no node can take have that as their reason, for lists of them."""
        self.shows_answers = False
        """Claims have the conditions that they would have on a cluster, for who reads whole objects."""
        self._looks: dict[str, tuple[float, bool]] = {}
        self.served = ServedView(self._why_unserved)

    def get(self, kind: str, namespace: str | None, name: str) -> Object:
        return self._explained(super().get(kind, namespace, name))

    def list(self, *what: Any, **named: Any) -> Listing:
        listing = super().list(*what, **named)
        return Listing([*map(self._explained, listing.objects)], listing.resource_version)

    def watch(self, *what: Any, **named: Any) -> Generator[Event, None, None]:
        for event in super().watch(*what, **named):
            yield replace(event, object=self._explained(event.object))

    def _explained(self, obj: Object) -> Object:
        """A machine that no node has taken yet says so if no plugin is there to take it; a claim has its answer in
        conditions."""
        if obj["kind"] == "DeviceClaim" and self.shows_answers:
            return with_shown_answer(obj)
        if obj["kind"] != "VirtualMachine" or not self.explains_waiting:
            return obj
        view = MachineView(obj)
        waits = view.holder is None and view.node and view.spec.get("running") is not False and not view.is_deleting
        if not waits or view.status.get("reason") or not lacks_plugin(self.path, str(view.node)):
            return obj
        why = f"no node plugin runs on node {view.node}: run `devalloc up` there as root, or `devalloc node`"
        return {**obj, "status": {**view.status, "reason": Reason.NODE_NOT_SERVED.value, "message": why}}

    def _why_unserved(self, node: str) -> str:
        until, is_lost = self._looks.get(node, (0.0, False))
        if time.monotonic() >= until:
            is_lost = has_lost_plugin(self.path, node)
            self._looks[node] = time.monotonic() + _LOOK_SECONDS, is_lost
        return unserved_text(node) if is_lost else ""
