"""``devalloc cordon``, ``uncordon``, ``drain``, ``release``: exclude devices from allocation, and take back those of
claims.
"""

from __future__ import annotations

import getpass
import os
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from devalloc.api.views import ClaimView
from devalloc.cli.command import BadInput, parse_duration, verb
from devalloc.cli.object_names import fetch_object, format_key, keys_of
from devalloc.cli.options.common import namespace_option
from devalloc.cli.render.output import print_note, print_table, show_spinner
from devalloc.cli.shell_completion import complete_claims
from devalloc.cli.target import StoreTarget, open_target, target_options

if TYPE_CHECKING:
    from devalloc.store import Store
    from devalloc.store.errors import Key


_force_option = click.option(
    "--force",
    is_flag=True,
    help="Also release claims in use: the node takes the devices away. MACHINES THAT DO NOT GIVE THEM UP ARE KILLED.",
)
_timeout_option = click.option(
    "--timeout", type=parse_duration, default="60s", metavar="DURATION", help="How long to wait for the node."
)


@verb("release")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_claims)
@_force_option
@click.option(
    "--abandon",
    is_flag=True,
    help="Do not ask the node, because it is gone permanently. A node that is still alive keeps the devices.",
)
@_timeout_option
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
                f"error: {key}: the node has not released the devices within {timeout:g} s: check that the node plugin "
                "there and the controller run, because the node then releases them; if the node is gone permanently: "
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


@verb("uncordon")
@click.argument("names", nargs=-1, required=True, metavar="DEVICE | POOL/DEVICE | pool/NAME | node/NAME...")
@target_options
def uncordon(names: tuple[str, ...], place: StoreTarget) -> int:
    """Allow allocation again. Use the name that you cordoned; `devalloc cordon` lists what is cordoned.

    \b
    devalloc uncordon 0000-08-00-0
    """
    from devalloc.controller import cordon as cordons

    with open_target(place) as objects:
        targets = [cordons.find_target(objects, name) for name in names]
        for target in targets:
            changed = cordons.set_cordon(objects, target, None)
            click.echo(f"{target} {'uncordoned' if changed else 'was not cordoned'}")
    return 0


@verb("cordon")
@click.argument("names", nargs=-1, metavar="[DEVICE | POOL/DEVICE | pool/NAME | node/NAME]...")
@click.option("--reason", default="", metavar="TEXT", help="Why it is cordoned; shown with the device.")
@target_options
def cordon(names: tuple[str, ...], reason: str, place: StoreTarget) -> int:
    """Exclude devices, pools or a whole node from allocation. Without a name: list what is cordoned.

    Claims keep their devices. What is already cordoned keeps its reason unless you give another one. Cordoning a card
    includes its functions and vGPUs; cordoning a node includes cards that are added later. Both stay cordoned if they
    disappear and come back. `devalloc uncordon` reverses it.

    \b
    devalloc cordon 0000-08-00-0 --reason 'replacing the fan'
    devalloc cordon node/node-a
    """

    from devalloc.controller import cordon as cordons

    with open_target(place) as objects:
        if not names:
            rows = list(cordons.list_cordons(objects))
            if rows:
                print_table(["NODE", "POOL", "DEVICE", "WHY"], [list(row) for row in rows])
            else:
                click.echo("nothing is cordoned")
            return 0
        why = f"by {current_user()}, {datetime.now(UTC):%Y-%m-%d}" + (f": {reason}" if reason else "")
        targets = [cordons.find_target(objects, name) for name in names]
        for target in targets:
            was_changed = cordons.set_cordon(objects, target, why, keep=not reason)
            click.echo(f"{target} cordoned" if was_changed else f"{target} is already cordoned")
            if target.node is not None and cordons.publishes_slices(objects, target.node):
                click.echo(
                    f"its ResourceSlices are not: use `kubectl cordon {target.node}` to keep new pods off the node, "
                    "or a DeviceTaintRule to keep them off its devices",
                    err=True,
                )
    return 0


def current_user() -> str:
    """The user who runs this; in containers often a number without a name."""

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"


Object = dict[str, Any]


