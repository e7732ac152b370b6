"""Texts and contents of objects that anybody wrote: bounded, printable, and never an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from devalloc.api import inwords
from devalloc.api.fields import printable
from devalloc.store import Object

MAX_TEXT = 2000
"""Characters of a message that are shown."""
UNREADABLE = "(unreadable)"
"""Where another program wrote what the API does not have."""


def said(tell: Callable[[Object], str], doc: Object) -> str:
    try:
        return short(tell(doc))
    except (AttributeError, KeyError, TypeError, ValueError, StopIteration):
        return UNREADABLE


def annotation(doc: Object, name: str) -> str:
    return said(lambda doc: inwords.annotation(doc, name), doc)


def short(value: object) -> str:
    text = value if isinstance(value, str) else str(value)
    return printable(text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…")


def mapping(value: object) -> Mapping[str, Any]:
    """Content as it should be; empty where it is something else."""
    return value if isinstance(value, dict) else {}


def mappings(value: object) -> list[Mapping[str, Any]]:
    """Of a list those entries that are as they should be."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def many(number: int, what: str) -> str:
    """ "1 node", "2 nodes" """
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
