"""Atomic writes of several objects, on an API that writes one at a time: as in Percolator, with a separate record.

1. A *record* is created, with the new and the old content (``writing``).
2. Each object gets the record's name as a mark, and its new metadata.
3. Each object gets its new status.
4. The record becomes ``committed``: from here on it counts.
5. The marks are removed, and then the record.

Readers treat the content of an object with a mark as not allocated yet. After a conflict before step 4, the record
becomes ``undoing`` and the old content is restored, so that of a late commit and an undo exactly one wins. After a
crash ``recover_record`` finishes either one; it needs only the records, and runs before any decision.

The record is a separate object in a namespace where only the controller writes. In an annotation of a claim, users who
may edit the claim could choose what is "restored" to its status.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from devalloc.api.meta import TRANSACTION
from devalloc.store import metadata_rules
from devalloc.store.errors import (
    REFUSALS,
    Conflict,
    Invalid,
    Key,
    NotFound,
    NotLeader,
    Object,
    StoreError,
    Unavailable,
)
from devalloc.store.kubernetes.api_error import ApiError, translate_error
from devalloc.store.kubernetes.client import Client
from devalloc.store.kubernetes.object_writer import ObjectWriter
from devalloc.store.kubernetes.reflector import clean_object
from devalloc.store.kubernetes.resources import ApiResource
from devalloc.store.metadata_rules import encode, with_annotations, with_labels, with_metadata_of, with_status
from devalloc.store.protocol import Change

log = logging.getLogger(__name__)

KIND = "ConfigMap"
WRITING, COMMITTED, UNDOING = "writing", "committed", "undoing"
_TRIES = 20
"""How often recovery repeats a write if another client keeps changing the object."""
MAX_BYTES = 900_000
"""Maximum size of a record; an object has at most 1.5 MiB, and a ConfigMap 1 MiB of data."""


class TransactionApi(Protocol):
    """The requests of a transaction; each returns the new state of the object.

    Raises Conflict if the object is not in the state on which the write is based, NotFound, and StoreError.
    """

    def read(self, key: Key) -> Object: ...
    def create(self, obj: Object) -> Object: ...
    def write(self, obj: Object) -> Object: ...
    def write_status(self, obj: Object) -> Object: ...
    def remove(self, obj: Object) -> None: ...


@dataclass(frozen=True)
class TransactionMember:
    """One object of a transaction: of each changed field the old and the new content."""

    key: Key
    uid: str
    annotations: dict[str, tuple[str | None, str | None]]
    labels: dict[str, tuple[str | None, str | None]]
    status: dict[str, tuple[Any, Any]]
    """Old and new content by field of the status; None if absent."""


@dataclass(frozen=True)
class TransactionRecord:
    """The content of a record."""

    obj: Object
    state: str
    members: tuple[TransactionMember, ...]

    @property
    def id(self) -> str:
        return str(self.obj["metadata"]["name"])

    def with_state(self, state: str) -> Object:
        return {**self.obj, "data": {**self.obj["data"], "state": state}}


def transaction_of(obj: Object) -> str | None:
    """The transaction to which an object belongs."""
    mark = obj["metadata"].get("annotations", {}).get(TRANSACTION)
    return mark if isinstance(mark, str) else None


def new_record_name() -> str:
    """A new name for a record."""
    return f"devalloc-transaction-{uuid.uuid4().hex[:12]}"


def run_transaction(
    api: TransactionApi,
    namespace: str,
    name: str,
    olds: Sequence[Object],
    changes: Sequence[Change],
    ended: Callable[[], None],
) -> list[Object]:
    """Write the changes of several objects in the states ``olds``; returns their new states. ``name``: of the record.

    ``ended``: called when the transaction is complete; if not, call ``recover_record``. Raises Conflict and Invalid if
    everything was undone; StoreError if ``recover_record`` must determine the result.
    """
    members = tuple(_member(old, change) for old, change in zip(olds, changes, strict=True))
    record = api.create(_content(namespace, name, members))
    try:
        states = [
            api.write(with_annotations(with_metadata_of(old, change), {TRANSACTION: name}))
            for old, change in zip(olds, changes, strict=True)
        ]
        states = [
            api.write_status(with_status(state, change.status)) if member.status else state
            for state, change, member in zip(states, changes, members, strict=True)
        ]
        record = api.write({**record, "data": {**record["data"], "state": COMMITTED}})
    except (Conflict, NotFound, *REFUSALS) as error:
        try:
            undo_record(api, TransactionRecord(record, WRITING, members))
            ended()
        except (Conflict, NotFound):
            log.warning("another process undoes %s", name)
        if isinstance(error, Conflict) and error.conflicts.keys() & {change.key for change in changes}:
            raise
        if isinstance(error, (Conflict, NotFound)):
            raise Conflict({change.key: str(error) for change in changes}) from error
        raise
    try:
        # If others wrote in between, return the committed state: their write must not look like part of this one.
        done = [_remove_mark(api, state, name) or state for state in states]
        api.remove(record)
    except NotLeader:
        raise
    except StoreError as error:
        log.warning("%s is written, but its marks must still be removed: %s", name, error)
        return states
    ended()
    return done


def parse_record(obj: Object) -> TransactionRecord:
    """Parse a record. Raises Invalid."""
    try:
        data = obj["data"]
        members = tuple(
            TransactionMember(
                Key(*each["key"]),
                str(each["uid"]),
                *(
                    {name: (before, after) for name, before, after in each.get(part, ())}
                    for part in ("annotations", "labels", "status")
                ),
            )
            for each in json.loads(data["members"])
        )
        if data["state"] not in (WRITING, COMMITTED, UNDOING):
            raise ValueError(data["state"])
        return TransactionRecord(obj, data["state"], members)
    except (ValueError, KeyError, TypeError) as error:
        raise Invalid(f"{Key.of(obj)} is not a record of a transaction: {error}; check it, and delete it") from error


def recover_record(api: TransactionApi, record: TransactionRecord) -> None:
    """Finish an abandoned transaction. Raises StoreError; it can be called again."""
    if record.state == COMMITTED:
        for member in record.members:
            state = _current(api, member)
            if state is not None:
                _remove_mark(api, state, record.id)
        api.remove(record.obj)
    else:
        undo_record(api, record)


def undo_record(api: TransactionApi, record: TransactionRecord) -> None:
    """Undo a transaction. Raises StoreError; Conflict if the record has changed meanwhile."""
    if record.state != UNDOING:
        record = TransactionRecord(api.write(record.with_state(UNDOING)), UNDOING, record.members)
    for member in record.members:
        _restore_member(api, member, record.id)
    api.remove(record.obj)


def _restore_member(api: TransactionApi, member: TransactionMember, name: str) -> None:
    """Restore the old content of each field that still has the transaction's content; remove the mark last."""
    for _ in range(_TRIES):
        state = _current(api, member)
        if state is None or transaction_of(state) != name:
            return
        status = {k: v for k, v in state.get("status", {}).items() if v is not None}
        for field, (before, after) in member.status.items():
            if _is_as_sent(status.get(field), after):
                status[field] = before
        annotations, labels = (
            {
                field: before
                for field, (before, after) in texts.items()
                if state["metadata"].get(name, {}).get(field) == after
            }
            for name, texts in (("annotations", member.annotations), ("labels", member.labels))
        )
        try:
            meant = with_status(state, {k: v for k, v in status.items() if v is not None})
            if meant.get("status") != state.get("status"):
                state = api.write_status(meant)
            api.write(with_labels(with_annotations(state, {**annotations, TRANSACTION: None}), labels))
            return
        except (Conflict, NotFound):
            continue
    raise Conflict({member.key: f"{member.key} keeps changing, so the transaction cannot be undone"})


