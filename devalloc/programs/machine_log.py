"""What ``devalloc up`` says of machines."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from devalloc.api.views import MachineView
from devalloc.store import Event, Key, Store
from devalloc.store.watcher import Listed, Watcher

log = logging.getLogger(__name__)

_MACHINE = "VirtualMachine"
_MAX_REASONS = 20
"""Reasons why one machine cannot start that the log has at most, until the machine runs."""
_SETTLED_PHASES = ("Running", "Paused", "Stopped", "Failed")
_LIVE_PHASES = ("Running", "Paused")


class MachineLog:
    """Says once of each machine of the store that it started, stopped or moved, not what was so before; and once for
    each reason why it cannot start."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._seen: dict[str, tuple[str, str]] = {}
        """Phase and node of each machine, by the UID of its object."""
        self._logged_reasons: dict[str, set[str]] = {}
        """By UID: reasons logged since the machine last ran."""

    def run(self, store: Store, stop: threading.Event) -> None:
        """Follow the store until ``stop`` is set. Raises Unusable."""
        Watcher(store, _MACHINE, self._heard, "could not watch the machines").run(stop)

    def _heard(self, change: Listed | Event) -> None:

        if isinstance(change, Event):
            self.note(change.object, is_gone=change.type.value == "DELETED")
            return
        uids = {machine["metadata"]["uid"] for machine in change.objects}
        self._seen = {uid: state for uid, state in self._seen.items() if uid in uids}
        self._logged_reasons = {uid: reasons for uid, reasons in self._logged_reasons.items() if uid in uids}
        for machine in change.objects:
            self.note(machine, is_new=machine["metadata"]["uid"] not in self._seen)

    def note(self, machine: dict[str, Any], *, is_new: bool = False, is_gone: bool = False) -> None:
        """Compare the state of a machine with its last one. ``is_new``: it was like this when the log began."""
        view, uid = MachineView(machine), machine["metadata"]["uid"]
        phase, node = str(view.status.get("phase", "")), str(view.status.get("nodeName") or "")
        before, before_node = self._seen.pop(uid, ("", ""))
        has_left = phase == "Pending" and not view.is_held  # else it is on its way from one phase to another
        if phase not in _SETTLED_PHASES and not has_left and not is_gone:
            phase, node = before, before_node
        name, ran, runs = Key.of(machine), before in _LIVE_PHASES, phase in _LIVE_PHASES and not is_gone
        if not is_gone:
            self._seen[uid] = (phase, node)
        if is_gone or view.status.get("phase") == "Running":
            self._logged_reasons.pop(uid, None)
        else:
            self._note_wait(name, uid, view, has_just_stopped=ran and not runs)
        if is_new:
            return
        if runs and not ran:
            self._say(f"{name} started on node {node}")
        elif runs and node != before_node:
            self._say(f"{name} moved from node {before_node} to node {node}")
        elif runs and phase != before:
            why = view.status.get("message") or view.status.get("reason")
            self._say(f"{name} runs again" if phase == "Running" else f"{name} is paused{f': {why}' if why else ''}")
        elif ran and not runs:
            why = "it was deleted" if is_gone else view.status.get("message") or view.status.get("reason")
            self._say(f"{name} stopped{f': {why}' if why else ''}")

    def _note_wait(self, name: Key, uid: str, view: MachineView, *, has_just_stopped: bool) -> None:
        """``has_just_stopped``: the line about that has the reason."""
        reason = str(view.status.get("reason") or "")
        reported = self._logged_reasons.setdefault(uid, set())
        phase = view.status.get("phase")
        is_waiting = phase == "Pending" or (phase == "Unknown" and reason == "MachineRuns")  # another folder's plugin
        if (
            not (is_waiting and reason)
            or view.metadata.get("deletionTimestamp")
            or reason in reported
            or len(reported) >= _MAX_REASONS
        ):
            return
        reported.add(reason)
        if not has_just_stopped:
            message = view.status.get("message")
            self._say(f"{name} cannot start ({reason}){f': {message}' if message else ''}")
