"""``devalloc start``, ``stop``, ``restart``, ``pause`` and ``resume``: machines of objects, and all machines of a set.

A verb writes what is wanted into the object and waits until the machine's node has done it. So it works on a cluster as
on a store, and what was asked for holds if the node's plugin does not run just then.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from devalloc.api import meta
from devalloc.api.views import MachineView
from devalloc.cli.command import BadInput, CommandFailed, ending_on_sigterm
from devalloc.cli.object_names import fetch_object, format_key, keys_of
from devalloc.cli.options.places import StoreTarget
from devalloc.cli.target import open_target, unserved_note
from devalloc.cli.terminal import print_line, print_note
from devalloc.cli.waiting import StateTest, report_missing, wait_until
from devalloc.machines.replica_sets import is_ready, owner_of
from devalloc.store import Conflict, Store
from devalloc.store.errors import Key, NotFound

Object = dict[str, Any]
MACHINE, REPLICA_SET = "VirtualMachine", "VirtualMachineReplicaSet"
_REST_SECONDS = 30.0
"""What a node needs beside the time that guests have to power down."""


def start(names: tuple[str, ...], timeout: float | None, no_wait: bool, namespace: str, place: StoreTarget) -> int:
    with open_target(place.within(namespace)) as store, ending_on_sigterm():
        keys = _machines(store, names, namespace)
        ended = [key for key in keys if _has_ended(store, key)]
        settled = ("", "StoppedOnRequest")  # until its node has noted that it is to be stopped, it counts as ended
        # It does not run, so nothing is interrupted; without this its policy keeps it from starting.
        with _briefly(store, ended, running=False):
            missing = wait_until(store, ended, "stopped", _REST_SECONDS, test=lambda obj: _reason(obj) in settled)
        if missing:
            for key in missing:
                why = unserved_note(store, MachineView(fetch_machine(store, key)).node) or "its node does not answer"
                print_note(f"error: cannot start {format_key(key)}, which has ended: {why}")
            return 1
        for key in keys:
            _set_spec(store, key, running=True, paused=False)
        return _finish(store, keys, "running", timeout, no_wait, done="started")


def stop(names: tuple[str, ...], timeout: float | None, no_wait: bool, namespace: str, place: StoreTarget) -> int:
    with open_target(place.within(namespace)) as store, ending_on_sigterm():
        keys = _machines(store, names, namespace)
        for key in keys:
            _set_spec(store, key, running=False)
        return _finish(store, keys, "stopped", timeout, no_wait, done="stopped")


def restart(names: tuple[str, ...], timeout: float | None, no_wait: bool, namespace: str, place: StoreTarget) -> int:
    with open_target(place.within(namespace)) as store, ending_on_sigterm():
        keys = _machines(store, names, namespace)
        for key in keys:
            _check_runs(store, key, "restart")
        for turn in [keys] if no_wait else [[key] for key in keys]:
            runs = {key: _request_restart(store, key) for key in turn}
            if code := _finish(store, turn, "running", timeout, no_wait, done="restarted", test=_begun_anew(runs)):
                return code
        return 0


def pause(names: tuple[str, ...], timeout: float | None, no_wait: bool, namespace: str, place: StoreTarget) -> int:
    with open_target(place.within(namespace)) as store, ending_on_sigterm():
        keys = _machines(store, names, namespace)
        for key in keys:
            _check_runs(store, key, "pause")
        for key in keys:
            _set_spec(store, key, paused=True)
        return _finish(store, keys, "paused", timeout, no_wait, done="paused")


def resume(names: tuple[str, ...], timeout: float | None, no_wait: bool, namespace: str, place: StoreTarget) -> int:
    with open_target(place.within(namespace)) as store, ending_on_sigterm():
        keys = _machines(store, names, namespace)
        for key in keys:
            _check_runs(store, key, "resume")
        # Another program may have stopped the CPUs: the node lets run again what it has stopped itself.
        stopped = [key for key in keys if _status(store, key).get("reason") == "CpusStopped"]
        with _briefly(store, stopped, paused=True):
            wait_until(store, stopped, "paused", _REST_SECONDS, test=lambda obj: _reason(obj) == "PausedOnRequest")
        for key in keys:
            _set_spec(store, key, paused=False)
        return _finish(store, keys, "running", timeout, no_wait, done="resumed")


def _machines(store: Store, names: Sequence[str], namespace: str) -> list[Key]:
    """The machines that are named, and those of sets that are named. Raises BadInput, NotFound, CommandFailed."""
    keys: list[Key] = []
    for key in keys_of(names, namespace, default="virtualmachines", store=store):
        if key.kind not in (MACHINE, REPLICA_SET):
            raise BadInput(f"only machines and sets of machines are started and stopped, not a {key.kind}")
        there = fetch_machine(store, key)
        if key.kind == MACHINE:
            keys.append(key)
            continue
        uid = there["metadata"]["uid"]
        listed = store.list(MACHINE, namespace).objects
        members = [Key.of(obj) for obj in listed if (owner := owner_of(obj)) is not None and owner[1] == uid]
        if not members:
            print_note(f"{format_key(key)} has no machines")
        keys += members
    return list(dict.fromkeys(keys))


def fetch_machine(store: Store, key: Key) -> Object:
    """The object. Raises NotFound, also with the way for machines that have no object."""
    try:
        return fetch_object(store, key)
    except NotFound as error:
        raise NotFound(f"{error}. For machines without an object: devalloc vm --help") from None


def change_object(store: Store, key: Key, change: Callable[[Object], Object]) -> Object:
    """Write what ``change`` makes of an object; the object as stored. Raises StoreError."""
    while True:
        current = fetch_machine(store, key)
        wanted = change(current)
        if wanted == current:
            return current
        try:
            return store.replace(wanted)
        except Conflict:  # its node has written its status
            continue


def _set_spec(store: Store, key: Key, **fields: bool) -> None:
    defaults = {"running": True, "paused": False}

    def changed(obj: Object) -> Object:
        spec = dict(obj["spec"])
        for name, value in fields.items():
            if spec.get(name, defaults[name]) != value:
                spec[name] = value
        return {**obj, "spec": spec}

    change_object(store, key, changed)


@contextmanager
def _briefly(store: Store, keys: Sequence[Key], **fields: bool) -> Iterator[None]:
    """Have specs say something while inside, and the opposite afterwards: also if the user gives up, or nothing
    answers, what they asked for must not have become what they wrote in between."""
    try:
        for key in keys:
            _set_spec(store, key, **fields)
        yield
    finally:
        for key in keys:
            with suppress(NotFound):
                _set_spec(store, key, **{name: not value for name, value in fields.items()})


def _request_restart(store: Store, key: Key) -> str:
    """Ask for a new run; the run that there is."""
    request = secrets.token_hex(8)

    def changed(obj: Object) -> Object:
        metadata = obj["metadata"]
        return {
            **obj,
            "metadata": {**metadata, "annotations": {**metadata.get("annotations", {}), meta.RESTART: request}},
        }

    return str(MachineView(change_object(store, key, changed)).status.get("machineID") or "")


def _begun_anew(runs: dict[Key, str]) -> StateTest:
    return lambda obj: is_ready(obj) and MachineView(obj).status.get("machineID") != runs.get(Key.of(obj))


def _status(store: Store, key: Key) -> Object:
    return dict(MachineView(fetch_machine(store, key)).status)


def _reason(obj: Object) -> str:
    return str(MachineView(obj).status.get("reason") or "")


def _has_ended(store: Store, key: Key) -> bool:
    """Whether its restart policy keeps it from running again."""
    view = MachineView(fetch_machine(store, key))
    return view.spec.get("running") is not False and view.has_ended


def _check_runs(store: Store, key: Key, what: str) -> None:
    """Raises CommandFailed for a machine that is stopped, or to be."""
    view = MachineView(fetch_machine(store, key))
    if view.spec.get("running") is False or _has_ended(store, key):
        raise CommandFailed(f"cannot {what} {format_key(key)}: it is stopped; start it: devalloc start vm/{key.name}")


def _overruled(machine: Object, state: str) -> str:
    """Why a machine does not reach the state: others have asked for another one since. Empty if they have not."""
    spec = MachineView(machine).spec
    if state == "stopped" and spec.get("running") is not False:
        return "because it was started again meanwhile (spec.running is true)"
    if state == "paused" and spec.get("paused") is not True:
        return "because it was resumed meanwhile (spec.paused is false)"
    return ""


def _finish(
    store: Store,
    keys: Iterable[Key],
    state: str,
    timeout: float | None,
    no_wait: bool,
    *,
    done: str,
    test: StateTest | None = None,
) -> int:
    """Wait until all have the state, and print it; the exit code."""
    keys, gives_up = list(keys), timeout is None
    if no_wait:
        for key in keys:
            print_line(f"{format_key(key)}: to be {done}")
        return 0
    if timeout is None:
        seconds = [MachineView(fetch_machine(store, key)).spec.get("powerdownSeconds", 30) for key in keys]
        timeout = _REST_SECONDS + max([60.0, *(float(each) for each in seconds if isinstance(each, int))])
    missing = wait_until(
        store, keys, state, timeout, test=test, overruled=lambda obj: _overruled(obj, state), gives_up=gives_up
    )
    for key in keys:
        if key not in missing:
            print_line(f"{format_key(key)} {done}")
    return report_missing(store, state, missing, timeout)
