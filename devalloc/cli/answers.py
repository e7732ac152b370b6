"""Answers of the solver as tables for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from devalloc.api.inwords import devices_text
from devalloc.cli.output import Cell, Styled, note, table

if TYPE_CHECKING:
    from devalloc.cli.documents import Documents

Answer = dict[str, Any]


def answer_table(claims: Sequence[Answer], *, wide: bool = False, machines: bool = False) -> None:
    """A row for each claim, or machine: where it is satisfied and with what, or why not."""
    rows: list[list[Cell]] = []
    for claim in claims:
        name = f"{claim['namespace']}/{claim['name']}"
        if claim["allocated"]:
            devices = devices_text(claim["allocations"], limit=None if wide else 4)
            rows.append([name, Styled("yes", "green"), claim["node"] or "(network)", devices + _chosen(claim)])
        else:
            message = claim["message"] if wide else (claim["message"] or "").split("\n")[0]
            rows.append([name, Styled("no", "red"), "", f"{claim['reason']}: {message}"])
    head = ["MACHINE", "PLACED", "NODE", "WITH, OR WHY NOT"] if machines else ["CLAIM", "ALLOCATED", "NODE"]
    table(head if machines else [*head, "DEVICES, OR WHY NOT"], rows)


def _chosen(claim: Answer) -> str:
    """Which alternatives were taken, where it was not the first."""
    chosen = [index for index in claim.get("oneOf") or [] if index]
    return "".join(f" (alternative {index + 1})" for index in chosen)


def show_answer_problems(answer: Answer, known: Documents) -> None:
    """Print the solver's problems on stderr, each with its document, but for those that were shown already."""
    from devalloc.api.problems import Problem

    seen = {(problem.kind, problem.name, problem.path, problem.message) for problem in known.problems}
    met: Counter[Problem] = Counter()
    for entry in answer["problems"]:
        if (entry.get("kind"), entry.get("name"), entry.get("path", ""), entry["message"]) in seen:
            continue
        problem = Problem(**entry)
        placed = known.place(problem, met[problem])
        if not met[problem] or placed.source:
            note(f"error: {placed}" if placed.is_error else str(placed))
        met[problem] += 1
