"""How people name kinds and objects: ``dclaim/train``, ``claims``, ``pools node-a-l40s``."""

from __future__ import annotations

from collections.abc import Sequence

from devalloc.api.kinds import KINDS, Kind, find_kind
from devalloc.cli.verb import BadInput
from devalloc.store.key import Key


def kind_of(word: str) -> Kind:
    """The kind for "DeviceClaim", "deviceclaims", "dclaim", "claims" and the like. Raises BadInput."""
    kind = find_kind(word) or find_kind(f"device{word}") or find_kind(word.removesuffix("s"))
    if kind is not None:
        return kind
    from devalloc.api.nearest import nearest

    words = [word for kind in KINDS.values() for word in (kind.plural, kind.plural.removeprefix("device"))]
    near = nearest(word, words)
    known = ", ".join("|".join((kind.plural, *kind.short_names)) for kind in KINDS.values())
    raise BadInput(f"there is no kind {word!r}; " + (f"did you mean {near}?" if near else f"known here: {known}"))


def key_of(kind: Kind, name: str, namespace: str) -> Key:
    """The key of an object of that kind."""
    return Key(kind.kind, namespace if kind.namespaced else None, name)


def keys_of(words: Sequence[str], namespace: str, *, default: str | None = None) -> list[Key]:
    """The objects meant by ``KIND NAME...`` or ``KIND/NAME...``; plain names are of the ``default`` kind if given.

    Raises BadInput.
    """
    if all("/" in word for word in words):
        pairs = [word.split("/", 1) for word in words]
    elif any("/" in word for word in words):
        raise BadInput(f"write either KIND NAME... or KIND/NAME..., not both: {' '.join(words)}")
    elif default is not None:
        pairs = [[default, word] for word in words]
    else:
        pairs = [[words[0], word] for word in words[1:]]
    for kind, name in pairs:
        if not kind or not name:
            raise BadInput(f"{kind}/{name} is no name; write KIND/NAME, such as dclaim/train")
    return [key_of(kind_of(kind), name, namespace) for kind, name in pairs]


def shown(key: Key) -> str:
    """The object as ``deviceclaim/train``, which every verb understands."""
    return f"{key.kind.lower()}/{key.name}"
