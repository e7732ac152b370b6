"""Status and annotations of one object, written together on an API that takes them one after the other."""

from __future__ import annotations

import logging
from typing import Protocol

from devalloc.store import lifecycle
from devalloc.store.errors import Conflict, Forbidden, Invalid, NotFound, StoreError
from devalloc.store.key import Key, Object

log = logging.getLogger(__name__)


class Api(Protocol):
    """Requests for one object; each answers with it as it is then."""

    def read(self, key: Key) -> Object: ...
    def write(self, obj: Object) -> Object: ...
    def write_status(self, obj: Object) -> Object: ...


def write(api: Api, old: Object, new: Object) -> Object:
    """Have an object that is as ``old`` be as ``new``, of which status and annotations may differ: two requests, where
    both do. The status is what counts: it comes last where it is set, and goes first where it is removed. Raises what
    requests raise; where the second is refused, the first is put back."""
    status_differs = old.get("status") != new.get("status")
    annotations = new["metadata"].get("annotations", {})
    if old["metadata"].get("annotations", {}) == annotations:
        return api.write_status(new)
    if not status_differs:
        return api.write(new)
    sets = bool(new.get("status"))
    first = api.write({**new, "status": old.get("status")}) if sets else api.write_status({**old, "status": None})
    try:
        if sets:
            return api.write_status({**first, "status": new["status"]})
        return api.write({**first, "metadata": {**first["metadata"], "annotations": annotations}})
    except (Conflict, NotFound, Invalid, Forbidden):
        _put_back(api, old, first)
        raise


def _put_back(api: Api, old: Object, first: Object) -> None:
    """After the first of two writes, when the second is refused. Whoever came between keeps what he wrote."""
    key = Key.of(old)
    try:
        now = api.read(key)
        if now["metadata"]["uid"] != old["metadata"]["uid"] or now.get("status") != first.get("status"):
            return  # it may be our status after all, of which the answer was lost, and belongs to the annotations
        before, mine = (obj["metadata"].get("annotations", {}) for obj in (old, first))
        theirs = now["metadata"].get("annotations", {})
        back = {k: before.get(k) for k in before.keys() | mine.keys() if theirs.get(k) == mine.get(k)}
        meant = lifecycle.annotated(now, back)
        if meant != now:
            api.write(meant)
    except StoreError as error:
        log.warning("the annotations of %s say what its status does not; the next write mends it: %s", key, error)
