"""Writes of one object through the API server, each with an end that is known wherever it can be."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from devalloc.store.errors import AlreadyExists, Conflict, Deposed, Invalid, NotFound, StoreError, Unknown
from devalloc.store.key import Key, Object
from devalloc.store.kubernetes.answers import explained
from devalloc.store.kubernetes.apierror import ApiError
from devalloc.store.kubernetes.client import PAUSE_SECONDS, TRIES, Client
from devalloc.store.kubernetes.reflector import cleaned
from devalloc.store.kubernetes.resources import Resource, Resources
from devalloc.store.lifecycle import encode, finalizers, is_deleting, spec_of
from devalloc.store.versions import another, changed

log = logging.getLogger(__name__)

_OF_USER = ("labels", "annotations", "finalizers", "ownerReferences")


class Writing:
    """Requests for single objects. Safe to share between threads.

    A write is based on the state that it names, so that one whose answer is lost may be sent again: of the two at most
    one is done. What became of it is read back. Errors: those of the store; Unknown only where that cannot be read.
    """

    def __init__(
        self,
        client: Client,
        resources: Resources,
        heard: Callable[[Object], None],
        may_write: Callable[[], bool] | None = None,
    ) -> None:
        """``heard``: told each object as it was read or written. ``may_write``: asked before each write, for
        which Deposed is raised when it says no."""
        self._client = client
        self._resources = resources
        self._heard = heard
        self._may_write = may_write

    def read(self, key: Key) -> Object:
        """Raises NotFound."""
        resource = self._resources.at(key)
        try:
            found = cleaned(self._client.get(resource.of(key)), resource)
        except ApiError as error:
            if error.is_not_found:
                raise NotFound(f"{key} does not exist") from None
            raise explained(error, f"read {key}") from error
        self._heard(found)
        return found

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
                        return there  # by the try before
                    raise AlreadyExists(f"{key} exists already") from None
                if error.is_not_found:
                    raise Invalid(f"cannot create {key}: {error}") from error
                self._go_on(error, f"create {key}", number)
                if (there := self._read_back(key)) is not None:
                    if _same(there, obj):
                        return there
                    raise AlreadyExists(f"{key} exists already") from None
        raise AssertionError("the last try raises")

    def write(self, obj: Object) -> Object:
        """All but the status. Raises NotFound, Conflict."""
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
        """Delete this object as it is; it is no error that it is gone."""
        with suppress(NotFound):
            self.delete(obj)

    def delete(self, obj: Object) -> Object | None:
        """Delete this object as it is: what is left of it, marked; None where it is gone by this or before. Raises
        Conflict where it is not as it was."""
        key, metadata = Key.of(obj), obj["metadata"]
        resource = self._resources.at(key)

        def send() -> Object:
            return self._client.delete(resource.of(key), metadata["uid"], metadata["resourceVersion"]) or {}

        for number in range(TRIES):
            try:
                left = self._done(send, resource, is_deleted=True)
                if not left or not _is_left(left):  # the API server answers with a Status, or with what there was
                    return None
                self._heard(left)
                return left
            except ApiError as error:
                if not error.is_conflict:
                    self._go_on(error, f"delete {key}", number)
                there = self._read_back(key)
                if there is None or there["metadata"]["uid"] != metadata["uid"]:
                    if number == 0 and error.is_conflict and there is not None:
                        raise Conflict({key: another(key, there, metadata["uid"])}) from None
                    return None
                if is_deleting(there) and not is_deleting(obj):
                    return there
                if error.is_conflict:
                    raise Conflict({key: changed(key, there, metadata["resourceVersion"])}) from None
        raise AssertionError("the last try raises")

    def _replace(
        self, key: Key, resource: Resource, path: str, obj: Object, same: Callable[[Object, Object], bool]
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
                        return obj  # which was all that kept it
                    raise NotFound(f"{key} does not exist") from None
                if uid and there["metadata"]["uid"] != uid:
                    raise Conflict({key: another(key, there, uid)}) from None
                # Of a write that was refused nothing is there; but the one before it may have been done.
                if (number or not error.is_conflict) and there["metadata"]["resourceVersion"] != base:
                    if same(there, obj):
                        return there
                    raise Conflict({key: changed(key, there, base)}) from None
                if error.is_conflict:
                    raise Conflict({key: changed(key, there, base)}) from None
        raise AssertionError("the last try raises")

    def _done(self, send: Callable[[], Object], resource: Resource, *, is_deleted: bool = False) -> Object:
        if self._may_write is not None and not self._may_write():
            raise Deposed("this process may not decide any more; nothing more was written")
        answer = send()
        if answer.get("kind") != resource.kind or not isinstance(answer.get("metadata"), dict):
            return {}  # a Status, where something was deleted
        done = cleaned(answer, resource)
        if not is_deleted:
            self._heard(done)
        return done

    def _go_on(self, error: ApiError, what: str, number: int) -> None:
        """After a write that may have been done. Raises what it means where nothing was, or nobody can know."""
        failed: StoreError = explained(error, what, writes=True)
        if not isinstance(failed, Unknown):
            if number:
                raise Unknown(f"whether it could {what} is not known: {error}; read it again") from error
            raise failed from error
        if number == TRIES - 1:
            raise failed from error
        log.info("the answer to a write was lost, looking what became of it: %s", error)
        threading.Event().wait(max(PAUSE_SECONDS * 2**number, error.retry_after))

    def _read_back(self, key: Key) -> Object | None:
        """What is there after a write that ended otherwise than meant. Raises Unknown."""
        try:
            return self.read(key)
        except NotFound:
            return None
        except StoreError as error:
            raise Unknown(f"what became of a write of {key} is not known: {error}; read it again") from error


def _same(there: Object, meant: Object) -> bool:
    found, wanted = there["metadata"], meant["metadata"]
    return spec_of(there) == spec_of(meant) and all((found.get(n) or None) == (wanted.get(n) or None) for n in _OF_USER)


def _same_status(there: Object, meant: Object) -> bool:
    return (there.get("status") or None) == (meant.get("status") or None)


def _is_left(obj: Object) -> bool:
    return is_deleting(obj) and bool(obj["metadata"].get("finalizers"))
