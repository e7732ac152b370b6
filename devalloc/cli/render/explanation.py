"""The solver's answers as tables, and the answer to one claim at length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from devalloc.api.findings import AT_LENGTH, finding_of, message_of
from devalloc.api.views import format_devices
from devalloc.cli.render.output import Cell, StyledText, print_table
from devalloc.cli.terminal import print_heading, print_line
from devalloc.controller.refusals import Obstacle, obstacles_of, refusal_of

Answer = Mapping[str, Any]


def print_answers(claims: Sequence[Answer], *, wide: bool = False, machines: bool = False) -> None:
    """Print a row for each claim or machine: its node and devices, or why it has none."""
    rows: list[list[Cell]] = []
    for claim in claims:
        name = f"{claim['namespace']}/{claim['name']}"
        if claim["allocated"]:
            devices = format_devices(claim["allocations"], limit=None if wide else 4)
            rows.append(
                [name, StyledText("yes", "green"), claim["node"] or "(network)", devices + _chosen_alternatives(claim)]
            )
        else:
            message = claim["message"] if wide else (claim["message"] or "").split("\n")[0]
            rows.append([name, StyledText("no", "red"), "", f"{claim['reason']}: {message}"])
    head = ["MACHINE", "PLACED", "NODE", "WITH, OR WHY NOT"] if machines else ["CLAIM", "ALLOCATED", "NODE"]
    print_table(head if machines else [*head, "DEVICES, OR WHY NOT"], rows, wide=wide)


def _chosen_alternatives(claim: Answer) -> str:
    """The alternatives that were taken, other than first ones."""
    chosen = [index for index in claim.get("oneOf") or [] if index]
    return "".join(f" (alternative {index + 1})" for index in chosen)


def print_explanation(
    claim: Answer, *, only_would: bool = False, machine: bool = False, then: str = "", is_cluster: bool = False
) -> None:
    """Print the result for the claim or machine, and why. ``only_would``: it fits, but is not allocated yet; ``then``:
    how to get it allocated. ``is_cluster``: of a cluster, where a controller answers, and not `devalloc up`."""
    name = f"{claim['namespace']}/{claim['name']}"
    allocated = "placed" if machine else "allocated"
    if claim["allocated"]:
        where = f" on node {claim['node']}" if claim["node"] else ""
        verdict = f"is not {allocated} yet, but would be" if only_would else f"is {allocated}"
        print_line(f"{name} {verdict}{where}: {format_devices(claim['allocations'], limit=None)}")
        if only_would:
            who = "devalloc's controller" if is_cluster else "`devalloc up`"
            then = then or f"wait a moment; if nothing happens, check that {who} is running."
            print_line()
            print_line(f"What to do: {then}")
        if claim["reason"]:  # a machine whose spec now asks for more
            print_line()
            print_heading(f"The machine asks for more than it can get: {claim['reason']}")
            print_line(message_of(finding_of(claim), AT_LENGTH))
    else:
        verdict = f" ({claim['verdict']})" if claim.get("verdict") else ""
        print_heading(f"{name} is not {allocated}: {claim['reason']}{verdict}")
        print_line(message_of(finding_of(claim), AT_LENGTH))
    if "machine" in claim:
        namespace, _, placed_with = claim["machine"].partition("/")
        where = "" if namespace == "default" else f" -n {namespace}"
        print_line(f"It is placed with machine {claim['machine']}: devalloc explain vm/{placed_with}{where}")
    for warning in claim.get("warnings", []):
        print_line(f"warning: {warning}")
    refusal = refusal_of(claim, is_cluster=is_cluster)
    for funnel in refusal.funnels:
        print_line()
        print_heading(f"Request {funnel.request}")
        print_table(["DEVICES", "", "SUCH AS"], [[str(one.count), one.what, one.example] for one in funnel.layers])
    _print_obstacles(refusal.obstacles)
    if refusal.advice:
        print_line()
        print_line(f"What to do: {refusal.advice}")


def print_blockers(blockers: Sequence[Answer]) -> None:
    """Print a row for each blocker; nothing if there are none."""
    _print_obstacles(obstacles_of(blockers))


def _print_obstacles(obstacles: Sequence[Obstacle]) -> None:
    if obstacles:
        print_line()
        print_heading("In the way")
        print_table(["WHAT", "WHICH"], [[one.kind, one.which] for one in obstacles])
