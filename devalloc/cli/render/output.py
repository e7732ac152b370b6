"""Results on stdout: tables for people, JSON and YAML for programs. Everything else goes to stderr."""

from __future__ import annotations

import itertools
import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from devalloc.cli.command import is_json, json_line
from devalloc.cli.layout import GAP, fit_columns, wrap
from devalloc.cli.terminal import print_data, print_line, print_row
from devalloc.printable import printable
from devalloc.program import ProgressDisplay

if TYPE_CHECKING:
    from rich.console import Console


class LineDisplay:
    """For files and pipes: one line each, with the time; a state only when it changes."""

    def __init__(self) -> None:
        self._state = ""
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        with self._lock:
            print_line(f"{datetime.now():%H:%M:%S} {text}")

    def state(self, text: str) -> None:
        if text != self._state:
            self._state = text
            self.say(text)


class JsonDisplay(LineDisplay):
    """For a log in JSON lines, such as a pod's."""

    def say(self, text: str) -> None:
        with self._lock:
            print_line(json_line(logging.INFO, text))


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
            console.print(f"[dim]{datetime.now():%H:%M:%S}[/dim]", escape(one_line(text)), highlight=False)

        def state(self, text: str) -> None:
            status.update(escape(one_line(text)))

    with _logging_above(console), console.status("starting") as status:
        yield Terminal()


@contextmanager
def _logging_above(console: Console) -> Iterator[None]:
    """While inside, write log lines above the state line, which would otherwise be on the same line, if stderr is a
    terminal, too."""

    class Above:
        def write(self, text: str) -> None:
            if text.strip():
                console.print(text.removesuffix("\n"), markup=False, highlight=False)

        def flush(self) -> None:
            pass

    handlers = [
        handler
        for handler in logging.getLogger().handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stderr and sys.stderr.isatty()
    ]
    for handler in handlers:
        handler.setStream(Above())
    try:
        yield
    finally:
        for handler in handlers:
            handler.setStream(sys.stderr)


FORMATS = ("table", "wide", "json", "yaml", "name")
MIN_COLUMN_WIDTH = 10
"""Minimum width of a column whose longest cell is not known yet."""


class StyledText(NamedTuple):
    """A cell with a colour on terminals."""

    text: str
    style: str


Cell = str | StyledText


def print_content(value: object, form: str) -> None:
    """Print JSON-able content as "json" or "yaml". The format's own escapes keep it from acting on a terminal, so that
    programs read the same content."""
    if form == "json":
        print_data(_printable_json(json.dumps(value, indent=2, ensure_ascii=False)), end="\n")
        return
    import yaml

    # libyaml's emitter is several times faster; most builds of PyYAML include it.
    dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    try:
        text = yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True)
        if not text.replace("\n", "").isprintable():  # such as marks that change the direction of text
            text = yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=False)
    except UnicodeEncodeError:  # half a surrogate pair, which the other emitter escapes
        text = yaml.dump(value, Dumper=yaml.SafeDumper, sort_keys=False, allow_unicode=False)
    print_data(text)


