"""Wait until claims, machines and other objects have a state, and say what they wait for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from devalloc.api.machine_reservation import start_refusal
from devalloc.api.views import ClaimView, MachineView, MigrationView, rests_on_request
from devalloc.cli.command import REFUSED, CommandFailed
from devalloc.cli.follow import follow
from devalloc.cli.object_names import fetch_object, find_object, format_key
from devalloc.cli.render.output import clear_spinner
from devalloc.cli.target import (
    missing_controller_note,
    missing_node_note,
    no_plugin_takes,
    unanswered_advice,
    unanswered_note,
    unserved_reason,
    why_not_running,
)
from devalloc.cli.terminal import print_note
from devalloc.controller.reconcile.stored_claims import ignored_reason, is_left_aside
from devalloc.machines.replica_sets import is_ready, owner_of
from devalloc.store import Store
from devalloc.store.errors import Key
from devalloc_solver.dialects.api_groups import api_group_of

MIGRATION = "VirtualMachineMigration"
REPLICA_SET = "VirtualMachineReplicaSet"
StateTest = Callable[[dict[str, Any]], bool]
"""Whether an object has a state."""
_ADVISED = ("allocated", "running", "paused", "scaled", "ready", "succeeded")


def report_missing(store: Store, state: str, missing: dict[Key, str], timeout: float) -> int:
    """Print which objects have not reached a state, and why; the exit code. ``missing``: as of ``wait_until``."""
    is_refused = False
    for key, why in missing.items():
        verb_text = "has not" if state in ("succeeded", "failed") else "is not"
        advice = _advice(store, key) if state in _ADVISED else _leaving_advice(store, key)
        print_note(f"error: {key} {verb_text} {state} {why or f'after {timeout:g} s'}{advice}")
        is_refused = is_refused or (state in _ADVISED and _has_reason(store, key))
    return REFUSED if is_refused else int(bool(missing))


def _has_reason(store: Store, key: Key) -> bool:
    """Whether an object that waits has been answered, with a reason."""
    if (stored := find_object(store, key)) is None:
        return False
    if key.kind == "VirtualMachine":
        return bool(why_not_running(stored)[0])
    return bool(ClaimView(stored).reason)


def check_can_happen(store: Store, key: Key) -> None:
    """Raises NotFound for a misspelled name, and CommandFailed for a claim that devalloc does not allocate."""
    obj = fetch_object(store, key)
    if is_left_aside(obj):
        raise CommandFailed(f"{key} is not allocated here: {ignored_reason(api_group_of(obj))}")


def _advice(store: Store, key: Key) -> str:
    """Why a claim is not allocated, or a machine is not running, and what to do; as the end of a sentence."""
    if (stored := find_object(store, key)) is None:
        return ""
    if key.kind == "VirtualMachine":
        status = stored.get("status", {})
        if not status:
            if silence := missing_controller_note(store):
                return f"; {silence}"
            if stored["spec"].get("nodeName") is None:
                return f"; it is not placed yet: {unanswered_advice(store)}"
        if silence := missing_node_note(stored):
            return f"; {silence}"
        message = f": it is {status.get('phase')}{': ' if status.get('message') else ''}{status.get('message', '')}"
        return f"{message}{_verb_advice(stored)}"
    if key.kind == MIGRATION:
        return _migration_advice(stored)
    if key.kind == REPLICA_SET:
        return _replica_set_advice(store, stored)
    reason = ClaimView(stored).reason
    if not reason:
        if silence := missing_controller_note(store):
            return f"; {silence}"
        return f"; it has no answer yet: {unanswered_advice(store)}"
    name = format_key(key) if key.kind == "ResourceClaim" else key.name
    return f": {reason}; see: devalloc explain {name} -n {key.namespace}"


def _leaving_advice(store: Store, key: Key) -> str:
    """Why a machine is not stopped or deleted yet; as the end of a sentence."""
    stored = find_object(store, key) if key.kind == "VirtualMachine" else None
    why = "" if stored is None else _stopping_note(stored)
    return f": {why}" if why else ""


def _verb_advice(machine: dict[str, Any]) -> str:
    """The verb that changes what a machine is as wanted; empty if there is none."""
    view, name = MachineView(machine), machine["metadata"]["name"]
    if view.spec.get("running") is False or view.has_ended:
        return f"; to start it: devalloc start vm/{name}"
    is_paused = view.spec.get("paused") is True and view.status.get("phase") == "Paused"
    return f"; to let it run: devalloc resume vm/{name}" if is_paused else ""


def _migration_advice(migration: dict[str, Any]) -> str:
    view = MigrationView(migration)
    message = view.status.get("message", "")
    return f": it is {view.phase}{': ' if message else ''}{message}"


def _replica_set_advice(store: Store, replica_set: dict[str, Any]) -> str:
    metadata, wanted = replica_set["metadata"], replica_set["spec"].get("replicas", 1)
    status = replica_set.get("status") or {}
    if status.get("observedGeneration") != metadata.get("generation"):
        return f"; {unanswered_advice(store)}"
    advice = f": {status.get('readyReplicas', 0)} of {wanted} are ready"
    machines = [obj for obj in store.list("VirtualMachine", metadata["namespace"]).objects if not is_ready(obj)]
    for machine in (obj for obj in machines if (owner_of(obj) or ("", ""))[1] == metadata["uid"]):
        view = MachineView(machine)
        why = view.status.get("message") or view.status.get("phase") or "it is not placed yet"
        return f"{advice}; {view.key[1]}: {why}"
    return advice


def wait_until(
    store: Store,
    keys: Sequence[Key],
    state: str,
    timeout: float,
    *,
    test: StateTest | None = None,
    overruled: Callable[[dict[str, Any]], str] = lambda obj: "",
    gives_up: bool = False,
) -> dict[Key, str]:
    """The keys that did not reach the state in time, or never will as they are: then with the reason. ``test``: a
    stricter test of the state. ``overruled``: why others want another state of an object by now; empty if they do not.
    ``gives_up``: the user named no time, so that it ends soon where nothing serves, or the host lacks something.

    Looks at all of them after each event: what seemed hopeless may have been changed. One reading of an object answers
    whether it has the state and whether it will, because it may get there between two. Says on stderr what they wait
    for, once for each new reason, but not when the time is up: who reports that has the reason, too.
    """
    notes, until = _Notes(store, state, len(keys)), time.monotonic() + timeout
    uids = {key: _uid(store, key) for key in keys}
    missing = dict.fromkeys(keys, "")

    def look() -> float | None:
        nonlocal missing
        objects = {key: _same_object(store, key, uids[key]) for key in missing}
        waiting = [key for key in missing if not _reached(objects[key], key, state, test)]
        missing = {key: _why_never(objects[key], key, state, overruled) for key in waiting}
        if all(missing.values()):
            return None
        pause = notes.say(waiting) if time.monotonic() < until else 0.0
        if gives_up and notes.are_hopeless(waiting):
            missing = dict.fromkeys(waiting, _STAYS)
            return None
        return pause

    follow(store, {key.kind for key in keys}, look, timeout)
    return missing


SAY_SECONDS = 2.0
"""How long a wait is silent: most are over by then."""
HOPELESS_SECONDS = 15.0
"""For how long nothing may serve, or the host may lack something, until a wait ends that could last longer: a plugin
that restarts is back by then."""


class _Notes:
    """What is said of objects while a verb waits for them: once for each new reason."""

    def __init__(self, store: Store, state: str, count: int) -> None:
        self._store, self._state, self._is_one = store, state, count == 1
        self._began = time.monotonic()
        self._printed: set[tuple[Key, str]] = set()
        self._silence: str | None = None
        """That nothing answers on the store at all; None if that was not asked yet. It is asked once, because each
        time is a request to the cluster."""

    def say(self, waiting: Sequence[Key]) -> float:
        """Print what is new; the seconds after which there may be something to say though nothing changes."""
        age = time.monotonic() - self._began
        if age < SAY_SECONDS:
            return SAY_SECONDS - age
        for key in waiting:
            code, message = self._reason(key)
            if not (code or message) or (key, code or message) in self._printed:
                continue
            self._printed.add((key, code or message))
            name = "" if self._is_one else f"{format_key(key)}: "
            clear_spinner()
            print_note(f"waiting: {name}{': '.join(filter(None, (code, message)))}")
        return max(HOPELESS_SECONDS - age, SAY_SECONDS)

    def are_hopeless(self, waiting: Sequence[Key]) -> bool:
        """Whether it is time to end, because no one does anything about them."""
        is_late = time.monotonic() - self._began >= HOPELESS_SECONDS
        return is_late and all(map(self._is_hopeless, waiting))

    def _reason(self, key: Key) -> tuple[str, str]:
        """Code and message; both empty if there is nothing to say."""
        if (obj := find_object(self._store, key)) is None:
            return "", ""
        if key.kind == "VirtualMachine":
            if stopping := _stopping_note(obj):
                return "", stopping
            if self._state not in _OF_MACHINES_THAT_RUN:
                return unserved_reason(obj)
            code, message = why_not_running(obj)
            # Of the time before it was wanted, and its node cannot know whether one who places it is there.
            if code in ("NotPlaced", "StoppedOnRequest"):
                return "", self._no_answer()
            return (code, message) if code else ("", self._silence_of(obj))
        if key.kind == REPLICA_SET:
            return "", _replica_set_advice(self._store, obj).lstrip(":; ")
        if key.kind == MIGRATION:
            status = obj.get("status") or {}
            return str(status.get("reason") or ""), str(status.get("message") or "") if status.get("reason") else ""
        if self._state not in _ADVISED:
            return "", ""
        return (ClaimView(obj).reason, ClaimView(obj).message) if ClaimView(obj).reason else ("", self._no_answer())

    def _silence_of(self, machine: dict[str, Any]) -> str:
        if not machine.get("status"):
            return self._no_answer() or missing_node_note(machine)
        return missing_node_note(machine)

    def _no_answer(self) -> str:
        if self._silence is None:
            self._silence = missing_controller_note(self._store) or unanswered_note(self._store)
        return self._silence

    def _is_hopeless(self, key: Key) -> bool:
        from devalloc_machines.vms.start_refusals import lasts

        obj = find_object(self._store, key)
        if obj is None or key.kind != "VirtualMachine":
            return False
        view = MachineView(obj)
        if unserved_reason(obj)[0]:
            return True
        if self._state not in _OF_MACHINES_THAT_RUN:
            return False
        code, phase = why_not_running(obj)[0], view.status.get("phase", "Pending")
        if self._state == "scaled" and phase == "Running":
            return code in _NEVER_SCALED
        code = code if phase == "Pending" else ""
        if view.is_held and code:
            return lasts(code)
        return not view.is_held and (bool(unanswered_note(self._store)) or no_plugin_takes(self._store, obj))


def _stopping_note(machine: dict[str, Any]) -> str:
    """A sentence if its guest has its time to power down; "" otherwise."""
    view = MachineView(machine)
    seconds = view.spec.get("powerdownSeconds", 30)
    is_stopping = view.status.get("phase") == "Stopping"
    return f"its guest powers down, or is ended after {seconds} s (spec.powerdownSeconds)" if is_stopping else ""


def _uid(store: Store, key: Key) -> str | None:
    """The identity of the object that has a name now, which tells it from a later one; None if there is none."""
    obj = find_object(store, key)
    return None if obj is None else obj["metadata"].get("uid")


def _same_object(store: Store, key: Key, uid: str | None) -> dict[str, Any] | None:
    """The object, unless it was deleted, even if another one has its name. ``uid``: None: there was none."""
    obj = find_object(store, key)
    return None if obj is None or uid not in (None, obj["metadata"].get("uid")) else obj


def _why_never(obj: dict[str, Any] | None, key: Key, state: str, overruled: Callable[[dict[str, Any]], str]) -> str:
    """Why an object will not get to the state until someone changes it; empty if it may. None: it was deleted."""
    if obj is None:
        return "because it was deleted"
    if why := overruled(obj):
        return why
    if state in ("allocated", *_OF_MACHINES_THAT_RUN) and obj["metadata"].get("deletionTimestamp"):
        return "because it is being deleted"
    if key.kind == MIGRATION and state != "deleted":
        return "and will not, because it is over" if MigrationView(obj).is_over else ""
    return _why_never_running(obj, state) if state in _OF_MACHINES_THAT_RUN else ""


_STAYS = "and stays so until that is changed"
_OF_MACHINES_THAT_RUN = ("running", "ready", "paused", "scaled")


def _why_never_running(obj: dict[str, Any], state: str) -> str:
    """Why a machine will not run, or be paused, until someone changes it; empty if it may."""
    view = MachineView(obj)
    if view.spec.get("running") is False:
        return "and stays so, because its spec.running is false"
    if view.spec.get("paused") is True and state in ("running", "ready") and view.status.get("phase") == "Paused":
        return "and stays so, because its spec.paused is true"
    if view.has_ended:
        return "and stays so, because it ended and its spec.restartPolicy is Never"
    return _STAYS if _is_refused_for_good(obj) else ""


_NEVER_SCALED = ("CgroupShared", "CpusEmulated")
"""Reasons of nodes for which a machine that runs keeps what it has until its next start."""
_PERMANENT = ("MachineInvalid", "NodesTooSmall", "NodeNotFound")
"""Reasons of the controller that pass only if the machine or the fleet is changed."""


def _is_refused_for_good(machine: dict[str, Any]) -> bool:
    """Whether the controller or its node refuses the machine by its present spec, and waiting does not help."""
    from devalloc_machines.vms.start_refusals import lasts

    view = MachineView(machine)
    if refusal := start_refusal(machine):
        return lasts(str(refusal.get("reason")))
    placed = view.condition("Placed")
    is_current = placed.get("observedGeneration") in (None, machine["metadata"].get("generation"))
    return is_current and placed.get("status") == "False" and placed.get("reason") in _PERMANENT


def _reached(obj: dict[str, Any] | None, key: Key, state: str, test: StateTest | None) -> bool:
    """Whether an object has the state. None: it was deleted."""
    if obj is None:
        return state in ("released", "stopped", "deleted")  # a deleted claim has no devices
    if test is not None:
        return test(obj)
    if key.kind == "ResourceClaim":
        return state == "allocated" and bool((obj.get("status") or {}).get("allocation"))
    status = obj.get("status", {})
    if state == "stopped":
        return status.get("phase") == "Stopped" or rests_on_request(obj)
    if state == "ready" and key.kind == "VirtualMachine":
        return is_ready(obj)
    if state == "ready" and key.kind == REPLICA_SET:
        wanted = (obj["spec"].get("replicas", 1), obj["metadata"].get("generation"))
        return (status.get("readyReplicas", 0), status.get("observedGeneration")) == wanted
    if state in ("running", "paused", "succeeded", "failed"):
        return bool(status.get("phase") == state.capitalize())
    return state != "deleted" and bool(status.get("allocations")) == (state in ("allocated", "ready"))