@verb("drain")
@click.argument("name", metavar="node/NAME")
@click.option("--reason", default="", metavar="TEXT", help="Why it is cordoned; shown with the node.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, but do nothing.")
@_force_option
@_timeout_option
@target_options
def drain(name: str, reason: str, dry_run: bool, force: bool, timeout: float, place: StoreTarget) -> int:
    """Cordon a node, release the claims that have devices there, and wait until the node has released them.

    The command first prints what it will do. Released claims are allocated again on other nodes, or wait. Without
    --force, claims that a machine or pod uses keep their devices. Machines stay on the node; delete those that you no
    longer need. `devalloc uncordon` reverses the cordon.

    Exit code 1 if something is left on the node.

    \b
    devalloc drain node/node-a --dry-run
    devalloc drain node/node-a --reason 'new firmware'
    """

    from devalloc.controller import cordon as cordons
    from devalloc.controller.reconcile.release import InUse
    from devalloc.controller.reconcile.release import release_claim as let_go
    from devalloc.store.errors import Key, NotFound

    with open_target(place) as store:
        target = cordons.find_target(store, name if "/" in name else f"node/{name}")
        if target.node is None:
            raise BadInput(f"cannot drain {target}, only nodes; to keep new claims off it: devalloc cordon {name}")
        claims = _claims_on(store, target.node)
        click.echo(_plan_text(target.node, claims, force=force))
        if dry_run:
            return 0
        why = f"by {current_user()}, {datetime.now(UTC):%Y-%m-%d}: {reason or 'draining'}"
        changed = cordons.set_cordon(store, target, why, keep=not reason)
        click.echo(f"{target} cordoned" if changed else f"{target} is already cordoned")
        code = 0
        seen: set[Key] = set()
        waiting: list[Key] = []
        # Repeat until none is left: an allocation decided before the cordon may be written after it.
        while fresh := [key for key in map(Key.of, _claims_on(store, target.node)) if key not in seen]:
            seen.update(fresh)
            for key in fresh:
                try:
                    outcome = let_go(store, key.namespace or "default", key.name, force=force)
                except InUse as error:
                    print_note(f"error: {error}")
                    code = 1
                except NotFound:
                    continue
                else:
                    if outcome == "asked":
                        waiting.append(key)
                    elif outcome == "released":
                        click.echo(f"{key} released")
        late = wait_for_nodes(store, waiting, timeout) if waiting else []
        for key in waiting:
            if key in late:
                print_note(
                    f"error: {key}: the node has not released the devices within {timeout:g} s; it will do so later"
                )
                code = 1
            else:
                click.echo(f"{key} released")
        for machine in _machines_on(store, target.node):
            print_note(
                f"{Key.of(machine)} stays on the node; to remove it: devalloc delete vm/{machine['metadata']['name']}"
            )
        if any(ClaimView(claim).is_held for claim in _claims_on(store, target.node)):
            return max(code, 1)
    return code


def _plan_text(node: str, claims: list[Object], *, force: bool) -> str:

    steps = [f"cordon node {node}"]
    used = [claim for claim in claims if ClaimView(claim).is_held]
    for word, some in (("release", [one for one in claims if not ClaimView(one).is_held]), ("take away from", used)):
        names = ", ".join("/".join(ClaimView(claim).key) for claim in some)
        if some and (some is not used or force):
            steps.append(f"{word} {len(some)} {'claim' if len(some) == 1 else 'claims'}: {names}")
        elif some:
            steps.append(f"leave {len(some)} in use (--force takes them away): {names}")
    return f"will {'; '.join(steps)}"


def _claims_on(store: Store, node: str) -> list[Object]:
    """The claims that have devices of the node, or that the node still has prepared."""

    return [
        claim
        for claim in store.list("DeviceClaim").objects
        if (ClaimView(claim).entries and ClaimView(claim).node == node)
        or (ClaimView(claim).is_held and ClaimView(claim).holder == node)
    ]


def _machines_on(store: Store, node: str) -> list[Object]:
    from devalloc.api.views import machine_node, machine_phase

    machines = store.list("VirtualMachine").objects
    return [
        one
        for one in machines
        if isinstance(one.get("spec"), dict) and machine_node(one) == node and machine_phase(one) != "Stopped"
    ]
