"""``devalloc release``: take a claim's devices back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from devalloc.api.views import ClaimView
from devalloc.cli.command import BadInput, parse_duration, verb
from devalloc.cli.object_names import fetch_object, format_key, keys_of
from devalloc.cli.options.common import namespace_option
from devalloc.cli.render.output import print_note, show_spinner
from devalloc.cli.shell_completion import complete_claims
from devalloc.cli.target import StoreTarget, open_target, target_options

if TYPE_CHECKING:
    from devalloc.store import Store
    from devalloc.store.errors import Key


@verb("release")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_claims)
@click.option(
    "--force",
    is_flag=True,
    help="Also release claims in use: the node takes the devices away. MACHINES THAT DO NOT GIVE THEM UP ARE KILLED.",
)
@click.option(
    "--abandon",
    is_flag=True,
    help="Do not ask the node, because it is gone permanently. A node that is still alive keeps the devices.",
)
@click.option(
    "--timeout", type=parse_duration, default="60s", metavar="DURATION", help="How long to wait for the node."
)
@namespace_option
@target_options
def release(
    names: tuple[str, ...], force: bool, abandon: bool, timeout: float, namespace: str, place: StoreTarget
) -> int:
    """Take back the devices of claims, but keep the claims: they are allocated again, with their current spec.

    A claim that is prepared on a node, for a machine or a pod, is released only with --force: the command then asks the
    node to release the devices, and waits. Exit code 1 if the node does not do it in time; it does so later.

    \b
    devalloc release train
    """
    from devalloc.controller.reconcile.release import release_claim as let_go

    waiting = []
    with open_target(place.within(namespace)) as objects:
        keys = keys_of(names, namespace, default="claims", store=objects)
        for key in keys:
            if key.kind != "DeviceClaim":
                hint = "; delete the pod of a ResourceClaim instead" if key.kind.startswith("ResourceClaim") else ""
                raise BadInput(f"cannot release {key}, only DeviceClaims{hint}")
        for key in keys:
            fetch_object(objects, key)
            outcome = let_go(objects, key.namespace or "default", key.name, force=force, abandon=abandon)
            if outcome == "asked":
                waiting.append(key)
            else:
                click.echo(f"{format_key(key)} {outcome}")
        late = wait_for_nodes(objects, waiting, timeout) if waiting else []
    for key in waiting:
        if key in late:
            print_note(
                f"error: {key}: the node has not released the devices within {timeout:g} s: are the node plugin there "
                "and the controller running? The node releases them when they run; if the node is gone permanently: "
                "--abandon"
            )
        else:
            click.echo(f"{format_key(key)} released")
    return 1 if late else 0


def wait_for_nodes(store: Store, keys: list[Key], timeout: float) -> list[Key]:
    """Wait for the nodes; returns the claims that a node still has at the end. The others were released by the
    allocator or here."""
    until = time.monotonic() + timeout
    since = store.list(()).resource_version
    with show_spinner("waiting for the node to release the devices"):
        waiting = [key for key in keys if not _is_released(store, key)]
        while waiting and (left := until - time.monotonic()) > 0:
            for event in store.watch("DeviceClaim", since, timeout=left):
                since = event.resource_version
                break
            waiting = [key for key in waiting if not _is_released(store, key)]
    return waiting


def _is_released(store: Store, key: Key) -> bool:
    from devalloc.controller.reconcile.release import release_claim as let_go
    from devalloc.store.errors import NotFound

    try:
        claim = store.get(*key)
        if ClaimView(claim).is_held:
            return False
        if ClaimView(claim).wants_release:
            # In case no allocator runs; if one does, whichever comes second has nothing to do.
            return let_go(store, key.namespace or "default", key.name, force=True) != "asked"
    except NotFound:
        pass
    return True
