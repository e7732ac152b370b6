"""Progress of verbs that run until they are stopped."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import click

from devalloc.cli.command import is_json, json_line

if TYPE_CHECKING:
    from devalloc.controller.pool_publisher import PublishResult


class ProgressDisplay(Protocol):
    """Progress output of the loops."""

    def say(self, text: str) -> None:
        """Print a line that stays."""

    def state(self, text: str) -> None:
        """Show the current state."""


class LineDisplay:
    """For files and pipes: one line each, with the time; a state only when it changes."""

    def __init__(self) -> None:
        self._state = ""
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        with self._lock:
            click.echo(f"{datetime.now():%H:%M:%S} {text}")

    def state(self, text: str) -> None:
        if text != self._state:
            self._state = text
            self.say(text)


class JsonDisplay(LineDisplay):
    """For a log in JSON lines, such as a pod's."""

    def say(self, text: str) -> None:
        with self._lock:
            click.echo(json_line(logging.INFO, text))


def show_published(display: ProgressDisplay, done: PublishResult) -> None:
    """Report changes of the pools, if there are any: they are compared after every change of a claim or machine."""
    if done.changed:
        display.say(f"pools: {done}")


@contextmanager
def open_display() -> Iterator[ProgressDisplay]:
    """Plain lines for files and pipes, with a state line below them on a terminal; JSON with ``--log-format json``."""

    if is_json():
        yield JsonDisplay()
        return
    if not sys.stdout.isatty():
        yield LineDisplay()
        return
    from rich.console import Console
    from rich.markup import escape

    console = Console()

    class Terminal:
        def say(self, text: str) -> None:
            console.print(f"[dim]{datetime.now():%H:%M:%S}[/dim]", escape(text), highlight=False)

        def state(self, text: str) -> None:
            status.update(escape(text))

    with console.status("starting") as status:
        yield Terminal()
