"""``devalloc delete``: remove objects from the store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from devalloc.cli import suggestions
from devalloc.cli.names import keys_of, kind_of, namesake, shown
from devalloc.cli.options import all_namespaces_option, files_option, namespace_option, store_option
from devalloc.cli.output import note
from devalloc.cli.selector import Test, selector_option
from devalloc.cli.verb import BadInput, verb

if TYPE_CHECKING:
    from devalloc.store.key import Key
    from devalloc.store.sqlite import SQLiteStore


@verb("delete")
@click.argument("what", nargs=-1, metavar="KIND NAME... | KIND/NAME...", shell_complete=suggestions.objects)
@files_option(required=False)
@click.option("--all", "everything", is_flag=True, help="Every object of the kind.")
@selector_option
@click.option("--ignore-not-found", is_flag=True, help="What is not there counts as deleted.")
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, and delete nothing.")
@namespace_option
@all_namespaces_option
@store_option
def delete(
    what: tuple[str, ...],
    files: tuple[str, ...],
    everything: bool,
    selected: Test | None,
    ignore_not_found: bool,
    dry_run: bool,
    namespace: str,
    all_namespaces: bool,
    store: Path | None,
) -> int:
    """Delete objects. A claim's devices are free again at once.

    \b
    devalloc delete dclaim/train
    devalloc delete -f examples/whole-gpu
    devalloc delete claims --all -A
    """
    from devalloc.cli.storage import opened
    from devalloc.store.errors import NotFound

    code = 0
    with opened(store) as objects:
        within = None if all_namespaces else namespace
        keys, code = _meant(objects, what, files, everything, selected, within, namespace)
        for key, group in keys:
            try:
                stored = objects.get(*key) if group is not None or dry_run else None
                if (
                    group is not None
                    and stored is not None
                    and (other := stored["apiVersion"].rpartition("/")[0]) != group
                ):
                    if not ignore_not_found:
                        note(f"error: {key} of {group or 'the core group'} does not exist; the one of {other} stays")
                        code = max(code, 1)
                    continue
                if dry_run:
                    click.echo(f"{shown(key)} deleted (dry run)")
                    continue
                last = objects.delete(*key, uid=stored["metadata"]["uid"] if stored else None)
            except NotFound as error:
                if not ignore_not_found:
                    note(f"error: {error}{namesake(objects, key)}")
                    code = max(code, 1)
                continue
            waiting = last["metadata"].get("finalizers") or []
            click.echo(f"{shown(key)} {_outcome(waiting)}")
    return code


def _outcome(finalizers: list[str]) -> str:
    """What became of an object that was deleted. ``finalizers``: those that it still has."""
    from devalloc.api.meta import NODE_FINALIZER

    if not finalizers:
        return "deleted"
    if finalizers == [NODE_FINALIZER]:
        return f"marked for deletion: it goes when its node has released it (finalizer {NODE_FINALIZER})"
    return f"marked for deletion: it goes when its finalizers are removed ({', '.join(finalizers)})"


def _meant(
    store: SQLiteStore,
    what: tuple[str, ...],
    files: tuple[str, ...],
    everything: bool,
    selected: Test | None,
    within: str | None,
    namespace: str,
) -> tuple[list[tuple[Key, str | None]], int]:
    """The keys to delete, each with the API group that a manifest says, and the exit code so far."""
    from devalloc.store.key import Key

    if bool(what) == bool(files):
        raise BadInput("say what to delete: either KIND NAME... or -f PATH")
    if files:
        from devalloc.cli.documents import read

        documents = read(files, namespace)
        contents = [document.content for document in documents.good]
        groups = [content["apiVersion"].rpartition("/")[0] for content in contents]
        return list(zip(map(Key.of, contents), groups, strict=True)), documents.exit_code
    if everything or selected is not None:
        if len(what) != 1 or "/" in what[0]:
            raise BadInput(f"{'--all' if everything else '--selector'} goes with one KIND and no names")
        kind = kind_of(what[0], store)
        listed = store.list(kind.kind, within if kind.namespaced else None).objects
        return [(Key.of(obj), None) for obj in listed if selected is None or selected(obj)], 0
    if len(what) == 1 and "/" not in what[0]:
        kind_of(what[0], store)  # one that there is not is the mistake
        raise BadInput(f"which {what[0]}? Name them, or say --all")
    return [(key, None) for key in keys_of(what, namespace, store=store)], 0
