"""``devalloc snapshot``: everything that an answer depends on, in one file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from devalloc.cli.contents import contents, with_store_option
from devalloc.cli.options import deadline_option, files_option, namespace_option, placement_option
from devalloc.cli.place import Place, place_options
from devalloc.cli.verb import verb

FORMAT = 1
"""Version of the file's form; replay refuses a newer one."""


@verb("snapshot")
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path), metavar="PATH")
@files_option(required=False, help="Take these manifests, laid over the store or alone (see --no-store).")
@namespace_option
@placement_option
@deadline_option
@with_store_option
@place_options
def snapshot(
    path: Path,
    files: tuple[str, ...],
    namespace: str,
    placement: str,
    deadline: float | None,
    with_store: bool | None,
    place: Place,
) -> int:
    """Write all objects, the options, the version and the answer into the file PATH, for `devalloc replay`.

    The file holds the objects as they are, names and annotations included. Attach it to a report of a wrong answer.

    \b
    devalloc snapshot answer.json
    """
    from devalloc.cli.output import working
    from devalloc.version import VERSION
    from devalloc_solver import solve_manifests

    question = contents(files, namespace, place, with_store)
    with working("solving"):
        answer = solve_manifests(question.all, placement=placement, deadline=deadline)
    content: dict[str, Any] = {
        "format": FORMAT,
        "devalloc": VERSION,
        "options": {"placement": placement, "deadline": deadline},
        "documents": question.all,
        "answer": answer,
    }
    path.touch(mode=0o600)  # it holds all that the store holds, and the store is nobody else's to read
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    path.write_text(text, encoding="utf-8", errors="backslashreplace")  # which is how JSON escapes half a pair, too
    click.echo(f"{path}: {len(question.all)} objects, {len(answer['claims'])} claims answered")
    return question.code
