"""``devalloc help``, ``version`` and ``completion``: about the command itself."""

from __future__ import annotations

import platform
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from devalloc.api.problems import closest_match
from devalloc.cli.command import BadInput, verb
from devalloc.cli.main import cli
from devalloc.cli.man_pages import write_man_pages
from devalloc.cli.options.common import output_option
from devalloc.cli.render.output import print_content
from devalloc.cli.terminal import print_line, print_lines
from devalloc.version import VERSION


@verb("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print the completion script of a shell.

    \b
    source <(devalloc completion bash)                                  # in ~/.bashrc
    devalloc completion zsh > "${fpath[1]}/_devalloc"
    devalloc completion fish > ~/.config/fish/completions/devalloc.fish
    """
    script = get_completion_class(shell)
    assert script is not None
    print_lines(script(cli, {}, "devalloc", "_DEVALLOC_COMPLETE").source())
    return 0


@verb("version")
@output_option("table", "json", "yaml")
def version(output: str) -> int:
    """Print the version of the command."""
    if output == "table":
        print_line(f"devalloc {VERSION}")
    else:
        print_content({"version": VERSION, "python": platform.python_version()}, output)
    return 0


@verb("help")
@click.argument("words", nargs=-1, metavar="[VERB]...")
@click.option(
    "--man",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write the man pages of all commands to this folder, such as /usr/local/share/man/man1.",
)
@click.pass_context
def help(ctx: click.Context, words: tuple[str, ...], folder: Path | None) -> int:
    """Print the help of a command, or list all commands.

    \b
    devalloc help solve
    devalloc help vm create
    devalloc help --man ~/.local/share/man/man1
    """
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
