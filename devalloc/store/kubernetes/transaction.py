"""Several objects written as one, on an API that writes one at a time: as in Percolator, with a record beside them.

1. A *record* says what is to be written and what was there before (``writing``).
2. Each object gets the record's name as a mark, and its new annotations.
3. Each object gets its new status.
4. The record becomes ``committed``: from here on it counts.
5. The marks go, and then the record.

Who reads an object with a mark takes what it says as not yet given. A conflict before step 4 puts back what was
written, after the record became ``undoing``, so that of one who commits late and one who puts back exactly one wins.
After a crash ``recover`` does the rest of either: records are all it needs to look at, and nobody decides anything
before it has.

The record is an object of its own, in a namespace where only the controller writes: in the annotations of a claim
whoever may edit the claim would choose what is "put back" into its status.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from devalloc.api.meta import TRANSACTION
from devalloc.store.errors import Conflict, Deposed, Forbidden, Invalid, NotFound, StoreError
from devalloc.store.key import Key, Object
from devalloc.store.lifecycle import annotated, encode, with_status
from devalloc.store.protocol import Change

log = logging.getLogger(__name__)

KIND = "ConfigMap"
WRITING, COMMITTED, UNDOING = "writing", "committed", "undoing"
_TRIES = 20
"""How often a write of recovery is based on another state, because somebody writes the object again and again."""
MAX_BYTES = 900_000
"""Of a record; an object has at most 1.5 MiB, and a ConfigMap 1 MiB of data."""


class Api(Protocol):
    """What a transaction asks of the API server; each answers with the object as it is then.

    Raises Conflict where the object is not in the state that the write is based on, NotFound, and StoreError.
    """

    def read(self, key: Key) -> Object: ...
    def create(self, obj: Object) -> Object: ...
    def write(self, obj: Object) -> Object: ...
    def write_status(self, obj: Object) -> Object: ...
    def remove(self, obj: Object) -> None: ...


@dataclass(frozen=True)
class Member:
    """One object of a transaction: what is written on it, field by field, each with what was there before."""

    key: Key
    uid: str
    annotations: dict[str, tuple[str | None, str | None]]
    status: dict[str, tuple[Any, Any]]
    """By field of the status; None for none."""


@dataclass(frozen=True)
class Record:
    """What a record's object says."""

    obj: Object
    state: str
    members: tuple[Member, ...]

    @property
    def id(self) -> str:
        return str(self.obj["metadata"]["name"])

    def as_(self, state: str) -> Object:
        return {**self.obj, "data": {**self.obj["data"], "state": state}}


def mark_of(obj: Object) -> str | None:
    """The transaction that an object is in."""
    found = obj["metadata"].get("annotations", {}).get(TRANSACTION)
    return found if isinstance(found, str) else None


def new_name() -> str:
    """For a record."""
    return f"devalloc-transaction-{uuid.uuid4().hex[:12]}"


def perform(
    api: Api, namespace: str, name: str, olds: Sequence[Object], changes: Sequence[Change], ended: Callable[[], None]
) -> list[Object]:
    """Write the changes of several objects, which are as ``olds``; as they are then. ``name``: of the record.

    ``ended``: called when nothing of it is left to do; where it is not, ``recover`` is to be.
    Raises Conflict and Invalid where nothing is written in the end; StoreError where ``recover`` finds out.
    """
    members = tuple(_member(old, change) for old, change in zip(olds, changes, strict=True))
    record = api.create(_content(namespace, name, members))
    try:
        states = [
            api.write(annotated(old, {**change.annotations, TRANSACTION: name}))
            for old, change in zip(olds, changes, strict=True)
        ]
        states = [
            api.write_status(with_status(state, change.status)) if member.status else state
            for state, change, member in zip(states, changes, members, strict=True)
        ]
        record = api.write({**record, "data": {**record["data"], "state": COMMITTED}})
    except (Conflict, NotFound, Invalid, Forbidden) as error:
        try:
            undo(api, Record(record, WRITING, members))
            ended()
        except (Conflict, NotFound):
            log.warning("%s is put back by somebody else", name)
        if isinstance(error, Conflict) and error.conflicts.keys() & {change.key for change in changes}:
            raise
        if isinstance(error, (Conflict, NotFound)):
            raise Conflict({change.key: str(error) for change in changes}) from error
        raise
    try:
        # As they were when it counted, where others came between: their write is not to look like one of this.
        done = [_unmarked(api, state, name) or state for state in states]
        api.remove(record)
    except Deposed:
        raise
    except StoreError as error:
        log.warning("%s is written, and its marks are still to be taken away: %s", name, error)
        return states
    ended()
    return done


