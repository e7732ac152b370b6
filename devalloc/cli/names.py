"""How people name kinds and objects: ``dclaim/train``, ``claims``, ``pools node-a-l40s``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from devalloc.api.configobject import ConfigObject
from devalloc.api.kinds import KINDS, Kind, find_kind
from devalloc.cli.output import plain
from devalloc.cli.verb import BadInput
from devalloc.store.errors import Forbidden, NotFound
from devalloc.store.key import Key, Object

if TYPE_CHECKING:
    from devalloc.store import Store


_LISTED = 10
"""Names that a message has."""
_COMPARED = 5000
"""Names among which the nearest one is looked for; with more it would take seconds."""


def kind_of(word: str, store: Store | None = None) -> Kind:
    """The kind for "DeviceClaim", "deviceclaims", "dclaim", "claims" and the like. Raises BadInput.

    ``store``: somebody else's kinds that objects of it have, for claims to refer to, are known too.
    """
    kind = find_kind(word) or find_kind(f"device{word}") or find_kind(word.removesuffix("s"))
    if kind is None and store is not None:
        kind = _stored(word, store)
    if kind is None:
        kind = next((each for each in BESIDE if word.lower().partition(".")[0] in (each.plural, *_names(each))), None)
    if kind is not None:
        return kind
    if (why := _NO_KINDS.get(word.lower().removesuffix("s"))) is not None:
        raise BadInput(f"there is no kind {word!r} here: {why}")
    from devalloc.api.nearest import nearest

    words = [word for kind in KINDS.values() for word in (kind.plural, kind.plural.removeprefix("device"))]
    near = nearest(word, words)
    known = ", ".join("|".join((kind.plural, *kind.short_names)) for kind in KINDS.values())
    raise BadInput(f"there is no kind {word!r}; " + (f"did you mean {near}?" if near else f"known here: {known}"))


def _stored(word: str, store: Store) -> Kind | None:
    name, _, group = word.lower().partition(".")
    kinds = {Key.of(obj).kind: obj for obj in store.list().objects}
    for in_store, obj in kinds.items():
        singular, api_version = obj["kind"].lower(), obj["apiVersion"]
        plural = f"{singular}es" if singular.endswith("s") else f"{singular}s"
        is_meant = name in (singular, plural) and group in (
            "",
            api_version.partition("/")[0],
        )
        if in_store not in KINDS and is_meant:
            suffix = in_store.removeprefix(obj["kind"])
            namespaced = "namespace" in obj["metadata"]
            return Kind(in_store, api_version, plural + suffix, singular + suffix, (), namespaced, ConfigObject)
    return None


def _names(kind: Kind) -> tuple[str, ...]:
    return kind.singular, *kind.short_names


BESIDE = (
    Kind("ResourceQuota", "v1", "resourcequotas", "resourcequota", ("quota", "quotas"), True, ConfigObject),
    Kind("Namespace", "v1", "namespaces", "namespace", ("ns",), False, ConfigObject),
)
"""Kinds of Kubernetes that devalloc reads."""
_NO_KINDS = {
    "node": "see `devalloc get pools`, `devalloc top` and `devalloc cordon node/NAME`",
    "event": "claims and machines say why in their message: devalloc get claims -o wide, devalloc explain NAME",
    "resourceclaim": "ask with `devalloc dra allocate -f`; for those of a cluster: kubectl get resourceclaims",
    "device": "see `devalloc describe pool/NAME`",
}
"""What people ask for that is no object, and what to do instead."""


def key_of(kind: Kind, name: str, namespace: str) -> Key:
    """The key of an object of that kind."""
    return Key(kind.kind, namespace if kind.namespaced else None, name)


def keys_of(
    words: Sequence[str], namespace: str, *, default: str | None = None, store: Store | None = None
) -> list[Key]:
    """The objects meant by ``KIND NAME...`` or ``KIND/NAME...``; plain names are of the ``default`` kind if given.

    ``store``: as of ``kind_of``. Raises BadInput.
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
            raise BadInput(f"{kind}/{name} is not a name; write KIND/NAME, such as dclaim/train")
    return [key_of(kind_of(kind, store), name, namespace) for kind, name in pairs]


def among(name: str, names: Iterable[str]) -> str:
    """What else could be meant by a name that nothing has, as the end of a sentence."""
    from devalloc.api.nearest import nearest

    names = sorted({plain(each) for each in names})
    if len(names) <= _COMPARED and (near := nearest(name, names)) is not None:
        return f"; did you mean {near}?"
    if not names:
        return ""
    if len(names) == 1:
        return f"; the only one is {names[0]}"
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"; there are {', '.join(names[:_LISTED])}{more}"


def fetched(store: Store, key: Key) -> Object:
    """The object. Raises NotFound with what else could be meant."""
    try:
        return store.get(*key)
    except NotFound as error:
        raise NotFound(f"{error}{namesake(store, key)}") from None


def namesake(store: Store, key: Key) -> str:
    """What else could be meant by a key that no object has, as the end of a sentence: something of that name in another
    namespace, a claim or machine of another group, or a name much like it."""
    from devalloc.controller.foreign import is_foreign, why
    from devalloc.store.sqlite import SQLiteStore
    from devalloc_solver.dialects import group_of

    try:
        every = [obj["metadata"] for obj in store.list(key.kind).objects]
    except Forbidden:
        return ""
    same = [metadata for metadata in every if metadata["name"] == key.name]
    if spaces := ", ".join(metadata["namespace"] for metadata in same if metadata.get("namespace")):
        return f"; there is one in namespace {spaces} (-n)"
    for obj in store.list().objects if isinstance(store, SQLiteStore) else ():
        there = Key.of(obj)
        if (there.namespace, there.name) == key[1:] and is_foreign(obj) and obj["kind"].endswith("Claim"):
            return f"; there is {there}: {why(group_of(obj))}"
    return among(key.name, (metadata["name"] for metadata in every if metadata.get("namespace") == key.namespace))


def shown(key: Key) -> str:
    """The object as ``deviceclaim/train``, which every verb understands."""
    return f"{key.kind.lower()}/{key.name}"
