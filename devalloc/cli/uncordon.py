"""``devalloc uncordon``: let devices be allocated again."""

from __future__ import annotations

import click

from devalloc.cli.place import Place, place_options
from devalloc.cli.verb import verb


@verb("uncordon")
@click.argument("names", nargs=-1, required=True, metavar="DEVICE | POOL/DEVICE | pool/NAME | node/NAME...")
@place_options
def uncordon(names: tuple[str, ...], place: Place) -> int:
    """Let what was cordoned be allocated again. Name it as it was cordoned; `devalloc cordon` lists what is.

    \b
    devalloc uncordon 0000-08-00-0
    """
    from devalloc.cli.place import opened
    from devalloc.controller import cordon as cordons

    with opened(place) as objects:
        targets = [cordons.find(objects, name) for name in names]
        for target in targets:
            changed = cordons.cordon(objects, target, None)
            click.echo(f"{target} {'uncordoned' if changed else 'was not cordoned'}")
    return 0
