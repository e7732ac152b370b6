"""The rules for an object's metadata on each write. Pure functions of objects."""

from __future__ import annotations

import json
from collections.abc import Mapping

from devalloc.store.errors import Conflict, Invalid, Key, Object
from devalloc.store.protocol import Change


def parse_version(text: str) -> int:
    """A resourceVersion as a number. Raises Invalid."""
    if not text.isdecimal() or len(text) > 18:
        raise Invalid(f"resourceVersion must be a decimal number from the store, not {text!r:.60}")
    return int(text)


def base_version(key: Key, obj: Object) -> str:
    """The resourceVersion on which a write of ``obj`` is based. Raises Invalid."""
    base: str | None = obj["metadata"].get("resourceVersion")
    if not base:
        raise Invalid(
            f"{key}: set metadata.resourceVersion to the state on which the write is based; get the object first"
        )
    return base


def check_state(key: Key, old: Object, uid: str | None, base: str | None) -> None:
    """Raises Conflict if the stored object has another UID or resourceVersion than these, which can be None."""
    if uid is not None and old["metadata"]["uid"] != uid:
        raise Conflict({key: other_object_message(key, old, uid)})
    if base is not None and old["metadata"]["resourceVersion"] != base:
        raise Conflict({key: changed_message(key, old, base)})


def changed_message(key: Key, old: Object, base: str) -> str:
    """The message for an object that is not in the state on which the write is based."""
    now = old["metadata"]["resourceVersion"]
    return f"{key} changed meanwhile (resourceVersion {now}, the write is based on {base}); get it and try again"


def other_object_message(key: Key, old: Object, uid: str) -> str:
    """The message for another object with the same key."""
    return f"{key} is now another object (uid {old['metadata']['uid']}, not {uid})"


_STORE_METADATA = frozenset(
    {
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "selfLink",
    }
)


def encode(obj: Object) -> str:
    """The object as JSON text. Raises Invalid if it is not JSON."""
    try:
        return json.dumps(obj, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"the object is not plain JSON content: {error}") from error


def decode(text: str) -> Object:
    """The object of a JSON text from ``encode``. Raises DamagedRow if the text is not one."""
    try:
        obj: Object = json.loads(text)
    except ValueError as error:
        raise DamagedRow(str(error)) from error
    if type(obj) is not dict or type(obj.get("metadata")) is not dict or "name" not in obj["metadata"]:
        raise DamagedRow("it is not an object with a name")
    return obj


class DamagedRow(ValueError):
    """A row of the store that no version of devalloc wrote."""


def as_stored(obj: Object) -> Object:
    """The object, or a part of one such as its status, as it will be read back: lists instead of tuples, texts as keys.
    Raises Invalid."""
    stored: Object = json.loads(encode(obj))
    return stored


def new_object(obj: Object, uid: str, now: str) -> Object:
    """A new object, still without resourceVersion."""
    server = {"uid": uid, "generation": 1, "creationTimestamp": now}
    return _object(spec_of(obj), {**_user_metadata(obj), **server})


def replace_all_but_status(old: Object, new: Object) -> Object:
    """``old`` with everything but status from ``new``; equal to ``old`` if nothing changes. Raises Invalid."""
    if _group(old) != _group(new):
        raise Invalid(f"{Key.of(old)} has apiVersion {old.get('apiVersion')}, not {new.get('apiVersion')}")
    user, server = _user_metadata(new), {k: v for k, v in old["metadata"].items() if k in _STORE_METADATA}
    if is_deleting(old) and (added := set(user.get("finalizers", ())) - set(finalizers(old))):
        raise Invalid(f"{Key.of(old)} is being deleted: cannot add a finalizer ({', '.join(sorted(added))})")
    spec = spec_of(new)
    if spec != spec_of(old) and "generation" in server:  # not all kinds of Kubernetes have one
        server["generation"] += 1
    return with_status(_object(spec, {**user, **server}), old.get("status"))


