"""``devalloc backup``: a copy of the store."""

from __future__ import annotations

from pathlib import Path

import click

from devalloc.cli.options import store_option
from devalloc.cli.output import working
from devalloc.cli.verb import verb


@verb("backup")
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path), metavar="PATH")
@store_option
def backup(path: Path, store: Path | None) -> int:
    """Copy the store to PATH (mode 0600) as of one moment, while others use it.

    To restore: stop `devalloc up`, remove the store's file with those ending in -wal and -shm, and copy PATH there.
    """
    from devalloc.cli.storage import opened

    with opened(store) as objects, working("copying the store"):
        objects.backup(path)
        count = len(objects.list().objects)
    click.echo(f"{path}: {count} objects")
    return 0
