"""``devalloc wait``: wait for a state of claims or machines."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from devalloc.cli.command import BadInput, CommandFailed, parse_duration, verb
from devalloc.cli.object_names import fetch_object, format_key, keys_of
from devalloc.cli.options.common import namespace_option
from devalloc.cli.render.output import show_spinner
from devalloc.cli.shell_completion import complete_claims
from devalloc.cli.target import StoreTarget, missing_controller_note, missing_node_note, open_target, target_options
from devalloc.cli.terminal import print_line, print_note

if TYPE_CHECKING:
    from devalloc.store import Store
    from devalloc.store.errors import Key

MIGRATION = "VirtualMachineMigration"
WAIT_STATES = {
    "DeviceClaim": ("allocated", "released", "deleted"),
    "VirtualMachine": ("running", "stopped", "deleted"),
    MIGRATION: ("succeeded", "failed", "deleted"),
}
"""The states of each kind, with the default first."""


class _State(click.Choice[str]):
    """A state, also in kubectl's form: delete, condition=Allocated, jsonpath={.status.phase}=Running."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if isinstance(value, str):
            for prefix in ("condition=", "jsonpath={.status.phase}="):
                if value.startswith(prefix):
                    value = value.removeprefix(prefix).lower().removesuffix("=true")
                    if value == "ready":
                        self.fail("there is no condition Ready: claims become allocated, machines running")
            value = "deleted" if value == "delete" else value
        return super().convert(value, param, ctx)


@verb("wait")
@click.argument("names", nargs=-1, required=True, metavar="NAME... | KIND/NAME...", shell_complete=complete_claims)
@click.option(
    "--for",
    "state",
    type=_State(["allocated", "released", "running", "stopped", "succeeded", "failed", "deleted"]),
    help="State to wait for [default: allocated for claims, running for machines, succeeded for migrations].",
)
@click.option("--timeout", type=parse_duration, default="30s", metavar="DURATION", help="Maximum time to wait.")
@namespace_option
@target_options
def wait(names: tuple[str, ...], state: str | None, timeout: float, namespace: str, place: StoreTarget) -> int:
    """Wait until claims are allocated, released (hold nothing) or deleted, machines running, stopped or deleted,
    migrations succeeded, failed or deleted.

    Exit code 1 when the time is up. At once for an object that is deleted meanwhile, for a machine that will not start
    as it is, and for a migration that is over and has not the state.

    \b
    devalloc wait train --for=allocated --timeout 1m
    devalloc wait vm/web
    devalloc wait claim/train --for=delete
    """

    with open_target(place.within(namespace)) as objects:
        keys = keys_of(names, namespace, default="claims", store=objects)
        for key in keys:
            if key.kind not in WAIT_STATES and state != "deleted":
                _check_can_happen(objects, key)
        state = _state(keys, state)
        if state != "deleted":
            for key in keys:
                _check_can_happen(objects, key)
        with show_spinner(f"waiting for {', '.join(format_key(key) for key in keys)}"):
            missing = _wait(objects, keys, state, timeout)
        advice = {key: _advice(objects, key) for key in missing if state in ("allocated", "running", "succeeded")}
    for key in keys:
        if key not in missing:
            print_line(f"{format_key(key)} {state}")
    for key, why in missing.items():
        verb_text = "has not" if state in ("succeeded", "failed") else "is not"
        print_note(f"error: {key} {verb_text} {state} {why or f'after {timeout:g} s'}{advice.get(key, '')}")
    return 1 if missing else 0


def _check_can_happen(store: Store, key: Key) -> None:
    """Raises NotFound for a misspelled name, and Failed for a claim that devalloc does not allocate."""
    from devalloc.controller.reconcile.stored_claims import ignored_reason, is_foreign
    from devalloc_solver.dialects.api_groups import api_group_of

    obj = fetch_object(store, key)
    if is_foreign(obj):
        raise CommandFailed(f"{key} is not allocated here: {ignored_reason(api_group_of(obj))}")


def _state(keys: list[Key], requested: str | None) -> str:
    """The state to wait for; all of the objects must have it. Raises BadInput."""
    state = requested
    for key in keys:
        states = WAIT_STATES.get(key.kind, ("deleted",))
        if state is None and key.kind not in WAIT_STATES:
            raise BadInput(f"{format_key(key)}: a {key.kind} has no state to wait for, except --for=deleted")
        state = state or states[0]
        if state not in states:
            raise BadInput(f"a {key.kind} is never {state}; wait --for={'|'.join(states)}")
    return state or "allocated"


