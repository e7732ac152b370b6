"""``devalloc delete``: remove objects from the store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from devalloc.cli.command import BadInput, verb
from devalloc.cli.object_names import format_key, keys_of, kind_of, not_found_hint
from devalloc.cli.options.common import (
    LabelTest,
    all_namespaces_option,
    files_option,
    namespace_option,
    selector_option,
    store_option,
)
from devalloc.cli.render.output import print_note
from devalloc.cli.shell_completion import complete_objects
from devalloc.cli.storage import open_embedded_store

if TYPE_CHECKING:
    from devalloc.store.errors import Key
    from devalloc.store.sqlite import SQLiteStore


@verb("delete")
@click.argument("what", nargs=-1, metavar="KIND NAME... | KIND/NAME...", shell_complete=complete_objects)
@files_option(required=False)
@click.option("--all", "everything", is_flag=True, help="Every object of the kind.")
@selector_option
@click.option("--ignore-not-found", is_flag=True, help="Do not fail if an object does not exist.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, but delete nothing.")
@namespace_option
@all_namespaces_option
@store_option
def delete(
    what: tuple[str, ...],
    files: tuple[str, ...],
    everything: bool,
    selected: LabelTest | None,
    ignore_not_found: bool,
    dry_run: bool,
    namespace: str,
    all_namespaces: bool,
    store: Path | None,
) -> int:
    """Delete objects. The devices of a deleted claim are free at once.

    \b
    devalloc delete dclaim/train
    devalloc delete -f examples/whole-gpu
    devalloc delete claims --all -A
    """
    from devalloc.store.errors import NotFound

    code = 0
    with open_embedded_store(store) as objects:
        within = None if all_namespaces else namespace
        keys, code = _keys_to_delete(objects, what, files, everything, selected, within, namespace)
        for key, group in keys:
            try:
                stored = objects.get(*key) if group is not None or dry_run else None
                if (
                    group is not None
                    and stored is not None
                    and (other := stored["apiVersion"].rpartition("/")[0]) != group
                ):
                    if not ignore_not_found:
                        print_note(
                            f"error: {key} of {group or 'the core group'} does not exist; the {key.kind} of {other} is "
                            "kept"
                        )
                        code = max(code, 1)
                    continue
                if dry_run:
                    click.echo(f"{format_key(key)} deleted (dry run)")
                    continue
                last = objects.delete(*key, uid=stored["metadata"]["uid"] if stored else None)
            except NotFound as error:
                if not ignore_not_found:
                    print_note(f"error: {error}{not_found_hint(objects, key)}")
                    code = max(code, 1)
                continue
            waiting = last["metadata"].get("finalizers") or []
            click.echo(f"{format_key(key)} {_deletion_text(waiting)}")
    return code


def _deletion_text(finalizers: list[str]) -> str:
    """The result of a deletion. ``finalizers``: those that the object still has."""
    from devalloc.api.meta import NODE_FINALIZER

    if not finalizers:
        return "deleted"
    if finalizers == [NODE_FINALIZER]:
        return f"marked for deletion until its node releases it (finalizer {NODE_FINALIZER})"
    return f"marked for deletion until its finalizers are removed ({', '.join(finalizers)})"


def _keys_to_delete(
    store: SQLiteStore,
    what: tuple[str, ...],
    files: tuple[str, ...],
    everything: bool,
    selected: LabelTest | None,
    within: str | None,
    namespace: str,
) -> tuple[list[tuple[Key, str | None]], int]:
    """The keys to delete, each with the API group that its manifest names, and the exit code so far."""
    from devalloc.store.errors import Key

    if bool(what) == bool(files):
        raise BadInput("name what to delete: either KIND NAME... or -f PATH")
    if files:
        from devalloc.cli.documents import read_manifests

        documents = read_manifests(files, namespace)
        contents = [document.content for document in documents.good]
        groups = [content["apiVersion"].rpartition("/")[0] for content in contents]
        return list(zip(map(Key.of, contents), groups, strict=True)), documents.exit_code
    if everything or selected is not None:
        if len(what) != 1 or "/" in what[0]:
            raise BadInput(f"{'--all' if everything else '--selector'} needs one KIND and no names")
        kind = kind_of(what[0], store)
        listed = store.list(kind.kind, within if kind.namespaced else None).objects
        return [(Key.of(obj), None) for obj in listed if selected is None or selected(obj)], 0
    if len(what) == 1 and "/" not in what[0]:
        kind_of(what[0], store)  # reports a kind that does not exist
        raise BadInput(f"which {what[0]}? Name them, or use --all")
    return [(key, None) for key in keys_of(what, namespace, store=store)], 0
