"""What the API server's refusals mean to a store."""

from __future__ import annotations

import re

from devalloc.store.errors import Forbidden, Invalid, NotServed, StoreError, Unavailable, Unknown
from devalloc.store.kubernetes.apierror import ApiError

_BEGINNING = ("not yet ready to handle request", "not yet synced to use for admission")
"""What an API server says that was just started, of policies and what they look at."""
_BEGINNING_RIGHTS = re.compile(r"RBAC: .* not found")
"""It has not read all roles yet; or one is missing, which whoever deleted it is to put back."""
_OF_RIGHTS = re.compile(r': User "[^"]*" cannot ')
"""Else what refuses is a policy, a quota or an admission plugin, which look at the object."""
_TOO_LARGE = ("etcdserver: request is too large", "trying to send message larger than max")


def explained(error: ApiError, what: str, *, writes: bool = False) -> StoreError:
    """The error for a request, but for one object that is not there or has changed, which the caller knows more of.
    ``what`` was to be done, as "read DeviceClaims"."""
    if error.status in (401, 403, 422) and _is_beginning(error):
        return Unavailable(f"cannot {what} yet: {error}")
    if error.status in (400, 413, 422) or (writes and (_is_too_large(error) or _is_of_object(error))):
        return Invalid(f"cannot {what}: {error}")
    if error.status in (401, 403):
        return Forbidden(f"the API server does not allow this user to {what}: {error}")
    if error.status == 404:
        return NotServed(
            f"cannot {what}: the API server does not know that kind or namespace ({error}); are devalloc's CRDs "
            "installed (`devalloc crds | kubectl apply -f -`)?"
        )
    if writes and error.is_unknown:
        return Unknown(f"whether it could {what} is not known, the answer was lost ({error}); read it again")
    return Unavailable(f"{error}; cannot {what} now" if error.is_unreachable else f"cannot {what} now: {error}")


def _is_beginning(error: ApiError) -> bool:
    """It is no answer yet: what is refused by it now another server, or this one in a moment, lets through."""
    return any(words in str(error) for words in _BEGINNING) or _BEGINNING_RIGHTS.search(str(error)) is not None


def _is_of_object(error: ApiError) -> bool:
    """A refusal that is not for want of rights, so that it is of what was written."""
    return error.status == 403 and error.reason == "Forbidden" and _OF_RIGHTS.search(str(error)) is None


def _is_too_large(error: ApiError) -> bool:
    """A write that etcd (1.5 MiB) or the API server's connection to it (2 MiB) does not take: told as an error of the
    server, but certain, for it is looked at before anything is done."""
    return error.status == 500 and any(words in str(error) for words in _TOO_LARGE)
