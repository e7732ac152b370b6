"""``devalloc apply``: create or update objects in the store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devalloc.cli.command import verb
from devalloc.cli.documents import ignored_warnings, read_manifests
from devalloc.cli.object_names import format_key
from devalloc.cli.options.common import manifests_option, namespace_option, store_option
from devalloc.cli.render.output import print_note
from devalloc.cli.storage import open_embedded_store, store_path

if TYPE_CHECKING:
    from devalloc.store.protocol import Store

Object = dict[str, Any]

CLAIM = "DeviceClaim"
"""Claims are applied last, so that the controller already sees the devices and classes of the same manifests."""
ATTEMPTS = 5
"""How often a write is tried if others write the same object at the same time."""


@verb("apply")
@manifests_option(required=True)
@click.option("--dry-run", is_flag=True, help="Show what would change, but change nothing.")
@namespace_option
@store_option
def apply(files: tuple[str, ...], dry_run: bool, namespace: str, store: Path | None) -> int:
    """Create or update the objects of manifests in the store. Invalid objects are reported; the others are applied.

    \b
    devalloc apply -f examples/whole-gpu
    cat claim.yaml | devalloc apply -f - -n team-a
    """
    from devalloc.store.errors import Invalid, Key

    documents = read_manifests(files, namespace, verb="apply")
    good = sorted(documents.good, key=lambda document: Key.of(document.content).kind == CLAIM)
    code = documents.exit_code
    if dry_run and not store_path(store).exists():
        for line in ignored_warnings(documents.good, "apply"):
            print_note(line)
        for document in good:
            click.echo(f"{format_key(Key.of(document.content))} created (dry run)")
        return code
    with open_embedded_store(store, create=True) as objects:
        for line in ignored_warnings(documents.good, "apply", objects.list(("DeviceClass", CLAIM)).objects):
            print_note(line)
        lines = []
        try:
            for document in good:
                try:
                    refusal, outcome = _apply(objects, document.content, dry_run=dry_run)
                except Invalid as error:  # of a kind that `read` does not check
                    print_note(f"error: {document.source}: {error}")
                    code = 2
                    continue
                if refusal:
                    print_note(f"error: {document.source}: {Key.of(document.content)}: {refusal}")
                    code = max(code, 1)
                else:
                    lines.append(f"{format_key(Key.of(document.content))} {outcome}{' (dry run)' if dry_run else ''}")
        finally:  # not earlier: a reader that closes the pipe must not stop this half-way
            for line in lines:
                click.echo(line)
    return code


def _apply(store: Store, wanted: Object, *, dry_run: bool) -> tuple[str, str]:
    """(why it was refused, or ""; what was done)"""
    from devalloc.controller.manifest_apply import apply_refusal, merge_manifest
    from devalloc.store.errors import AlreadyExists, Conflict, Key, NotFound

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
        if why := apply_refusal(old, wanted):
            return why, ""
        new = merge_manifest(old, wanted)
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
    return "another program keeps creating and deleting it; try again", ""


def _user_part(obj: Object) -> Object:
    """The part that users set, to see whether a write would change anything."""
    metadata = obj["metadata"]
    theirs = {name: metadata.get(name) or None for name in ("labels", "annotations", "finalizers", "ownerReferences")}
    return {**{key: value for key, value in obj.items() if key not in ("metadata", "status")}, "metadata": theirs}
