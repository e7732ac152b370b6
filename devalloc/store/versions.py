"""The numbers that say which state of an object, or of a store, is meant."""

from __future__ import annotations

from devalloc.store.errors import Invalid
from devalloc.store.key import Key, Object


def version_of(text: str) -> int:
    """A resourceVersion as the number that it is. Raises Invalid."""
    if not text.isdecimal() or len(text) > 18:
        raise Invalid(f"resourceVersion must be a decimal number as the store gave it, not {text!r:.60}")
    return int(text)


def changed(key: Key, old: Object, base: str) -> str:
    """What is told of an object that is not as the write supposes."""
    now = old["metadata"]["resourceVersion"]
    return f"{key} changed meanwhile (resourceVersion {now}, the write is based on {base}); get it and try again"


def another(key: Key, old: Object, uid: str) -> str:
    """What is told of an object that is not the one that is meant."""
    return f"{key} is another object now (uid {old['metadata']['uid']}, not {uid})"
