"""Writes of single objects through the API server, with a known result whenever possible."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from devalloc.backoff import backoff_delay
from devalloc.store import metadata_rules
from devalloc.store.errors import (
    REFUSALS,
    AlreadyExists,
    Conflict,
    Invalid,
    Key,
    NotFound,
    NotLeader,
    Object,
    StoreError,
    UnknownOutcome,
)
from devalloc.store.kubernetes.api_error import ApiError, translate_error
from devalloc.store.kubernetes.client import PAUSE_SECONDS, TRIES, Client
from devalloc.store.kubernetes.reflector import clean_object
from devalloc.store.kubernetes.resources import ApiResource, ResourceRegistry
from devalloc.store.metadata_rules import (
    changed_message,
    encode,
    finalizers,
    is_deleting,
    other_object_message,
    spec_of,
)

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
        return api.write({**first, "metadata": {**new["metadata"], "resourceVersion": _base_version(first)}})
    except (Conflict, NotFound, *REFUSALS):
        _undo_first_write(api, old, first)
        raise


def _base_version(obj: Object) -> str:
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
        meant = metadata_rules.with_labels(metadata_rules.with_annotations(now, back["annotations"]), back["labels"])
        if meant != now:
            api.write(meant)
    except StoreError as error:
        log.warning("the metadata of %s does not match its status; the next write repairs it: %s", key, error)


_USER_METADATA = ("labels", "annotations", "finalizers", "ownerReferences")


class ObjectWriter:
    """Requests for single objects. Thread-safe.

    A write names the state on which it is based, so it can be repeated if its answer is lost: at most one of the two is
    done. The result is read back. Errors: those of stores; Unknown only if the result cannot be read.
    """

    def __init__(
        self,
        client: Client,
        resources: ResourceRegistry,
        heard: Callable[[Object], None],
        may_write: Callable[[], bool] | None = None,
    ) -> None:
        """``heard``: called with each object that was read or written. ``may_write``: called before each write, which
        raises NotLeader if it returns False."""
        self._client = client
        self._resources = resources
        self._heard = heard
        self._may_write = may_write

    def read(self, key: Key) -> Object:
        """Raises NotFound."""
        resource = self._resources.at(key)
        try:
            stored = clean_object(self._client.get(resource.of(key)), resource)
        except ApiError as error:
            if error.is_not_found:
                raise NotFound(f"{key} does not exist") from None
            raise translate_error(error, f"read {key}") from error
        self._heard(stored)
        return stored

    def create(self, obj: Object) -> Object:
        """Raises AlreadyExists."""
        key = Key.of(obj)
        resource = self._resources.at(key)
        path = resource.within(key.namespace)

        def send() -> Object:
            return self._client.create(path, obj)

        for number in range(TRIES):
            try:
                return self._done(send, resource)
            except ApiError as error:
                if error.status == 409 and error.reason == "AlreadyExists":
                    there = self._read_back(key) if number else None
                    if there is not None and _same(there, obj):
                        return there  # by the previous try
                    raise AlreadyExists(f"{key} already exists") from None
                if error.is_not_found:
                    raise Invalid(f"cannot create {key}: {error}") from error
                self._go_on(error, f"create {key}", number)
                if (there := self._read_back(key)) is not None:
                    if _same(there, obj):
                        return there
                    raise AlreadyExists(f"{key} already exists") from None
        raise AssertionError("the last try raises")

    def write(self, obj: Object) -> Object:
        """Write all but the status. Raises NotFound, Conflict."""
        key = Key.of(obj)
        resource = self._resources.at(key)
        return self._replace(key, resource, resource.of(key), obj, _same)

    def write_status(self, obj: Object) -> Object:
        """Raises NotFound, Conflict."""
        key = Key.of(obj)
        resource = self._resources.at(key)
        if not resource.has_status:
            raise Invalid(f"{key}: a {key.kind} has no status")
        return self._replace(key, resource, f"{resource.of(key)}/status", obj, _same_status)

    def remove(self, obj: Object) -> None:
        """Delete this object in this state; it may already be gone."""
        with suppress(NotFound):
            self.delete(obj)

    def delete(self, obj: Object) -> Object | None:
        """Delete this object in this state; returns the object if it is only marked, None if it is gone. Raises
        Conflict if it has changed."""
        key, metadata = Key.of(obj), obj["metadata"]
        resource = self._resources.at(key)

        def send() -> Object:
            return self._client.delete(resource.of(key), metadata["uid"], metadata["resourceVersion"]) or {}

        for number in range(TRIES):
            try:
                left = self._done(send, resource, is_deleted=True)
                if not left or not _is_still_there(left):  # the API server returns a Status, or the last state
                    return None
                self._heard(left)
                return left
            except ApiError as error:
                if not error.is_conflict:
                    self._go_on(error, f"delete {key}", number)
                there = self._read_back(key)
                if there is None or there["metadata"]["uid"] != metadata["uid"]:
                    if number == 0 and error.is_conflict and there is not None:
                        raise Conflict({key: other_object_message(key, there, metadata["uid"])}) from None
                    return None
                if is_deleting(there) and not is_deleting(obj):
                    return there
                if error.is_conflict:
                    raise Conflict({key: changed_message(key, there, metadata["resourceVersion"])}) from None
        raise AssertionError("the last try raises")

    def _replace(
        self, key: Key, resource: ApiResource, path: str, obj: Object, same: Callable[[Object, Object], bool]
    ) -> Object:
        base, uid = obj["metadata"]["resourceVersion"], obj["metadata"].get("uid")
        encode(obj)

        def send() -> Object:
            return self._client.replace(path, obj)

        for number in range(TRIES):
            try:
                return self._done(send, resource)
            except ApiError as error:
                if error.is_not_found:
                    raise NotFound(f"{key} does not exist") from None
                if not error.is_conflict:
                    self._go_on(error, f"write {key}", number)
                there = self._read_back(key)
                if there is None:
                    if is_deleting(obj) and not finalizers(obj) and not error.is_conflict:
                        return obj  # the finalizer was all that kept it
                    raise NotFound(f"{key} does not exist") from None
                if uid and there["metadata"]["uid"] != uid:
                    raise Conflict({key: other_object_message(key, there, uid)}) from None
                # This write was refused and has no effect, but the previous try may have been done.
                if (number or not error.is_conflict) and there["metadata"]["resourceVersion"] != base:
                    if same(there, obj):
                        return there
                    raise Conflict({key: changed_message(key, there, base)}) from None
                if error.is_conflict:
                    raise Conflict({key: changed_message(key, there, base)}) from None
        raise AssertionError("the last try raises")

    def _done(self, send: Callable[[], Object], resource: ApiResource, *, is_deleted: bool = False) -> Object:
        if self._may_write is not None and not self._may_write():
            raise NotLeader("this process is no longer the leader; nothing more was written")
        answer = send()
        if answer.get("kind") != resource.kind or not isinstance(answer.get("metadata"), dict):
            return {}  # a Status, after a deletion
        done = clean_object(answer, resource)
        if not is_deleted:
            self._heard(done)
        return done

    def _go_on(self, error: ApiError, what: str, number: int) -> None:
        """Decide how to continue after a failed write. Returns if it may have been done; otherwise, or if that is
        impossible to determine, raises the error."""
        failed: StoreError = translate_error(error, what, writes=True)
        if not isinstance(failed, UnknownOutcome):
            if number:
                raise UnknownOutcome(f"cannot tell whether it could {what}: {error}; read it again") from error
            raise failed from error
        if number == TRIES - 1:
            raise failed from error
        if error.is_of_webhook:
            log.info("a write was refused, because a webhook could not be reached; trying again: %s", error)
        else:
            log.info("the answer to a write was lost; reading the result: %s", error)
        threading.Event().wait(max(backoff_delay(number + 1, PAUSE_SECONDS), error.retry_after))

    def _read_back(self, key: Key) -> Object | None:
        """The current state after a write with an unexpected result. Raises UnknownOutcome."""
        try:
            return self.read(key)
        except NotFound:
            return None
        except StoreError as error:
            raise UnknownOutcome(f"cannot tell the result of a write of {key}: {error}; read it again") from error


def _same(there: Object, meant: Object) -> bool:
    metadata, wanted = there["metadata"], meant["metadata"]
    return spec_of(there) == spec_of(meant) and all(
        (metadata.get(n) or None) == (wanted.get(n) or None) for n in _USER_METADATA
    )


def _same_status(there: Object, meant: Object) -> bool:
    return (there.get("status") or None) == (meant.get("status") or None)


def _is_still_there(obj: Object) -> bool:
    return is_deleting(obj) and bool(obj["metadata"].get("finalizers"))
