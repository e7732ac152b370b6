"""Answers on stdout: tables for people, JSON and YAML for programs. Everything else goes to stderr."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import click

FORMATS = ("table", "wide", "json", "yaml", "name")
GAP = "   "
UNBROKEN = 24
"""Words up to this long are not broken on terminals."""
ROOM = 10
"""Least width of a column whose longest cell is not known yet."""


class Styled(NamedTuple):
    """A cell with a colour on terminals."""

    text: str
    style: str


Cell = str | Styled


def dump(value: object, form: str) -> None:
    """Print JSON-able content as "json" or "yaml"."""
    if form == "json":
        import json

        click.echo(json.dumps(value, indent=2, ensure_ascii=False))
        return
    import yaml

    # libyaml's emitter is several times faster, and part of most builds of PyYAML.
    dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    try:
        text = yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True)
    except UnicodeEncodeError:  # of half a surrogate pair, which the other one escapes
        text = yaml.dump(value, Dumper=yaml.SafeDumper, sort_keys=False, allow_unicode=True)
    click.echo(text, nl=False)


def dump_objects(objects: Sequence[dict[str, Any]], form: str) -> None:
    """Print manifests: JSON as one ``{"items": [...]}``, YAML as a stream of documents that can be applied again."""
    if form == "json":
        dump({"items": list(objects)}, form)
        return
    for i, obj in enumerate(objects):
        if i:
            click.echo("---")
        dump(obj, form)


def table(headers: Sequence[str], rows: Sequence[Sequence[Cell]], *, no_headers: bool = False) -> None:
    """Print a table: lines that programs can cut when piped, colours and wrapping only on a terminal."""
    if sys.stdout.isatty():
        _rich_table(headers, rows, no_headers=no_headers)
        return
    shown = lines([""] * len(headers), rows)[1:] if no_headers else lines(headers, rows)
    for line in shown:
        click.echo(line)


def lines(headers: Sequence[str], rows: Sequence[Sequence[Cell]], widths: Sequence[int] = ()) -> list[str]:
    """The table as plain lines, columns aligned and at least as wide as ``widths``."""
    texts = [list(headers), *([plain(cell) for cell in row] for row in rows)]
    least = [*widths, *[0] * (len(headers) - len(widths))]
    wide = [max(least[i], *(len(row[i]) for row in texts)) for i in range(len(headers))]
    return [GAP.join(cell.ljust(width) for cell, width in zip(row, wide, strict=True)).rstrip() for row in texts]


class Feed:
    """A table that grows: a row at a time, with a header when it begins and when the columns change."""

    def __init__(self) -> None:
        self._headers: list[str] = []
        self._widths: list[int] = []

    def row(self, headers: Sequence[str], row: Sequence[Cell]) -> None:
        """Print one more row."""
        begins = list(headers) != self._headers
        if begins:
            self._headers, self._widths = list(headers), [ROOM] * len(headers)
        cells = [header if begins else "" for header in headers]
        self._widths = [
            max(width, len(cell), len(plain(value)))
            for width, cell, value in zip(self._widths, cells, row, strict=True)
        ]
        title, line = lines(headers, [row], self._widths)
        for text in [title, line] if begins else [line]:
            click.echo(text)


def _rich_table(headers: Sequence[str], rows: Sequence[Sequence[Cell]], *, no_headers: bool) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, header_style="bold", padding=(0, len(GAP), 0, 0), show_header=not no_headers)
    for i, header in enumerate(headers):
        # A name is broken only where it is longer than this: at 80 columns, device names were cut in the middle.
        words = [word for row in rows for word in plain(row[i]).split()]
        least = min(UNBROKEN, max(map(len, [header, *words])))
        grid.add_column(header, overflow="fold", no_wrap=i == 0, min_width=least)
    for row in rows:
        grid.add_row(*(Text(plain(cell), style=cell.style if isinstance(cell, Styled) else "") for cell in row))
    Console().print(grid)


def heading(text: str) -> None:
    """Print a title above what follows."""
    click.secho(text, bold=True)


def plain(cell: Cell) -> str:
    """On one line, whatever somebody wrote."""
    text = cell.text if isinstance(cell, Styled) else cell
    if text.isprintable():
        return text
    from devalloc.api.fields import printable

    return printable(text)


def note(text: str) -> None:
    """Print a line for people on stderr."""
    click.echo(text, err=True)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Say on a terminal's stderr what takes so long, from one second on, and remove it when it is done."""
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    spinner = threading.Thread(target=_spin, args=(what, done), daemon=True)
    spinner.start()
    try:
        yield
    finally:
        done.set()
        spinner.join()


def _spin(what: str, done: threading.Event) -> None:
    if done.wait(1):
        return
    for tenths in itertools.count(10):
        sys.stderr.write(f"\r{'|/-'[tenths % 3]} {what} ({tenths // 10} s)")
        sys.stderr.flush()
        if done.wait(0.1):
            break
    sys.stderr.write("\r\x1b[K")
    sys.stderr.flush()
