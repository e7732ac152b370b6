"""``devalloc solve``: which claim gets which device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devalloc.cli.options import (
    deadline_option,
    files_option,
    namespace_option,
    output_option,
    placement_option,
    store_option,
)
from devalloc.cli.verb import verb

if TYPE_CHECKING:
    from devalloc.cli.documents import Documents


@verb("solve")
@files_option(required=False)
@namespace_option
@placement_option
@deadline_option
@output_option("table", "wide", "json", "yaml")
@store_option
def solve(
    files: tuple[str, ...], namespace: str, placement: str, deadline: float | None, output: str, store: Path | None
) -> int:
    """Decide which claim gets which device, and which node which machine: for manifests (-f), or for what the store
    has. Nothing is written.

    Exit code 1 when a claim gets nothing, 2 when a manifest is wrong; the others are answered all the same.

    \b
    devalloc solve -f examples/whole-gpu
    devalloc solve -f fleet/ -f claim.yaml -o json
    """
    from devalloc.cli.answers import answer_table, show_answer_problems
    from devalloc.cli.output import dump, working
    from devalloc.controller.placing import solve_with_machines

    contents, known, code = documents(files, namespace, store)
    with working("solving"):
        answer: dict[str, Any] = solve_with_machines(contents, placement=placement, deadline=deadline)
    show_answer_problems(answer, known)
    if output in ("json", "yaml"):
        dump(answer, output)
    elif answer["claims"] or answer.get("machines"):
        if answer["claims"]:
            answer_table(answer["claims"], wide=output == "wide")
        if answer.get("machines"):
            if answer["claims"]:
                click.echo()
            answer_table(answer["machines"], wide=output == "wide", machines=True)
    else:
        click.echo("no claims")
    if code or (files and has_errors(answer)):
        return 2
    return 0 if all(one["allocated"] for one in (*answer["claims"], *answer.get("machines", ()))) else 1


def has_errors(answer: dict[str, Any]) -> bool:
    """Whether anything was left out."""
    return any(problem.get("severity", "error") == "error" for problem in answer["problems"])


def documents(files: tuple[str, ...], namespace: str, store: Path | None) -> tuple[list[Any], Documents, int]:
    """The contents to solve, the documents they are of with what was said of them, and the exit code so far."""
    from devalloc.cli.documents import Documents, read

    if files:
        found = read(files, namespace)
        return [document.content for document in found.all], found, found.exit_code
    from devalloc.cli.storage import opened
    from devalloc.controller.snapshot import snapshot

    with opened(store) as objects:
        return snapshot(objects), Documents((), (), ()), 0
