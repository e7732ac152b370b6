"""``devalloc snapshot`` and ``replay``, ``backup`` and ``restore``.

A snapshot is everything on which an answer depends, in one file, and gives the same answer again. A backup is a copy
of the store, and of the node plugin's journal.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from devalloc.api.views import format_devices
from devalloc.cli import storage
from devalloc.cli.command import BadInput, verb
from devalloc.cli.options.common import (
    SolveOptions,
    files_option,
    namespace_option,
    node_state_option,
    settings_options,
    store_option,
)
from devalloc.cli.render.output import show_spinner
from devalloc.cli.solver_input import load_solver_input, with_store_option
from devalloc.cli.target import StoreTarget, target_options
from devalloc.cli.terminal import print_line, print_note
from devalloc.programs.settings import node_state_folder, store_path
from devalloc.store.paths import hold_store
from devalloc.version import VERSION

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
    folder = node_state_folder(node_state, store_path(store))
    with storage.open_embedded_store(store) as objects, show_spinner("copying the store"):
        objects.backup(path)
        count = len(objects.list().objects)
    print_line(f"{path}: {count} objects")
    if os.access(folder, os.R_OK | os.X_OK):
        from devalloc_node.journal.sqlite import backup as copy

        journal = path.with_name(path.name + JOURNAL_SUFFIX)
        if copy(folder, journal):
            print_line(f"{journal}: the journal of the node plugin")
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
        from devalloc_node.journal.sqlite import restore as put_journal

        _say("the journal in", folder, put_journal(copy, folder))
    if journal != "only":
        from devalloc.store.sqlite import restore as put_store

        _say("the store", place, put_store(path, place))
    return 0


def _say(what: str, place: Path, aside: Path | None) -> None:
    print_line(f"{what} {place} is restored" + (f"; the old one is now {aside}" if aside else ""))


FORMAT = 1
"""Version of the file format; replay refuses a newer one."""


@verb("snapshot")
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path), metavar="PATH")
@files_option(required=False, help="Include these manifests, on top of the store or alone (see --no-store).")
@namespace_option
@settings_options(SolveOptions, "options")
@with_store_option
@target_options
def snapshot(
    path: Path,
    files: tuple[str, ...],
    namespace: str,
    options: SolveOptions,
    with_store: bool | None,
    place: StoreTarget,
) -> int:
    """Write all objects, the options, the version and the answer to the file PATH, for `devalloc replay`.

    The file contains the objects unchanged, with names and annotations. Attach it when you report a wrong answer.

    \b
    devalloc snapshot answer.json
    """
    from devalloc_solver import solve_manifests

    question = load_solver_input(files, namespace, place, with_store)
    with show_spinner("solving"):
        answer = solve_manifests(question.all, **asdict(options))
    content: dict[str, Any] = {
        "format": FORMAT,
        "devalloc": VERSION,
        "options": {"placement": options.placement, "deadline": options.deadline, "celCheck": options.cel_check},
        "documents": question.all,
        "answer": answer,
    }
    path.touch(mode=0o600)  # it contains the whole store, which other users cannot read, either
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    path.write_text(
        text, encoding="utf-8", errors="backslashreplace"
    )  # JSON escapes half a surrogate pair in the same way
    print_line(f"{path}: {len(question.all)} objects, {len(answer['claims'])} claims answered")
    return question.code


Answer = Mapping[str, Any]

SNAPSHOT_FIELDS = frozenset({"format", "devalloc", "options", "documents", "answer"})
"""The parts of a snapshot."""
_MESSAGE_FIELDS = frozenset(
    {"message", "verdict", "causes", "warnings", "funnel", "blockers", "alternatives", "caveats"}
)
"""The parts of a claim's answer that explain it."""


