"""Bounded, printable texts from objects that anybody may have written; never an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from devalloc.api import summaries
from devalloc.api.fields import escape_unprintable
from devalloc.store import Object

MAX_TEXT = 2000
"""Characters of a message that are shown."""
UNREADABLE = "(unreadable)"
"""Where another program wrote what the API does not have."""


def safe_text(tell: Callable[[Object], str], doc: Object) -> str:
    try:
        return shorten(tell(doc))
    except (AttributeError, KeyError, TypeError, ValueError, StopIteration):
        return UNREADABLE


def short_annotation(doc: Object, name: str) -> str:
    return safe_text(lambda doc: summaries.annotation_text(doc, name), doc)


def shorten(value: object) -> str:
    text = value if isinstance(value, str) else str(value)
    return escape_unprintable(text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…")


def as_mapping(value: object) -> Mapping[str, Any]:
    """Content as it should be; empty where it is something else."""
    return value if isinstance(value, dict) else {}


def as_mappings(value: object) -> list[Mapping[str, Any]]:
    """Of a list those entries that are as they should be."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def count_noun(number: int, what: str) -> str:
    """ "1 node", "2 nodes" """
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