def _is_as_sent(stored: Any, sent: Any) -> bool:
    """Whether a field of a status has the written content. In maps, the API server may have added defaults and dropped
    unknown fields."""
    if isinstance(stored, dict) and isinstance(sent, dict):
        return all(_is_as_sent(stored[name], value) for name, value in sent.items() if name in stored)
    if isinstance(stored, list) and isinstance(sent, list):
        return len(stored) == len(sent) and all(map(_is_as_sent, stored, sent))
    return bool(stored == sent)


def _remove_mark(api: TransactionApi, state: Object, name: str) -> Object | None:
    """Remove an object's mark; None if the object is gone, or if another client has written it meanwhile, so that its
    state is new to a caller that knows only this transaction."""
    key, uid, version = (Key.of(state), *(state["metadata"][part] for part in ("uid", "resourceVersion")))
    for _ in range(_TRIES):
        if state["metadata"]["uid"] != uid or transaction_of(state) != name:
            return None
        try:
            done = api.write(with_annotations(state, {TRANSACTION: None}))
            return done if state["metadata"]["resourceVersion"] == version else None
        except Conflict:
            pass
        except NotFound:
            return None
        try:
            state = api.read(key)
        except NotFound:
            return None
    raise Conflict({key: f"{key} keeps changing, so its mark cannot be removed"})


