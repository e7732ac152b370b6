"""``devalloc backup``: a copy of the store, and of the node plugin's journal."""

from __future__ import annotations

from pathlib import Path

import click

from devalloc.cli.options import node_state_option, store_option
from devalloc.cli.output import working
from devalloc.cli.verb import verb

JOURNAL_SUFFIX = ".node"
"""What the name of a journal's copy has behind that of the store's."""


@verb("backup")
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path), metavar="PATH")
@store_option
@node_state_option
def backup(path: Path, store: Path | None, node_state: Path | None) -> int:
    """Copy the store to PATH (mode 0600) as of one moment, while others use it.

    Where this host's node plugin has a journal that may be read, it is copied to PATH.node. `devalloc restore` puts
    them back.

    \b
    devalloc backup /backups/devalloc-monday.db
    """
    import os

    from devalloc.cli import storage

    folder = storage.node_state(node_state, storage.store_path(store))
    with storage.opened(store) as objects, working("copying the store"):
        objects.backup(path)
        count = len(objects.list().objects)
    click.echo(f"{path}: {count} objects")
    if os.access(folder, os.R_OK | os.X_OK):
        from devalloc_node.journal.copies import backup as copy

        journal = path.with_name(path.name + JOURNAL_SUFFIX)
        if copy(folder, journal):
            click.echo(f"{journal}: the journal of the node plugin")
    return 0
