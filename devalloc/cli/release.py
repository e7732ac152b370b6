"""``devalloc release``: take a claim's devices back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from devalloc.cli import suggestions
from devalloc.cli.names import fetched, keys_of, shown
from devalloc.cli.options import duration, namespace_option
from devalloc.cli.output import note, working
from devalloc.cli.place import Place, place_options
from devalloc.cli.verb import BadInput, verb

if TYPE_CHECKING:
    from devalloc.store import Store
    from devalloc.store.key import Key


@verb("release")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=suggestions.claims)
@click.option(
    "--force",
    is_flag=True,
    help="Also while they are in use: their node takes the devices away. MACHINES THAT DO NOT LET GO ARE ENDED.",
)
@click.option(
    "--abandon",
    is_flag=True,
    help="Without asking their node, which is gone for good. While it lives, it still has the devices.",
)
@click.option("--timeout", type=duration, default="60s", metavar="DURATION", help="How long to wait for the node.")
@namespace_option
@place_options
def release(names: tuple[str, ...], force: bool, abandon: bool, timeout: float, namespace: str, place: Place) -> int:
    """Clear what claims hold and keep the claims: they are allocated anew, with their spec as it is now.

    What is prepared on a node, for a machine or a pod, is released only by force: then the command asks the node to
    release the devices, and waits. Exit code 1 if the node does not in time; it does so later.

    \b
    devalloc release train
    """
    from devalloc.cli.place import opened
    from devalloc.controller.release import release as let_go

    asked = []
    with opened(place.within(namespace)) as objects:
        keys = keys_of(names, namespace, default="claims", store=objects)
        for key in keys:
            if key.kind != "DeviceClaim":
                hint = "; delete the pod of a ResourceClaim instead" if key.kind.startswith("ResourceClaim") else ""
                raise BadInput(f"cannot release {key}: only DeviceClaims can be released{hint}")
        for key in keys:
            fetched(objects, key)
            outcome = let_go(objects, key.namespace or "default", key.name, force=force, abandon=abandon)
            if outcome == "asked":
                asked.append(key)
            else:
                click.echo(f"{shown(key)} {outcome}")
        late = wait_for_nodes(objects, asked, timeout) if asked else []
    for key in asked:
        if key in late:
            note(
                f"error: {key} is to be released, and its node has not released the devices after {timeout:g} s: "
                "is the node plugin running there, and the controller? The node does so when they run; if it is gone "
                "for good: --abandon"
            )
        else:
            click.echo(f"{shown(key)} released")
    return 1 if late else 0


def wait_for_nodes(store: Store, keys: list[Key], timeout: float) -> list[Key]:
    """Those that their node still has when time is up. The others are released, by the allocator or here."""
    until = time.monotonic() + timeout
    since = store.list(()).resource_version
    with working("waiting for the node to release the devices"):
        waiting = [key for key in keys if not _let_go(store, key)]
        while waiting and (left := until - time.monotonic()) > 0:
            for event in store.watch("DeviceClaim", since, timeout=left):
                since = event.resource_version
                break
            waiting = [key for key in waiting if not _let_go(store, key)]
    return waiting


def _let_go(store: Store, key: Key) -> bool:
    from devalloc.controller.claims import is_prepared, wants_release
    from devalloc.controller.release import release as let_go
    from devalloc.store.errors import NotFound

    try:
        claim = store.get(*key)
        if is_prepared(claim):
            return False
        if wants_release(claim):  # nobody runs the allocator; and where one runs, whoever comes second finds it done
            return let_go(store, key.namespace or "default", key.name, force=True) != "asked"
    except NotFound:
        pass
    return True
