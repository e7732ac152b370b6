"""``devalloc backup`` and ``restore``: a copy of the store, and of the node plugin's journal."""

from __future__ import annotations

import os
from pathlib import Path

from devalloc.cli import storage
from devalloc.cli.command import BadInput
from devalloc.cli.render.output import show_spinner
from devalloc.cli.terminal import print_line
from devalloc.programs.settings import node_state_folder, store_path
from devalloc.store.paths import hold_store
from devalloc.store.sqlite import restore as put_store
from devalloc_node.journal.sqlite import backup as copy_journal
from devalloc_node.journal.sqlite import restore as put_journal

JOURNAL_SUFFIX = ".node"
"""Suffix of a journal's copy, after the name of the store's copy."""


def backup(path: Path, store: Path | None, node_state: Path | None) -> int:
    folder = node_state_folder(node_state, store_path(store))
    with storage.open_embedded_store(store) as objects, show_spinner("copying the store"):
        objects.backup(path)
        count = len(objects.list().objects)
    print_line(f"{path}: {count} objects")
    if os.access(folder, os.R_OK | os.X_OK):
        journal = path.with_name(path.name + JOURNAL_SUFFIX)
        if copy_journal(folder, journal):
            print_line(f"{journal}: the journal of the node plugin")
    return 0


def restore(path: Path, journal: str, store: Path | None, node_state: Path | None) -> int:
    place = store_path(store)
    folder = node_state_folder(node_state, place)
    copy = path.with_name(path.name + JOURNAL_SUFFIX)
    for file in ([path] if journal != "only" else []) + ([copy] if journal != "no" else []):
        if not file.is_file():
            raise BadInput(f"there is no backup {file}")
    if journal == "also" and place.exists():
        with hold_store(place):  # check both before either is changed
            pass
    if journal != "no":  # first, because it fails while the plugin runs
        _say("the journal in", folder, put_journal(copy, folder))
    if journal != "only":
        _say("the store", place, put_store(path, place))
    return 0


def _say(what: str, place: Path, aside: Path | None) -> None:
    print_line(f"{what} {place} is restored" + (f"; the old one is now {aside}" if aside else ""))
