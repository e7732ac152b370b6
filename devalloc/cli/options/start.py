"""What to begin with, and what is about the command itself."""

from __future__ import annotations

from pathlib import Path

import click

from devalloc.cli.command import runs, verb
from devalloc.cli.example_files import example_folders
from devalloc.cli.options.common import output_option


@verb("demo")
@runs("devalloc.cli.verbs.demo")
def demo() -> None:
    """Show what devalloc does, in a few seconds. Changes nothing on this machine and needs no root.

    The demo lists this host's devices, allocates claims on a small recorded fleet, explains a claim that cannot be
    satisfied, and shows what to try next.
    """


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [folder.name for folder in example_folders() if folder.name.startswith(incomplete)]


@verb("examples")
@click.argument("name", required=False, shell_complete=_complete)
@click.option(
    "-d",
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write the files of the example, or of all examples, to this folder.",
)
@runs("devalloc.cli.verbs.examples")
def examples() -> None:
    """List examples, print the manifests of one, or write them to files to edit.

    \b
    devalloc examples
    devalloc examples whole-gpu | devalloc solve -f -
    devalloc examples whole-gpu -d .
    """


@verb("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@runs("devalloc.cli.verbs.help")
def completion() -> None:
    """Print the completion script of a shell.

    \b
    source <(devalloc completion bash)                                  # in ~/.bashrc
    devalloc completion zsh > "${fpath[1]}/_devalloc"
    devalloc completion fish > ~/.config/fish/completions/devalloc.fish
    """


@verb("version")
@output_option("table", "json", "yaml")
@runs("devalloc.cli.verbs.help")
def version() -> None:
    """Print the version of the command."""


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
@runs("devalloc.cli.verbs.help")
def help() -> None:
    """Print the help of a command, or list all commands.

    \b
    devalloc help solve
    devalloc help vm create
    devalloc help --man ~/.local/share/man/man1
    """
