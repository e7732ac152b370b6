"""``devalloc guest-monitor``: the program inside a machine that scales."""

from __future__ import annotations

import click

from devalloc.cli.command import BadInput, CommandFailed, verb
from devalloc_node.guest.settings import ABOUT, OPTIONS, settings_from


@verb("guest-monitor", help=ABOUT)
def guest_monitor(**given: str) -> int:
    from devalloc_node.guest.monitor import run

    try:
        run(settings_from(given), lambda line: click.echo(line, err=True))
    except ValueError as error:
        raise BadInput(str(error)) from error
    except OSError as error:
        raise CommandFailed(f"the guest monitor cannot run: {error}") from error
    return 0


guest_monitor.params[:0] = [
    click.Option([f"--{option.name}", option.field], metavar=option.metavar, default=option.default, help=option.help)
    for option in OPTIONS
]
