"""The solver's answers as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from devalloc.api.views import format_devices
from devalloc.cli.render.output import Cell, StyledText, print_table

if TYPE_CHECKING:
    pass

Answer = dict[str, Any]


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
    print_table(head if machines else [*head, "DEVICES, OR WHY NOT"], rows)


def _chosen_alternatives(claim: Answer) -> str:
    """The alternatives that were taken, other than first ones."""
    chosen = [index for index in claim.get("oneOf") or [] if index]
    return "".join(f" (alternative {index + 1})" for index in chosen)
