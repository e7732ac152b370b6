"""Where verbs that go on say what they do."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import click

from devalloc.cli.logs import is_json, json_line

if TYPE_CHECKING:
    from devalloc.controller.publish import Published


class Display(Protocol):
    """Where the loops say what they do."""

    def say(self, text: str) -> None:
        """A line that stays."""

    def state(self, text: str) -> None:
        """How things stand now."""


class Lines:
    """For files and pipes: one line each, with the time; a state only when it is another one."""

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


class JsonLines(Lines):
    """For a log that has JSON lines besides, such as that of a pod."""

    def say(self, text: str) -> None:
        with self._lock:
            click.echo(json_line(logging.INFO, text))


def say_published(display: Display, done: Published) -> None:
    """What became of the pools, where anything did: they are looked at with every claim and machine that changes."""
    if done.changed:
        display.say(f"pools: {done}")


@contextmanager
def displayed() -> Iterator[Display]:
    """Lines for files and pipes, a line of state below them on a terminal; JSON with ``--log-format json``."""
    import sys

    if is_json():
        yield JsonLines()
        return
    if not sys.stdout.isatty():
        yield Lines()
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
