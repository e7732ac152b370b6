"""HTML in which every text is escaped: what is no ``Markup`` is text, and names and messages come from anybody."""

from __future__ import annotations

import html
from collections.abc import Iterable

VOID = frozenset({"br", "input", "link", "meta", "rect"})


class Markup(str):
    """HTML that ``tag`` made."""

    __slots__ = ()


Child = str | Iterable["Child"] | None
"""Text, elements, or several; None for nothing."""


def tag(name: str, /, *children: Child, **attributes: str | int | bool | None) -> Markup:
    """An element. Of attribute names ``_`` is written ``-``, but for one at the end (``class_``); True stands for one
    without a value, None and False for none."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{html.escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in VOID:
        return Markup(f"<{name}{written}/>")  # as SVG wants it
    return Markup(f"<{name}{written}>{join_markup(*children)}</{name}>")


def join_markup(*children: Child) -> Markup:
    """Elements and texts one after the other."""
    return Markup("".join(map(_written, children)))


def _written(child: Child) -> str:
    if isinstance(child, Markup):
        return child
    if isinstance(child, str):
        return html.escape(child)
    return "" if child is None else "".join(map(_written, child))
