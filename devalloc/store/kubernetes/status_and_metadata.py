"""Writing the status and metadata of one object together, with an API that takes them one after the other."""

from __future__ import annotations

import logging
from typing import Protocol

from devalloc.store import lifecycle
from devalloc.store.errors import Conflict, Forbidden, Invalid, NotFound, StoreError
from devalloc.store.key import Key, Object

log = logging.getLogger(__name__)


class StatusWriteApi(Protocol):
    """Requests for one object; each returns its new state."""

    def read(self, key: Key) -> Object: ...
    def write(self, obj: Object) -> Object: ...
    def write_status(self, obj: Object) -> Object: ...


def write_both(api: StatusWriteApi, old: Object, new: Object) -> Object:
    """Change an object from ``old`` to ``new``, which can differ in status and metadata: two requests if both do.
    The status counts, so it is set last and removed first. Raises the errors of the requests; if the second is refused,
    the first is undone."""
    if old["metadata"] == new["metadata"]:
        return api.write_status(new)
    if old.get("status") == new.get("status"):
        return api.write(new)
    sets = bool(new.get("status"))
    first = api.write({**new, "status": old.get("status")}) if sets else api.write_status({**old, "status": None})
    try:
        if sets:
            return api.write_status({**first, "status": new["status"]})
        return api.write({**first, "metadata": {**new["metadata"], "resourceVersion": _version(first)}})
    except (Conflict, NotFound, Invalid, Forbidden):
        _undo_first_write(api, old, first)
        raise


def _version(obj: Object) -> str:
    return str(obj["metadata"]["resourceVersion"])


def _undo_first_write(api: StatusWriteApi, old: Object, first: Object) -> None:
    """Undo the first of two writes after the second was refused. Changes by others in between and added finalizers
    are kept."""
    key = Key.of(old)
    try:
        now = api.read(key)
        if now["metadata"]["uid"] != old["metadata"]["uid"] or now.get("status") != first.get("status"):
            return  # it may be our own status, whose answer was lost; it belongs to the annotations
        back = {}
        for name in ("annotations", "labels"):
            before, own, theirs = (obj["metadata"].get(name, {}) for obj in (old, first, now))
            back[name] = {k: before.get(k) for k in before.keys() | own.keys() if theirs.get(k) == own.get(k)}
        meant = lifecycle.with_labels(lifecycle.with_annotations(now, back["annotations"]), back["labels"])
        if meant != now:
            api.write(meant)
    except StoreError as error:
        log.warning("the metadata of %s does not match its status; the next write repairs it: %s", key, error)
