"""``devalloc release``: take a claim's devices back."""

from __future__ import annotations

from pathlib import Path

import click

from devalloc.cli import suggestions
from devalloc.cli.names import keys_of, shown
from devalloc.cli.options import namespace_option, store_option
from devalloc.cli.verb import BadInput, verb


@verb("release")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=suggestions.claims)
@click.option("--force", is_flag=True, help="Also while somebody is known to use the devices (status.podNames).")
@namespace_option
@store_option
def release(names: tuple[str, ...], force: bool, namespace: str, store: Path | None) -> int:
    """Clear what claims hold and keep the claims: they are allocated anew, with their spec as it is now.

    \b
    devalloc release train
    """
    from devalloc.cli.storage import opened
    from devalloc.controller.release import release as let_go

    keys = keys_of(names, namespace, default="claims")
    for key in keys:
        if key.kind != "DeviceClaim":
            raise BadInput(f"{key} holds no devices; only claims are released")
    with opened(store) as objects:
        for key in keys:
            released = let_go(objects, key.namespace or "default", key.name, force=force)
            click.echo(f"{shown(key)} {'released' if released else 'held nothing'}")
    return 0
