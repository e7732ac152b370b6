"""``devalloc guest-monitor``: the program inside a machine that scales."""

from __future__ import annotations

from devalloc.cli.command import BadInput, CommandFailed
from devalloc.cli.terminal import print_note
from devalloc_machines.guest.settings import settings_from


def guest_monitor(**given: str) -> int:
    from devalloc.programs.guest_monitor import guest_monitor as run

    try:
        run(settings_from(given), print_note)
    except ValueError as error:
        raise BadInput("; ".join(str(error).splitlines())) from error
    except OSError as error:
        raise CommandFailed(f"the guest monitor cannot run: {error}") from error
    return 0
