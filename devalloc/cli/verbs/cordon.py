"""``devalloc cordon``, ``uncordon``, ``release``: exclude devices from allocation, and take back those of claims."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from devalloc.api.views import ClaimView
from devalloc.cli.command import BadInput
from devalloc.cli.follow import follow
from devalloc.cli.object_names import fetch_object, find_cordon_target, format_key, keys_of
from devalloc.cli.options.places import StoreTarget
from devalloc.cli.render.output import print_table, show_spinner
from devalloc.cli.target import current_user, open_target
from devalloc.cli.terminal import print_line, print_note
from devalloc.controller import cordon as cordons
from devalloc.controller.reconcile.release import release_claim as let_go
from devalloc.machines.drain import withdraw_requests
from devalloc.store import Store
from devalloc.store.errors import Key, NotFound, StoreError


def release(
    names: tuple[str, ...], force: bool, abandon: bool, timeout: float, namespace: str, place: StoreTarget
) -> int:
    waiting, released = [], False
    with open_target(place.within(namespace)) as objects:
        keys = keys_of(names, namespace, default="claims", store=objects)
        for key in keys:
            if key.kind != "DeviceClaim":
                hint = (
                    "; delete a ResourceClaim instead, or on a cluster its pod"
                    if key.kind.startswith("ResourceClaim")
                    else ""
                )
                raise BadInput(f"cannot release {key}, only DeviceClaims{hint}")
        for key in keys:
            fetch_object(objects, key)
            outcome = let_go(objects, key.namespace or "default", key.name, force=force, abandon=abandon)
            if outcome == "asked":
                waiting.append(key)
            else:
                released = released or outcome == "released"
                print_line(f"{format_key(key)} {outcome}")
        late = _wait_for_nodes(objects, waiting, timeout) if waiting else []
    for key in waiting:
        if key in late:
            print_note(
                f"error: {key}: the node has not released the devices within {timeout:g} s: check that the node plugin "
                "there and the controller run, because the node then releases them; if the node is gone permanently: "
                "--abandon"
            )
        else:
            released = True
            print_line(f"{format_key(key)} released")
    if released:
        print_note(
            "a released claim is answered again at once, often with the same devices; to give them up, delete it"
        )
    return 1 if late else 0


def _wait_for_nodes(store: Store, keys: list[Key], timeout: float) -> list[Key]:
    """Wait for the nodes; returns the claims that a node still has at the end. The others were released by the
    allocator or here."""
    waiting = keys

    def look() -> float | None:
        nonlocal waiting
        waiting = [key for key in waiting if not _is_released(store, key)]
        return math.inf if waiting else None

    with show_spinner("waiting for the node to release the devices"):
        follow(store, ("DeviceClaim",), look, timeout)
    return waiting


def _is_released(store: Store, key: Key) -> bool:
    try:
        claim = ClaimView(store.get(*key))
        if not claim.wants_release:  # it was released, and a node may have prepared it again
            return True
        # In case no allocator runs; if one does, whichever comes second has nothing to do.
        return not claim.is_held and let_go(store, key.namespace or "default", key.name, force=True) != "asked"
    except NotFound:
        return True


def uncordon(names: tuple[str, ...], place: StoreTarget) -> int:
    failures: list[Key] = []

    def note_failure(key: Key, error: StoreError) -> None:
        failures.append(key)
        print_note(f"error: virtualmachine {key.namespace}/{key.name} is still asked to leave: {error}")

    with open_target(place) as objects:
        targets = [find_cordon_target(objects, name, "uncordon") for name in names]
        for target in targets:
            try:
                changed = cordons.set_cordon(objects, target, None)
            except cordons.NoPools:  # nothing records a cordon of it
                changed = False
            print_line(f"{target} {'uncordoned' if changed else 'was not cordoned'}")
            for key in withdraw_requests(objects, target.node, note_failure) if target.node is not None else ():
                print_line(f"virtualmachine {key.namespace}/{key.name} is no longer asked to leave")
    return 1 if failures else 0


def cordon(names: tuple[str, ...], reason: str, place: StoreTarget) -> int:
    with open_target(place) as objects:
        if not names:
            rows = list(cordons.list_cordons(objects))
            if rows:
                print_table(["NODE", "POOL", "DEVICE", "WHY"], [list(row) for row in rows])
            else:
                print_line("nothing is cordoned")
            return 0
        why = f"by {current_user(objects)}, {datetime.now(UTC):%Y-%m-%d}" + (f": {reason}" if reason else "")
        targets = [find_cordon_target(objects, name, "cordon") for name in names]
        for target in targets:
            was_changed = cordons.set_cordon(objects, target, why, keep=not reason)
            print_line(f"{target} cordoned" if was_changed else f"{target} is already cordoned")
            if target.node is not None and cordons.publishes_slices(objects, target.node):
                print_note(
                    f"its ResourceSlices are not: use `kubectl cordon {target.node}` to keep new pods off the node, "
                    "or a DeviceTaintRule to keep them off its devices"
                )
    return 0
