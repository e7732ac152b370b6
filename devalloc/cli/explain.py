"""``devalloc explain``: why a claim has what it has, or has nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from devalloc.cli import suggestions
from devalloc.cli.options import (
    deadline_option,
    files_option,
    namespace_option,
    output_option,
    placement_option,
    store_option,
)
from devalloc.cli.verb import Failed, verb


@verb("explain")
@click.argument("name", shell_complete=suggestions.claims)
@files_option(required=False, help="Explain among these manifests instead of the store.")
@namespace_option
@placement_option
@deadline_option
@output_option("table", "json", "yaml")
@store_option
def explain(
    name: str,
    files: tuple[str, ...],
    namespace: str,
    placement: str,
    deadline: float | None,
    output: str,
    store: Path | None,
) -> int:
    """Say why a claim is not allocated: what became of every device, who is in the way, what to do.

    A machine that waits for a node that has room for it is explained in the same way: vm/NAME.

    Exit code 1 when the claim is not allocated, 2 when a manifest is wrong, as with solve.

    \b
    devalloc explain train
    devalloc explain pair -f examples/unsatisfiable
    """
    from devalloc.cli.answers import show_answer_problems
    from devalloc.cli.explanation import show
    from devalloc.cli.output import dump, working
    from devalloc.cli.solve import documents, has_errors
    from devalloc.controller.placing import solve_with_machines

    kind, _, bare = name.rpartition("/")
    if kind:
        from devalloc.cli.names import kind_of

        if kind_of(kind).kind not in ("DeviceClaim", "VirtualMachine"):
            told = f"only claims and machines are explained, not a {kind_of(kind).kind}"
            raise Failed(f"{told}; see: devalloc describe {name}")
    contents, known, code = documents(files, namespace, store)
    waiting = not files and not _has_devices(contents, namespace, bare)
    with working("solving"):
        answer = solve_with_machines(contents, placement=placement, deadline=deadline)
    show_answer_problems(answer, known)
    is_machine = bool(kind) and kind_of(kind).kind == "VirtualMachine"
    claim = _found(answer.get("machines", []) if is_machine else answer["claims"], namespace, bare, machine=is_machine)
    if output in ("json", "yaml"):
        dump(claim, output)
    else:
        show(claim, only_would=waiting and not is_machine and claim["allocated"], machine=is_machine)
    if code or (files and has_errors(answer)):
        return 2
    return 0 if claim["allocated"] else 1


def _has_devices(contents: list[dict[str, Any]], namespace: str, name: str) -> bool:
    """Whether the store's claim has its answer already."""
    for content in contents:
        metadata = content["metadata"]
        if (content["kind"], metadata.get("namespace", "default"), metadata["name"]) == (
            "DeviceClaim",
            namespace,
            name,
        ):
            return bool((content.get("status") or {}).get("allocations"))
    return False


def _found(claims: list[dict[str, Any]], namespace: str, name: str, *, machine: bool = False) -> dict[str, Any]:
    for claim in claims:
        if (claim["namespace"], claim["name"]) == (namespace, name):
            return claim
    elsewhere = ", ".join(claim["namespace"] for claim in claims if claim["name"] == name)
    known = ", ".join(f"{claim['namespace']}/{claim['name']}" for claim in claims[:10])
    advice = f"there is one in namespace {elsewhere} (-n)" if elsewhere else f"known: {known or 'none'}"
    what = "machine that is placed by what nodes have for machines, called" if machine else "claim"
    raise Failed(f"there is no {what} {namespace}/{name}; {advice}")
