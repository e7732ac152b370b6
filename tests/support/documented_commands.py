"""Commands in documents: each line that runs ``devalloc``, wherever it stands in a page."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from tests.support.repository import REPO

PAGES = [
    *sorted(REPO.glob("*.md")),
    *sorted((REPO / "docs").rglob("*.md")),
    *sorted((REPO / "examples").rglob("*.md")),
    *sorted((REPO / "deploy").rglob("*.md")),
]
_LINE = re.compile(r"^(?: {4,}|\$ )(?:sudo )?(?:[A-Z_]+=\S+ )*devalloc (?P<words>.*)$")
_INLINE = re.compile(r"`devalloc (?P<words>[a-z][^`]*)`")
_END = re.compile(r"\s(?:\||&&|>|<|;|#).*$")


@dataclass(frozen=True)
class Command:
    """A command, and where it stands."""

    page: Path
    line: int
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page.relative_to(REPO)}:{self.line}: devalloc {' '.join(self.words)}"


def commands(page: Path) -> Iterator[Command]:
    """Those of a page. What cannot be split as a shell does it is prose."""
    in_text = page.read_text(encoding="utf-8").replace("\\\n", "   ")
    for number, line in enumerate(in_text.splitlines(), 1):
        matches = [match] if (match := _LINE.match(line)) else [*_INLINE.finditer(line)]
        for match in matches:
            try:
                words = shlex.split(_END.sub("", match["words"]), comments=True)
            except ValueError:
                continue
            yield Command(page, number, tuple(words))


def problem(command: click.Group, words: tuple[str, ...]) -> str | None:
    """What the command does not have: a verb or an option. Values are not looked at."""
    context = click.Context(command, info_name="devalloc")
    at: Any = command
    names = [*words]
    while names and isinstance(at, click.Group) and not names[0].startswith("-"):
        name = names.pop(0)
        if not re.fullmatch(r"[a-z][a-z-]*", name):
            return None  # VERB, …: a placeholder
        below = at.get_command(context, name)
        if below is None:
            return f"there is no verb {name!r}"
        at = below
    declared = {
        option for parameter in at.get_params(context) for option in (*parameter.opts, *parameter.secondary_opts)
    }
    for word in names:
        option = word.partition("=")[0]
        if option == "--":
            break
        if re.fullmatch(r"--[a-z][a-z-]*", option) and option not in declared:
            return f"{at.name} has no option {option}"
        if re.fullmatch(r"-[A-Za-z]", option) and option not in declared:
            return f"{at.name} has no option {option}"
    return None
