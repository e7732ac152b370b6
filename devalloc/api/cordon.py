"""Devices that an admin keeps from being allocated (T17): where that is noted, and what it makes of a pool.

The note is an annotation of the pool, which outlives every publication; a pool that has one is never deleted by its
publisher. Whoever publishes a pool, and whoever allocates from it, adds ``devalloc.io/unavailable`` to the devices.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from devalloc.api import meta

Object = dict[str, Any]
ALL = "*"
"""Stands for every device of the pool."""


def cordons(pool: Object) -> dict[str, str]:
    """Why devices of a pool manifest are cordoned, by name; ALL for the pool. What cannot be read cordons all."""
    found: dict[str, str] = {}
    for text in filter(None, [_annotation(pool, meta.CORDONED)]):
        try:
            listed = json.loads(text)
        except ValueError:
            listed = None
        if not isinstance(listed, dict):
            listed = {ALL: f"annotation {meta.CORDONED} cannot be read"}
        found = {str(name): f"cordoned: {why}" for name, why in listed.items()}
    node = _annotation(pool, meta.CORDONED_NODE)
    if node is not None:
        found[ALL] = f"cordoned: node, {node}" if ALL not in found else f"{found[ALL]}; node, {node}"
    return found


def cordoned(pool: Object, device: str | None, why: str | None) -> dict[str, str | None]:
    """The annotations of a pool in which a device, or (None) all of it, is cordoned, or (``why`` None) no more.

    None for an annotation that is to go. Devices that the pool does not have (any more) are as good as others.
    """
    text = _annotation(pool, meta.CORDONED)
    try:
        listed = json.loads(text or "{}")
    except ValueError:
        listed = {}
    kept = dict(listed) if isinstance(listed, dict) else {}
    if why is None:
        kept.pop(device or ALL, None)
    else:
        kept[device or ALL] = why
    return {meta.CORDONED: json.dumps(kept, sort_keys=True) if kept else None}


def is_noted(pool: Object) -> bool:
    """Whether the pool must stay, if only to carry the note."""
    return _annotation(pool, meta.CORDONED) is not None or _annotation(pool, meta.CORDONED_NODE) is not None


def with_cordons(pool: Object) -> Object:
    """The pool manifest with what is cordoned made unavailable; the same object where nothing is."""
    found = cordons(pool)
    spec = pool.get("spec")
    devices = spec.get("devices") if isinstance(spec, dict) else None
    if not found or not isinstance(spec, dict) or not isinstance(devices, list):
        return pool
    common = _unavailable(spec)
    changed = [_with_reason(device, found, common) for device in devices]
    return {**pool, "spec": {**spec, "devices": changed}}


def _with_reason(device: Any, found: Mapping[str, str], common: str | None) -> Any:
    name = device.get("name") if isinstance(device, dict) else None
    why = [found[key] for key in (name, ALL) if isinstance(key, str) and key in found]
    if not isinstance(device, dict) or not why:
        return device
    before = _unavailable(device) or common
    # Its publisher may have said so already.
    reasons = [*([before] if before else []), *(each for each in why if each not in (before or ""))]
    told = {"name": meta.UNAVAILABLE, "stringValue": "; ".join(reasons)}
    others = [each for each in device.get("attributes", ()) if not _is_reason(each)]
    return {**device, "attributes": [*others, told]}


def _unavailable(content: Mapping[str, Any]) -> str | None:
    attributes = content.get("attributes")
    for entry in attributes if isinstance(attributes, list) else ():
        if _is_reason(entry) and isinstance(entry.get("stringValue"), str):
            return str(entry["stringValue"])
    return None


def _is_reason(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.get("name") == meta.UNAVAILABLE


def _annotation(pool: Object, name: str) -> str | None:
    metadata = pool.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    value = annotations.get(name) if isinstance(annotations, dict) else None
    return value if isinstance(value, str) else None
