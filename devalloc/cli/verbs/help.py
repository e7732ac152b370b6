"""``devalloc help``: the same as --help."""

from __future__ import annotations

import click

from devalloc.cli.command import BadInput, verb


@verb("help")
@click.argument("words", nargs=-1, metavar="[VERB]...")
@click.pass_context
def help(ctx: click.Context, words: tuple[str, ...]) -> int:
    """Print the help of a command, or list all commands.

    \b
    devalloc help solve
    devalloc help vm create
    """
    above = ctx.find_root()
    command: click.Command = above.command
    for word in words:
        inner = command.get_command(above, word) if isinstance(command, click.Group) else None
        if inner is None:
            raise BadInput(f"unknown command {' '.join(words)!r}; `devalloc --help` lists the commands")
        above, command = click.Context(inner, info_name=word, parent=above), inner
    click.echo(command.get_help(above))
    return 0
