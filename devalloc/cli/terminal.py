"""The one place where verbs write text to stdout and stderr.

Objects, guests and hosts contain text that others wrote. As it is, it would act on the terminal that shows it: set the
clipboard, clear the screen, or add lines that look like ours. Lint refuses `click.echo` elsewhere.
"""

from __future__ import annotations

import shutil
import sys
from typing import TextIO

import click

from devalloc.cli.layout import wrap_sentence
from devalloc.printable import printable, printable_lines


def print_line(*lines: str, hang: int = 0) -> None:
    """Print a line, or several; without any, an empty one. Control characters and line ends in them are escaped. On a
    terminal, long ones are broken between words; ``hang``: how far what follows a break is indented."""
    for line in lines or ("",):
        for part in _fitting(printable(line), sys.stdout, hang):
            click.echo(part)


def print_note(text: str) -> None:
    """Print a line for people on stderr, escaped and broken as by `print_line`."""
    for part in _fitting(printable(text), sys.stderr):
        click.echo(part, err=True)


def print_row(text: str) -> None:
    """Print a line of a table, escaped as by `print_line`, but never broken."""
    click.echo(printable(text))


def _fitting(text: str, stream: TextIO, hang: int = 0) -> list[str]:
    if not stream.isatty():
        return [text]
    return wrap_sentence(text, shutil.get_terminal_size().columns, hang)


def print_heading(text: str) -> None:
    """Print a title above what follows."""
    for part in _fitting(printable(text), sys.stdout):
        click.secho(part, bold=True)


def print_lines(text: str, *, to_stderr: bool = False) -> None:
    """Print a text of several lines that we wrote, such as a help text. Each line is escaped as by `print_line`."""
    click.echo(printable_lines(text.removesuffix("\n")), err=to_stderr)


def print_data(text: str, *, end: str = "") -> None:
    """Print what a program can read: exactly as it is, but a terminal gets nothing that acts on it except line ends and
    tabs."""
    if sys.stdout.isatty():
        text = "\t".join(map(printable_lines, text.split("\t")))
    click.echo(text + end, nl=False, color=True)  # otherwise click removes what looks like a colour


def pass_through(data: bytes) -> None:
    """Write what a guest writes on its console, exactly as it is: the terminal is the guest's then."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
