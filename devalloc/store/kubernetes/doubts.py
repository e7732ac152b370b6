"""Objects of which nobody knows whether a write that was sent will still be done, and how that is made certain.

Each write names the state that it is based on. So another one is written on the object: either the write in doubt was
done before, and is read with it, or it is based on a state that is over, and the API server refuses it.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Iterable
from typing import Protocol

from devalloc.api.meta import LEADER
from devalloc.store.errors import Conflict, Forbidden, Invalid, NotFound
from devalloc.store.key import Key, Object
from devalloc.store.lifecycle import annotated

log = logging.getLogger(__name__)


class Api(Protocol):
    """What is asked of the API server. Raises StoreError."""

    def read(self, key: Key) -> Object: ...
    def write(self, obj: Object) -> Object: ...


class Doubts:
    """Those of one process. Safe to share between threads."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._keys: dict[Key, object] = {}
        """Each with what says which write it was noted for."""
        self._noting = threading.Lock()
        self._settling = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._keys)

    def note(self, keys: Iterable[Key]) -> None:
        """A write of these ended, and nobody knows how."""
        with self._noting:
            self._keys |= {key: object() for key in keys}

    def settle(self) -> None:
        """Have nothing in doubt any more. Raises StoreError, and then it is to be called again before anything is
        decided."""
        with self._settling:
            with self._noting:
                noted = [*self._keys.items()]
            for key, write in noted:
                self._settle(key)
                with self._noting:
                    if self._keys[key] is write:  # else one that was sent since is in doubt by now
                        del self._keys[key]

    def _settle(self, key: Key) -> None:
        log.warning("whether %s was written is not known: it is written once more", key)
        while True:
            try:
                now = self._api.read(key)
                mark = secrets.token_hex(8)
                try:
                    self._api.write(annotated(now, {LEADER: mark}))
                except (Invalid, Forbidden):  # as many annotations as it can have
                    labels = {**now["metadata"].get("labels", {}), LEADER: mark}
                    self._api.write({**now, "metadata": {**now["metadata"], "labels": labels}})
                return
            except NotFound:
                return
            except Conflict:
                continue
            except Invalid as error:  # of the object's; for want of rights nobody knows what is let through later
                log.error("%s takes no mark, and whoever wrote it is to make it smaller: %s", key, error)
                return
