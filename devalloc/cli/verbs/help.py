"""``devalloc help``, ``version`` and ``completion``: about the command itself."""

from __future__ import annotations

import platform
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from devalloc.api.problems import closest_match
from devalloc.cli.command import BadInput
from devalloc.cli.main import cli
from devalloc.cli.man_pages import write_man_pages
from devalloc.cli.render.output import print_content
from devalloc.cli.terminal import print_line, print_lines
from devalloc.version import VERSION


def completion(shell: str) -> int:
    script = get_completion_class(shell)
    assert script is not None
    print_lines(script(cli, {}, "devalloc", "_DEVALLOC_COMPLETE").source())
    return 0


def version(output: str) -> int:
    if output == "table":
        print_line(f"devalloc {VERSION}")
    else:
        print_content({"version": VERSION, "python": platform.python_version()}, output)
    return 0


def help(ctx: click.Context, words: tuple[str, ...], folder: Path | None) -> int:
    above = ctx.find_root()
    if folder is not None:
        print_line(f"{len(write_man_pages(above.command, folder))} pages in {folder}: man devalloc")
        return 0
    command: click.Command = above.command
    for word in words:
        inner = command.get_command(above, word) if isinstance(command, click.Group) else None
        if inner is None:
            raise BadInput(f"unknown command {' '.join(words)!r}; {_advice(above, word)}")
        above, command = click.Context(inner, info_name=word, parent=above), inner
    print_lines(command.get_help(above))
    return 0


def _advice(above: click.Context, word: str) -> str:
    """A command of that group with a similar name, or the command that lists all."""
    names = above.command.list_commands(above) if isinstance(above.command, click.Group) else []
    near = closest_match(word, names)
    return (
        f"did you mean `{above.command_path} {near}`?" if near else f"`{above.command_path} --help` lists the commands"
    )