@verb("replay")
@click.argument("path", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="PATH")
def replay(path: Path) -> int:
    """Solve the snapshot PATH again, with its options and without a store, and compare byte for byte.

    Only the duration may differ, and if another version wrote the snapshot, the messages. Exit code 1 if anything else
    differs.

    \b
    devalloc replay answer.json
    """
    from devalloc_solver import solve_manifests

    content = _read(path)
    recorded = content["options"]
    options = {
        "placement": recorded["placement"],
        "deadline": recorded["deadline"],
        "cel_check": recorded.get("celCheck", "refuse"),  # versions before 0.2.0 do not record it
    }
    try:
        solve_manifests([], **options)  # checks the options
    except (TypeError, ValueError) as error:
        raise BadInput(f"{path} is not a snapshot: its options are damaged: {error}") from error
    with show_spinner("solving"):
        answer = solve_manifests(content["documents"], **options)
    before, now = _without_times(content["answer"]), _without_times(answer)
    if json.dumps(before) == json.dumps(now):
        print_line(f"{path}: the same answer for {len(answer['claims'])} claims")
        return 0
    if content["devalloc"] != VERSION and json.dumps(_without_messages(before)) == json.dumps(_without_messages(now)):
        words = f"with other messages than devalloc {content['devalloc']}"
        print_line(f"{path}: the same answer for {len(answer['claims'])} claims, {words}")
        return 0
    for line in _differences(before, now):
        print_line(line)
    versions = f"{content['devalloc']}, this is {VERSION}"
    print_note(f"error: {path}: the answer differs from the recorded one (of devalloc {versions})")
    return 1


def _read(path: Path) -> dict[str, Any]:

    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadInput(f"{path} is not a snapshot: {error}") from error
    if not isinstance(content, dict) or (missing := SNAPSHOT_FIELDS - content.keys()):
        lacks = f": it has no {', '.join(sorted(missing))}" if isinstance(content, dict) else ""
        raise BadInput(f"{path} is not a snapshot{lacks}; write one with: devalloc snapshot PATH")
    shapes = {"options": dict, "documents": list, "answer": dict}
    odd = [part for part, shape in shapes.items() if not isinstance(content[part], shape)]
    if odd or not {"placement", "deadline"} <= content["options"].keys() or "claims" not in content["answer"]:
        raise BadInput(f"{path} is not a snapshot: its {' and '.join(odd) or 'content'} is damaged")
    if content["format"] != FORMAT:
        made_by = f"format {content['format']} (of devalloc {content['devalloc']})"
        raise BadInput(f"{path} has {made_by}, but this version reads format {FORMAT}")
    return content


def _without_times(answer: Answer) -> Answer:
    return {key: value for key, value in answer.items() if key != "seconds"}


def _without_messages(answer: Answer) -> Answer:
    """The answer without its messages, which may change from version to version."""
    claims = [
        {name: value for name, value in claim.items() if name not in _MESSAGE_FIELDS} for claim in answer["claims"]
    ]
    return {**answer, "claims": claims, "problems": None}


def _differences(before: Answer, now: Answer) -> Iterator[str]:
    """A line for each claim whose answer differs, and for each other part that differs."""
    claims = [{(c["namespace"], c["name"]): c for c in answer["claims"]} for answer in (before, now)]
    for key in sorted(claims[0].keys() | claims[1].keys()):
        if claims[0].get(key) != claims[1].get(key):
            recorded, current = (_answer_text(answers.get(key)) for answers in claims)
            yield f"{key[0]}/{key[1]}: recorded {recorded}; now {current}"
    for part in sorted((before.keys() | now.keys()) - {"claims"}):
        if before.get(part) != now.get(part):
            yield f"{part}: recorded {json.dumps(before.get(part))}; now {json.dumps(now.get(part))}"


def _answer_text(claim: Answer | None) -> str:
    if claim is None:
        return "no such claim"
    if claim["allocated"]:
        return f"{claim['node']}: {format_devices(claim['allocations'])}"
    return f"{claim['reason']}: {claim['message']}"
