"""``devalloc dra``: Kubernetes' own claims, answered for manifests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from devalloc.cli.options import files_option, output_option
from devalloc.cli.output import note
from devalloc.cli.verb import BadInput, Verbs, verb

if TYPE_CHECKING:
    from devalloc_solver.dra.documents import Intake, Refused


@click.group("dra", cls=Verbs)
def dra() -> None:
    """Claims of resource.k8s.io/v1, for manifests; nothing is written."""


@verb("allocate")
@files_option(required=True)
@click.option("--node", required=True, metavar="NAME", help="The node; its labels are those of its Node in the files.")
@output_option("table", "json", "yaml")
def allocate(files: tuple[str, ...], node: str, output: str) -> int:
    """Allocate all pending claims on one node, or none of them, as kube-scheduler would ask for a pod's.

    The files hold ResourceSlices, DeviceClasses, ResourceClaims, and Nodes where labels matter. A claim with an
    allocation keeps it, and its devices are in use. JSON and YAML are a list with an AllocationResult for each claim
    in order, or null.

    Exit code 1 when the claims do not fit on the node, 2 when a manifest is wrong; what is right is answered all the
    same.

    \b
    devalloc dra allocate -f examples/dra --node example-a
    devalloc dra allocate -f slices.json -f claim.yaml --node example-a -o json
    """
    from devalloc.cli.output import dump, working
    from devalloc_solver.dra import AllocationError
    from devalloc_solver.dra import allocate as allocate_on

    intake, code = read(files)
    claims = [intake.manifests[claim.namespace, claim.name] for claim in intake.claims]
    claims += [_holder(refused) for refused in intake.refused if refused.allocation is not None]
    classes = [*intake.class_manifests.values()]
    target = intake.node_manifests.get(node, node)
    try:
        with working("allocating"):
            answer = allocate_on(target, claims, classes, intake.slices)
    except AllocationError as error:
        if output in ("json", "yaml"):
            dump(None, output)
        click.echo(f"error: {error}", err=True)
        return code or (1 if error.node_local else 2)
    answer = None if answer is None else answer[: len(intake.claims)]
    if output in ("json", "yaml"):
        dump(answer, output)
    elif answer is not None:
        show(intake, answer)
    else:
        explain(intake, node, claims, classes)
    waits = any(claim.allocation is None for claim in intake.claims)
    return code or (1 if answer is None and waits else 0)


dra.add_command(allocate)


def _holder(refused: Refused) -> dict[str, Any]:
    """A claim that cannot be read, as far as it holds devices."""
    from devalloc_solver.dra.usage import readable

    namespace, name = refused.key
    status = {"allocation": readable(refused.allocation or {})}
    return {"metadata": {"namespace": namespace, "name": name}, "status": status}


def read(files: tuple[str, ...]) -> tuple[Intake, int]:
    """The objects, and the exit code so far; problems are shown with file and document."""
    import sys

    from devalloc.api.manifests import load
    from devalloc.cli.documents import is_about
    from devalloc.cli.documents import show as show_problems
    from devalloc.cli.options import is_recursive
    from devalloc.cli.output import working
    from devalloc_solver.dra.documents import read_documents
    from devalloc_solver.dra.features import DEFAULT

    with working("reading manifests"):
        manifests = load(files, stdin=sys.stdin.buffer if "-" in files else None, recursive=is_recursive())
        intake = read_documents([document.content for document in manifests.documents], DEFAULT)
    problems = [*manifests.problems]
    foreign = [document.content for document in manifests.documents if not _is_read(document.content)]
    for problem in intake.problems:
        if problem.kind in {one["kind"] for one in foreign} and "has no part in this" in problem.message:
            continue
        place = next((d for d in manifests.documents if is_about(problem, d.content)), None)
        problems.append(problem if place is None else place.place(problem))
    show_problems(problems)
    if foreign:
        kinds = ", ".join(sorted({one["kind"] for one in foreign}))
        objects = f"{len(foreign)} {'object' if len(foreign) == 1 else 'objects'}"
        note(f"warning: {objects} left out, of kinds that have no part in this: {kinds}; see `devalloc solve -f`")
    if not intake.claims and not problems:
        raise BadInput("there are no ResourceClaims in these files")
    return intake, 2 if any(problem.is_error for problem in problems) else 0


def _is_read(content: Any) -> bool:
    """False for an object of a kind that has no part in ResourceClaims."""
    from devalloc_solver.dra.documents import KINDS

    kind = content.get("kind") if isinstance(content, dict) else None
    is_list = isinstance(content, dict) and isinstance(content.get("items"), list)
    return not isinstance(kind, str) or kind in KINDS or is_list


def show(intake: Intake, answer: Sequence[dict[str, Any]]) -> None:
    """A row for each device."""
    from devalloc.cli.output import Cell, table

    rows: list[list[Cell]] = []
    for claim, result in zip(intake.claims, answer, strict=True):
        name = f"{claim.namespace}/{claim.name}"
        for one in result["devices"].get("results", ()):
            amounts = ", ".join(f"{k} {v}" for k, v in one.get("consumedCapacity", {}).items())
            notes = [*(["admin access"] if one.get("adminAccess") else []), *([amounts] if amounts else [])]
            device = f"{one['driver']}/{one['pool']}/{one['device']}"
            rows.append([name, one["request"], device, "; ".join(notes)])
    table(["CLAIM", "REQUEST", "DEVICE", "TAKES"], rows)


def explain(intake: Intake, node: str, claims: Sequence[Any], classes: Sequence[Any]) -> None:
    """Why the claims do not fit: the devices of the node, request by request."""
    from devalloc.cli.explanation import blockers_table
    from devalloc.cli.output import Cell, heading, table
    from devalloc_solver.dra import explain as explain_on
    from devalloc_solver.dra.funnel import sentence

    told = explain_on(intake.node_manifests.get(node, node), claims, classes, intake.slices)
    if not told["claims"]:
        click.echo("no claim waits")
        return
    heading(f"not allocated: the claims do not fit on {node} together: {told['reason']}")
    click.echo(told["message"])
    click.echo()
    rows: list[list[Cell]] = [
        [f"{claim['namespace']}/{claim['name']}", funnel["request"], str(funnel["free"]), sentence(funnel)]
        for claim in told["claims"]
        for funnel in claim["requests"]
    ]
    table(["CLAIM", "REQUEST", "FREE", "DEVICES"], rows)
    blockers_table(told["blockers"])
    for pool in told["pools"]:
        click.echo(f"pool {pool['name']} is {pool['state']}: {pool['why']}")
    for ignored in told["ignored"]:
        click.echo(f"slice {ignored['name']} is left out: {ignored['why']}")