def read(obj: Object) -> Record:
    """Raises Invalid."""
    try:
        data = obj["data"]
        members = tuple(
            Member(
                Key(*each["key"]),
                str(each["uid"]),
                {name: (before, after) for name, before, after in each["annotations"]},
                {name: (before, after) for name, before, after in each["status"]},
            )
            for each in json.loads(data["members"])
        )
        if data["state"] not in (WRITING, COMMITTED, UNDOING):
            raise ValueError(data["state"])
        return Record(obj, data["state"], members)
    except (ValueError, KeyError, TypeError) as error:
        raise Invalid(f"{Key.of(obj)} is no record of a transaction: {error}; look at it, and delete it") from error


def recover(api: Api, record: Record) -> None:
    """Do the rest of a transaction that nobody does any more. Raises StoreError; it can be called again."""
    if record.state == COMMITTED:
        for member in record.members:
            state = _current(api, member)
            if state is not None:
                _unmarked(api, state, record.id)
        api.remove(record.obj)
    else:
        undo(api, record)


def undo(api: Api, record: Record) -> None:
    """Put back what was written. Raises StoreError; Conflict where the record says something else by now."""
    if record.state != UNDOING:
        record = Record(api.write(record.as_(UNDOING)), UNDOING, record.members)
    for member in record.members:
        _put_back(api, member, record.id)
    api.remove(record.obj)


def _put_back(api: Api, member: Member, name: str) -> None:
    """Each field that still has what the transaction wrote has what was there before; the mark goes last."""
    for _ in range(_TRIES):
        state = _current(api, member)
        if state is None or mark_of(state) != name:
            return
        status = {k: v for k, v in state.get("status", {}).items() if v is not None}
        for field, (before, after) in member.status.items():
            if _is_as_sent(status.get(field), after):
                status[field] = before
        annotations = {
            field: before
            for field, (before, after) in member.annotations.items()
            if state["metadata"].get("annotations", {}).get(field) == after
        }
        try:
            meant = with_status(state, {k: v for k, v in status.items() if v is not None})
            if meant.get("status") != state.get("status"):
                state = api.write_status(meant)
            api.write(annotated(state, {**annotations, TRANSACTION: None}))
            return
        except (Conflict, NotFound):
            continue
    raise Conflict({member.key: f"{member.key} keeps changing and cannot be put back"})


def _is_as_sent(stored: Any, sent: Any) -> bool:
    """Whether a field of a status has what was written: of maps the API server may have filled fields in that were left
    out, and dropped those that the kind does not have."""
    if isinstance(stored, dict) and isinstance(sent, dict):
        return all(_is_as_sent(stored[name], value) for name, value in sent.items() if name in stored)
    if isinstance(stored, list) and isinstance(sent, list):
        return len(stored) == len(sent) and all(map(_is_as_sent, stored, sent))
    return bool(stored == sent)


def _unmarked(api: Api, state: Object, name: str) -> Object | None:
    """Without its mark; None where it is gone, or somebody else has written it meanwhile: what is there then is news to
    whoever knows only what this wrote."""
    key, uid, version = (Key.of(state), *(state["metadata"][part] for part in ("uid", "resourceVersion")))
    for _ in range(_TRIES):
        if state["metadata"]["uid"] != uid or mark_of(state) != name:
            return None
        try:
            done = api.write(annotated(state, {TRANSACTION: None}))
            return done if state["metadata"]["resourceVersion"] == version else None
        except Conflict:
            pass
        except NotFound:
            return None
        try:
            state = api.read(key)
        except NotFound:
            return None
    raise Conflict({key: f"{key} keeps changing, and its mark cannot be taken away"})


def _current(api: Api, member: Member) -> Object | None:
    try:
        found = api.read(member.key)
    except NotFound:
        return None
    return found if found["metadata"]["uid"] == member.uid else None


def _member(old: Object, change: Change) -> Member:
    annotations = old["metadata"].get("annotations", {})
    before, after = old.get("status") or {}, change.status or {}
    return Member(
        change.key,
        old["metadata"]["uid"],
        {name: (annotations.get(name), value) for name, value in change.annotations.items()},
        {
            name: (before.get(name), after.get(name))
            for name in sorted(before.keys() | after.keys())
            if before.get(name) != after.get(name)
        },
    )


def _content(namespace: str, name: str, members: Sequence[Member]) -> Object:
    told = [
        {
            "key": list(member.key),
            "uid": member.uid,
            "annotations": [[name, *values] for name, values in member.annotations.items()],
            "status": [[name, *values] for name, values in member.status.items()],
        }
        for member in members
    ]
    text = encode({"members": told})
    if len(text) > MAX_BYTES:
        raise Invalid(
            f"{len(members)} objects are to be written at once, in {len(text)} bytes; the API server takes "
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
        "data": {"state": WRITING, "members": json.dumps(told)},
    }
