"""Writes whose outcome is unknown, and how it is made certain.

Each write names the state on which it is based. So a second write settles it: either the doubtful write was done before
and is visible in the result, or it is now based on an outdated state, and the API server refuses it.
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
from devalloc.store.lifecycle import with_annotations

log = logging.getLogger(__name__)


class ReadWriteApi(Protocol):
    """The requests to the API server. Raises StoreError."""

    def read(self, key: Key) -> Object: ...
    def write(self, obj: Object) -> Object: ...


class UncertainWrites:
    """The doubtful objects of one process. Thread-safe."""

    def __init__(self, api: ReadWriteApi) -> None:
        self._api = api
        self._keys: dict[Key, object] = {}
        """The keys, each with a token that identifies the write."""
        self._noting = threading.Lock()
        self._settling = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._keys)

    def note(self, keys: Iterable[Key]) -> None:
        """A write of these objects has ended with an unknown result."""
        with self._noting:
            self._keys |= {key: object() for key in keys}

    def settle(self) -> None:
        """Settle all doubts. If it raises StoreError, call it again before any decision."""
        with self._settling:
            with self._noting:
                noted = [*self._keys.items()]
            for key, write in noted:
                self._settle(key)
                with self._noting:
                    if self._keys[key] is write:  # otherwise a later write is already in doubt
                        del self._keys[key]

    def _settle(self, key: Key) -> None:
        log.warning("cannot tell whether %s was written; writing it again", key)
        while True:
            try:
                now = self._api.read(key)
                mark = secrets.token_hex(8)
                try:
                    self._api.write(with_annotations(now, {LEADER: mark}))
                except (Invalid, Forbidden):  # it may have the maximum of annotations
                    labels = {**now["metadata"].get("labels", {}), LEADER: mark}
                    self._api.write({**now, "metadata": {**now["metadata"], "labels": labels}})
                return
            except NotFound:
                return
            except Conflict:
                continue
            except Invalid as error:  # about the object; with missing rights, a later try may be accepted
                log.error("cannot mark %s; its author must make it smaller: %s", key, error)
                return
