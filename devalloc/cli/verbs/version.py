"""``devalloc version``: print the version."""

from __future__ import annotations

import click

from devalloc.cli.command import verb
from devalloc.version import VERSION


@verb("version")
def version() -> int:
    """Print the version of the command."""

    click.echo(f"devalloc {VERSION}")
    return 0
