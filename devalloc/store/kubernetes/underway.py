"""The transactions of a process, and those that one before it left: none is forgotten before it is at its end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress

from devalloc.api.meta import TRANSACTION
from devalloc.store import lifecycle
from devalloc.store.errors import Conflict, Invalid, NotFound, Unavailable
from devalloc.store.key import Key, Object
from devalloc.store.kubernetes import transaction
from devalloc.store.kubernetes.answers import explained
from devalloc.store.kubernetes.apierror import ApiError
from devalloc.store.kubernetes.client import Client
from devalloc.store.kubernetes.reflector import cleaned
from devalloc.store.kubernetes.resources import Resource
from devalloc.store.kubernetes.writing import Writing
from devalloc.store.protocol import Change

log = logging.getLogger(__name__)

RECORDS = Resource(transaction.KIND, "", "v1", "configmaps", True, False)


class Underway:
    """Safe to share between threads."""

    def __init__(self, client: Client, api: Writing, namespace: str) -> None:
        """``api``: knows ``RECORDS`` and what is written. ``namespace``: where records are."""
        self._client = client
        self._api = api
        self._namespace = namespace
        self._lock = threading.Lock()
        self._open: set[str] = set()
        """Those that were begun and are not at their end, by name."""
        self._live: set[str] = set()
        """Those of them that a thread is at."""
        self._ending = threading.Lock()

    def perform(self, olds: Sequence[Object], changes: Sequence[Change]) -> list[Object]:
        """Write the changes of several objects, which are as ``olds``; as they are then. Raises as
        ``transaction.perform``."""
        name = transaction.new_name()
        with self._lock:
            self._open.add(name)
            self._live.add(name)

        def ended() -> None:
            with self._lock:
                self._open.discard(name)

        try:
            return transaction.perform(self._api, self._namespace, name, olds, changes, ended)
        finally:
            with self._lock:
                self._live.discard(name)

    def end_left(self) -> None:
        """Bring those to their end that this process began and no thread is at. Raises StoreError."""
        with self._ending:
            if left := self._left():
                self._end(left, of_others=False)

    def end_all(self) -> None:
        """Also those of other processes. Raises StoreError."""
        with self._ending:
            self._end(self._left(), of_others=True)

    def unmark_stray(self, obj: Object) -> None:
        """Take the mark of an object away whose record is gone: somebody else wrote it, or it arrived after all was put
        back. Raises StoreError."""
        if (mark := transaction.mark_of(obj)) is None:
            return
        with suppress(Invalid, Conflict, NotFound):
            try:
                found = self._api.read(Key.checked(transaction.KIND, self._namespace, mark))
                if found["metadata"].get("labels", {}).get(TRANSACTION) == "record":
                    return
            except (Invalid, NotFound):
                pass
            log.warning("%s has the mark %s, for which there is no record; it is taken away", Key.of(obj), mark)
            self._api.write(lifecycle.annotated(obj, {TRANSACTION: None}))

    def _left(self) -> frozenset[str]:
        with self._lock:
            return frozenset(self._open - self._live)

    def _end(self, left: frozenset[str], *, of_others: bool) -> None:
        for record in self._records():
            with self._lock:
                is_live = record.id in self._live
            if is_live or not (of_others or record.id in left):
                continue
            log.warning("%s was left while it was %s; it is brought to its end", record.id, record.state)
            try:
                transaction.recover(self._api, record)
            except (Conflict, NotFound) as error:
                raise Unavailable(f"{record.id} is brought to its end by somebody else: {error}") from error
        with self._lock:
            self._open -= left  # not what was left since: its record may not have been there yet

    def _records(self) -> list[transaction.Record]:
        found: list[transaction.Record] = []
        try:
            path = RECORDS.within(self._namespace)
            for page in self._client.list(path, {"labelSelector": f"{TRANSACTION}=record"}):
                found += [transaction.read(cleaned(obj, RECORDS)) for obj in page["items"]]
        except ApiError as error:
            raise explained(error, f"list records of transactions in namespace {self._namespace}") from error
        return found
