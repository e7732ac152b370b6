"""The rules by which an object's metadata moves from write to write. Pure: objects in, objects out."""

from __future__ import annotations

import json
from collections.abc import Mapping

from devalloc.store.errors import Invalid
from devalloc.store.key import Key, Object

_OF_STORE = frozenset(
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
    """The object as JSON text. Raises Invalid when it is not JSON."""
    try:
        return json.dumps(obj, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"the object is not plain JSON content: {error}") from error


def decode(text: str) -> Object:
    """The object of a JSON text that ``encode`` made."""
    obj: Object = json.loads(text)
    return obj


def plain(obj: Object) -> Object:
    """The object as it will be read back: lists for tuples, texts for keys. Raises Invalid."""
    return decode(encode(obj))


def created(obj: Object, uid: str, now: str) -> Object:
    """A new object, as yet without resourceVersion."""
    server = {"uid": uid, "generation": 1, "creationTimestamp": now}
    return _object(spec_of(obj), {**_of_user(obj), **server})


def replaced(old: Object, new: Object) -> Object:
    """``old`` with everything but status from ``new``; equal to ``old`` when nothing changes. Raises Invalid."""
    if _group(old) != _group(new):
        raise Invalid(f"{Key.of(old)} is of {old.get('apiVersion')}, not of {new.get('apiVersion')}")
    user, server = _of_user(new), {k: v for k, v in old["metadata"].items() if k in _OF_STORE}
    if is_deleting(old) and (added := set(user.get("finalizers", ())) - set(finalizers(old))):
        raise Invalid(f"{Key.of(old)} is being deleted: no finalizer can be added ({', '.join(sorted(added))})")
    spec = spec_of(new)
    if spec != spec_of(old) and "generation" in server:  # which not all kinds of Kubernetes have
        server["generation"] += 1
    return with_status(_object(spec, {**user, **server}), old.get("status"))


def with_status(obj: Object, status: Object | None) -> Object:
    """The object with another status; None and {} remove it. Raises Invalid."""
    if status is not None and not isinstance(status, dict):
        raise Invalid(f"{Key.of(obj)}: status must be a map")
    rest = {k: v for k, v in obj.items() if k != "status"}
    return {**rest, "status": status} if status else rest


def annotated(obj: Object, annotations: Mapping[str, str | None]) -> Object:
    """The object with some annotations set, or removed where the value is None."""
    merged = {**obj["metadata"].get("annotations", {}), **annotations}
    kept = {k: v for k, v in merged.items() if v is not None}
    metadata = {k: v for k, v in obj["metadata"].items() if k != "annotations"}
    return {**obj, "metadata": {**metadata, "annotations": kept} if kept else metadata}


def marked(obj: Object, now: str) -> Object:
    """The object with a deletionTimestamp; unchanged when it has one."""
    if is_deleting(obj):
        return obj
    metadata = obj["metadata"]
    return {**obj, "metadata": {**metadata, "deletionTimestamp": now, "generation": metadata["generation"] + 1}}


def versioned(obj: Object, resource_version: int) -> Object:
    """The object at another resourceVersion."""
    return {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(resource_version)}}


def finalizers(obj: Object) -> list[str]:
    """Who must let go before the object can be deleted."""
    found: list[str] = obj["metadata"].get("finalizers", [])
    return found


def is_deleting(obj: Object) -> bool:
    """True once somebody asked for the object's deletion."""
    return "deletionTimestamp" in obj["metadata"]


def _object(spec: Object, metadata: Object) -> Object:
    """The parts in the order in which people read them."""
    head = {k: v for k, v in spec.items() if k in ("apiVersion", "kind")}
    return {**head, "metadata": metadata, **{k: v for k, v in spec.items() if k not in head}}


def spec_of(obj: Object) -> Object:
    """All but metadata and status: what the generation counts the changes of."""
    return {k: v for k, v in obj.items() if k not in ("metadata", "status")}


def _group(obj: Object) -> str:
    version = obj.get("apiVersion")
    if not isinstance(version, str) or not version:
        raise Invalid(f"{Key.of(obj)}: apiVersion must be a text such as devmgmtproto.k8s.io/v1alpha1")
    return version.rpartition("/")[0]


def _of_user(obj: Object) -> Object:
    """The metadata that callers decide, without empty fields. Raises Invalid."""
    _group(obj)
    metadata = {k: v for k, v in obj["metadata"].items() if k not in _OF_STORE and v not in (None, {}, [], "")}
    for name in ("labels", "annotations"):
        if not _is_text_map(metadata.get(name, {})):
            raise Invalid(f"{Key.of(obj)}: metadata.{name} must be a map of texts")
    names = metadata.get("finalizers", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Invalid(f"{Key.of(obj)}: metadata.finalizers must be a list of texts")
    return metadata


def _is_text_map(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(k, str) and isinstance(v, str) for k, v in value.items())
