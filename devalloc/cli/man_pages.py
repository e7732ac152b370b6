"""Man pages of the command and its verbs, from the same tree as their help."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from devalloc.version import VERSION


def write_man_pages(root: click.Command, folder: Path) -> list[Path]:
    """Write a page for the command and one for each verb; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for ctx in _contexts(click.Context(root, info_name="devalloc", show_default=True)):
        path = folder / f"{ctx.command_path.replace(' ', '-')}.1"
        path.write_text(man_page(ctx))
        written.append(path)
    return written


def _contexts(above: click.Context) -> Iterator[click.Context]:
    yield above
    if isinstance(above.command, click.Group):
        for name in above.command.list_commands(above):
            command = above.command.get_command(above, name)
            assert command is not None
            yield from _contexts(click.Context(command, info_name=name, parent=above, show_default=True))


def man_page(ctx: click.Context) -> str:
    """One page in the format of man(7)."""
    command, title = ctx.command, ctx.command_path.replace(" ", "-")
    options = [param for param in command.params if isinstance(param, click.Option) and not param.hidden]
    lines = [
        f'.TH "{title.upper()}" "1" "" "devalloc {VERSION}" "devalloc"',
        ".SH NAME",
        f"{_text(title)} \\- {_text(command.get_short_help_str(limit=300))}",
        ".SH SYNOPSIS",
        f".B {_text(ctx.command_path)}",
        _text(" ".join(command.collect_usage_pieces(ctx))),
        ".SH DESCRIPTION",
        *_description(command.help or ""),
        ".SH OPTIONS",
        *(line for option in options for line in _option(ctx, option)),
    ]
    if isinstance(command, click.Group):
        lines.append(".SH COMMANDS")
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            about = "" if below is None else below.get_short_help_str(limit=300)
            lines += [".TP", f".BR {_text(f'{title}-{name}')} (1)", _text(about)]
    return "\n".join(lines) + "\n"


def _description(help_text: str) -> Iterator[str]:
    """Paragraphs, and examples as they are."""
    for paragraph in map(str.strip, help_text.split("\n\n")):
        yield ".PP"
        if paragraph.startswith("\b"):
            yield from (".nf", *(_text(line.strip()) for line in paragraph.splitlines()[1:]), ".fi")
        else:
            yield _text(" ".join(paragraph.split()))


def _option(ctx: click.Context, option: click.Option) -> Iterator[str]:
    name, about = option.get_help_record(ctx) or ("", "")
    yield from (".TP", f".B {_text(name)}", _text(" ".join(about.split())))


def _text(text: str) -> str:
    """The text with what is special in troff escaped."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
