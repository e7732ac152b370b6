"""What the API server's refusals mean to a store."""

from __future__ import annotations

from devalloc.store.errors import Forbidden, Invalid, NotServed, StoreError, Unavailable, Unknown
from devalloc.store.kubernetes.apierror import ApiError

_TOO_LARGE = ("etcdserver: request is too large", "trying to send message larger than max")


def explained(error: ApiError, what: str, *, writes: bool = False) -> StoreError:
    """The error for a request, but for one object that is not there or has changed, which the caller knows more of.
    ``what`` was to be done, as "read DeviceClaims"."""
    if error.status in (400, 413, 422) or (writes and _is_too_large(error)):
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
    return Unavailable(f"cannot {what} now: {error}")


def _is_too_large(error: ApiError) -> bool:
    """A write that etcd (1.5 MiB) or the API server's connection to it (2 MiB) does not take: told as an error of the
    server, but certain, for it is looked at before anything is done."""
    return error.status == 500 and any(words in str(error) for words in _TOO_LARGE)
