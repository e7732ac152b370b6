"""``devalloc cordon``: exclude devices from allocation."""

from __future__ import annotations

import getpass
import os
from datetime import UTC, datetime

import click

from devalloc.cli.command import verb
from devalloc.cli.render.output import print_table
from devalloc.cli.target import StoreTarget, open_target, target_options


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