def _printable_json(text: str) -> str:
    """The JSON with what JSON lets pass, such as marks that change the direction of text, as ``\\uXXXX``."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def print_objects(objects: Sequence[dict[str, Any]], form: str) -> None:
    """Print manifests: JSON as one ``{"items": [...]}``, YAML as a stream of documents that can be applied again."""
    if form == "json":
        print_content({"items": list(objects)}, form)
        return
    for i, obj in enumerate(objects):
        if i:
            print_line("---")
        print_content(obj, form)


def print_table(
    headers: Sequence[str], rows: Sequence[Sequence[Cell]], *, no_headers: bool = False, wide: bool = False
) -> None:
    """Print a table: plain lines in a pipe; on a terminal in colours, and such that it fits. ``wide``: with all
    columns, even if they do not."""
    if sys.stdout.isatty():
        _print_fitting(headers, rows, no_headers=no_headers, wide=wide)
        return
    shown = table_lines([""] * len(headers), rows)[1:] if no_headers else table_lines(headers, rows)
    for line in shown:
        print_row(line)


def table_lines(headers: Sequence[str], rows: Sequence[Sequence[Cell]], widths: Sequence[int] = ()) -> list[str]:
    """The table as plain lines, columns aligned and at least as wide as ``widths``."""
    texts = [list(headers), *([one_line(cell) for cell in row] for row in rows)]
    least = [*widths, *[0] * (len(headers) - len(widths))]
    wide = [max(least[i], *(len(row[i]) for row in texts)) for i in range(len(headers))]
    return [GAP.join(cell.ljust(width) for cell, width in zip(row, wide, strict=True)).rstrip() for row in texts]


class GrowingTable:
    """A growing table: one row at a time, with a header at the start and whenever the columns change."""

    def __init__(self) -> None:
        self._headers: list[str] = []
        self._widths: list[int] = []

    def row(self, headers: Sequence[str], row: Sequence[Cell]) -> None:
        """Print one more row."""
        begins = list(headers) != self._headers
        if begins:
            self._headers, self._widths = list(headers), [MIN_COLUMN_WIDTH] * len(headers)
        cells = [header if begins else "" for header in headers]
        self._widths = [
            max(width, len(cell), len(one_line(value)))
            for width, cell, value in zip(self._widths, cells, row, strict=True)
        ]
        title, line = table_lines(headers, [row], self._widths)
        for text in [title, line] if begins else [line]:
            print_row(text)


def _print_fitting(headers: Sequence[str], rows: Sequence[Sequence[Cell]], *, no_headers: bool, wide: bool) -> None:
    """The table for the terminal's width, with colours."""
    from rich.console import Console
    from rich.text import Text

    console = Console()
    texts = [[one_line(cell) for cell in row] for row in rows]
    titles = ["" if no_headers else header for header in headers]
    shown, widths = fit_columns(titles, texts, console.width, keep_all=wide)
    styles = [[cell.style if isinstance(cell, StyledText) else "" for cell in row] for row in rows]
    table = [*zip(texts, styles, strict=True)]
    if not no_headers:
        table.insert(0, ([*headers], ["bold"] * len(headers)))
    for row, styled in table:
        cells = [wrap(row[i], width) for i, width in zip(shown, widths, strict=True)]
        for number in range(max(map(len, cells))):
            line = Text(no_wrap=True, overflow="ignore")
            for i, cell, width in zip(shown, cells, widths, strict=True):
                line.append(f"{cell[number] if number < len(cell) else '':{width}}", styled[i]).append(GAP)
            line.rstrip()
            console.print(line, soft_wrap=True, highlight=False)


def one_line(cell: Cell) -> str:
    """The cell's text on one line, without control characters."""
    return printable(cell.text if isinstance(cell, StyledText) else cell)


@contextmanager
def show_spinner(what: str, total: int = 0) -> Iterator[Callable[[int], None]]:
    """After one second, show on a terminal's stderr what takes so long; remove it at the end. ``total``: how many
    things there are; call what this yields with the number of those that are done."""
    if not sys.stderr.isatty():
        yield lambda number: None
        return
    done, share = threading.Event(), _Share(total)
    spinner = threading.Thread(target=_run_spinner, args=(what, share, done), daemon=True)
    spinner.start()
    try:
        yield share.set
    finally:
        done.set()
        spinner.join()


class _Share:
    """How many of all things are done."""

    def __init__(self, total: int) -> None:
        self._total, self._number = total, 0

    def set(self, number: int) -> None:
        self._number = number

    def __str__(self) -> str:
        return f"{self._number:,} of {self._total:,}, " if self._total > 1 else ""


def _run_spinner(what: str, share: _Share, done: threading.Event) -> None:
    if done.wait(1):
        return
    for tenths in itertools.count(10):
        sys.stderr.write(f"\r{'|/-'[tenths % 3]} {what} ({share}{tenths // 10} s)")
        sys.stderr.flush()
        if done.wait(0.1):
            break
    clear_spinner()


def clear_spinner() -> None:
    """Before a note on stderr: a spinner that turns goes on below it."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def enum_text(enum: Any, number: int) -> str:
    """The name of an enum's value: ``Running``; ``Unknown`` for a value of a newer plugin."""
    value = enum.values_by_number.get(number)
    return value.name.removeprefix("CHANGE_").capitalize() if value is not None else "Unknown"
