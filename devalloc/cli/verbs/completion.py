"""``devalloc completion``: shell completion for verbs and options."""

from __future__ import annotations

import click

from devalloc.cli.command import verb


@verb("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print the completion script of a shell.

    \b
    source <(devalloc completion bash)                                  # in ~/.bashrc
    devalloc completion zsh > "${fpath[1]}/_devalloc"
    devalloc completion fish > ~/.config/fish/completions/devalloc.fish
    """
    from click.shell_completion import get_completion_class

    from devalloc.cli.main import cli

    script = get_completion_class(shell)
    assert script is not None
    click.echo(script(cli, {}, "devalloc", "_DEVALLOC_COMPLETE").source())
    return 0
