"""What can go wrong in a store. Every message is written for the person who reads it."""

from __future__ import annotations

import errno
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from devalloc.store.key import Key


class StoreError(Exception):
    """Base of every error a store raises."""


class Invalid(StoreError):
    """The request itself makes no sense: no name, no resourceVersion where one is needed."""


class NotFound(StoreError):
    """The object does not exist."""


class AlreadyExists(StoreError):
    """An object of this kind, namespace and name exists."""


class Conflict(StoreError):
    """Somebody else changed what the write was based on. Read again and decide again."""

    def __init__(self, conflicts: Mapping[Key, str]) -> None:
        super().__init__("; ".join(conflicts.values()))
        self.conflicts = dict(conflicts)
        """One sentence for each object in the way."""


class Refused(Conflict):
    """The store does not take what was to be written, whatever it is based on: decided again as it is, it would be
    refused again."""

    def __init__(self, conflicts: Mapping[Key, str], why: str) -> None:
        super().__init__(conflicts)
        self.why = why
        """For all of it."""


class LeftOut(Conflict):
    """There was no space for it, and there was for others. Once there is, it can be written as it is."""

    def __init__(self, conflicts: Mapping[Key, str], why: str) -> None:
        super().__init__(conflicts)
        self.why = why
        """For all of it."""


class FenceBroken(Conflict):
    """What a decision read has changed, so all of it is to be made again."""


class Expired(StoreError):
    """A watch cannot resume from so old a resourceVersion: deletions since then are forgotten. List again."""


class Unavailable(StoreError):
    """The store cannot do it now (disk full, read-only, busy, no answer). Nothing was written; trying again later may
    help."""


class NoSpace(Unavailable):
    """There is no space left on the file system of the store."""


def is_disk_full(error: BaseException) -> bool:
    """Whether the file system has no space left, or the user's quota of it is used up, which comes to the same."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


class NotServed(Unavailable):
    """The store knows no objects of this kind (yet)."""


class Unusable(StoreError):
    """The file is not one this program can or may use: damaged, too new, of another program or user."""


class Damaged(Unusable):
    """What is there cannot be read as what it was."""


class Held(StoreError):
    """Another process runs the loops on this store."""

    def __init__(self, message: str, pid: int | None) -> None:
        super().__init__(message)
        self.pid = pid


class Forbidden(StoreError):
    """Whoever has the store does not allow it to this user. Nothing was written; it takes an admin to change that."""


class Unknown(StoreError):
    """A write was sent and its answer was lost: it was done, or not, or will be. Read again before anything else."""


class Deposed(StoreError):
    """This process does not decide any more, and another may: nothing more was written."""


def log_failure(log: logging.Logger, error: Exception, logged: str, what: str, delay: float) -> str:
    """Log why a loop tries again in ``delay`` seconds: errors of a store as one line, and once for as long as they stay
    the same; others are bugs and have a traceback each time.

    ``logged``: what this gave the last time, "" after a success.
    """
    is_expected = isinstance(error, StoreError)
    level = logging.DEBUG if is_expected and str(error) == logged else logging.ERROR
    log.log(level, "%s; next try in %.0f s: %s", what, delay, error, exc_info=None if is_expected else error)
    return str(error) if is_expected else ""
