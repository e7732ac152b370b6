"""``devalloc cordon``: keep devices from being allocated."""

from __future__ import annotations

import click

from devalloc.cli.place import Place, place_options
from devalloc.cli.verb import verb


@verb("cordon")
@click.argument("names", nargs=-1, metavar="[DEVICE | POOL/DEVICE | pool/NAME | node/NAME]...")
@click.option("--reason", default="", metavar="TEXT", help="Why it is cordoned; shown with the device.")
@place_options
def cordon(names: tuple[str, ...], reason: str, place: Place) -> int:
    """Keep devices, pools or all of a node from being allocated. Without a name: list what is cordoned.

    Claims keep what they hold. What is cordoned already keeps its reason unless another one is given. A card is
    cordoned with its functions and vGPUs, a node with the cards that come to it, and both stay so when they go and come
    back. `devalloc uncordon` ends it.

    \b
    devalloc cordon 0000-08-00-0 --reason 'replacing the fan'
    devalloc cordon node/node-a
    """
    from datetime import UTC, datetime

    from devalloc.cli.output import table
    from devalloc.cli.place import opened
    from devalloc.controller import cordon as cordons

    with opened(place) as objects:
        if not names:
            rows = list(cordons.listed(objects))
            if rows:
                table(["NODE", "POOL", "DEVICE", "WHY"], [list(row) for row in rows])
            else:
                click.echo("nothing is cordoned")
            return 0
        why = f"by {user()}, {datetime.now(UTC):%Y-%m-%d}" + (f": {reason}" if reason else "")
        targets = [cordons.find(objects, name) for name in names]
        for target in targets:
            was_changed = cordons.cordon(objects, target, why, keep=not reason)
            click.echo(f"{target} cordoned" if was_changed else f"{target} is already cordoned")
            if target.node is not None and cordons.publishes_slices(objects, target.node):
                click.echo(
                    f"its ResourceSlices are not: `kubectl cordon {target.node}` keeps new pods from the node, "
                    "a DeviceTaintRule from devices of it",
                    err=True,
                )
    return 0


def user() -> str:
    """Who runs this; in containers often a number without a name."""
    import getpass
    import os

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"
