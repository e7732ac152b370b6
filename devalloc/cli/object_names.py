"""Names of kinds and objects as people write them: ``dclaim/train``, ``claims``, ``pools node-a-l40s``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from devalloc.api.api_kind import ApiKind
from devalloc.api.kinds import API_KINDS, find_kind
from devalloc.api.problems import closest_match
from devalloc.cli.command import BadInput, CommandFailed
from devalloc.cli.render.output import one_line
from devalloc.controller import cordon
from devalloc.store import Store
from devalloc.store.errors import Forbidden, Key, NotFound, Object
from devalloc.store.sqlite import SQLiteStore

_MAX_LISTED = 10
"""How many names a message lists."""
_WITH_STATES = ("DeviceClaim", "ResourceClaim", "VirtualMachine", "VirtualMachineReplicaSet", "VirtualMachineMigration")
"""Kinds of which one is easily meant instead of another: some verbs take a name alone for a claim."""
_MAX_COMPARED = 5000
"""Among how many names to look for a similar one; more would take seconds."""


def kind_of(word: str, store: Store | None = None) -> ApiKind:
    """The kind for "DeviceClaim", "deviceclaims", "dclaim", "claims" and the like. Raises BadInput.

    ``store``: also accept kinds of other APIs if the store has objects of them, such as configs.
    """
    kind = find_kind(word) or find_kind(f"device{word}") or find_kind(word.removesuffix("s"))
    if kind is None and store is not None:
        kind = _kind_in_store(word, store)
    if kind is None:
        kind = next(
            (each for each in OTHER_KINDS if word.lower().partition(".")[0] in (each.plural, *_names(each))), None
        )
    if kind is not None:
        return kind
    if (why := _NO_KINDS.get(word.lower().removesuffix("s"))) is not None:
        raise BadInput(f"unknown kind {word!r}: {why}")

    words = [word for kind in API_KINDS.values() for word in (kind.plural, kind.plural.removeprefix("device"))]
    if near := closest_match(word, words):
        raise BadInput(f"unknown kind {word!r}; did you mean {near}?")
    raise BadInput(f"unknown kind {word!r}; the kinds are: {', '.join(_USUAL_NAMES)}; for an object: claim/{word}")


def _kind_in_store(word: str, store: Store) -> ApiKind | None:
    name, _, group = word.lower().partition(".")
    kinds = {Key.of(obj).kind: obj for obj in store.list().objects}
    for in_store, obj in kinds.items():
        singular, api_version = obj["kind"].lower(), obj["apiVersion"]
        plural = f"{singular}es" if singular.endswith("s") else f"{singular}s"
        is_meant = name in (singular, plural) and group in (
            "",
            api_version.partition("/")[0],
        )
        if in_store not in API_KINDS and is_meant:
            suffix = in_store.removeprefix(obj["kind"])
            namespaced = "namespace" in obj["metadata"]
            return ApiKind(in_store, api_version, plural + suffix, singular + suffix, (), namespaced)
    return None


def _names(kind: ApiKind) -> tuple[str, ...]:
    return kind.singular, *kind.short_names


_USUAL_NAMES = (
    *("pools", "classes", "claims", "vms", "vmrs", "migrations"),
    *("vfioconfigs", "vfconfigs", "vgpuconfigs", "quotas", "namespaces"),
)
"""Of the kinds, as the guides have them."""
OTHER_KINDS = (
    ApiKind("ResourceQuota", "v1", "resourcequotas", "resourcequota", ("quota", "quotas"), True),
    ApiKind("Namespace", "v1", "namespaces", "namespace", ("ns",), False),
)
"""Kinds of Kubernetes that devalloc reads."""
_NO_KINDS = {
    "node": "see `devalloc get nodes`, `devalloc top` and `devalloc cordon node/NAME`",
    "event": "claims and machines have a message: devalloc get claims -o wide, devalloc explain NAME",
    "pod": "its claims have reasons: devalloc explain resourceclaim/NAME, or -f with its manifests",
    "resourceclaim": "use `devalloc dra allocate -f`, or for those of a cluster: kubectl get resourceclaims",
    "device": "see `devalloc describe pool/NAME`",
}
"""Words that users try but that are not kinds, and what to use instead."""


def key_of(kind: ApiKind, name: str, namespace: str) -> Key:
    """The key of an object of that kind."""
    return Key(kind.kind, namespace if kind.namespaced else None, name)


def keys_of(
    words: Sequence[str], namespace: str, *, default: str | None = None, store: Store | None = None
) -> list[Key]:
    """The objects for ``KIND NAME...`` or ``KIND/NAME...``; with a ``default`` kind, names without one are of it.

    ``store``: as for ``kind_of``. Raises BadInput.
    """
    if default is not None or all("/" in word for word in words):
        pairs = [word.split("/", 1) if "/" in word else [str(default), word] for word in words]
    elif any("/" in word for word in words):
        raise BadInput(f"use either KIND NAME... or KIND/NAME..., not both: {' '.join(words)}")
    else:
        pairs = [[words[0], word] for word in words[1:]]
    for kind, name in pairs:
        if not kind or not name:
            example = "vm/web" if default == "virtualmachines" else "dclaim/train"
            raise BadInput(f"invalid name {kind}/{name}; use KIND/NAME, such as {example}")
    return [key_of(kind_of(kind, store), name, namespace) for kind, name in pairs]


def similar_names_hint(name: str, names: Iterable[str], *, nearest: bool = True) -> str:
    """Suggestions for a name that does not exist, as the end of a sentence: the ``nearest`` one, or those there are."""
    names = sorted({one_line(each) for each in names})
    if nearest and len(names) <= _MAX_COMPARED and (near := closest_match(name, names)) is not None:
        return f"; did you mean {near}?"
    if not names:
        return ""
    if len(names) == 1:
        return f"; the only one is {names[0]}"
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return f"; there are {', '.join(names[:_MAX_LISTED])}{more}"


def fetch_object(store: Store, key: Key) -> Object:
    """The object. Raises NotFound with suggestions."""
    try:
        return store.get(*key)
    except NotFound as error:
        raise NotFound(f"{error}{not_found_hint(store, key)}") from None


def find_object(store: Store, key: Key) -> Object | None:
    """The object; None if there is none."""
    try:
        return store.get(*key)
    except NotFound:
        return None


def not_found_hint(store: Store, key: Key, *, nearest: bool = True) -> str:
    """Suggestions for a key that does not exist, as the end of a sentence: an object of that name in another namespace,
    a claim of another API group, an object of that name and another kind, or the names that exist, or only the
    ``nearest`` one of them."""
    try:
        every = [obj["metadata"] for obj in store.list(key.kind).objects]
    except Forbidden:
        return ""
    same = [metadata for metadata in every if metadata["name"] == key.name]
    if spaces := ", ".join(metadata["namespace"] for metadata in same if metadata.get("namespace")):
        return f"; there is one in namespace {spaces} (-n)"
    objects = store.list().objects if isinstance(store, SQLiteStore) else ()
    for there in (there for obj in objects if (there := Key.of(obj))[1:] == key[1:]):
        if there.kind in _WITH_STATES and there.kind != key.kind:
            return f"; there is a {there.kind} of that name: {format_key(there)}"
    names = (metadata["name"] for metadata in every if metadata.get("namespace") == key.namespace)
    return similar_names_hint(key.name, names, nearest=nearest)


def format_key(key: Key) -> str:
    """The object as ``deviceclaim/train``, which every verb accepts."""
    kind = "node" if key.kind == "NodeStatus" else key.kind.lower()
    return f"{kind}/{key.name}"


def objects_named(store: Store, name: str) -> list[str]:
    """Objects of that name as KIND/NAME, if it is not the name of a kind."""
    try:
        kind_of(name, store)
    except BadInput:
        keys = [Key.of(obj) for obj in store.list().objects if obj["metadata"]["name"] == name]
        return list(dict.fromkeys(map(format_key, keys)))[:3]
    return []


def find_cordon_target(store: Store, word: str, verb_name: str) -> cordon.CordonTarget:
    """What a word names. Raises BadInput for half a name, CommandFailed for an object of a kind that cannot be
    cordoned, TargetNotFound."""
    if not word.rpartition("/")[2]:
        forms = "node/NAME" if verb_name == "drain" else "node/NAME, pool/NAME or POOL/DEVICE"
        raise BadInput(f"the name is missing; write {forms}")
    try:
        return cordon.find_target(store, word)
    except cordon.TargetNotFound:
        with suppress(BadInput):  # it names no kind
            if (kind := kind_of(word.partition("/")[0]).kind) != "DevicePool" and "/" in word:
                hint = {
                    "VirtualMachine": f"; to move a machine: devalloc migrate {word}",
                    "DeviceClaim": f"; to take back its devices: devalloc release {word}",
                }.get(kind, "")
                which = "nodes" if verb_name == "drain" else "nodes, pools and devices"
                raise CommandFailed(f"cannot {verb_name} {word}, a {kind}, only {which}{hint}") from None
        raise
