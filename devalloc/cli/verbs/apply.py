"""``devalloc apply``, ``validate`` and ``delete``: create or update objects from manifests, check them, delete them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from devalloc.api.meta import NODE_FINALIZER
from devalloc.cli.command import BadInput, NoSuchObject
from devalloc.cli.documents import ManifestDocuments, ignored_warnings, print_problems, quota_warnings, read_manifests
from devalloc.cli.object_names import format_key, keys_of, kind_of, not_found_hint, objects_named
from devalloc.cli.options.manifests import ObjectSelection
from devalloc.cli.render.output import print_content, show_spinner
from devalloc.cli.storage import open_embedded_store
from devalloc.cli.target import unanswered_note
from devalloc.cli.terminal import print_line, print_note
from devalloc.controller.manifest_apply import apply_refusal, merge_manifest
from devalloc.programs.settings import store_path
from devalloc.store.errors import AlreadyExists, Conflict, Invalid, Key, NotFound, Unavailable
from devalloc.store.protocol import Store
from devalloc.store.sqlite import SQLiteStore

if TYPE_CHECKING:
    from devalloc.api.manifests import Document

Wanted = TypeVar("Wanted")


def validate(files: tuple[str, ...], output: str) -> int:
    documents = read_manifests(files, verb="validate")
    problems = documents.problems
    bad = len(documents.all) - len(documents.good)
    if output == "table":
        number = "1 document" if len(documents.all) == 1 else f"{len(documents.all)} documents"
        if bad:
            print_line(f"{number}, {bad} with errors")
        elif not any(problem.is_error for problem in problems):
            print_line(f"{number}, {'valid' if len(documents.all) == 1 else 'all valid'}")
    else:
        print_content(
            {"documents": len(documents.all), "problems": [problem.to_dict() for problem in problems]}, output
        )
    return 2 if any(problem.is_error for problem in problems) else 0


def delete(selection: ObjectSelection, ignore_not_found: bool, dry_run: bool, store: Path | None) -> int:
    code = 0
    with open_embedded_store(store) as objects:
        keys, code = _keys_to_delete(objects, selection)

        def delete_one(named: tuple[Key, str | None]) -> Outcome:
            key, group = named
            try:
                stored = objects.get(*key) if group is not None or dry_run else None
                if stored is not None and group not in (None, other := stored["apiVersion"].rpartition("/")[0]):
                    what = f"{key} of {group or 'the core group'} does not exist; the {key.kind} of {other} is kept"
                    return Outcome() if ignore_not_found else Outcome(error=what, code=NoSuchObject.exit_code)
                if dry_run:
                    return Outcome(f"{format_key(key)} deleted (dry run){_gone_text(stored)}")
                last = objects.delete(*key, uid=stored["metadata"]["uid"] if stored else None)
            except NotFound as error:
                # No name is proposed: it would be the wrong one to delete.
                what = f"{error}{not_found_hint(objects, key, nearest=False) if group is None else ''}"
                return Outcome() if ignore_not_found else Outcome(error=what, code=NoSuchObject.exit_code)
            done = _deletion_text(last["metadata"].get("finalizers") or [])
            return Outcome(f"{format_key(key)} {done}{_gone_text(last)}")

        return _write_all(objects, keys, delete_one, "deleting", code)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a write of one object came to."""

    line: str = ""
    warning: str = ""
    error: str = ""
    code: int = 0
    """The exit code of an error."""


TOGETHER = 500
"""How many objects are written in one transaction: others can write in between."""


def _write_all(
    store: SQLiteStore, wanted: Sequence[Wanted], write: Callable[[Wanted], Outcome], doing: str, code: int
) -> int:
    """Write objects, many of them together; print what came of each, and return the exit code. ``code``: the one so
    far."""
    lines: list[str] = []
    try:
        with show_spinner(doing, len(wanted)) as progress:
            for start in range(0, len(wanted), TOGETHER):
                part = wanted[start : start + TOGETHER]
                try:
                    with store.together():
                        outcomes = [write(one) for one in part]
                except Unavailable:  # such as a full disk, on which some of them may still be written
                    outcomes = [write(one) for one in part]
                for outcome in outcomes:
                    if outcome.warning:
                        print_note(f"warning: {outcome.warning}")
                    if outcome.error:
                        print_note(f"error: {outcome.error}")
                    if outcome.line:
                        lines.append(outcome.line)
                    code = max(code, outcome.code)
                progress(start + len(part))
    finally:  # not earlier: a reader that closes the pipe must not stop this half-way
        for line in lines:
            print_line(line)
    return code


def _gone_text(obj: Object | None) -> str:
    """What of a machine's own goes with it, as the end of a sentence; empty if nothing does, or for another object."""
    if obj is None or obj["kind"] != "VirtualMachine":
        return ""
    start = obj["spec"].get("start") or {}
    clones = sum(1 for disk in start.get("disks") or () if isinstance(disk, dict) and disk.get("clone"))
    own = [f"{clones} disk{'s' if clones > 1 else ''} of its own"] if clones else []
    own += ["its UEFI variables"] if (start.get("firmware") or {}).get("type") == "uefi" else []
    own += ["the content of its TPM"] if start.get("tpm") else []
    if not own:
        return ""
    listed = f"{', '.join(own[:-1])} and {own[-1]}" if own[1:] else own[0]
    return f", with {listed}"


