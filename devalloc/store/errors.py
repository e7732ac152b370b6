"""The errors of stores. Every message is written for users."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any, NamedTuple

from devalloc.api.fields import object_name
from devalloc.api.kinds import qualified_kind


class StoreError(Exception):
    """Base class of all errors of stores."""


class Invalid(StoreError):
    """The request is invalid: for example, a name or a required resourceVersion is missing."""


class NotFound(StoreError):
    """The object does not exist."""


class AlreadyExists(StoreError):
    """An object of this kind, namespace and name already exists."""


class Conflict(StoreError):
    """Another client changed the state on which the write was based. Read and decide again."""

    def __init__(self, conflicts: Mapping[Key, str]) -> None:
        super().__init__("; ".join(conflicts.values()))
        self.conflicts = dict(conflicts)
        """One sentence for each conflicting object."""


class WriteRejected(Conflict):
    """The store refuses this write, regardless of the state on which it is based: the same decision would be refused
    again."""

    def __init__(self, conflicts: Mapping[Key, str], why: str) -> None:
        super().__init__(conflicts)
        self.why = why
        """One sentence for the whole unit."""


class SkippedForSpace(Conflict):
    """The disk was too full for this unit, but not for others. It can be written unchanged when there is space."""

    def __init__(self, conflicts: Mapping[Key, str], why: str) -> None:
        super().__init__(conflicts)
        self.why = why
        """One sentence for the whole unit."""


class FenceBroken(Conflict):
    """The state that a decision read has changed, so the whole decision must be made again."""


class Expired(StoreError):
    """A watch cannot resume from such an old resourceVersion: deletions since then are forgotten. List again."""


class Unavailable(StoreError):
    """The store cannot do it now (disk full, read-only, busy, no answer). Nothing was written; it may succeed later."""


class NoSpace(Unavailable):
    """The file system of the store is full."""


def is_disk_full(error: BaseException) -> bool:
    """Whether the file system is full, or the user's disk quota is used up, which is equivalent."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


class KindNotServed(Unavailable):
    """The store does not serve this kind (yet)."""


class Unusable(StoreError):
    """This program cannot or must not use the file: damaged, too new, or of another program or user."""


class Damaged(Unusable):
    """The content is damaged."""


class StoreLocked(StoreError):
    """Another process runs the loops on this store."""

    def __init__(self, message: str, pid: int | None) -> None:
        super().__init__(message)
        self.pid = pid


class Forbidden(StoreError):
    """This user has no permission. Nothing was written; only an admin can change that."""


class UnknownOutcome(StoreError):
    """The answer to a write was lost: it was done, or not, or it still will be. Read again before anything else."""


class NotLeader(StoreError):
    """This process is no longer the leader, and another one may be: nothing more was written."""


REFUSALS = (Invalid, Forbidden)
"""The store has answered: it refuses this write of this object, because of a policy, a quota, a right or its content.
Writes of other objects must not wait for it."""
OBJECT_FAILURES = (*REFUSALS, UnknownOutcome)
"""Errors that concern only the object whose write failed: a loop over many objects goes on with the next one. An API
server also gives no clear answer if a webhook for this object fails."""


Object = dict[str, Any]
"""A manifest as plain JSON content: apiVersion, kind, metadata, then spec, status or other fields of the kind."""


class Key(NamedTuple):
    """Kind (``qualified_kind``), namespace (None for cluster-scoped objects) and name."""

    kind: str
    namespace: str | None
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.namespace is None else f"{self.kind} {self.namespace}/{self.name}"

    @classmethod
    def of(cls, obj: Object) -> Key:
        """The key of a manifest. Raises Invalid, with the field, if it is incomplete."""
        metadata = obj.get("metadata")
        if not isinstance(metadata, dict):
            raise Invalid("metadata: must be a map with a name")
        key = cls.checked(obj.get("kind"), metadata.get("namespace"), metadata.get("name"))
        kind = qualified_kind(key.kind, obj.get("apiVersion"))
        return key if kind == key.kind else cls.checked(kind, key.namespace, key.name)

    @classmethod
    def checked(cls, kind: object, namespace: object, name: object) -> Key:
        """The key of these values. Raises Invalid, with the field that is wrong."""
        return cls(
            _segment("kind", kind),
            None if namespace is None else _segment("metadata.namespace", namespace),
            _segment("metadata.name", name),
        )


def _segment(field: str, value: object) -> str:
    try:
        return object_name(value)
    except ValueError as error:
        raise Invalid(f"{field}: {error}") from None
