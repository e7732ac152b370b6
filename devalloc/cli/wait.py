"""``devalloc wait``: until something is true of a claim or a machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from devalloc.cli import suggestions
from devalloc.cli.names import fetched, keys_of, shown
from devalloc.cli.options import duration, namespace_option
from devalloc.cli.output import note, working
from devalloc.cli.place import Place, place_options
from devalloc.cli.verb import BadInput, Failed, verb

if TYPE_CHECKING:
    from devalloc.store import Store
    from devalloc.store.key import Key

STATES = {"DeviceClaim": ("allocated", "released", "deleted"), "VirtualMachine": ("running", "stopped", "deleted")}
"""What each kind can be waited for to be, first what is meant where nothing is said."""


class _State(click.Choice[str]):
    """A state, also as kubectl has it: delete, condition=Allocated, jsonpath={.status.phase}=Running."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if isinstance(value, str):
            for prefix in ("condition=", "jsonpath={.status.phase}="):
                if value.startswith(prefix):
                    value = value.removeprefix(prefix).lower().removesuffix("=true")
                    if value == "ready":
                        self.fail("nothing here has a condition Ready: claims become allocated, machines running")
            value = "deleted" if value == "delete" else value
        return super().convert(value, param, ctx)


@verb("wait")
@click.argument("names", nargs=-1, required=True, metavar="NAME... | KIND/NAME...", shell_complete=suggestions.claims)
@click.option(
    "--for",
    "state",
    type=_State(["allocated", "released", "running", "stopped", "deleted"]),
    help="What to wait for; by default allocated for claims, and running for machines.",
)
@click.option("--timeout", type=duration, default="30s", metavar="DURATION", help="How long to wait at most.")
@namespace_option
@place_options
def wait(names: tuple[str, ...], state: str | None, timeout: float, namespace: str, place: Place) -> int:
    """Wait until claims are allocated, released (hold nothing) or deleted, machines running, stopped or deleted.

    Exit code 1 when time is up.

    \b
    devalloc wait train --for=allocated --timeout 1m
    devalloc wait vm/web
    devalloc wait claim/train --for=delete
    """
    from devalloc.cli.place import opened

    with opened(place.within(namespace)) as objects:
        keys = keys_of(names, namespace, default="claims", store=objects)
        for key in keys:
            if key.kind not in STATES and state != "deleted":
                _worth_waiting(objects, key)
        state = _state(keys, state)
        if state != "deleted":
            for key in keys:
                _worth_waiting(objects, key)
        with working(f"waiting for {', '.join(shown(key) for key in keys)}"):
            missing = _wait(objects, keys, state, timeout)
        advice = {key: _advice(objects, key) for key in missing if state in ("allocated", "running")}
    for key in keys:
        if key not in missing:
            click.echo(f"{shown(key)} {state}")
    for key in missing:
        note(f"error: {key} is not {state} after {timeout:g} s{advice.get(key, '')}")
    return 1 if missing else 0


def _worth_waiting(store: Store, key: Key) -> None:
    """Raises NotFound for a misspelled name, and Failed for what nobody answers."""
    from devalloc.controller.foreign import is_foreign, why
    from devalloc_solver.dialects import group_of

    obj = fetched(store, key)
    if is_foreign(obj):
        raise Failed(f"{key} is not allocated here: {why(group_of(obj))}")


def _state(keys: list[Key], asked: str | None) -> str:
    """What to wait for, which all of the objects must be able to be. Raises BadInput."""
    state = asked
    for key in keys:
        states = STATES.get(key.kind, ("deleted",))
        state = state or states[0]
        if state not in states:
            raise BadInput(f"a {key.kind} is never {state}; wait --for={'|'.join(states)}")
    return state or "allocated"


def _advice(store: Store, key: Key) -> str:
    """Why a claim is not allocated, or a machine does not run, and what to do; as the end of a sentence."""
    from devalloc.api import meta
    from devalloc.cli.place import no_controller
    from devalloc.store.errors import NotFound

    try:
        found = store.get(*key)
    except NotFound:
        return "; it was deleted"
    if key.kind == "VirtualMachine":
        status = found.get("status", {})
        if not status:
            if silence := no_controller(store):
                return f"; {silence}"
            if (node := found["spec"].get("nodeName")) is None:
                return "; nobody has placed it yet: is `devalloc up` running on this store?"
            return f"; nobody keeps it yet: does a node plugin run on node {node}?"
        if status.get("phase") == "Pending" and status.get("allocations") and not status.get("message"):
            return f"; it is placed on node {status.get('nodeName')}: does a node plugin run there?"
        return f": it is {status.get('phase')}{': ' if status.get('message') else ''}{status.get('message', '')}"
    annotations = found["metadata"].get("annotations", {})
    if meta.REASON not in annotations:
        if silence := no_controller(store):
            return f"; {silence}"
        return "; nobody has answered it yet: is `devalloc up` running on this store?"
    return f": {annotations[meta.REASON]}; see: devalloc explain {key.name} -n {key.namespace}"


def _wait(store: Store, keys: list[Key], state: str, timeout: float) -> list[Key]:
    """The keys that did not reach the state in time."""
    until = time.monotonic() + timeout
    since = store.list(()).resource_version
    waiting = [key for key in keys if not _reached(store, key, state)]
    kinds = {key.kind for key in keys}
    while waiting and (left := until - time.monotonic()) > 0:
        for event in store.watch(kinds, since, timeout=left):
            since = event.resource_version
            break
        waiting = [key for key in waiting if not _reached(store, key, state)]
    return waiting


def _reached(store: Store, key: Key, state: str) -> bool:
    from devalloc.store.errors import NotFound

    try:
        status = store.get(*key).get("status", {})
    except NotFound:
        return state not in ("allocated", "running")  # what is gone holds nothing
    if state in ("running", "stopped"):
        return bool(status.get("phase") == state.capitalize())
    return state != "deleted" and bool(status.get("allocations")) == (state == "allocated")
