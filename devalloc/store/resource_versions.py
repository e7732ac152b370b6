"""Resource versions, which identify the state of an object or store."""

from __future__ import annotations

from devalloc.store.errors import Invalid
from devalloc.store.key import Key, Object


def parse_version(text: str) -> int:
    """A resourceVersion as a number. Raises Invalid."""
    if not text.isdecimal() or len(text) > 18:
        raise Invalid(f"resourceVersion must be a decimal number from the store, not {text!r:.60}")
    return int(text)


def changed_message(key: Key, old: Object, base: str) -> str:
    """The message for an object that is not in the state on which the write is based."""
    now = old["metadata"]["resourceVersion"]
    return f"{key} changed meanwhile (resourceVersion {now}, the write is based on {base}); get it and try again"


def other_object_message(key: Key, old: Object, uid: str) -> str:
    """The message for another object with the same key."""
    return f"{key} is now another object (uid {old['metadata']['uid']}, not {uid})"
