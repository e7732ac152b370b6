"""``python -m devalloc.programs.guest_monitor``: the guest monitor, where nothing is installed but what it imports.

It is the same as the verb ``devalloc guest-monitor``, without the packages that the command needs.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from devalloc.printable import printable_lines
from devalloc_machines.guest.monitor import GuestMonitor, OlderAgents, run
from devalloc_machines.guest.settings import ABOUT, ENVIRONMENT, OPTIONS, MonitorSettings, is_allowed, settings_from


def guest_monitor(settings: MonitorSettings, say: Callable[[str], None]) -> None:
    """Run the guest monitor until SIGTERM or SIGINT. Raises ValueError and OSError as it does."""
    run(settings, say, make_informant)


def make_informant(monitor: GuestMonitor, metrics_port: int) -> OlderAgents:
    """Make what agents speak with that are older than the guest monitor."""
    # Loaded only where it is used: a guest that is small has other uses for that memory.
    from devalloc_neon.informant import Informant

    return Informant(monitor, metrics_port, allows=partial(is_allowed, monitor.settings.allow))


def main(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Run it; returns the exit code: 0 stopped, 1 failed, 2 bad input."""
    parser = argparse.ArgumentParser("devalloc guest-monitor", description=ABOUT)
    for option in OPTIONS:
        variable = ENVIRONMENT + option.parameter.upper()
        help = f"{option.help} [default: {option.default or 'none'}; env: {variable}]".replace("%", "%%")
        parser.add_argument(option.flag, metavar=option.metavar, default=environment.get(variable), help=help)
    given = vars(parser.parse_args(arguments))
    try:
        settings = settings_from(given)
    except ValueError as error:
        _say(str(error))
        return 2
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines("%(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    try:
        guest_monitor(settings, _say)
    except ValueError as error:
        _say(str(error))
        return 2
    except OSError as error:
        _say(f"the guest monitor cannot run: {error}")
        return 1
    return 0


class _Lines(logging.Formatter):
    """What an agent sent must not act on a terminal that shows the log."""

    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))


def _say(text: str) -> None:
    sys.stderr.write(f"{printable_lines(text)}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
