"""Commands with their output in Markdown, so that what we print there stays true.

A ``console`` block is a line ``$ devalloc ...`` and below it what that prints (stdout and stderr). With
DEVALLOC_UPDATE_DOCS=1 the blocks are rewritten instead of compared.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from devalloc.cli.main import cli
from tests.support.repository import REPO

UPDATE = os.environ.get("DEVALLOC_UPDATE_DOCS") == "1"
_BLOCK = re.compile(r"^```console\n\$ (devalloc [^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SECONDS = re.compile(r"\b\d+(\.\d+)? (ms|s)\b")


@dataclass(frozen=True)
class Block:
    """One command and what the document says that it prints."""

    file: Path
    command: str
    output: str

    def __str__(self) -> str:
        return f"{self.file.relative_to(REPO)}: {self.command}"


def blocks(file: Path) -> Iterator[Block]:
    """The commands of a document."""
    for match in _BLOCK.finditer(file.read_text()):
        yield Block(file, match[1], match[2])


def run(command: str) -> str:
    """What the command prints, run in the repository's root; times are written as "N s"."""
    here = Path.cwd()
    os.chdir(REPO)
    try:
        result = CliRunner().invoke(cli, shlex.split(command)[1:], prog_name="devalloc")
    finally:
        os.chdir(here)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return _SECONDS.sub(r"N \2", result.output)


def update(file: Path) -> None:
    """Write what the commands print now into the document."""
    file.write_text(_BLOCK.sub(lambda match: f"```console\n$ {match[1]}\n{run(match[1])}```", file.read_text()))
