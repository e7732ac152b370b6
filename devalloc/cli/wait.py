"""``devalloc wait``: until something is true of a claim."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devalloc.cli import suggestions
from devalloc.cli.names import keys_of, shown
from devalloc.cli.options import duration, namespace_option, store_option
from devalloc.cli.output import note, working
from devalloc.cli.verb import verb

if TYPE_CHECKING:
    from devalloc.store.key import Key
    from devalloc.store.sqlite import SQLiteStore


@verb("wait")
@click.argument("names", nargs=-1, required=True, metavar="NAME... | KIND/NAME...", shell_complete=suggestions.claims)
@click.option(
    "--for",
    "state",
    type=click.Choice(["allocated", "released", "deleted"]),
    default="allocated",
    help="What to wait for.",
)
@click.option("--timeout", type=duration, default="30s", metavar="DURATION", help="How long to wait at most.")
@namespace_option
@store_option
def wait(names: tuple[str, ...], state: str, timeout: float, namespace: str, store: Path | None) -> int:
    """Wait until all of them are allocated, released (hold nothing) or deleted. Exit code 1 when time is up.

    \b
    devalloc wait train --for=allocated --timeout 1m
    """
    from devalloc.cli.storage import opened

    with opened(store) as objects:
        keys = keys_of(names, namespace, default="claims")
        if state != "deleted":
            for key in keys:
                objects.get(*key)  # a misspelled name is not worth waiting for
        with working(f"waiting for {', '.join(shown(key) for key in keys)}"):
            missing = _wait(objects, keys, state, timeout)
        advice = {key: _advice(objects, key) for key in missing if state == "allocated"}
    for key in keys:
        if key not in missing:
            click.echo(f"{shown(key)} {state}")
    for key in missing:
        note(f"error: {key} is not {state} after {timeout:g} s{advice.get(key, '')}")
    return 1 if missing else 0


def _advice(store: SQLiteStore, key: Key) -> str:
    """What to do about a claim that is not allocated, as the end of a sentence."""
    from devalloc.api import meta
    from devalloc.store.errors import NotFound

    try:
        annotations = store.get(*key)["metadata"].get("annotations", {})
    except NotFound:
        return "; it was deleted"
    if meta.REASON not in annotations:
        return "; nobody has answered it yet: is `devalloc up` running on this store?"
    return f": {annotations[meta.REASON]}; see: devalloc explain {key.name} -n {key.namespace}"


def _wait(store: SQLiteStore, keys: list[Key], state: str, timeout: float) -> list[Key]:
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


def _reached(store: SQLiteStore, key: Key, state: str) -> bool:
    from devalloc.store.errors import NotFound

    try:
        claim = store.get(*key)
    except NotFound:
        return state != "allocated"  # what is gone holds nothing
    return state != "deleted" and bool(claim.get("status", {}).get("allocations")) == (state == "allocated")
