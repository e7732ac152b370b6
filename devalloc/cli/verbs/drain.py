"""``devalloc drain``: cordon a node, and have its machines and claims leave it."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime

import click

from devalloc.api import meta
from devalloc.api.views import ClaimView
from devalloc.cli.command import BadInput, CommandFailed, ending_on_sigterm, verb
from devalloc.cli.drain_plan import (
    arrivals,
    claim_text,
    fate_text,
    is_held,
    name_of_object,
    other_claims,
    plan_text,
    predict,
)
from devalloc.cli.drain_run import KINDS, DrainRun
from devalloc.cli.target import StoreTarget, open_target, target_options, unserved_note
from devalloc.cli.terminal import print_line, print_note
from devalloc.cli.verbs.cordon import current_user, find_target, timeout_option
from devalloc.store.errors import Key


@verb("drain")
@click.argument("name", metavar="node/NAME")
@click.option("--reason", default="", metavar="TEXT", help="Why it is cordoned; shown with the node.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, but do nothing.")
@click.option(
    "--force",
    is_flag=True,
    help="Also power down machines that run and cannot move while they do, and take the devices of claims in use "
    "away. MACHINES THAT DO NOT POWER DOWN IN TIME, OR DO NOT GIVE THE DEVICES UP, ARE KILLED.",
)
@timeout_option
@target_options
def drain(name: str, reason: str, dry_run: bool, force: bool, timeout: float, place: StoreTarget) -> int:
    """Cordon a node, move its machines and claims to other nodes, and wait until they have left.

    The command first prints what it will do with each machine. Machines that run move while they run, if no
    part of them exists only on this node. Machines that do not run move if another node reaches their disks. With
    --force, so do machines that cannot move while they run; their guests are powered down first. A machine that cannot
    start on another node stays; with --force it is stopped, and starts again after `devalloc uncordon`. The claims of a
    machine move with it. Other claims are released and allocated again; without --force, those in use stay. The
    command withdraws migrations of other machines to this node.

    If no plugin serves the node, nothing can leave it. With --force the command cordons it and writes the requests,
    which the plugin carries out when it is back; nothing starts elsewhere before that, because the node is not fenced.

    If you stop the command, or the time is up, it withdraws migrations that are not over; machines that it has asked
    to power down still do so. Repeat it to see what is left. `devalloc uncordon` reverses the cordon. Exit code 1 if
    something runs or is in use on the node.

    \b
    devalloc drain node/node-a --dry-run
    devalloc drain node/node-a --reason 'new firmware' --force --timeout 5m
    """

    from devalloc.controller import cordon as cordons
    from devalloc.controller.drain import plan_drain

    with open_target(place) as store:
        target = find_target(store, name if "/" in name else f"node/{name}", "drain")
        if (node := target.node) is None:
            raise BadInput(f"cannot drain {target}, only nodes; to keep new claims off it: devalloc cordon {name}")
        objects = store.list(KINDS).objects
        cordoned = cordons.is_node_cordoned(store, node, objects)
        silence = unserved_note(store, node) if any(is_held(obj, node) for obj in objects) else ""
        machines = plan_drain(objects, node, force=force, live=not silence)
        print_line(plan_text(node, objects, machines, force=force, cordoned=cordoned))
        forcible = {one.key for one in plan_drain(objects, node, force=True) if one.leaves}
        others = [ClaimView(claim) for claim in other_claims(objects, node, machines)]
        released = [claim.key for claim in others if force or not claim.is_held]
        outlook = predict(store, place, node, machines, released, meta.CORDONED_NODE) if dry_run else {}
        for one in machines:
            is_forcible = one.key in forcible
            print_line(fate_text(one, node, force=force, is_forcible=is_forcible, outlook=outlook.get(one.key)))
        for claim in others if dry_run else ():
            print_line(claim_text(claim, force=force, outlook=outlook.get(Key("DeviceClaim", *claim.key))))
        for machine in arrivals(objects, node):
            print_line(f"{name_of_object(machine)}: its migration to the node will be withdrawn")
        off = f"if its host is off: devalloc fence node/{node}"
        if silence and (dry_run or not force):
            raise CommandFailed(f"nothing can leave node {node}, which must release it: {silence}; {off}")
        if silence:
            print_note(f"warning: what it holds may still run, and stays until its plugin is back: {silence}; {off}")
        if dry_run:
            return 0
        why = f"by {current_user(store)}, {datetime.now(UTC):%Y-%m-%d}: {reason or 'draining'}"
        with suppress(cordons.NoPools):  # it gets nothing new, and what is there can leave
            if cordons.set_cordon(store, target, why, keep=not reason):
                print_line(f"{target} is cordoned for the new reason" if cordoned else f"{target} cordoned")
        with ending_on_sigterm():
            patience = 0.0 if silence else timeout
            return DrainRun(store, node, force, patience, live=not silence, planned=machines).run()
