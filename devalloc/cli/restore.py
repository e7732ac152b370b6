"""``devalloc restore``: put back what ``devalloc backup`` copied."""

from __future__ import annotations

from pathlib import Path

import click

from devalloc.cli.backup import JOURNAL_SUFFIX
from devalloc.cli.options import node_state_option, store_option
from devalloc.cli.verb import BadInput, verb


@verb("restore")
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path), metavar="PATH")
@click.option(
    "--journal",
    type=click.Choice(["no", "also", "only"]),
    default="no",
    help="Whether the node plugin's journal (PATH.node) is put back. Only where the present one is lost: it tells what "
    "was done to this host, and what was prepared after the backup is unknown to it.",
)
@store_option
@node_state_option
def restore(path: Path, journal: str, store: Path | None, node_state: Path | None) -> int:
    """Put a backup in the place of the store. `devalloc up` must not run, nor the node plugin for its journal.

    What was there is kept beside it, under another name. The node plugin takes nothing away on the word of a restored
    store alone: of claims that were prepared before, it says so and leaves them.

    \b
    devalloc restore /backups/devalloc-monday.db
    """
    from devalloc.cli import storage

    place = storage.store_path(store)
    folder = storage.node_state(node_state, place)
    copy = path.with_name(path.name + JOURNAL_SUFFIX)
    for file in ([path] if journal != "only" else []) + ([copy] if journal != "no" else []):
        if not file.is_file():
            raise BadInput(f"there is no backup {file}")
    if journal == "also" and place.exists():
        from devalloc.store.lease import hold

        with hold(place):  # what stands in the way of one is to be known before the other is touched
            pass
    if journal != "no":  # first: it is refused while the plugin runs
        from devalloc_node.journal.copies import restore as put_journal

        _say("the journal in", folder, put_journal(copy, folder))
    if journal != "only":
        from devalloc.store.sqlite import restore as put_store

        _say("the store", place, put_store(path, place))
    return 0


def _say(what: str, place: Path, aside: Path | None) -> None:
    click.echo(f"{what} {place} is restored" + (f"; what was there is {aside}" if aside else ""))