def _current(api: TransactionApi, member: TransactionMember) -> Object | None:
    try:
        stored = api.read(member.key)
    except NotFound:
        return None
    return stored if stored["metadata"]["uid"] == member.uid else None


def _member(old: Object, change: Change) -> TransactionMember:
    annotations, labels = old["metadata"].get("annotations", {}), old["metadata"].get("labels", {})
    before, after = old.get("status") or {}, change.status or {}
    return TransactionMember(
        change.key,
        old["metadata"]["uid"],
        {name: (annotations.get(name), value) for name, value in change.annotations.items()},
        {name: (labels.get(name), value) for name, value in change.labels.items()},
        {
            name: (before.get(name), after.get(name))
            for name in sorted(before.keys() | after.keys())
            if before.get(name) != after.get(name)
        },
    )


def _content(namespace: str, name: str, members: Sequence[TransactionMember]) -> Object:
    entries = [
        {
            "key": list(member.key),
            "uid": member.uid,
            "annotations": [[name, *values] for name, values in member.annotations.items()],
            **({"labels": [[name, *values] for name, values in member.labels.items()]} if member.labels else {}),
            "status": [[name, *values] for name, values in member.status.items()],
        }
        for member in members
    ]
    text = encode({"members": entries})
    if len(text) > MAX_BYTES:
        raise Invalid(
            f"a transaction of {len(members)} objects needs {len(text)} bytes, but the API server accepts only "
            f"{MAX_BYTES}: make the group smaller"
        )
    return {
        "apiVersion": "v1",
        "kind": KIND,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {TRANSACTION: "record"},
        },
        "data": {"state": WRITING, "members": json.dumps(entries)},
    }


RECORDS = ApiResource(KIND, "", "v1", "configmaps", True, False)


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
        ``perform``."""
        name = new_record_name()
        with self._lock:
            self._open.add(name)
            self._live.add(name)

        def ended() -> None:
            with self._lock:
                self._open.discard(name)

        try:
            return run_transaction(self._api, self._namespace, name, olds, changes, ended)
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
        if (mark := transaction_of(obj)) is None:
            return
        with suppress(Invalid, Conflict, NotFound):
            try:
                record = self._api.read(Key.checked(KIND, self._namespace, mark))
                if record["metadata"].get("labels", {}).get(TRANSACTION) == "record":
                    return
            except (Invalid, NotFound):
                pass
            log.warning("%s has the mark %s without a record; removing it", Key.of(obj), mark)
            self._api.write(metadata_rules.with_annotations(obj, {TRANSACTION: None}))

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
                recover_record(self._api, record)
            except (Conflict, NotFound) as error:
                raise Unavailable(f"another process finishes {record.id}: {error}") from error
        with self._lock:
            self._open -= left  # not those that were abandoned since then: their records may not have existed yet

    def _records(self) -> list[TransactionRecord]:
        records: list[TransactionRecord] = []
        try:
            path = RECORDS.within(self._namespace)
            for page in self._client.list(path, {"labelSelector": f"{TRANSACTION}=record"}):
                records += [parse_record(clean_object(obj, RECORDS)) for obj in page["items"]]
        except ApiError as error:
            raise translate_error(error, f"list records of transactions in namespace {self._namespace}") from error
        return records
