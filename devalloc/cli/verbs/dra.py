"""``devalloc dra``: allocate ResourceClaims of manifests."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from devalloc.api.findings import AT_LENGTH, finding_of, message_of
from devalloc.api.manifests import load
from devalloc.cli.command import REFUSED, BadInput, is_recursive
from devalloc.cli.documents import is_about
from devalloc.cli.documents import print_problems as show_problems
from devalloc.cli.render.explanation import print_blockers
from devalloc.cli.render.output import Cell, print_content, print_table, show_spinner
from devalloc.cli.terminal import print_heading, print_line, print_note
from devalloc_solver.dialects.resource_k8s.feature_gates import DEFAULT_GATES
from devalloc_solver.dialects.resource_k8s.manifests import KINDS, ClusterInput, read_documents
from devalloc_solver.dialects.resource_k8s.published_devices import readable_allocation
from devalloc_solver.dra import AllocationError
from devalloc_solver.dra import allocate as allocate_on
from devalloc_solver.dra import explain as explain_on
from devalloc_solver.explain.funnel import describe_funnel
from devalloc_solver.pipeline.units import RejectedClaim


def allocate(files: tuple[str, ...], node: str, output: str) -> int:
    intake, code = read_objects(files)
    claims = [intake.manifests[claim.key] for claim in intake.claims]
    claims += [_readable_part(refused) for refused in intake.refused if refused.allocation is not None]
    classes = [*intake.class_manifests.values()]
    target = intake.node_manifests.get(node, node)
    try:
        with show_spinner("allocating"):
            answer = allocate_on(target, claims, classes, intake.slices)
    except AllocationError as error:
        if output in ("json", "yaml"):
            print_content(None, output)
        print_note(f"error: {error}")
        return code or (REFUSED if error.node_local else 2)
    answer = None if answer is None else answer[: len(intake.claims)]
    if output in ("json", "yaml"):
        print_content(answer, output)
    elif answer is not None:
        print_results(intake, answer)
    else:
        print_explanation(intake, node, claims, classes)
    waits = any(claim.allocation is None for claim in intake.claims)
    return code or (REFUSED if answer is None and waits else 0)


def _readable_part(refused: RejectedClaim) -> dict[str, Any]:
    """The part of an unreadable claim that says which devices it has."""
    namespace, name = refused.key
    status = {"allocation": readable_allocation(refused.allocation or {})}
    return {"metadata": {"namespace": namespace, "name": name}, "status": status}


def read_objects(files: tuple[str, ...]) -> tuple[ClusterInput, int]:
    """The objects, and the exit code so far. Shows problems with file and document."""
    with show_spinner("reading manifests"):
        manifests = load(files, stdin=sys.stdin.buffer if "-" in files else None, recursive=is_recursive())
        intake = read_documents([document.content for document in manifests.documents], DEFAULT_GATES)
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
        print_note(
            f"warning: left out {objects} of kinds that `devalloc dra` does not read: {kinds}; see `devalloc solve -f`"
        )
    if not intake.claims and not problems:
        raise BadInput("there are no ResourceClaims in these files")
    return intake, 2 if any(problem.is_error for problem in problems) else 0


def _is_read(content: Any) -> bool:
    """False for an object of a kind that is not used for ResourceClaims."""
    kind = content.get("kind") if isinstance(content, dict) else None
    is_list = isinstance(content, dict) and isinstance(content.get("items"), list)
    return not isinstance(kind, str) or kind in KINDS or is_list


def print_results(intake: ClusterInput, answer: Sequence[Mapping[str, Any]]) -> None:
    """Print a row for each device."""
    rows: list[list[Cell]] = []
    for claim, result in zip(intake.claims, answer, strict=True):
        name = "/".join(claim.key)
        for one in result["devices"].get("results", ()):
            amounts = ", ".join(f"{k} {v}" for k, v in one.get("consumedCapacity", {}).items())
            notes = [*(["admin access"] if one.get("adminAccess") else []), *([amounts] if amounts else [])]
            device = f"{one['driver']}/{one['pool']}/{one['device']}"
            rows.append([name, one["request"], device, "; ".join(notes)])
    print_table(["CLAIM", "REQUEST", "DEVICE", "TAKES"], rows)


def print_explanation(intake: ClusterInput, node: str, claims: Sequence[Any], classes: Sequence[Any]) -> None:
    """Print why the claims do not fit: the devices of the node, request by request."""
    explanation = explain_on(intake.node_manifests.get(node, node), claims, classes, intake.slices)
    if not explanation["claims"]:
        print_line("no claims are pending")
        return
    print_heading(f"not allocated: the claims do not fit on {node} together: {explanation['reason']}")
    print_line(message_of(finding_of(explanation), AT_LENGTH))
    print_line()
    rows: list[list[Cell]] = [
        [f"{claim['namespace']}/{claim['name']}", funnel["request"], str(funnel["free"]), describe_funnel(funnel)]
        for claim in explanation["claims"]
        for funnel in claim["requests"]
    ]
    print_table(["CLAIM", "REQUEST", "FREE", "DEVICES"], rows)
    print_blockers(explanation["blockers"])
    for pool in explanation["pools"]:
        print_line(f"pool {pool['name']} is {pool['state']}: {pool['why']}")
    for ignored in explanation["ignored"]:
        print_line(f"slice {ignored['name']} is left out: {ignored['why']}")
