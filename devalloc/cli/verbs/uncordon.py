"""``devalloc uncordon``: allow the allocation of devices again."""

from __future__ import annotations

import click

from devalloc.cli.command import verb
from devalloc.cli.target import StoreTarget, open_target, target_options


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