def with_status(obj: Object, status: Object | None) -> Object:
    """The object with a new status; None and {} remove it. Raises Invalid."""
    if status is not None and not isinstance(status, dict):
        raise Invalid(f"{Key.of(obj)}: status must be a map")
    rest = {k: v for k, v in obj.items() if k != "status"}
    return {**rest, "status": status} if status else rest


def with_annotations(obj: Object, annotations: Mapping[str, str | None]) -> Object:
    """The object with these annotations set, or removed if the value is None."""
    return _with_texts(obj, "annotations", annotations)


def with_labels(obj: Object, labels: Mapping[str, str | None]) -> Object:
    """The object with these labels set, or removed if the value is None."""
    return _with_texts(obj, "labels", labels)


def with_metadata_of(obj: Object, change: Change) -> Object:
    """The object with the annotations, labels and finalizers of a change, and its own status."""
    changed = with_labels(with_annotations(obj, change.annotations), change.labels)
    added = [name for name in change.finalizers if name not in finalizers(obj)]
    if not added:
        return changed
    return {**changed, "metadata": {**changed["metadata"], "finalizers": [*finalizers(obj), *added]}}


def with_change(obj: Object, change: Change) -> Object:
    """The object as a change leaves it. Raises Invalid."""
    return with_metadata_of(with_status(obj, change.status), change)


def _with_texts(obj: Object, name: str, texts: Mapping[str, str | None]) -> Object:
    merged = {**obj["metadata"].get(name, {}), **texts}
    remaining = {k: v for k, v in merged.items() if v is not None}
    metadata = {k: v for k, v in obj["metadata"].items() if k != name}
    return {**obj, "metadata": {**metadata, name: remaining} if remaining else metadata}


def mark_deleting(obj: Object, now: str) -> Object:
    """The object with a deletionTimestamp; unchanged if it already has one."""
    if is_deleting(obj):
        return obj
    metadata = obj["metadata"]
    return {**obj, "metadata": {**metadata, "deletionTimestamp": now, "generation": metadata["generation"] + 1}}


def with_version(obj: Object, resource_version: int) -> Object:
    """The object with a new resourceVersion."""
    return {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(resource_version)}}


def finalizers(obj: Object) -> list[str]:
    """The finalizers that must be removed before the object can be deleted."""
    names: list[str] = obj["metadata"].get("finalizers", [])
    return names


def is_deleting(obj: Object) -> bool:
    """Whether the object's deletion was requested."""
    return "deletionTimestamp" in obj["metadata"]


def _object(spec: Object, metadata: Object) -> Object:
    """The object with its parts in the usual order."""
    head = {k: v for k, v in spec.items() if k in ("apiVersion", "kind")}
    return {**head, "metadata": metadata, **{k: v for k, v in spec.items() if k not in head}}


def spec_of(obj: Object) -> Object:
    """Everything except metadata and status; the generation counts its changes."""
    return {k: v for k, v in obj.items() if k not in ("metadata", "status")}


def _group(obj: Object) -> str:
    version = obj.get("apiVersion")
    if not isinstance(version, str) or not version:
        raise Invalid(f"{Key.of(obj)}: apiVersion must be a string such as devmgmtproto.k8s.io/v1alpha1")
    return version.rpartition("/")[0]


def _user_metadata(obj: Object) -> Object:
    """The metadata that callers set, without empty fields. Raises Invalid."""
    _group(obj)
    metadata = {k: v for k, v in obj["metadata"].items() if k not in _STORE_METADATA and v not in (None, {}, [], "")}
    for name in ("labels", "annotations"):
        if not _is_text_map(metadata.get(name, {})):
            raise Invalid(f"{Key.of(obj)}: metadata.{name} must be a map of strings")
    names = metadata.get("finalizers", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Invalid(f"{Key.of(obj)}: metadata.finalizers must be a list of strings")
    return metadata


def _is_text_map(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(k, str) and isinstance(v, str) for k, v in value.items())
