"""``devalloc snapshot``: everything on which an answer depends, in one file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from devalloc.cli.command import verb
from devalloc.cli.options.common import deadline_option, files_option, namespace_option, placement_option
from devalloc.cli.render.output import show_spinner
from devalloc.cli.solver_input import load_solver_input, with_store_option
from devalloc.cli.target import StoreTarget, target_options
from devalloc.version import VERSION

FORMAT = 1
"""Version of the file format; replay refuses a newer one."""


@verb("snapshot")
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path), metavar="PATH")
@files_option(required=False, help="Include these manifests, on top of the store or alone (see --no-store).")
@namespace_option
@placement_option
@deadline_option
@with_store_option
@target_options
def snapshot(
    path: Path,
    files: tuple[str, ...],
    namespace: str,
    placement: str,
    deadline: float | None,
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
        answer = solve_manifests(question.all, placement=placement, deadline=deadline)
    content: dict[str, Any] = {
        "format": FORMAT,
        "devalloc": VERSION,
        "options": {"placement": placement, "deadline": deadline},
        "documents": question.all,
        "answer": answer,
    }
    path.touch(mode=0o600)  # it contains the whole store, which other users cannot read, either
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    path.write_text(
        text, encoding="utf-8", errors="backslashreplace"
    )  # JSON escapes half a surrogate pair in the same way
    click.echo(f"{path}: {len(question.all)} objects, {len(answer['claims'])} claims answered")
    return question.code
