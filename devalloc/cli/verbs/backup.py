"""``devalloc backup``: a copy of the store, and of the node plugin's journal."""

from __future__ import annotations

import os
from pathlib import Path

import click

from devalloc.cli.command import verb
from devalloc.cli.options.common import node_state_option, store_option
from devalloc.cli.render.output import show_spinner

JOURNAL_SUFFIX = ".node"
"""Suffix of a journal's copy, after the name of the store's copy."""


@verb("backup")
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path), metavar="PATH")
@store_option
@node_state_option
def backup(path: Path, store: Path | None, node_state: Path | None) -> int:
    """Copy the store to PATH (mode 0600), consistently, even while it is in use.

    If this host's node plugin has a journal that you can read, it is copied to PATH.node. `devalloc restore` puts them
    back.

    \b
    devalloc backup /backups/devalloc-monday.db
    """

    from devalloc.cli import storage

    folder = storage.node_state_folder(node_state, storage.store_path(store))
    with storage.open_embedded_store(store) as objects, show_spinner("copying the store"):
        objects.backup(path)
        count = len(objects.list().objects)
    click.echo(f"{path}: {count} objects")
    if os.access(folder, os.R_OK | os.X_OK):
        from devalloc_node.journal.backup import backup as copy

        journal = path.with_name(path.name + JOURNAL_SUFFIX)
        if copy(folder, journal):
            click.echo(f"{journal}: the journal of the node plugin")
    return 0