def _advice(store: Store, key: Key) -> str:
    """Why a claim is not allocated, or a machine is not running, and what to do; as the end of a sentence."""
    from devalloc.api import meta
    from devalloc.store.errors import NotFound

    try:
        stored = store.get(*key)
    except NotFound:
        return ""
    if key.kind == "VirtualMachine":
        status = stored.get("status", {})
        if not status:
            if silence := missing_controller_note(store):
                return f"; {silence}"
            if stored["spec"].get("nodeName") is None:
                return "; it is not placed yet: is `devalloc up` running on this store?"
        if silence := missing_node_note(stored):
            return f"; {silence}"
        return f": it is {status.get('phase')}{': ' if status.get('message') else ''}{status.get('message', '')}"
    if key.kind == MIGRATION:
        return _migration_advice(stored)
    annotations = stored["metadata"].get("annotations", {})
    if meta.REASON not in annotations:
        if silence := missing_controller_note(store):
            return f"; {silence}"
        return "; it has no answer yet: is `devalloc up` running on this store?"
    return f": {annotations[meta.REASON]}; see: devalloc explain {key.name} -n {key.namespace}"


def _migration_advice(migration: dict[str, Any]) -> str:
    from devalloc.api.views import MigrationView

    view = MigrationView(migration)
    message = view.status.get("message", "")
    return f": it is {view.phase}{': ' if message else ''}{message}"


def _wait(store: Store, keys: list[Key], state: str, timeout: float) -> dict[Key, str]:
    """The keys that did not reach the state in time, or never will as they are: then with the reason.

    Looks at all of them after each event: what seemed hopeless may have been changed.
    """
    until = time.monotonic() + timeout
    since = store.list(()).resource_version
    uids = {key: _uid(store, key) for key in keys}
    waiting = [key for key in keys if not _reached(store, key, state, uids[key])]
    kinds = {key.kind for key in keys}
    while True:
        reasons = {key: _why_never(store, key, state, uids[key]) for key in waiting}
        if all(reasons.values()) or (left := until - time.monotonic()) <= 0:
            return reasons
        for event in store.watch(kinds, since, timeout=left):
            since = event.resource_version
            break
        waiting = [key for key in waiting if not _reached(store, key, state, uids[key])]


def _uid(store: Store, key: Key) -> str | None:
    """The identity of the object that has a name now, which tells it from a later one; None if there is none."""
    obj = _same_object(store, key, None)
    return None if obj is None else obj["metadata"].get("uid")


def _same_object(store: Store, key: Key, uid: str | None) -> dict[str, Any] | None:
    """The object, unless it was deleted, even if another one has its name."""
    from devalloc.store.errors import NotFound

    try:
        obj = store.get(*key)
    except NotFound:
        return None
    return obj if uid is None or obj["metadata"].get("uid") == uid else None


def _why_never(store: Store, key: Key, state: str, uid: str | None) -> str:
    """Why an object will not get to the state until someone changes it; empty if it may."""
    from devalloc.api.views import MigrationView
    from devalloc.store.errors import NotFound

    obj = _same_object(store, key, uid)
    if obj is None:
        return "because it was deleted"
    if state in ("allocated", "running") and obj["metadata"].get("deletionTimestamp"):
        return "because it is being deleted"
    if key.kind == MIGRATION and state != "deleted":
        with suppress(NotFound):
            return "and will not, because it is over" if MigrationView(store.get(*key)).is_over else ""
    return _why_never_running(store, key) if state == "running" else ""


def _why_never_running(store: Store, key: Key) -> str:
    """Why a machine will not run until someone changes it; empty if it may."""
    from devalloc.api.decode import decode
    from devalloc.api.virtual_machine import VirtualMachine
    from devalloc.controller.reconcile.vm_scheduling.machines import has_ended
    from devalloc.store.errors import NotFound

    try:
        machine = decode(store.get(*key)).object
    except NotFound:
        return ""
    if not isinstance(machine, VirtualMachine):
        return ""
    if not machine.spec.running:
        return "and stays so, because its spec.running is false"
    return "and stays so, because it ended and its spec.restartPolicy is Never" if has_ended(machine) else ""


def _reached(store: Store, key: Key, state: str, uid: str | None) -> bool:
    obj = _same_object(store, key, uid)
    if obj is None:
        return state in ("released", "stopped", "deleted")  # a deleted claim has no devices
    status = obj.get("status", {})
    if state in ("running", "stopped", "succeeded", "failed"):
        return bool(status.get("phase") == state.capitalize())
    return state != "deleted" and bool(status.get("allocations")) == (state == "allocated")