def _deletion_text(finalizers: list[str]) -> str:
    """The result of a deletion. ``finalizers``: those that the object still has."""
    if not finalizers:
        return "deleted"
    if finalizers == [NODE_FINALIZER]:
        return f"marked for deletion until its node releases it (finalizer {NODE_FINALIZER})"
    return f"marked for deletion until its finalizers are removed ({', '.join(finalizers)})"


def _keys_to_delete(store: SQLiteStore, selection: ObjectSelection) -> tuple[list[tuple[Key, str | None]], int]:
    """The keys to delete, each with the API group that its manifest names, and the exit code so far."""
    what, selected = selection.what, selection.selected
    if bool(what) == bool(selection.files):
        raise BadInput("name what to delete: either KIND NAME... or -f PATH")
    if selection.files:
        documents = read_manifests(selection.files, selection.namespace)
        contents = [document.content for document in documents.good]
        groups = [content["apiVersion"].rpartition("/")[0] for content in contents]
        return list(zip(map(Key.of, contents), groups, strict=True)), documents.exit_code
    if len(what) == 1 and "/" not in what[0] and (same := objects_named(store, what[0])):
        raise BadInput(f"{what[0]} is not a kind; did you mean {' or '.join(same)}?")
    if selection.everything or selected is not None:
        if len(what) != 1 or "/" in what[0]:
            raise BadInput(f"{'--all' if selection.everything else '--selector'} needs one KIND and no names")
        kind = kind_of(what[0], store)
        within = selection.namespace if kind.namespaced and not selection.all_namespaces else None
        listed = store.list(kind.kind, within).objects
        return [(Key.of(obj), None) for obj in listed if selected is None or selected(obj)], 0
    if len(what) == 1 and "/" not in what[0]:
        kind_of(what[0], store)  # reports a kind that does not exist
        raise BadInput(f"which {what[0]}? Name them, or use --all")
    return [(key, None) for key in keys_of(what, selection.namespace, store=store)], 0


Object = dict[str, Any]

CLAIM = "DeviceClaim"
"""Claims are applied last, so that the controller already sees the devices and classes of the same manifests."""
_NAMING = ("DeviceClass", "DeviceClass.resource.k8s.io", CLAIM)
"""Kinds whose objects in the store show what others mean."""
ATTEMPTS = 5
"""How often a write is tried if others write the same object at the same time."""


def apply(files: tuple[str, ...], dry_run: bool, namespace: str, store: Path | None) -> int:
    documents = read_manifests(files, namespace, verb="apply")
    good = sorted(documents.good, key=lambda document: Key.of(document.content).kind == CLAIM)
    code = documents.exit_code
    if dry_run and not store_path(store).exists():
        _print_warnings(documents, [])
        for document in good:
            print_line(f"{format_key(Key.of(document.content))} created (dry run)")
        return code
    with open_embedded_store(store, create=True) as objects:
        _print_warnings(documents, objects.list(_NAMING).objects)

        def apply_one(document: Document) -> Outcome:
            key = Key.of(document.content)
            try:
                refusal, outcome = apply_object(objects, document.content, dry_run=dry_run)
            except Invalid as error:  # of a kind that `read` does not check
                return Outcome(error=f"{document.source}: {error}", code=2)
            if refusal:
                return Outcome(error=f"{document.source}: {key}: {refusal}", code=1)
            is_going = outcome != "created" and is_being_deleted(objects, key)
            warning = f"{key} is being deleted; apply it again when it is gone" if is_going else ""
            return Outcome(f"{format_key(key)} {outcome}{' (dry run)' if dry_run else ''}", warning)

        code = _write_all(objects, good, apply_one, "applying", code)
        kinds = {Key.of(document.content).kind for document in good}
        is_asked = not dry_run and kinds & _ANSWERED and sys.stderr.isatty()
        if is_asked and (silence := unanswered_note(objects, ": what you applied is answered when one does")):
            print_note(silence)
        return code


def _print_warnings(documents: ManifestDocuments, stored: Sequence[Object]) -> None:
    """Print what only the objects of the store beside the manifests show."""
    print_problems(quota_warnings(documents, stored))
    for line in ignored_warnings(documents.good, "apply", stored):
        print_note(line)


_ANSWERED = {CLAIM, "VirtualMachine", "VirtualMachineReplicaSet", "VirtualMachineMigration"}
"""Kinds that `devalloc up` answers."""


def is_being_deleted(store: Store, key: Key) -> bool:
    """Whether an object was deleted and still waits for its finalizers."""
    try:
        return "deletionTimestamp" in store.get(*key)["metadata"]
    except NotFound:
        return False


def apply_object(store: Store, wanted: Object, *, dry_run: bool) -> tuple[str, str]:
    """Create or update an object: why it was refused, or ""; and what was done. Raises StoreError."""
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
