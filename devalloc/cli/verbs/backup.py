"""``devalloc backup`` and ``restore``: a copy of the store, and of the node plugin's journal."""

from __future__ import annotations

import os
from pathlib import Path

import click

from devalloc.cli.command import BadInput, verb
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
        from devalloc_node.journal.sqlite import backup as copy

        journal = path.with_name(path.name + JOURNAL_SUFFIX)
        if copy(folder, journal):
            click.echo(f"{journal}: the journal of the node plugin")
    return 0


@verb("restore")
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path), metavar="PATH")
@click.option(
    "--journal",
    type=click.Choice(["no", "also", "only"]),
    default="no",
    help="Whether to restore the node plugin's journal (PATH.node), too. Do so only if the present journal is lost: it "
    "records changes to this host, and a backup does not know claims that were prepared later.",
)
@store_option
@node_state_option
def restore(path: Path, journal: str, store: Path | None, node_state: Path | None) -> int:
    """Replace the store with a backup. `devalloc up` must not run; nor the node plugin, to restore its journal.

    The old files are kept beside it, under another name. After a restore the node plugin takes no devices away because
    of the store alone: it reports claims that were prepared before, and leaves them.

    \b
    devalloc restore /backups/devalloc-monday.db
    """
    from devalloc.cli import storage

    place = storage.store_path(store)
    folder = storage.node_state_folder(node_state, place)
    copy = path.with_name(path.name + JOURNAL_SUFFIX)
    for file in ([path] if journal != "only" else []) + ([copy] if journal != "no" else []):
        if not file.is_file():
            raise BadInput(f"there is no backup {file}")
    if journal == "also" and place.exists():
        from devalloc.store.paths import hold_store

        with hold_store(place):  # check both before either is changed
            pass
    if journal != "no":  # first, because it fails while the plugin runs
        from devalloc_node.journal.sqlite import restore as put_journal

        _say("the journal in", folder, put_journal(copy, folder))
    if journal != "only":
        from devalloc.store.sqlite import restore as put_store

        _say("the store", place, put_store(path, place))
    return 0


def _say(what: str, place: Path, aside: Path | None) -> None:
    click.echo(f"{what} {place} is restored" + (f"; the old one is now {aside}" if aside else ""))
