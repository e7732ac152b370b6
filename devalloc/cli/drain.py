"""``devalloc drain``: cordon a node, and take back what its claims hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from devalloc.cli.options import duration
from devalloc.cli.output import note
from devalloc.cli.place import Place, place_options
from devalloc.cli.verb import BadInput, verb

if TYPE_CHECKING:
    from devalloc.store import Store
    from devalloc.store.key import Key

Object = dict[str, Any]


@verb("drain")
@click.argument("name", metavar="node/NAME")
@click.option("--reason", default="", metavar="TEXT", help="Why it is cordoned; shown with the node.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@click.option(
    "--force",
    is_flag=True,
    help="Also claims in use: the node takes the devices away. MACHINES THAT DO NOT LET GO ARE ENDED.",
)
@click.option("--timeout", type=duration, default="60s", metavar="DURATION", help="How long to wait for the node.")
@place_options
def drain(name: str, reason: str, dry_run: bool, force: bool, timeout: float, place: Place) -> int:
    """Cordon a node, release the claims that have devices there, and wait until the node has released them.

    It says first what it will do. Released claims are allocated anew on other nodes, or wait. What a machine or a pod
    uses stays without --force. Machines themselves stay: delete those that are to go. `devalloc uncordon` ends it.

    Exit code 1 when something is left on the node.

    \b
    devalloc drain node/node-a --dry-run
    devalloc drain node/node-a --reason 'new firmware'
    """
    from datetime import UTC, datetime

    from devalloc.cli.cordon import user
    from devalloc.cli.place import opened
    from devalloc.cli.release import wait_for_nodes
    from devalloc.controller import cordon as cordons
    from devalloc.controller.claims import is_prepared
    from devalloc.controller.release import InUse
    from devalloc.controller.release import release as let_go
    from devalloc.store.errors import NotFound
    from devalloc.store.key import Key

    with opened(place) as store:
        target = cordons.find(store, name if "/" in name else f"node/{name}")
        if target.node is None:
            raise BadInput(
                f"only a node can be drained, not {target}; to keep new claims off it: devalloc cordon {name}"
            )
        claims = _claims_on(store, target.node)
        click.echo(_plan(target.node, claims, force=force))
        if dry_run:
            return 0
        why = f"by {user()}, {datetime.now(UTC):%Y-%m-%d}: {reason or 'draining'}"
        changed = cordons.cordon(store, target, why, keep=not reason)
        click.echo(f"{target} cordoned" if changed else f"{target} is already cordoned")
        code = 0
        seen: set[Key] = set()
        waiting: list[Key] = []
        # Until none is left: what was decided before the cordon may be written after it.
        while fresh := [key for key in map(Key.of, _claims_on(store, target.node)) if key not in seen]:
            seen.update(fresh)
            for key in fresh:
                try:
                    outcome = let_go(store, key.namespace or "default", key.name, force=force)
                except InUse as error:
                    note(f"error: {error}")
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
                note(f"error: {key}: the node has not released its devices after {timeout:g} s; it will do so later")
                code = 1
            else:
                click.echo(f"{key} released")
        for machine in _machines_on(store, target.node):
            note(f"{Key.of(machine)} stays on the node; `devalloc delete vm/{machine['metadata']['name']}` ends it")
        if any(is_prepared(claim) for claim in _claims_on(store, target.node)):
            return max(code, 1)
    return code


def _plan(node: str, claims: list[Object], *, force: bool) -> str:
    from devalloc.controller.claims import claim_key, is_prepared

    steps = [f"cordon node {node}"]
    used = [claim for claim in claims if is_prepared(claim)]
    for word, some in (("release", [one for one in claims if not is_prepared(one)]), ("take away from", used)):
        names = ", ".join("/".join(claim_key(claim)) for claim in some)
        if some and (some is not used or force):
            steps.append(f"{word} {len(some)} {'claim' if len(some) == 1 else 'claims'}: {names}")
        elif some:
            steps.append(f"leave {len(some)} in use (--force takes them away): {names}")
    return f"will {'; '.join(steps)}"


def _claims_on(store: Store, node: str) -> list[Object]:
    """Those that have devices of the node, or that it still holds."""
    from devalloc.api import meta
    from devalloc.controller.claims import allocations, annotation, is_prepared

    return [
        claim
        for claim in store.list("DeviceClaim").objects
        if (allocations(claim) and annotation(claim, meta.ALLOCATED_NODE) == node)
        or (is_prepared(claim) and annotation(claim, meta.PREPARED_ON) == node)
    ]


def _machines_on(store: Store, node: str) -> list[Object]:
    from devalloc.api.inwords import machine_node, machine_phase

    machines = store.list("VirtualMachine").objects
    return [
        one
        for one in machines
        if isinstance(one.get("spec"), dict) and machine_node(one) == node and machine_phase(one) != "Stopped"
    ]
