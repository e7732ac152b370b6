"""Open transactions of this process and of the one before it: none is forgotten before it has ended."""

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
from devalloc.store.kubernetes.api_error import ApiError
from devalloc.store.kubernetes.client import Client
from devalloc.store.kubernetes.error_translation import translate_error
from devalloc.store.kubernetes.object_writer import ObjectWriter
from devalloc.store.kubernetes.reflector import clean_object
from devalloc.store.kubernetes.resources import ApiResource
from devalloc.store.protocol import Change

log = logging.getLogger(__name__)

RECORDS = ApiResource(transaction.KIND, "", "v1", "configmaps", True, False)


class OpenTransactions:
    """Unfinished transactions. Thread-safe."""

    def __init__(self, client: Client, api: ObjectWriter, namespace: str) -> None:
        """``api``: supports ``RECORDS`` and the written kinds. ``namespace``: of the records."""
        self._client = client
        self._api = api
        self._namespace = namespace
        self._lock = threading.Lock()
        self._open: set[str] = set()
        """Names of started transactions that are not finished."""
        self._live: set[str] = set()
        """Those on which a thread is working."""
        self._ending = threading.Lock()

    def perform(self, olds: Sequence[Object], changes: Sequence[Change]) -> list[Object]:
        """Write the changes of several objects in the states ``olds``; returns their new states. Raises like
        ``transaction.perform``."""
        name = transaction.new_record_name()
        with self._lock:
            self._open.add(name)
            self._live.add(name)

        def ended() -> None:
            with self._lock:
                self._open.discard(name)

        try:
            return transaction.run_transaction(self._api, self._namespace, name, olds, changes, ended)
        finally:
            with self._lock:
                self._live.discard(name)

    def finish_abandoned(self) -> None:
        """Finish those that this process started and on which no thread is working. Raises StoreError."""
        with self._ending:
            if left := self._left():
                self._end(left, of_others=False)

    def finish_all(self) -> None:
        """Finish all, including those of other processes. Raises StoreError."""
        with self._ending:
            self._end(self._left(), of_others=True)

    def remove_stray_mark(self, obj: Object) -> None:
        """Remove the mark of an object whose record is gone: another client wrote it, or it was written after the undo.
        Raises StoreError."""
        if (mark := transaction.transaction_of(obj)) is None:
            return
        with suppress(Invalid, Conflict, NotFound):
            try:
                record = self._api.read(Key.checked(transaction.KIND, self._namespace, mark))
                if record["metadata"].get("labels", {}).get(TRANSACTION) == "record":
                    return
            except (Invalid, NotFound):
                pass
            log.warning("%s has the mark %s without a record; removing it", Key.of(obj), mark)
            self._api.write(lifecycle.with_annotations(obj, {TRANSACTION: None}))

    def _left(self) -> frozenset[str]:
        with self._lock:
            return frozenset(self._open - self._live)

    def _end(self, left: frozenset[str], *, of_others: bool) -> None:
        for record in self._records():
            with self._lock:
                is_live = record.id in self._live
            if is_live or not (of_others or record.id in left):
                continue
            log.warning("%s was abandoned in state %s; finishing it", record.id, record.state)
            try:
                transaction.recover_record(self._api, record)
            except (Conflict, NotFound) as error:
                raise Unavailable(f"another process finishes {record.id}: {error}") from error
        with self._lock:
            self._open -= left  # not those that were abandoned since then: their records may not have existed yet

    def _records(self) -> list[transaction.TransactionRecord]:
        records: list[transaction.TransactionRecord] = []
        try:
            path = RECORDS.within(self._namespace)
            for page in self._client.list(path, {"labelSelector": f"{TRANSACTION}=record"}):
                records += [transaction.parse_record(clean_object(obj, RECORDS)) for obj in page["items"]]
        except ApiError as error:
            raise translate_error(error, f"list records of transactions in namespace {self._namespace}") from error
        return records
