"""``devalloc apply``: create or update objects in the store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devalloc.cli.names import shown
from devalloc.cli.options import manifests_option, namespace_option, store_option
from devalloc.cli.output import note
from devalloc.cli.verb import verb

if TYPE_CHECKING:
    from devalloc.store.protocol import Store

Object = dict[str, Any]

CLAIM = "DeviceClaim"
"""Claims are applied last, so that they are answered with all of the devices and classes that come along."""
ATTEMPTS = 5
"""How often a write is tried when others write the same object at the same time."""


@verb("apply")
@manifests_option(required=True)
@click.option("--dry-run", is_flag=True, help="Say what would change, and change nothing.")
@namespace_option
@store_option
def apply(files: tuple[str, ...], dry_run: bool, namespace: str, store: Path | None) -> int:
    """Create the objects of manifests in the store, or update them. Wrong ones are reported, the others applied.

    \b
    devalloc apply -f examples/whole-gpu
    cat claim.yaml | devalloc apply -f - -n team-a
    """
    from devalloc.cli.documents import read
    from devalloc.cli.storage import opened, store_path
    from devalloc.cli.unread import unread
    from devalloc.store.errors import Invalid
    from devalloc.store.key import Key

    documents = read(files, namespace, verb="apply")
    good = sorted(documents.good, key=lambda document: Key.of(document.content).kind == CLAIM)
    code = documents.exit_code
    if dry_run and not store_path(store).exists():
        for line in unread(documents.good, "apply"):
            note(line)
        for document in good:
            click.echo(f"{shown(Key.of(document.content))} created (dry run)")
        return code
    with opened(store, create=True) as objects:
        for line in unread(documents.good, "apply", objects.list(("DeviceClass", CLAIM)).objects):
            note(line)
        lines = []
        try:
            for document in good:
                try:
                    refusal, outcome = _apply(objects, document.content, dry_run=dry_run)
                except Invalid as error:  # of a kind that is not checked when manifests are read
                    note(f"error: {document.source}: {error}")
                    code = 2
                    continue
                if refusal:
                    note(f"error: {document.source}: {Key.of(document.content)}: {refusal}")
                    code = max(code, 1)
                else:
                    lines.append(f"{shown(Key.of(document.content))} {outcome}{' (dry run)' if dry_run else ''}")
        finally:  # not before: a reader that goes away early must not end this half-way
            for line in lines:
                click.echo(line)
    return code


def _apply(store: Store, wanted: Object, *, dry_run: bool) -> tuple[str, str]:
    """(why not, or "", what was done)"""
    from devalloc.controller.applying import merged, refusal
    from devalloc.store.errors import AlreadyExists, Conflict, NotFound
    from devalloc.store.key import Key

    key = Key.of(wanted)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            old = store.get(*key)
        except NotFound:
            if dry_run:
                return "", "created"
            try:
                store.create(wanted)
            except AlreadyExists:
                continue
            return "", "created"
        if why := refusal(old, wanted):
            return why, ""
        new = merged(old, wanted)
        if _user_part(new) == _user_part(old):
            return "", "unchanged"
        if dry_run:
            return "", "configured"
        try:
            store.replace(new)
        except (Conflict, NotFound):
            if attempt == ATTEMPTS:
                raise
            continue
        return "", "configured"
    return "somebody else creates and deletes it all the time; try again", ""


def _user_part(obj: Object) -> Object:
    """What users decide, to see whether a write would change anything."""
    metadata = obj["metadata"]
    theirs = {name: metadata.get(name) or None for name in ("labels", "annotations", "finalizers", "ownerReferences")}
    return {**{key: value for key, value in obj.items() if key not in ("metadata", "status")}, "metadata": theirs}
