"""The guest monitor's own command line, without the packages that `devalloc` needs."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Mapping, Sequence

from devalloc_node.guest.monitor import run
from devalloc_node.guest.settings import ABOUT, ENVIRONMENT, OPTIONS, settings_from


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
        print(error, file=sys.stderr)
        return 2
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    try:
        run(settings, lambda line: print(line, file=sys.stderr, flush=True))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"the guest monitor cannot run: {error}", file=sys.stderr)
        return 1
    return 0
