"""``devalloc apply``: create or update objects in the store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devalloc.cli.names import shown
from devalloc.cli.options import files_option, namespace_option, store_option
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
@files_option(required=True)
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
    from devalloc.store.key import Key

    documents = read(files, namespace, expressions=True)
    good = sorted(documents.good, key=lambda document: document.content["kind"] == CLAIM)
    code = documents.exit_code
    if dry_run and not store_path(store).exists():
        for document in good:
            click.echo(f"{shown(Key.of(document.content))} created (dry run)")
        return code
    with opened(store, create=True) as objects:
        for document in good:
            refusal, outcome = _apply(objects, document.content, dry_run=dry_run)
            if refusal:
                note(f"error: {document.source}: {Key.of(document.content)}: {refusal}")
                code = max(code, 1)
            else:
                click.echo(f"{shown(Key.of(document.content))} {outcome}{' (dry run)' if dry_run else ''}")
    return code


def _apply(store: Store, wanted: Object, *, dry_run: bool) -> tuple[str, str]:
    """(why not, or "", what was done)"""
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
        if refusal := _refusal(old, wanted):
            return refusal, ""
        new = _merged(old, wanted)
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


def _refusal(old: Object, wanted: Object) -> str:
    """An allocated claim's spec is fixed until it is released (S18)."""
    if old["kind"] != CLAIM or not old.get("status", {}).get("allocations") or old["spec"] == wanted["spec"]:
        return ""
    name, namespace = old["metadata"]["name"], old["metadata"].get("namespace", "default")
    return f"is allocated, so its spec is fixed; take its devices back first: devalloc release {name} -n {namespace}"


def _merged(old: Object, wanted: Object) -> Object:
    """What to write: the manifest, the state it is based on, and what the manifest has no say in."""
    from devalloc.api.meta import CORDONED, CORDONED_NODE, PREPARED_ON, RELEASE
    from devalloc.controller.claims import OF_ALLOCATION

    metadata = dict(wanted["metadata"])
    ours = {*OF_ALLOCATION, PREPARED_ON, RELEASE}
    theirs = {name: text for name, text in metadata.get("annotations", {}).items() if name not in ours}
    before = old["metadata"].get("annotations", {})
    kept = {name: text for name, text in before.items() if name in ours}
    # A pool that is applied again stays cordoned.
    cordons = {name: text for name, text in before.items() if name in (CORDONED, CORDONED_NODE)}
    metadata["annotations"] = {**cordons, **theirs, **kept}
    metadata.setdefault("finalizers", old["metadata"].get("finalizers", []))
    metadata["resourceVersion"] = old["metadata"]["resourceVersion"]
    metadata.pop("uid", None)
    return {**wanted, "metadata": metadata}


def _user_part(obj: Object) -> Object:
    """What users decide, to see whether a write would change anything."""
    metadata = obj["metadata"]
    theirs = {name: metadata.get(name) or None for name in ("labels", "annotations", "finalizers", "ownerReferences")}
    return {**{key: value for key, value in obj.items() if key not in ("metadata", "status")}, "metadata": theirs}
