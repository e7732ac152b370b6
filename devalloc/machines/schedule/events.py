"""Events of machines and migrations: what users wait for, and what nodes say."""

from __future__ import annotations

from collections.abc import Iterable

from devalloc.api.conditions import PLACED
from devalloc.api.fencing import fenced_from
from devalloc.api.machine_reservation import FITS
from devalloc.api.reasons import Reason
from devalloc.api.views import MachineView, MigrationView
from devalloc.controller.reconcile.events import NORMAL, RELEASED, WARNING, ObjectEvent, object_event
from devalloc.machines.schedule.decision import SERVED
from devalloc.machines.schedule.machines import KIND
from devalloc.store import Object

_EXPECTED_REASONS = ("StoppedOnRequest", "NotPlaced")
"""Reasons of machines that are as they should be, or of which the controller tells."""


def events_of_write(before: Object, after: Object) -> Iterable[ObjectEvent]:
    """What became of a machine or migration by a write of ours; nothing for what no user waits for."""
    return (_machine_events if before["kind"] == KIND else _migration_events)(before, after)


def events_of_node(before: Object, after: Object) -> Iterable[ObjectEvent]:
    """What others say of them: of a machine the node that has it."""
    return (node_events if before["kind"] == KIND else _migration_events)(before, after)


def _migration_events(before: Object, after: Object) -> Iterable[ObjectEvent]:
    was, now = MigrationView(before), MigrationView(after)
    status = now.status
    reason, message = str(status.get("reason") or ""), str(status.get("message") or "")
    nodes = f"from node {status.get('sourceNode')} to node {status.get('targetNode')}"
    if now.phase == was.phase:
        if now.phase == "Pending" and reason and reason != was.status.get("reason"):
            yield object_event(after, WARNING, reason, "Migrate", message)
    elif now.phase == "Scheduled":
        yield object_event(after, NORMAL, "Scheduled", "Migrate", nodes)
    elif now.phase == "Succeeded":
        yield object_event(after, NORMAL, "Succeeded", "Migrate", nodes)
    elif now.phase == "Failed":
        yield object_event(after, WARNING, reason or "Failed", "Migrate", message)


def node_events(before: Object, after: Object) -> list[ObjectEvent]:
    """What a node says is wrong with a machine that it has, if that is another reason than before; and that it was
    taken away from a fenced node."""
    if nodes := fenced_from(after) - fenced_from(before):
        note = f"taken away from node {', '.join(sorted(nodes))}, which is fenced"
        return [object_event(after, WARNING, Reason.NODE_FENCED.value, "Release", note)]
    was, now = MachineView(before).status.get("reason"), MachineView(after).status.get("reason")
    if MachineView(after).holder is None or not now or now == was or now in _EXPECTED_REASONS:
        return []
    note = str(MachineView(after).status.get("message", ""))
    return [object_event(after, WARNING, str(now), "Run", note)]


def _machine_events(before: Object, after: Object) -> Iterable[ObjectEvent]:
    was, now = MachineView(before).condition(PLACED), MachineView(after).condition(PLACED)
    if now.get("status") == "True" and was.get("status") != "True":
        yield object_event(after, NORMAL, PLACED, "Place", str(now.get("message", "")))
    elif now.get("status") == "False" and now.get("reason") not in (was.get("reason"), *_EXPECTED_REASONS):
        yield object_event(after, WARNING, str(now.get("reason")), "Place", str(now.get("message", "")))
    elif was.get("status") == "True" and not now:
        node = MachineView(before).status.get("nodeName")
        yield object_event(after, NORMAL, RELEASED, "Release", f"node {node} no longer reserves anything for it")
    served = MachineView(after).condition(SERVED)
    if served.get("status") == "False" and served.get("reason") != MachineView(before).condition(SERVED).get("reason"):
        yield object_event(after, WARNING, str(served.get("reason")), "Place", str(served.get("message", "")))
    fitted, fits = MachineView(before).condition(FITS), MachineView(after).condition(FITS)
    if fits.get("status") == "False" and fits.get("reason") != fitted.get("reason"):
        yield object_event(after, WARNING, str(fits.get("reason")), "Place", str(fits.get("message", "")))
